package gateway

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluicekv/sluice/internal/invariant"
	"github.com/sluicekv/sluice/internal/verdict"
)

// metrics of one gateway, in a registry of its own. Labels have few values: models and workers of the config, codes, layers, and the
// first tenants of the key file (tenant.MaxLabels). docs/metrics.md lists them all; a test holds it to this file.
type metrics struct {
	registry *prometheus.Registry
	abouts   []metricAbout

	requests  *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	incidents *prometheus.CounterVec
	refusals  *prometheus.CounterVec
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

	tenantRequests *prometheus.CounterVec
	tenantRefusals *prometheus.CounterVec
	tenantTokens   *prometheus.CounterVec
	renewFailures  *prometheus.CounterVec
	renewed        *prometheus.GaugeVec
}

// metricAbout is what documentation says of a metric.
type metricAbout struct {
	Name, Kind, Help string
	Labels           []string
}

func newMetrics(g *Gateway) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	about := func(kind, name, help string, labels ...string) string {
		name = "sluice_" + name
		m.abouts = append(m.abouts, metricAbout{name, kind, help, labels})
		return name
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: about("counter", name, help, labels...), Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: about("counter", name, help), Help: help})
		m.registry.MustRegister(c)
		return c
	}
	seconds := func(name, help string, first float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: about("histogram", name, help), Help: help, Buckets: prometheus.ExponentialBuckets(first, 2, 18)})
		m.registry.MustRegister(h)
		return h
	}
	gauge := func(name, help string, f func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: about("gauge", name, help), Help: help}, f))
	}
	counted := func(name, help string, f func() float64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: about("counter", name, help), Help: help}, f))
	}
	m.requests = counters("requests_total", "Replies to clients, by model, endpoint, HTTP status and verdict.", "model", "endpoint", "status", "code")
	m.attempts = counters("attempts_total", "Attempts by verdict and the layer that set it.", "code", "layer")
	m.incidents = counters("incidents_total", "What guards objected to, by guard, by its mode, and by the attempt's verdict.", "model", "guard", "mode", "code")
	m.refusals = counters("admission_refusals_total", "Requests that were refused before a leg was asked, by verdict and the layer that set it.", "model", "code", "layer")
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
	m.tenantRequests = counters("tenant_requests_total", "Replies by tenant and HTTP status. Tenants beyond the first 1000 of the key file are other.", "tenant", "status")
	m.tenantRefusals = counters("tenant_refusals_total", "Requests over a limit of their tenant: concurrency, requests or tokens.", "tenant", "limit")
	m.tenantTokens = counters("tenant_tokens_total", "Tokens that were computed for a tenant: prompt or completion.", "tenant", "kind")
	m.renewFailures = counters("renew_failures_total", "Key files and certificates that changed and could not be read: what was before still counts.", "what")
	m.renewed = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: about("gauge", "renew_ok", "1 while the key file or certificates in use are those on disk, as far as they were read.", "what"),
		Help: "1 while the key file or certificates in use are those on disk, as far as they were read.",
	}, []string{"what"})
	m.registry.MustRegister(m.renewed)
	gauge("inflight_requests", "Requests in flight.", func() float64 { return float64(g.requests.inFlight()) })
	gauge("body_bytes", "Bytes of request bodies that are held.", func() float64 { return float64(g.bodies.held.Load()) })
	gauge("held_bytes", "Bytes of replies of other engines that are held, until the legs agree or the client takes them.", func() float64 { return float64(g.runs.held()) })
	gauge("draining", "1 once the gateway refuses new requests and lets finish what is in flight.", func() float64 {
		if g.requests.closed() {
			return 1
		}
		return 0
	})
	gauge("ready", "1 while a pair of a model that is on can serve, and the gateway does not drain.", func() float64 {
		if g.Ready() {
			return 1
		}
		return 0
	})
	counted("invariant_violations_total", "Broken invariants that did not end the process. Anything but 0 is a bug.", func() float64 { return float64(invariant.Count()) })
	if g.writer != nil {
		counted("records_written_total", "Records written.", func() float64 { n, _ := g.writer.Counts(); return float64(n) })
		counted("records_lost_total", "Records lost to a full or broken disk.", func() float64 { _, n := g.writer.Counts(); return float64(n) })
	}
	if g.access != nil {
		counted("access_log_lost_total", "Lines of the access log lost to a full, slow or broken disk.", func() float64 { return float64(g.access.lost()) })
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: about("gauge", "build_info", "1, with the version in a label; unsafe says that guards are out in this build.", "version", "unsafe"), Help: "1, with the version in a label; unsafe says that guards are out in this build.",
	}, []string{"version", "unsafe"})
	build.WithLabelValues(g.cfg.Version, unsafeLabel()).Set(1)
	m.registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newFleetCollector(g, about))
	return m
}

