package worker

import (
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/engine"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// prefillAttempt drives prefill's machine for one attempt.
type prefillAttempt struct {
	w      *Worker
	id     attempt.ID
	ticket admission.Ticket
	plan   admission.Plan
	key    *mac.Key
	ctl    *control
	link   *outlink
	timer  *time.Timer

	shipment shipment // under the link's lock

	// Of the control link's reader alone, until the prompt is whole.
	tokens   []int32
	digester *admission.Digester

	computed *admission.Digester // of what the engine computed; the engine's until it is done

	mu      sync.Mutex // see the package comment
	machine handoff.Prefill
	trace   trace.Thread
	lease   *pool.Lease
	tags    []page.Tag // decode's, by ordinal, once granted
	macs    []mac.Tag  // of the sealed pages, by ordinal
	echo    wire.Echo
	outcome wire.Outcome
	verdict verdict.Verdict
	stages  stopwatch
}

func (w *Worker) openPrefill(c *control, t admission.Ticket, secret [32]byte) verdict.Verdict {
	p := t.Plan()
	needed := w.geometry.Pages(int(p.PromptTokens))
	a := &prefillAttempt{
		w: w, id: p.Attempt, ticket: t, plan: p, key: mac.New(secret), ctl: c,
		digester: admission.NewDigester(p.Scope), computed: admission.NewDigester(p.Scope),
		machine: handoff.NewPrefill(p.PromptTokens, uint32(needed)),
	}
	a.shipment.a = a
	a.stages.start(StagePrompt)
	a.outcome.Attempt = a.id
	a.mu.Lock()
	if v := w.table.add(a); !v.IsZero() {
		a.mu.Unlock()
		return v
	}
	a.trace = trace.Begin(w.cfg.Trace, uint64(w.boot), trace.Prefill, a.id, p.PromptTokens, uint32(needed), uint8(a.machine.State), a.machine.Digest())
	a.timer = time.AfterFunc(p.Budget, func() { a.step(handoff.DeadlinePassed{}, because{}) })
	a.link = w.links.get(p.Decode)
	a.mu.Unlock()
	a.link.join(a)
	return verdict.Verdict{}
}

func (a *prefillAttempt) ident() attempt.ID { return a.id }
func (a *prefillAttempt) control() *control { return a.ctl }

// reserve waits for the prompt's pages.
func (a *prefillAttempt) reserve(p *turn) {
	lease, v := p.reserve(a.ticket, a.w.geometry.Pages(int(a.plan.PromptTokens)), a.w.pageWait(a.plan))
	if lease == nil {
		a.step(handoff.ReserveEnded{Code: v.Code}, because{said: v})
		return
	}
	a.mu.Lock()
	a.lease = lease
	a.mu.Unlock()
	a.step(handoff.PagesReserved{Count: uint32(lease.Len())}, because{})
}

// step feeds one event to the machine and performs what it asks for. See decodeAttempt.
func (a *prefillAttempt) step(e handoff.Event, why because) {
	if todo := a.advance(e, why); todo != nil {
		a.perform(todo)
	}
}

func (a *prefillAttempt) advance(e handoff.Event, why because) (slow handoff.Effect) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.machine
	next, out := before.Step(e)
	a.machine = next
	if a.trace.On() {
		a.trace.Record(e.Trace(), uint8(next.State), next.Digest())
	}
	for x := range out.All() {
		switch x := x.(type) {
		case handoff.ReservePages, handoff.StartPrefill, handoff.WritePage, handoff.SkipPage:
			slow = x
		case handoff.QueuePages:
			a.link.queuePages(a, x.To)
		case handoff.SendClosing:
			a.sendClosing(x.Code)
		case handoff.SetVerdict:
			a.verdict = a.explain(before, e, x, why)
			a.ticket.Verdict().Set(a.verdict)
			a.timer.Stop()
			if next.Running {
				a.w.prefills.Cancel(a.id, a.verdict)
			}
		case handoff.SendAbort:
			a.link.say(signedAbort(a.id, a.verdict, a.key, mac.AbortFromPrefill))
		case handoff.SendOutcome:
			a.sendOutcome()
		case handoff.Fence:
			a.lease.Fence()
		case handoff.ReleaseLease:
			a.lease.Release()
			a.w.running.Go(func() {
				<-a.lease.Done()
				a.step(handoff.LeaseDrained{}, because{})
			})
		case handoff.SendSettled:
			a.settled()
		default:
			panic("worker: prefill has no way to perform " + nameOf(x))
		}
	}
	a.stages.prefill(before.State, next.State)
	return slow
}

func (a *prefillAttempt) perform(x handoff.Effect) {
	switch x.(type) {
	case handoff.ReservePages:
		place := a.w.pages.join()
		a.w.running.Go(func() { a.reserve(place) })
	case handoff.StartPrefill:
		job := engine.PrefillJob{Ticket: a.ticket, Lease: a.lease, Tokens: a.tokens, Key: a.key, Computed: a.computed, Sink: a}
		if err := a.w.prefills.Submit(job); err != nil {
			a.step(handoff.EngineDone{Code: refusedBy(err)}, because{detail: err.Error()})
		}
	default:
		panic("worker: prefill performs no " + nameOf(x) + " here")
	}
}

