// Package native is the adapter of our own workers: it drives an attempt's handoff.Gateway over two control links, and says to
// gateway/legs what the legs said.
//
// The handoff machine orders the protocol (decode's plan first, prefill's when decode holds pages, who is aborted, when both are
// quiet) and leaves the trace; the reconcile machine decides about the reply. Where the first ends an attempt for a reason of its
// own (a frame that the protocol has no place for), the second hears it as that leg's breach.
//
// Frames come from the links' readers and are only noted here; nothing in this package blocks them. What waits for the
// client is bounded by the plan: max_tokens ids. Lock order: Run.mu, then a session's.
package native

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// Engine starts attempts on native pairs.
type Engine struct {
	Trace trace.Recorder // nil: off
	// SettleWithin is how long after the verdict the legs may take to say that their pages are back; then the attempt is given
	// up on, which is counted by whoever reads the report. 0 is 30 s.
	SettleWithin time.Duration
}

var _ upstream.Engine = (*Engine)(nil)

// Row is legs.Native.
func (e *Engine) Row() legs.Engine { return legs.Native }

// Run is an attempt on a native pair.
type Run struct {
	engine   *Engine
	plan     admission.Plan
	deadline time.Time
	sessions [2]link // by legs.Leg
	macKey   [32]byte
	wake     chan struct{}

	mu       sync.Mutex
	machine  handoff.Gateway
	trace    trace.Thread
	verdict  verdict.Verdict // that aborts carry
	prompt   []int32         // until prefill has it
	events   []legs.Event    // not taken yet
	output   []int32         // not taken yet
	stop     bool            // a stop string was found before the machine looks at output
	quiet    func()          // nil once it was called
	giveUp   *time.Timer
	report   upstream.Report
	began    time.Time
	reserved time.Time
	finished time.Time // prefill's verdict
	sealed   time.Time
	over     time.Time
}

// link is what an attempt needs of a fleet.Session. Nothing of it blocks; an error means that the link has ended.
type link interface {
	Attach(attempt.ID, fleet.Sink) error
	Detach(attempt.ID)
	SendPlan(p admission.Plan, macKey [32]byte) error
	Send(wire.Frame)
	Name() string
}

// Start implements upstream.Engine.
func (e *Engine) Start(a upstream.Attempt, quiet func()) upstream.Run {
	return e.start(a, [2]link{a.Pair.Prefill, a.Pair.Decode}, quiet)
}

func (e *Engine) start(a upstream.Attempt, sessions [2]link, quiet func()) *Run {
	r := &Run{
		engine: e, plan: a.Ticket.Plan(), deadline: a.Deadline, sessions: sessions,
		wake: make(chan struct{}, 1), prompt: a.IDs, quiet: quiet, began: time.Now(),
	}
	rand.Read(r.macKey[:])
	var out handoff.Effects
	r.machine, out = handoff.NewGateway(r.plan.PromptTokens)
	// The machine is there before the first Attach, and all from there on is one critical section: a link that is lost meanwhile waits, and
	// is then heard by a machine whose first steps are done.
	r.mu.Lock()
	for l, s := range r.sessions {
		if s.Attach(r.plan.Attempt, leg{r, legs.Leg(l)}) != nil {
			// Nothing was asked of anyone.
			r.events = append(r.events, legs.LegLost{Leg: legs.Leg(l), Reason: fmt.Sprintf("the control link to %s %s ended", legs.Leg(l), s.Name())})
			r.report.Settled = true
			r.quiet = nil
			r.mu.Unlock()
			r.leave(quiet)
			return r
		}
	}
	r.trace = trace.Begin(e.Trace, 0, trace.Gateway, r.plan.Attempt, r.plan.PromptTokens, 0, uint8(r.machine.State), r.machine.Digest())
	r.perform(out)
	r.finish()
	return r
}

// leg is a Run as one of its links knows it.
type leg struct {
	run *Run
	leg legs.Leg
}

// Frame implements fleet.Sink.
func (l leg) Frame(f wire.Frame) { l.run.do(func() { l.run.hear(l.leg, f) }) }

// Lost implements fleet.Sink.
func (l leg) Lost(reason string) {
	l.run.do(func() {
		l.run.tell(legs.LegLost{Leg: l.leg, Reason: reason})
		l.run.step(l.leg, handoff.PeerLost{From: who(l.leg)}, reason)
	})
}

func who(l legs.Leg) handoff.Who {
	if l == legs.Prefill {
		return handoff.PrefillLeg
	}
	return handoff.DecodeLeg
}

// do runs f under the lock, wakes who waits for events, and calls quiet if f made the attempt so.
func (r *Run) do(f func()) {
	r.mu.Lock()
	if r.quiet == nil {
		r.mu.Unlock()
		return // given up on, or quiet: nobody listens
	}
	f()
	r.finish()
}

