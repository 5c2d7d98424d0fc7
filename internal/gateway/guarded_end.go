package gateway

import (
	"context"
	"errors"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// objection is a guard that objected.
type objection struct {
	guard  string
	mode   Mode
	detail string // numbers and ids
}

// object notes that a guard objected.
func (l *guardedLeg) object(o objection) { l.said = append(l.said, o) }

// finish gives the attempt its verdict, ends its legs, and leaves the rest to whoever waits for them to be quiet.
func (l *guardedLeg) finish(v verdict.Verdict) {
	x, f := l.walk, l.model.guarded.fleet
	x.kept = true
	x.rec.Verdict = v
	x.rec.Times[record.PhaseHold] = l.held
	x.g.metrics.attempt(v)
	if l.first && (v.OK() || l.machine.Compared()) {
		outcome := "unsaid"
		if l.machine.Compared() {
			outcome = "compared"
		}
		x.g.metrics.compared.WithLabelValues(x.model.cfg.Name, outcome).Inc()
	}
	var over func(bool)
	if l.eject && l.pair.Prefill != nil {
		over = f.Rest(l.pair, v.Code.String()+": "+v.Reason)
	}
	l.judgeWorkers(v)
	// What nobody waits for may take as long as a request may: to cut it earlier could start a late write.
	l.run.End(l.how, x.g.deadline())
	e := &guardedEnd{leg: l, rec: x.rec, over: over, said: l.said}
	e.fill()
	e.count(v)
	e.slot = x.g.ring.Put(e.rec)
	x.sent.prompt, x.sent.completion = e.rec.Tokens.DecodeSealed, e.rec.Tokens.Completion
	if x.lease != nil { // nil: a request of the gateway's own
		x.lease.Begin()
	}
	x.g.endings.Add(1)
	l.model.enter()
	if l.run.Ended() {
		e.settle()
		return
	}
	go e.settle()
}

// judgeWorkers tells the fleet which workers failed by themselves.
func (l *guardedLeg) judgeWorkers(v verdict.Verdict) {
	f := l.model.guarded.fleet
	switch {
	case v.OK():
		f.Worked(l.pair.Decode)
		if l.pair.Prefill != nil {
			f.Worked(l.pair.Prefill)
		}
	case v.Code == verdict.PeerLost || v.Code == verdict.Overloaded || v.Code == verdict.EngineFailed:
		var n *foreign.Node
		switch v.Layer {
		case verdict.Decode:
			n = l.pair.Decode
		case verdict.Prefill:
			n = l.pair.Prefill
		}
		if n == nil {
			return
		}
		f.Failed(n)
		if v.Code == verdict.PeerLost {
			f.Gap(n) // it may be another process when it is back
		}
	}
}

// guardedEnd is what remains of an attempt while its legs become quiet.
type guardedEnd struct {
	leg     *guardedLeg
	rec     record.Record
	slot    record.Slot
	said    []objection
	counted int // of said
	over    func(bool)
}

// settle reads on until nothing of the attempt moves any more: what comes late can still be an incident.
func (e *guardedEnd) settle() {
	l := e.leg
	g := l.g
	defer g.endings.Done()
	defer l.model.leave()
	quit := g.quitting
	for {
		ev, err := l.run.Next(quit)
		switch {
		case err == nil:
		case errors.Is(err, context.Canceled):
			l.run.Cut()
			quit = context.Background()
			continue
		default:
			ev = nil
		}
		if ev == nil {
			break
		}
		if act := l.hear(ev); act.Eject && e.over == nil && l.pair.Prefill != nil {
			e.over = l.model.guarded.fleet.Rest(l.pair, "decode answered a prompt that prefill refused")
		}
	}
	rep := l.run.Report()
	if rep.Cut && quit == g.quitting && !l.spoke.Has(legs.Answered) {
		l.object(objection{legs.Answered.String(), l.modes.Of(legs.Answered.String()), "the legs did not end in time"})
	}
	e.said = l.said
	e.fill()
	e.count(e.rec.Verdict)
	l.model.guarded.fleet.Done(l.pair)
	if !rep.Settled {
		g.metrics.unsettled.Inc()
		g.log.Warn("an attempt's legs did not end in time", "attempt", e.rec.Attempt, "prefill", e.rec.Pair.Prefill, "decode", e.rec.Pair.Decode)
	}
	if e.over != nil {
		e.over(rep.Settled)
	}
	g.ring.Update(e.slot, e.rec)
	g.write(e.rec)
	g.runs.drop(l.run)
	if l.lease != nil {
		g.spent(l.lease, l.tenant.Label(), e.computed(), max(int(e.rec.Tokens.Completion), l.chunks))
	}
	if l.test != nil {
		l.test <- outcome{e.rec.Verdict, e.said, rep.Settled}
	}
}

// fill adds what the legs said to the record.
func (e *guardedEnd) fill() {
	rep := e.leg.run.Report()
	r := &e.rec
	r.Tokens.PrefillComputed = uint32(max(rep.Prompt, 0))
	r.Tokens.DecodeSealed = uint32(max(rep.DecodePrompt, 0))
	r.Tokens.Completion = uint32(max(rep.Completion, 0))
	r.Times[record.PhasePrefill], r.Times[record.PhaseDecode] = rep.Prefill, rep.Decode
	r.Spoke = []record.Guard{}
	for _, o := range e.said {
		r.Spoke = append(r.Spoke, record.Guard{Name: o.guard, Observed: o.mode == Observe, Detail: o.detail})
	}
}

// count makes an incident of every objection that is not one yet.
func (e *guardedEnd) count(v verdict.Verdict) {
	l := e.leg
	for _, o := range e.said[e.counted:] {
		l.g.incident(l.model, o, e.rec)
	}
	e.counted = len(e.said)
	if v.OK() && e.counted == 0 {
		l.learn()
	}
}

// computed is the prompt tokens that count for the tenant. Where nobody counted the prompt and its client went before the legs could
// say, it counts as it was planned.
func (e *guardedEnd) computed() int {
	r := e.rec
	if r.Tokens.Planned == 0 {
		r.Tokens.Planned = uint32(e.leg.guarded.tokens / bytesPerToken)
	}
	return computed(&r)
}
