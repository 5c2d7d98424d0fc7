package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/record"
)

// adminMux is the operator's side. It has no authentication: it listens where operators are.
func (g *Gateway) adminMux() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(g.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/admin/fleet", only("GET", g.adminFleet))
	mux.HandleFunc("/admin/records", only("GET", g.adminRecords))
	mux.HandleFunc("/admin/incidents", only("GET", g.adminIncidents))
	mux.HandleFunc("/admin/incidents/", only("GET", g.adminIncidents))
	mux.HandleFunc("/admin/tenants", only("GET", g.adminTenants))
	mux.HandleFunc("/admin/models/", only("POST", g.adminModel))
	mux.HandleFunc("/admin/workers/", only("POST", g.adminWorker))
	mux.HandleFunc("/healthz", only("GET", healthz))
	mux.HandleFunc("/readyz", only("GET", g.readyz))
	mux.HandleFunc("/", notFound)
	// An operator's browser reaches this port; a page that it shows must not switch a model off through it.
	own := http.NewCrossOriginProtection()
	own.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		plainError(w, http.StatusForbidden, "a page of another site may not do this", "forbidden")
	}))
	return labelled(own.Handler(mux))
}

// fleets asks every model's fleet for its status, at the same time, in the order of the config.
func (g *Gateway) fleets(ctx context.Context, scan bool) []fleet.Status {
	c := g.catalog()
	out := make([]fleet.Status, len(c.names))
	var wg sync.WaitGroup
	for i, n := range c.names {
		wg.Go(func() { out[i] = c.models[n].fleet.Status(ctx, scan) })
	}
	wg.Wait()
	return out
}

// modelStatus is a model on /admin/fleet.
type modelStatus struct {
	fleet.Status
	Off string `json:"off,omitzero"` // the reason, while it is switched off
}

// fleetStatus is the body of /admin/fleet. Pool totals are pages over all workers that answered.
type fleetStatus struct {
	Version  string        `json:"version"`
	Unsafe   string        `json:"unsafe,omitzero"`
	Ready    bool          `json:"ready"`
	Inflight int           `json:"inflight"`
	Free     uint64        `json:"pool_free"`
	Total    uint64        `json:"pool_total"`
	Pins     uint64        `json:"pool_pins"`
	Nonzero  *uint64       `json:"pool_nonzero_bytes,omitempty"` // in free pages, with ?scan=1
	Silent   []string      `json:"unanswered"`                   // workers that are not in the totals
	Models   []modelStatus `json:"models"`
}

// scanTime is how long a scan of all free pages may take.
const scanTime = 30 * time.Second

func (g *Gateway) adminFleet(w http.ResponseWriter, r *http.Request) {
	scan, limit := r.URL.Query().Get("scan") == "1", scrapeTime
	if scan {
		limit = scanTime
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	st := fleetStatus{Version: g.cfg.Version, Unsafe: unsafeLabel(), Ready: g.Ready(), Inflight: g.requests.inFlight(), Silent: []string{}}
	if scan {
		st.Nonzero = new(uint64)
	}
	c := g.catalog()
	for _, f := range g.fleets(ctx, scan) {
		off := ""
		if m := c.find(f.Model); m != nil {
			off, _ = m.isOff()
		}
		st.Models = append(st.Models, modelStatus{f, off})
		for _, wk := range f.Workers {
			if wk.Pool == nil {
				st.Silent = append(st.Silent, wk.Name)
				continue
			}
			st.Free += uint64(wk.Pool.Free)
			st.Total += uint64(wk.Pool.Total)
			st.Pins += uint64(wk.Pool.Pins)
			if scan && wk.Pool.NonzeroFree != nil {
				*st.Nonzero += *wk.Pool.NonzeroFree
			}
		}
	}
	writeIndented(w, st)
}

// writeIndented answers an operator.
func writeIndented(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		plainError(w, http.StatusInternalServerError, "the status cannot be written", "internal_error")
		return
	}
	writeJSON(w, append(b, '\n'))
}

// adminRecords answers with the last records, newest first: {"records":[…]}. ?n= how many, ?request= only of that X-Request-Id.
func (g *Gateway) adminRecords(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	n := 100
	if s := q.Get("n"); s != "" {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 {
			plainError(w, http.StatusBadRequest, "n must be a number of at least 1", "invalid_request_error")
			return
		}
		n = v
	}
	var match func(*record.Record) bool
	if id := q.Get("request"); id != "" {
		match = func(rec *record.Record) bool { return rec.Request == id }
	}
	rs := g.ring.Last(n, match)
	if rs == nil {
		rs = []record.Record{}
	}
	b, err := json.Marshal(struct {
		Records []record.Record `json:"records"`
	}{rs})
	if err != nil {
		plainError(w, http.StatusInternalServerError, "the records cannot be written", "internal_error")
		return
	}
	writeJSON(w, append(b, '\n'))
}

// adminModel is the kill switch: POST /admin/models/NAME/off with {"reason":"…"} or ?reason=…, POST /admin/models/NAME/on.
func (g *Gateway) adminModel(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/admin/models/")
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		notFound(w, r)
		return
	}
	m, action := g.catalog().find(path[:i]), path[i+1:]
	if m == nil || action != "on" && action != "off" {
		notFound(w, r)
		return
	}
	if action == "on" {
		m.on()
		g.log.Warn("model switched on", "model", m.name)
	} else {
		reason, err := reasonOf(w, r)
		if err != nil {
			plainError(w, http.StatusBadRequest, "the body must be {reason: …}, of at most 4096 bytes", "invalid_request_error")
			return
		}
		m.turnOff(reason)
		g.log.Warn("model switched off", "model", m.name, "reason", reason)
	}
	writeJSON(w, []byte(`{"model":`+strconv.Quote(m.name)+`,"state":"`+action+"\"}\n"))
}

// reasonOf reads the operator's reason, which clients are told.
func reasonOf(w http.ResponseWriter, r *http.Request) (string, error) {
	said := struct {
		Reason string `json:"reason"`
	}{r.URL.Query().Get("reason")}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4096))
	if err != nil {
		return "", err
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &said); err != nil {
			return "", err
		}
	}
	if s := plain(said.Reason); s != "" {
		return s, nil
	}
	return "by an operator", nil
}

// plain makes an operator's words fit for a log line and an error message.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return strings.TrimSpace(s)
}