// finish ends a critical section: see do.
func (r *Run) finish() {
	var quiet func()
	if r.machine.State == handoff.GatewayQuiet {
		quiet, r.quiet = r.quiet, nil
		r.report.Settled, r.report.Settle = true, time.Since(r.over)
		if r.giveUp != nil {
			r.giveUp.Stop()
		}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	if quiet != nil {
		r.leave(quiet)
	}
}

func (r *Run) leave(quiet func()) {
	for _, s := range r.sessions {
		s.Detach(r.plan.Attempt)
	}
	quiet()
}

// tell queues an event. Neighbouring content is one event.
func (r *Run) tell(e legs.Event) {
	if b, ok := e.(legs.LegBytes); ok && len(r.events) > 0 {
		if last, ok := r.events[len(r.events)-1].(legs.LegBytes); ok && last.Leg == b.Leg {
			last.N += b.N
			r.events[len(r.events)-1] = last
			return
		}
	}
	r.events = append(r.events, e)
}

// step feeds the handoff machine, traces the step and performs its effects.
func (r *Run) step(l legs.Leg, e handoff.Event, what string) (out handoff.Effects) {
	before := r.machine
	r.machine, out = before.Step(e)
	if r.trace.On() {
		r.trace.Record(e.Trace(), uint8(r.machine.State), r.machine.Digest())
	}
	for x := range out.All() {
		if v, ok := x.(handoff.SetVerdict); ok {
			r.ended(l, v, before.State, what)
		}
	}
	r.perform(out)
	return out
}

// ended notes the handoff machine's verdict. A no of its own is told as the leg's breach; where the leg's own words were told
// before, those decide.
func (r *Run) ended(l legs.Leg, v handoff.SetVerdict, in handoff.GatewayState, what string) {
	r.over = time.Now()
	within := r.engine.SettleWithin
	if within <= 0 {
		within = 30 * time.Second
	}
	r.giveUp = time.AfterFunc(within, r.abandon)
	if v.Code == verdict.OK || !r.verdict.IsZero() {
		return
	}
	r.verdict = verdict.Of(v.Code, v.Layer, "%s %s: %s, while %s", l, r.sessions[l].Name(), what, in)
	r.tell(legs.LegBroke{Leg: l, Verdict: r.verdict})
}

// abandon ends the wait for legs that do not settle.
func (r *Run) abandon() {
	r.mu.Lock()
	quiet := r.quiet
	r.quiet = nil
	if quiet != nil && r.trace.On() {
		r.trace.Record(trace.Args{Step: trace.GivenUp}, uint8(r.machine.State), r.machine.Digest())
	}
	r.mu.Unlock()
	if quiet != nil {
		r.leave(quiet)
	}
}

// perform does what the handoff machine asks for. Nothing here blocks.
func (r *Run) perform(out handoff.Effects) {
	for x := range out.All() {
		switch x := x.(type) {
		case handoff.SendPlan:
			r.sendPlan(x.To)
		case handoff.SendAbort:
			r.session(x.To).Send(wire.Abort{Attempt: r.plan.Attempt, Verdict: r.verdict})
		case handoff.SendStop:
			r.sessions[legs.Decode].Send(wire.Stop{Attempt: r.plan.Attempt})
		case handoff.ReleaseHeld:
			if r.stop && !r.machine.Over() {
				r.step(legs.Decode, handoff.StopFound{}, "")
			}
		case handoff.SetVerdict, handoff.HoldOutput, handoff.PassOutput, handoff.SwallowOutput, handoff.RestPair, handoff.Finish:
			// SetVerdict is done in step, output in hear, Finish in do; the pair's rest is the reconcile machine's to decide.
		default:
			panic(fmt.Sprintf("native: attempt %s: no way to perform %T in state %s", r.plan.Attempt, x, r.machine.State))
		}
	}
}

func (r *Run) session(w handoff.Who) link {
	if w == handoff.PrefillLeg {
		return r.sessions[legs.Prefill]
	}
	return r.sessions[legs.Decode]
}

func (r *Run) sendPlan(to handoff.Who) {
	p, s := r.plan, r.session(to)
	p.Budget = max(time.Until(r.deadline), time.Millisecond)
	if err := s.SendPlan(p, r.macKey); err != nil {
		// A link that ended is heard of as lost. A plan that cannot be signed is a bug of ours, but one attempt's alone.
		l := legs.Decode
		if to == handoff.PrefillLeg {
			l = legs.Prefill
		}
		r.tell(legs.LegError{Leg: l, Verdict: verdict.Of(verdict.Internal, verdict.PlanLayer, "the plan could not be sent to %s %s", l, s.Name())})
		return
	}
	if to != handoff.PrefillLeg {
		return
	}
	for at := 0; at < len(r.prompt); at += wire.PromptChunk {
		s.Send(wire.Prompt{Attempt: p.Attempt, Offset: uint32(at), IDs: r.prompt[at:min(at+wire.PromptChunk, len(r.prompt))]})
	}
	r.prompt = nil
}

// Next implements upstream.Run.
func (r *Run) Next(ctx context.Context) (legs.Event, error) {
	for {
		r.mu.Lock()
		if len(r.events) > 0 {
			e := r.events[0]
			if r.events = r.events[1:]; len(r.events) == 0 {
				r.events = nil
			}
			r.mu.Unlock()
			return e, nil
		}
		r.mu.Unlock()
		select {
		case <-r.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Output implements upstream.Run.
func (r *Run) Output(ids []int32) []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids = append(ids, r.output...)
	r.output = r.output[:0]
	return ids
}

// Stop implements upstream.Run.
func (r *Run) Stop() {
	r.do(func() {
		r.stop = true
		if r.machine.State == handoff.GatewayReleasing {
			r.step(legs.Decode, handoff.StopFound{}, "")
		}
	})
}

// Abort implements upstream.Run.
func (r *Run) Abort(v verdict.Verdict) {
	r.do(func() {
		if r.machine.Over() {
			return
		}
		r.verdict = v
		r.step(legs.Decode, handoff.AbortAsked{From: handoff.ClientEnd, Code: v.Code}, "")
	})
}

// Report implements upstream.Run.
func (r *Run) Report() upstream.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report
}
