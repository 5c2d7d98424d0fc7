// Package validate replays recorded traces through the model's own transition relation.
//
// Every step of every machine is recorded, and every transition of a pool, in an order in which they can have happened, so
// checking is a walk and not a search: for each event the model takes the same step from its own state, and must come to the same
// value. Three things are compared: each machine with the model's (state and digest of the whole value, chained over its past), each pool with
// the model's lease and with what the machine above it asked for (a copy that no machine asked for, a page freed before
// its fence, a token without a view), and the ends of one attempt with each other where the trace holds both (what decode is said
// must have been said by prefill).
//
// The cost of an event does not depend on how many came before, or on how long a prompt is; only handing pages over and taking them back
// costs something for each page. A Validator knows the attempts under way, the newest that are over, and the pages of each pool.
package validate

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/model"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// Options of a Validator.
type Options struct {
	// Sampled: not every attempt is in the trace, so generations may skip, and pages may be others' in between.
	Sampled bool
	// Without are guards that the traced processes ran without (unsafe builds only).
	Without model.Guard
}

// Guards are the model's guards for those that a build was told to do without. Admission is not the model's.
func Guards(off guard.Guard) (g model.Guard) {
	for code, own := range map[guard.Guard]model.Guard{
		guard.Verdict: model.GuardVerdict, guard.Gate: model.GuardGate, guard.MAC: model.GuardMAC, guard.Count: model.GuardCount,
		guard.Tag: model.GuardTag, guard.Zero: model.GuardZero, guard.Pin: model.GuardPin, guard.Fence: model.GuardFence,
		guard.Hold: model.GuardHold, guard.Echo: model.GuardEcho,
	} {
		if off&code != 0 {
			g |= own
		}
	}
	return g
}

// Wrong is what is wrong with an event.
type Wrong struct {
	N     uint64 // of the event, from 1; 0: of the trace's end
	Event trace.Event
	Why   string
}

func (w *Wrong) Error() string {
	if w.N == 0 {
		return "the trace's end: " + w.Why
	}
	e := w.Event
	if e.Machine == trace.Pool {
		return fmt.Sprintf("line %d: pool %s %s page %d@%d and on, %d pages, of attempt %s: %s", w.N, bootName(e.Boot), e.Step, e.A, e.Digest, e.B, e.Attempt, w.Why)
	}
	return fmt.Sprintf("line %d: %s %s(%d, %d, %d, %s) of attempt %s: %s", w.N, e.Machine, e.Step, e.A, e.B, e.C, e.Code, e.Attempt, w.Why)
}

func bootName(b uint64) string { return fmt.Sprintf("%016x", b) }

// remembered is how many attempts that are over a Validator knows: a late event of one changes nothing, and is no stranger's.
const remembered = 1 << 14

// Validator walks one trace. It is not safe for concurrent use.
type Validator struct {
	on      model.Guard
	sampled bool
	n       uint64
	under   map[attempt.ID]*life
	last    *life // of the newest event: the next one is most likely the same attempt's
	over    []attempt.ID
	oldest  int
	pools   map[uint64]*arena
	wrong   *Wrong
	counts  Counts
}

// Counts of what was walked.
type Counts struct {
	Events, Attempts, Served uint64
	Pages                    uint64 // handed over
}

// New starts at the beginning of a trace.
func New(o Options) *Validator {
	return &Validator{on: model.AllGuards &^ o.Without, sampled: o.Sampled, under: map[attempt.ID]*life{}, pools: map[uint64]*arena{}}
}

// Counts returns what was walked so far.
func (v *Validator) Counts() Counts { return v.counts }

// Step takes the next event. Once an event is wrong, all later ones return the same error: a *Wrong.
func (v *Validator) Step(e trace.Event) error {
	if v.wrong != nil {
		return v.wrong
	}
	v.n++
	v.counts.Events++
	why := ""
	switch e.Machine {
	case trace.Pool:
		why = v.pool(&e)
	case trace.Decode, trace.Prefill, trace.Gateway:
		why = v.machine(&e)
	default:
		why = "there is no such machine"
	}
	if why != "" {
		v.wrong = &Wrong{N: v.n, Event: e, Why: why}
		return v.wrong
	}
	return nil
}

// End says what is left open: at the end of a whole trace every attempt is settled at each of its ends, and every page is free.
func (v *Validator) End() error {
	if v.wrong != nil {
		return v.wrong
	}
	for id, l := range v.under {
		if why := l.open(); why != "" {
			v.wrong = &Wrong{Event: trace.Event{Attempt: id}, Why: fmt.Sprintf("attempt %s: %s", id, why)}
			return v.wrong
		}
	}
	return nil
}

// All walks a whole trace.
func All(events []trace.Event, o Options) error {
	v := New(o)
	for _, e := range events {
		if err := v.Step(e); err != nil {
			return err
		}
	}
	return v.End()
}

// find returns what is known of an attempt, or nil.
func (v *Validator) find(id attempt.ID) *life {
	if v.last == nil || v.last.id != id {
		l := v.under[id]
		if l == nil {
			return nil
		}
		v.last = l
	}
	return v.last
}

// machine walks a step of a machine.
func (v *Validator) machine(e *trace.Event) string {
	l := v.find(e.Attempt)
	if e.Step == trace.Opened {
		if l == nil {
			l = &life{id: e.Attempt}
			v.under[e.Attempt] = l
			v.last = l
			v.counts.Attempts++
		}
		return l.begin(e)
	}
	if l == nil {
		return "no machine of this attempt was opened"
	}
	why := ""
	switch e.Machine {
	case trace.Decode:
		why = l.decode(v.on, e)
	case trace.Prefill:
		why = l.prefill(v.on, e)
	case trace.Gateway:
		why = l.gateway(v.on, e)
	}
	if why == "" && e.Last() && !l.kept && l.open() == "" {
		v.forget(l)
	}
	return why
}

// forget keeps an attempt that is over among the newest of those, and lets the oldest go.
func (v *Validator) forget(l *life) {
	l.kept = true
	if l.g.open && l.g.m.Verdict == model.OK || !l.g.open && l.d.m.Verdict == model.OK {
		v.counts.Served++
	}
	if len(v.over) < remembered {
		v.over = append(v.over, l.id)
		return
	}
	if old := v.under[v.over[v.oldest]]; old != nil && old.open() == "" {
		delete(v.under, old.id)
	}
	v.over[v.oldest] = l.id
	v.oldest = (v.oldest + 1) % remembered
}
