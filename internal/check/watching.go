package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/finding"
	"github.com/sluicekv/sluice/internal/check/report"
	"github.com/sluicekv/sluice/internal/check/source"
)

// watcher holds the metrics of --watch.
type watcher struct {
	findings *prometheus.GaugeVec
	node     map[string]*prometheus.GaugeVec
	exit     prometheus.Gauge
	last     prometheus.Gauge
	runs     prometheus.Counter
	restarts *prometheus.CounterVec
}

func newWatcher(r prometheus.Registerer) *watcher {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "sluice_check", Name: name, Help: help}, labels)
		r.MustRegister(g)
		return g
	}
	w := &watcher{
		findings: gauge("findings", "Findings that are not waived, by id and severity.", "id", "severity"),
		node: map[string]*prometheus.GaugeVec{
			"pool":    gauge("pool_tokens", "KV pool of a node, in tokens.", "node", "role"),
			"context": gauge("context_tokens", "Context of a node, in tokens.", "node", "role"),
			"limit":   gauge("limit_tokens", "Tokens of one sequence that a node holds.", "node", "role"),
		},
		exit:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "sluice_check", Name: "exit_code", Help: "Exit code that a single check would have."}),
		last:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "sluice_check", Name: "last_run_timestamp_seconds", Help: "When the last check ended."}),
		runs:     prometheus.NewCounter(prometheus.CounterOpts{Namespace: "sluice_check", Name: "runs_total", Help: "Checks made."}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sluice_check", Name: "restarts_total", Help: "Restarts of a node that were seen."}, []string{"node"}),
	}
	r.MustRegister(w.exit, w.last, w.runs, w.restarts)
	return w
}

// show sets the metrics to a result.
func (w *watcher) show(r report.Result, inv source.Inventory, at time.Time) {
	w.findings.Reset()
	for _, g := range w.node {
		g.Reset()
	}
	for _, f := range r.Findings {
		if f.Waived == "" && f.Severity > finding.Info {
			w.findings.WithLabelValues(f.ID, f.Severity.String()).Inc()
		}
	}
	for _, n := range inv.Nodes {
		cf := n.Capacity(0)
		if cf.PoolTokens > 0 {
			w.node["pool"].WithLabelValues(n.Name, string(cf.Role)).Set(float64(cf.PoolTokens))
		}
		if cf.Context > 0 {
			w.node["context"].WithLabelValues(n.Name, string(cf.Role)).Set(float64(cf.Context))
		}
		if cf.PoolTokens > 0 && cf.Context > 0 {
			w.node["limit"].WithLabelValues(n.Name, string(cf.Role)).Set(float64(capacity.Node(cf).Tokens))
		}
	}
	w.exit.Set(float64(r.Exit))
	w.last.Set(float64(at.Unix()))
	w.runs.Inc()
}

// boot is what tells one start of a node from another.
func boot(n *facts.Node) string {
	return n.Text(facts.BootTime) + "|" + n.Text(facts.Version) + "|" + n.Text(facts.Pool) + "|" + n.Text(facts.Context) + "|" + n.Text(facts.Role)
}

// watch checks at every interval until the context ends. A report is written when it changes; a node that has restarted
// is named. The last exit code is the result.
func watch(ctx context.Context, o Options, stdin io.Reader, stdout, stderr io.Writer) int {
	for _, a := range o.Args {
		if a == "-" {
			return fail(usage("--watch cannot read standard input twice"), stderr)
		}
	}
	if o.Watch < time.Second {
		return fail(usage("--interval %s is shorter than a second", o.Watch), stderr)
	}
	reg := prometheus.NewRegistry()
	w := newWatcher(reg)
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fail(usage("--listen: %v", err), stderr)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	fmt.Fprintf(stderr, "watching; metrics on http://%s/metrics\n", l.Addr())
	defer func() {
		err := srv.Close()
		if err := errors.Join(err, <-served); err != nil && !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(stderr, "sluice check: metrics:", err)
		}
	}()
	return w.loop(ctx, o, stdin, stdout, stderr)
}

func (w *watcher) loop(ctx context.Context, o Options, stdin io.Reader, stdout, stderr io.Writer) int {
	boots := map[string]string{}
	var before []byte
	exit := ExitBlind
	tick := time.NewTicker(o.Watch)
	defer tick.Stop()
	o.Terminal = false
	for {
		r, inv, err := examine(ctx, o, stdin, stderr)
		switch {
		case ctx.Err() != nil:
			return exit
		case errors.Is(err, ErrUsage):
			return fail(err, stderr)
		case err != nil:
			fmt.Fprintln(stderr, "sluice check:", err)
		default:
			for _, n := range inv.Nodes {
				if len(n.Facts) == 0 {
					continue
				}
				if b, ok := boots[n.ID]; ok && b != boot(n) {
					w.restarts.WithLabelValues(n.Name).Inc()
					fmt.Fprintf(stdout, "%s: %s has restarted\n", o.now().UTC().Format(time.RFC3339), report.Clean(n.Name))
				}
				boots[n.ID] = boot(n)
			}
			w.show(r, inv, o.now())
			exit = r.Exit
			var b bytes.Buffer
			if err := report.Write(&b, o.Format, r, report.TableOptions{Color: o.Color, Width: o.Width, All: o.All}, o.Details); err != nil {
				fmt.Fprintln(stderr, "sluice check:", err)
			}
			if !bytes.Equal(b.Bytes(), before) {
				before = bytes.Clone(b.Bytes())
				if _, err := stdout.Write(before); err != nil {
					return ExitBlind
				}
			}
		}
		select {
		case <-ctx.Done():
			return exit
		case <-tick.C:
		}
	}
}
