package gateway

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/tenant"
	"github.com/sluicekv/sluice/internal/gateway/upstream"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

const verdictHeader = "X-Sluice-Verdict"

// verdictText is the header's value: the code and the layer, and no words.
func verdictText(v verdict.Verdict) string { return v.Code.String() + "; layer=" + v.Layer.String() }

// refuse answers a request that never had an attempt on a pair, and records it.
func (x *walk) refuse(v verdict.Verdict, param string) {
	x.g.metrics.refusals.WithLabelValues(x.asked.model, v.Code.String(), v.Layer.String()).Inc()
	x.record(v)
	x.respond(v, param)
}

// answer tells the client an attempt's verdict; its record is made.
func (x *walk) answer(v verdict.Verdict) { x.respond(v, openai.Param(v.Code, x.endpoint)) }

// respond is the only place where a verdict becomes a status and an error body.
func (x *walk) respond(v verdict.Verdict, param string) {
	x.replied = true
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(verdictHeader, verdictText(v))
	if v.Status == http.StatusTooManyRequests || v.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", retryAfter(x.wait))
	}
	challenge(h, v)
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(x.g.limits.Write))
	body := appendError(nil, x.endpoint, v, param)
	unread := x.unread()
	if unread {
		h.Set("Connection", "close")
		h.Set("Content-Length", strconv.Itoa(len(body)))
		_ = control.EnableFullDuplex() // HTTP/2 is, always
	}
	x.w.WriteHeader(v.Status)
	x.w.Write(body)
	x.count(v, v.Status)
	if unread && control.Flush() == nil {
		x.linger(control)
	}
}

// count counts a reply by what the client saw of it.
func (x *walk) count(v verdict.Verdict, status int) {
	if x.test != nil {
		return
	}
	x.sent.verdict, x.sent.status = v, status
	x.g.metrics.tenantRequests.WithLabelValues(x.tenant.Label(), strconv.Itoa(status)).Inc()
	x.g.metrics.requests.WithLabelValues(x.asked.model, x.endpoint.String(), strconv.Itoa(status), v.Code.String()).Inc()
	x.g.metrics.duration.Observe(time.Since(x.start).Seconds())
}

// record writes the record of an attempt that was on no pair, unless it has one.
func (x *walk) record(v verdict.Verdict) {
	if x.kept {
		return
	}
	x.kept = true
	x.rec.Verdict = v
	if x.rec.Spoke == nil {
		x.rec.Spoke = []record.Guard{}
		if g := guardOf(v.Code); g != 0 {
			x.rec.Spoke = append(x.rec.Spoke, record.Guard{Name: g.String(), Detail: v.Reason})
		}
	}
	x.g.metrics.attempt(v)
	x.g.ring.Put(x.rec)
	x.g.write(x.rec)
}

func (g *Gateway) write(r record.Record) {
	if g.writer != nil {
		g.writer.Write(r)
	}
}

// guardOf names the guard behind a code.
func guardOf(c verdict.Code) guard.Guard {
	switch c {
	case verdict.ContextLength:
		return guard.Admission
	case verdict.GateRefused:
		return guard.Gate
	case verdict.MACMismatch, verdict.RootMismatch:
		return guard.MAC
	case verdict.CountMismatch, verdict.DigestMismatch:
		return guard.Count
	case verdict.EchoMismatch:
		return guard.Echo
	case verdict.TagMismatch:
		return guard.Tag
	case verdict.ZeroViolation:
		return guard.Zero
	case verdict.LegsDisagree:
		return guard.Hold
	}
	return 0
}

// spoke is the guards that objected to the attempt.
func (l *leg) spoke() []record.Guard {
	out := []record.Guard{}
	for n := range l.machine.Spoke().All {
		if g := n.Guard(); g != "" {
			out = append(out, record.Guard{Name: g, Detail: n.String()})
		}
	}
	v := l.machine.Verdict()
	no, byLeg := l.heard.(legs.LegError)
	switch g := guardOf(v.Code); {
	case len(out) > 0 || v.OK():
	case g != 0:
		out = append(out, record.Guard{Name: g.String(), Detail: v.Reason})
	case byLeg && no.Leg == legs.Prefill:
		name := guard.Verdict
		if guard.Off(guard.Verdict) {
			name = guard.Hold
		}
		out = append(out, record.Guard{Name: name.String(), Detail: v.Reason})
	}
	return out
}

// ending joins the two ends of an attempt: its verdict, from the walk, and that its legs are quiet, from its links. The record is in
// memory from the verdict on, and is written when both are there.
type ending struct {
	g     *Gateway
	pair  fleet.Pair
	run   upstream.Run
	lease *tenant.Lease
	label string // of the tenant

	mu      sync.Mutex
	rec     record.Record
	slot    record.Slot
	decided bool
	isQuiet bool
}

func newEnding(x *walk, p fleet.Pair) *ending {
	g := x.g
	g.endings.Add(1)
	x.lease.Begin()
	return &ending{g: g, lease: x.lease, label: x.tenant.Label(), pair: p}
}

// finish is called once, by the walk.
func (e *ending) finish(x *walk, v verdict.Verdict) {
	x.kept = true
	x.rec.Verdict = v
	e.g.metrics.attempt(v)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rec, e.decided = x.rec, true
	e.fill()
	x.sent.prompt, x.sent.completion = e.rec.Tokens.DecodeSealed, e.rec.Tokens.Completion
	e.slot = e.g.ring.Put(e.rec)
	if e.isQuiet {
		e.close()
	}
}

// quiet is called once, by the run.
func (e *ending) quiet() {
	e.pair.Done()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.isQuiet = true
	if e.decided {
		e.fill()
		e.g.ring.Update(e.slot, e.rec)
		e.close()
	}
}

// close writes the record. Called under mu, once both ends are there.
func (e *ending) close() {
	if !e.run.Report().Settled {
		e.g.metrics.unsettled.Inc()
		e.g.log.Warn("an attempt's legs did not say that its pages are back", "attempt", e.rec.Attempt, "prefill", e.rec.Pair.Prefill, "decode", e.rec.Pair.Decode)
	}
	e.g.write(e.rec)
	e.g.spent(e.lease, e.label, computed(&e.rec), int(e.rec.Tokens.Completion))
	e.g.endings.Done()
}

// fill adds what the legs said.
func (e *ending) fill() {
	rep := e.run.Report()
	r := &e.rec
	r.Tokens.PrefillComputed, r.Tokens.DecodeSealed, r.Tokens.Completion = rep.PrefillComputed, rep.DecodeSealed, rep.Completion
	r.Pages.Reserved, r.Pages.Written, r.Pages.Held = rep.Reserved, rep.Written, rep.Held
	r.ManifestRoot = record.Hash(rep.Root)
	r.Times[record.PhaseReserve], r.Times[record.PhasePrefill], r.Times[record.PhaseSeal] = rep.Reserve, rep.Prefill, rep.Seal
	r.Times[record.PhaseDecode], r.Times[record.PhaseSettle] = rep.Decode, rep.Settle
}
