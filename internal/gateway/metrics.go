package gateway

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluicekv/sluice/internal/invariant"
	"github.com/sluicekv/sluice/internal/verdict"
)

// metrics of one gateway, in a registry of its own. Labels have few values: models of the config, codes, layers, workers.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	incidents *prometheus.CounterVec
	tokens    *prometheus.CounterVec
	webhook   *prometheus.CounterVec
	canaries  *prometheus.CounterVec
	compared  *prometheus.CounterVec
	retries   prometheus.Counter
	unsettled prometheus.Counter
	panics    prometheus.Counter
	hold      prometheus.Histogram
	firstByte prometheus.Histogram
	duration  prometheus.Histogram
}

func newMetrics(g *Gateway) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_" + name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_" + name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	seconds := func(name, help string, first float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 2, 18)})
		m.registry.MustRegister(h)
		return h
	}
	m.requests = counters("requests_total", "Replies to clients, by model, endpoint, HTTP status and verdict.", "model", "endpoint", "status", "code")
	m.attempts = counters("attempts_total", "Attempts by verdict and the layer that set it.", "code", "layer")
	m.incidents = counters("incidents_total", "What guards objected to, by guard, by its mode, and by the attempt's verdict.", "model", "guard", "mode", "code")
	m.tokens = counters("tokens_total", "Tokens that were computed.", "kind")
	m.compared = counters("first_token_total", "Replies of attempts whose first token the legs were asked about, by whether they said it: compared, or unsaid.", "model", "outcome")
	m.webhook = counters("webhook_incidents_total", "Incidents for the webhook, by what came of them: sent, failed, dropped (too many waited).", "result")
	m.canaries = counters("canaries_total", "Canaries of ejected pairs, by whether they proved themselves.", "model", "result")
	m.retries = counter("retries_total", "Second attempts, on another pair or link.")
	m.unsettled = counter("unsettled_total", "Attempts whose legs did not say in time that their pages are back.")
	m.panics = counter("panics_total", "Requests that met a broken invariant of the gateway.")
	m.hold = seconds("hold_seconds", "How long the first content was held until the legs agreed.", 1e-5)
	m.firstByte = seconds("first_byte_seconds", "From a request's head to the first byte that may leave.", 1e-3)
	m.duration = seconds("request_seconds", "From a request's head to the end of its reply.", 1e-3)
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_inflight_requests", Help: "Requests in flight."},
			func() float64 { return float64(g.requests.inFlight()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_body_bytes", Help: "Bytes of request bodies that are held."},
			func() float64 { return float64(g.bodies.held.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sluice_invariant_violations_total", Help: "Broken invariants that did not end the process. Anything but 0 is a bug."},
			func() float64 { return float64(invariant.Count()) }),
		fleetCollector{g},
	)
	if g.writer != nil {
		m.registry.MustRegister(
			prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sluice_records_written_total", Help: "Records written."},
				func() float64 { n, _ := g.writer.Counts(); return float64(n) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sluice_records_lost_total", Help: "Records lost to a full or broken disk."},
				func() float64 { _, n := g.writer.Counts(); return float64(n) }))
	}
	return m
}

func (m *metrics) attempt(v verdict.Verdict) {
	m.attempts.WithLabelValues(v.Code.String(), v.Layer.String()).Inc()
}

var (
	limitDesc  = prometheus.NewDesc("sluice_limit_tokens", "Tokens of one sequence that fit now.", []string{"model"}, nil)
	pairsDesc  = prometheus.NewDesc("sluice_pairs", "Pairs by state.", []string{"model", "state"}, nil)
	restedDesc = prometheus.NewDesc("sluice_pairs_rested_total", "Pairs that were made to rest.", []string{"model"}, nil)
	upDesc     = prometheus.NewDesc("sluice_worker_up", "1 while a worker is linked and usable.", []string{"model", "worker", "role"}, nil)
	loadDesc   = prometheus.NewDesc("sluice_worker_load_tokens", "Tokens in flight on a worker, by this gateway's count.", []string{"model", "worker", "role"}, nil)
	pagesDesc  = prometheus.NewDesc("sluice_pool_pages", "Pages of a worker's pool by state: total, free, fenced, held.", []string{"model", "worker", "role", "state"}, nil)
	pinsDesc   = prometheus.NewDesc("sluice_pool_pins", "Pins on a worker's pages.", []string{"model", "worker", "role"}, nil)
)

// fleetCollector asks the workers for their accounting when it is scraped.
type fleetCollector struct{ g *Gateway }

// scrapeTime is how long a scrape waits for workers.
const scrapeTime = 2 * time.Second

func (c fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{limitDesc, pairsDesc, restedDesc, upDesc, loadDesc, pagesDesc, pinsDesc} {
		ch <- d
	}
}

func (c fleetCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	for _, st := range c.g.fleets(ctx, false) {
		gauge(limitDesc, float64(st.Limit.Tokens), st.Model)
		ch <- prometheus.MustNewConstMetric(restedDesc, prometheus.CounterValue, float64(st.Rested), st.Model)
		states := map[string]int{"usable": 0, "down": 0, "refused": 0, "resting": 0}
		for _, p := range st.Pairs {
			states[p.State]++
		}
		for s, n := range states {
			gauge(pairsDesc, float64(n), st.Model, s)
		}
		for _, w := range st.Workers {
			up := 0.0
			if w.State == "up" && !w.Draining {
				up = 1
			}
			id := []string{st.Model, w.Name, string(w.Role)}
			gauge(upDesc, up, id...)
			gauge(loadDesc, float64(w.Load), id...)
			if p := w.Pool; p != nil {
				for s, n := range map[string]uint32{"total": p.Total, "free": p.Free, "fenced": p.Fenced, "held": p.Held} {
					gauge(pagesDesc, float64(n), st.Model, w.Name, string(w.Role), s)
				}
				gauge(pinsDesc, float64(p.Pins), id...)
			}
		}
	}
}