// frame takes the prompt's ids.
func (a *prefillAttempt) frame(f wire.Frame) bool {
	p, ok := f.(wire.Prompt)
	if !ok {
		return false
	}
	have := len(a.tokens)
	e := handoff.PromptSeen{Offset: p.Offset, Count: uint32(len(p.IDs))}
	if int(p.Offset) == have && len(p.IDs) <= int(a.plan.PromptTokens)-have {
		for _, id := range p.IDs {
			if id < 0 || int(id) >= a.w.vocab {
				a.step(handoff.Violation{Code: verdict.ProtocolViolation}, because{detail: "a token id outside the vocabulary"})
				return true
			}
		}
		a.tokens = append(a.tokens, p.IDs...)
		a.digester.Add(p.IDs)
		e.DigestOK = len(a.tokens) == int(a.plan.PromptTokens) && a.digester.Sum() == a.plan.Digest
	}
	a.step(e, because{})
	return true
}

// grant takes decode's permission.
func (a *prefillAttempt) grant(g wire.Grant) {
	e := handoff.GrantSeen{Pages: uint32(len(g.Pages))}
	detail := ""
	switch {
	case !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.Grant, 0, wire.Authenticated(g)), mac.Tag(g.MAC)):
		e.Code, detail = verdict.MACMismatch, "the grant's MAC is wrong"
	case g.Boot != a.plan.Decode.Boot:
		e.Code, detail = verdict.PlanRefused, "the grant is of boot "+g.Boot.String()
	}
	a.mu.Lock()
	if a.tags == nil && e.Code == verdict.None {
		a.tags = make([]page.Tag, len(g.Pages))
		for i, p := range g.Pages {
			a.tags[i] = page.Tag{Boot: g.Boot, ID: p.ID, Gen: p.Gen}
		}
	}
	a.mu.Unlock()
	a.step(e, because{detail: detail})
}

func (a *prefillAttempt) peerAbort(f wire.Abort) {
	if !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.AbortFromDecode, 0, wire.Authenticated(f)), mac.Tag(f.MAC)) {
		a.step(handoff.Violation{Code: verdict.MACMismatch}, because{detail: "an abort"})
		return
	}
	a.abort(handoff.DecodeLeg, f.Verdict)
}

func (a *prefillAttempt) abort(from handoff.Who, v verdict.Verdict) {
	a.step(handoff.AbortAsked{From: from, Code: v.Code}, because{said: v})
}

func (a *prefillAttempt) lost(from handoff.Who, detail string) {
	a.step(handoff.PeerLost{From: from}, because{detail: detail})
}

// sendClosing makes the closing statement. Its counts are what was really sent: the link's sender is done with the pages before
// it takes what is queued here.
func (a *prefillAttempt) sendClosing(c verdict.Code) {
	sent := a.machine.Sent + a.machine.Writing
	v := a.verdict
	if c == verdict.OK {
		v = verdict.Served(verdict.Prefill)
	}
	m := wire.Manifest{Attempt: a.id, Tokens: a.machine.Computed, Pages: sent, Root: wire.RootOf(a.macs[:sent]), Echo: a.echo, Verdict: v}
	if c == verdict.OK {
		m.Digest = a.computed.Sum() // the engine is done
	}
	m.MAC = a.key.Sum(mac.Manifest, 0, wire.Authenticated(m))
	end := wire.End{Attempt: a.id}
	end.MAC = a.key.Sum(mac.End, 0, wire.Authenticated(end))
	a.outcome.Digest, a.outcome.Root = m.Digest, m.Root
	a.link.queueClosing(a, m, end)
}

func (a *prefillAttempt) sendOutcome() {
	o := &a.outcome
	o.Verdict, o.Computed = a.verdict, a.machine.Computed
	o.Reserved, o.Written = a.machine.Reserved, a.machine.Sent
	o.PhaseMicroBegin, o.PhaseMicroEnd = a.stages.span(StageCompute)
	a.ctl.out.put(*o)
}

func (a *prefillAttempt) settled() {
	a.link.forget(a)
	a.w.ended(a.id, a.verdict, &a.stages)
	a.w.table.settle(a.id, past{plan: a.plan, key: a.key, verdict: a.verdict})
	a.ctl.out.put(wire.Settled{Attempt: a.id})
	a.w.table.rest()
}

// Sealed implements engine.PrefillSink.
func (a *prefillAttempt) Sealed(from int, macs []mac.Tag) {
	a.mu.Lock()
	a.macs = append(a.macs[:from], macs...)
	a.mu.Unlock()
	a.step(handoff.PagesSealed{From: uint32(from), To: uint32(from + len(macs))}, because{})
}

// Done implements engine.PrefillSink.
func (a *prefillAttempt) Done(computed int, echo wire.Echo, v verdict.Verdict) {
	a.mu.Lock()
	a.echo = echo
	a.mu.Unlock()
	code := v.Code
	if v.IsZero() {
		code = verdict.OK
	}
	a.step(handoff.EngineDone{Tokens: uint32(computed), Code: code}, because{said: v})
}