func (m *metrics) attempt(v verdict.Verdict) {
	m.attempts.WithLabelValues(v.Code.String(), v.Layer.String()).Inc()
}

func (m *metrics) tenantRefused(tenant, limit string) {
	m.tenantRefusals.WithLabelValues(tenant, limit).Inc()
}

func (m *metrics) computed(tenant string, prompt, completion int) {
	m.tokens.WithLabelValues("prompt").Add(float64(prompt))
	m.tokens.WithLabelValues("completion").Add(float64(completion))
	m.tenantTokens.WithLabelValues(tenant, "prompt").Add(float64(prompt))
	m.tenantTokens.WithLabelValues(tenant, "completion").Add(float64(completion))
}

// forget removes the series of tenants that are gone.
func (m *metrics) forget(tenants []string) {
	for _, t := range tenants {
		for _, v := range []*prometheus.CounterVec{m.tenantRequests, m.tenantRefusals, m.tenantTokens} {
			v.DeletePartialMatch(prometheus.Labels{"tenant": t})
		}
	}
}

// fleetCollector asks the workers for their accounting when it is scraped.
type fleetCollector struct {
	g                                                                       *Gateway
	limit, pairs, rested, up, load, inflight, pages, pins, off, certificate *prometheus.Desc
}

func newFleetCollector(g *Gateway, about func(kind, name, help string, labels ...string) string) *fleetCollector {
	desc := func(kind, name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(about(kind, name, help, labels...), help, labels, nil)
	}
	return &fleetCollector{
		g:           g,
		limit:       desc("gauge", "limit_tokens", "Tokens of one sequence that fit now.", "model"),
		pairs:       desc("gauge", "pairs", "Pairs by state: usable, down, refused (they differ), resting (ejected).", "model", "state"),
		rested:      desc("counter", "pairs_rested_total", "Pairs that were made to rest.", "model"),
		up:          desc("gauge", "worker_up", "1 while a worker is linked and usable.", "model", "worker", "role"),
		load:        desc("gauge", "worker_load_tokens", "Tokens in flight on a worker, by this gateway's count.", "model", "worker", "role"),
		inflight:    desc("gauge", "inflight_tokens", "Tokens in flight of a model: prompts and the longest replies that were asked for.", "model"),
		pages:       desc("gauge", "pool_pages", "Pages of a worker's pool by state: total, free, fenced, held.", "model", "worker", "role", "state"),
		pins:        desc("gauge", "pool_pins", "Pins on a worker's pages.", "model", "worker", "role"),
		off:         desc("gauge", "model_off", "1 while a model is switched off by an operator.", "model"),
		certificate: desc("gauge", "certificate_expiry_timestamp_seconds", "When a certificate that the gateway shows ends, in seconds since 1970.", "use"),
	}
}

// scrapeTime is how long a scrape waits for workers.
const scrapeTime = 2 * time.Second

// Describe lists what may be collected.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.limit, c.pairs, c.rested, c.up, c.load, c.inflight, c.pages, c.pins, c.off, c.certificate} {
		ch <- d
	}
}

// Collect asks and tells.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	for _, st := range c.g.fleets(ctx, false) {
		gauge(c.limit, float64(st.Limit.Tokens), st.Model)
		ch <- prometheus.MustNewConstMetric(c.rested, prometheus.CounterValue, float64(st.Rested), st.Model)
		states := map[string]int{"usable": 0, "down": 0, "refused": 0, "resting": 0}
		for _, p := range st.Pairs {
			states[p.State]++
		}
		for s, n := range states {
			gauge(c.pairs, float64(n), st.Model, s)
		}
		inflight := 0
		for _, w := range st.Workers {
			up := 0.0
			if w.State == "up" && !w.Draining {
				up = 1
			}
			if w.Role != "prefill" {
				inflight += w.Load
			}
			id := []string{st.Model, w.Name, string(w.Role)}
			gauge(c.up, up, id...)
			gauge(c.load, float64(w.Load), id...)
			if p := w.Pool; p != nil {
				for s, n := range map[string]uint32{"total": p.Total, "free": p.Free, "fenced": p.Fenced, "held": p.Held} {
					gauge(c.pages, float64(n), st.Model, w.Name, string(w.Role), s)
				}
				gauge(c.pins, float64(p.Pins), id...)
			}
		}
		gauge(c.inflight, float64(inflight), st.Model)
	}
	for m := range c.g.catalog().all {
		v := 0.0
		if _, off := m.isOff(); off {
			v = 1
		}
		gauge(c.off, v, m.name)
	}
	for use, at := range c.g.certificates() {
		gauge(c.certificate, float64(at.Unix()), use)
	}
}
