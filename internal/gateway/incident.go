package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/record"
)

// Incident is one objection of one guard, with what an operator needs to report it: ids and numbers, no content.
type Incident struct {
	ID      string           `json:"id"`
	Time    time.Time        `json:"time"`
	Model   string           `json:"model"`
	Engine  string           `json:"engine"`
	Guard   string           `json:"guard"`
	Mode    string           `json:"mode"`
	Detail  string           `json:"detail"`
	Record  record.Record    `json:"record"`
	Workers []capacity.Facts `json:"workers"` // of the pair, as they were known
	Version string           `json:"sluice"`
}

// incidents are the last ones.
type incidents struct {
	mu   sync.Mutex
	ring []Incident
	at   int
}

const keptIncidents = 256

func (s *incidents) put(i Incident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ring) < keptIncidents {
		s.ring = append(s.ring, i)
		return
	}
	s.ring[s.at] = i
	s.at = (s.at + 1) % keptIncidents
}

// list returns them, newest first.
func (s *incidents) list() []Incident {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Incident, 0, len(s.ring))
	for i := range s.ring {
		out = append(out, s.ring[(s.at+len(s.ring)-1-i)%len(s.ring)])
	}
	return out
}

func (s *incidents) find(id string) (Incident, bool) {
	for _, i := range s.list() {
		if i.ID == id || i.Record.Attempt == id {
			return i, true
		}
	}
	return Incident{}, false
}

// incident counts, logs, keeps and announces an objection.
func (g *Gateway) incident(m *model, o objection, rec record.Record) {
	var b [8]byte
	rand.Read(b[:])
	i := Incident{
		ID: "inc-" + hex.EncodeToString(b[:]), Time: time.Now(), Model: m.name, Engine: m.guarded.cfg.Fleet.Engine,
		Guard: o.guard, Mode: o.mode.String(), Detail: o.detail, Record: rec, Version: g.cfg.Version,
	}
	for _, w := range m.fleetFacts() {
		if w.Name == rec.Pair.Prefill || w.Name == rec.Pair.Decode {
			i.Workers = append(i.Workers, w)
		}
	}
	g.incidents.put(i)
	g.metrics.incidents.WithLabelValues(i.Model, i.Guard, i.Mode, rec.Verdict.Code.String()).Inc()
	g.log.Warn("incident", "id", i.ID, "model", i.Model, "engine", i.Engine, "guard", i.Guard, "mode", i.Mode, "detail", i.Detail,
		"attempt", rec.Attempt, "request", rec.Request, "prefill", rec.Pair.Prefill, "decode", rec.Pair.Decode,
		"prefill_tokens", rec.Tokens.PrefillComputed, "decode_tokens", rec.Tokens.DecodeSealed, "verdict", rec.Verdict.Code.String())
	g.webhook.announce(i)
}

func (m *model) fleetFacts() (out []capacity.Facts) { return m.guarded.fleet.Facts() }

// adminIncidents answers with the last incidents, newest first, or with one: /admin/incidents/ID (of the incident or its attempt).
func (g *Gateway) adminIncidents(w http.ResponseWriter, r *http.Request) {
	var answer any = struct {
		Incidents []Incident `json:"incidents"`
	}{g.incidents.list()}
	if id := strings.TrimPrefix(r.URL.Path, "/admin/incidents/"); id != r.URL.Path && id != "" {
		i, ok := g.incidents.find(id)
		if !ok {
			plainError(w, http.StatusNotFound, "no such incident is kept", "not_found")
			return
		}
		answer = i
	}
	b, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		plainError(w, http.StatusInternalServerError, "the incidents cannot be written", "internal_error")
		return
	}
	writeJSON(w, append(b, '\n'))
}
