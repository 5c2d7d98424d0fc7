package worker

import (
	"errors"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/engine"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// decodeAttempt drives decode's machine for one attempt.
type decodeAttempt struct {
	w      *Worker
	id     attempt.ID
	ticket admission.Ticket
	plan   admission.Plan
	key    *mac.Key
	ctl    *control
	opened time.Time
	timer  *time.Timer

	mu       sync.Mutex // see the package comment
	machine  handoff.Decode
	trace    trace.Thread
	lease    *pool.Lease
	from     *inbound  // prefill's data link, once it attached
	macs     []mac.Tag // of the pages, by ordinal, as their frames said
	landed   []bool    // by ordinal
	manifest wire.Manifest
	outcome  wire.Outcome // filled as the attempt goes
	verdict  verdict.Verdict
	stopped  bool
	stages   stopwatch
}

// because is what the driver knows of an event beyond the machine: a peer's whole verdict, or words for a reason.
type because struct {
	said   verdict.Verdict
	detail string
	token  int32 // of TokenReady
	// unreached, of PeerLost: there never was a link.
	unreached bool
}

func (w *Worker) openDecode(c *control, t admission.Ticket, secret [32]byte) verdict.Verdict {
	p := t.Plan()
	needed := w.geometry.Pages(int(p.PromptTokens))
	a := &decodeAttempt{
		w: w, id: p.Attempt, ticket: t, plan: p, key: mac.New(secret), ctl: c, opened: time.Now(),
		machine: handoff.NewDecode(p.PromptTokens, uint32(needed)),
		macs:    make([]mac.Tag, needed), landed: make([]bool, needed),
	}
	a.stages.start(StageReserve)
	a.outcome.Attempt = a.id
	a.mu.Lock() // so that nobody finds an attempt without its timer
	if v := w.table.add(a); !v.IsZero() {
		a.mu.Unlock()
		return v
	}
	a.trace = trace.Begin(w.cfg.Trace, uint64(w.boot), trace.Decode, a.id, p.PromptTokens, uint32(needed), uint8(a.machine.State), a.machine.Digest())
	a.timer = time.AfterFunc(p.Budget, func() { a.step(handoff.DeadlinePassed{}, because{}) })
	a.mu.Unlock()
	place := w.pages.join()
	w.running.Go(func() { a.reserve(place) })
	return verdict.Verdict{}
}

func (a *decodeAttempt) ident() attempt.ID { return a.id }
func (a *decodeAttempt) control() *control { return a.ctl }

// reserve waits for the pages of the prompt and of the first generated tokens.
func (a *decodeAttempt) reserve(p *turn) {
	slots := int(a.plan.PromptTokens) + min(int(a.plan.MaxTokens), a.w.cfg.Limits.Ahead) - 1
	lease, v := p.reserve(a.ticket, a.w.geometry.Pages(slots), a.w.pageWait(a.plan))
	if lease == nil {
		a.step(handoff.ReserveEnded{Code: v.Code}, because{said: v})
		return
	}
	a.mu.Lock()
	a.lease = lease
	a.mu.Unlock()
	a.step(handoff.PagesReserved{Count: uint32(lease.Len())}, because{})
}

// step feeds one event to the machine and performs what it asks for.
func (a *decodeAttempt) step(e handoff.Event, why because) {
	if todo := a.advance(e, why); todo != nil {
		a.perform(todo)
	}
}

// advance takes one step: the machine, its trace event and the effects that never block are one critical section. The effect that
// may take time, of which a step has at most one, is returned.
func (a *decodeAttempt) advance(e handoff.Event, why because) (slow handoff.Effect) {
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
		case handoff.LandPage, handoff.Seal, handoff.StartDecode:
			slow = x
		case handoff.RefusePage:
			a.w.counters.pagesRefused.Add(1)
		case handoff.SetVerdict:
			a.verdict = a.explain(before, e, x, why)
			a.ticket.Verdict().Set(a.verdict)
			a.timer.Stop()
			if next.Running {
				a.w.decodes.Cancel(a.id, a.verdict)
			}
		case handoff.SendReserved:
			a.outcome.Reserved = next.Reserved
			a.ctl.out.put(wire.Reserved{Attempt: a.id, Pages: next.Reserved})
		case handoff.SendGrant:
			a.sendGrant()
		case handoff.SendAbort:
			a.sendAbort()
		case handoff.SendSealed:
			a.sendSealed()
		case handoff.Emit:
			a.ctl.out.putToken(a.id, next.Emitted-1, why.token)
		case handoff.StopDecode:
			a.stopped = true
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
			panic("worker: decode has no way to perform " + nameOf(x))
		}
	}
	a.stages.decode(before.State, next.State)
	return slow
}

// perform does what may take time, without the lock. The page in staging has its own way: see inbound.land.
func (a *decodeAttempt) perform(x handoff.Effect) {
	switch x.(type) {
	case handoff.Seal:
		code, detail := verdict.None, ""
		if err := a.lease.SealPrompt(int(a.plan.PromptTokens)); err != nil {
			code, detail = verdict.CountMismatch, err.Error()
		}
		a.step(handoff.SealDone{Code: code}, because{detail: detail})
	case handoff.StartDecode:
		err := a.w.decodes.Submit(engine.DecodeJob{Ticket: a.ticket, Lease: a.lease, Sink: a})
		if err != nil {
			code := refusedBy(err)
			a.step(handoff.EngineDone{Code: code}, because{detail: err.Error()})
		}
	default:
		panic("worker: decode performs no " + nameOf(x) + " here")
	}
}

// refusedBy says what an engine's refusal of a job means.
func refusedBy(err error) verdict.Code {
	switch {
	case errors.Is(err, engine.ErrQueueFull):
		return verdict.Overloaded
	case errors.Is(err, engine.ErrClosed):
		return verdict.ShuttingDown
	}
	return verdict.EngineFailed
}

// land asks the gate for the page in staging and lets the pool copy it. Called by the link's reader.
func (a *decodeAttempt) land(h wire.PageHeader, payload []byte) {
	if len(payload) != a.w.geometry.Bytes() {
		a.step(handoff.Violation{Code: verdict.ProtocolViolation}, because{detail: "a page frame of another size"})
		return
	}
	if a.advance(handoff.PageArrived{Ordinal: h.Ordinal}, because{}) == nil {
		return
	}
	err := a.lease.Land(int(h.Ordinal), h.Tag, payload, a.key, mac.Tag(h.MAC))
	code := landCode(err)
	a.mu.Lock()
	if code == verdict.None && int(h.Ordinal) < len(a.macs) {
		a.macs[h.Ordinal], a.landed[h.Ordinal] = mac.Tag(h.MAC), true
	}
	a.mu.Unlock()
	if code == verdict.None {
		a.w.counters.pagesLanded.Add(1)
		a.w.counters.bytesLanded.Add(uint64(len(payload)))
	} else {
		a.w.counters.pagesRefused.Add(1)
	}
	why := because{}
	if err != nil {
		why.detail = err.Error()
	}
	a.step(handoff.PageLanded{Ordinal: h.Ordinal, Code: code}, why)
}

func landCode(err error) verdict.Code {
	switch {
	case err == nil:
		return verdict.None
	case errors.Is(err, pool.ErrMAC):
		return verdict.MACMismatch
	}
	return verdict.GateRefused // the tag, a second time, out of range, fenced
}

func (a *decodeAttempt) sendGrant() {
	tags := a.lease.Tags()[:a.machine.Needed]
	g := wire.Grant{Attempt: a.id, Boot: a.w.boot, Pages: make([]wire.GrantedPage, len(tags))}
	for i, t := range tags {
		g.Pages[i] = wire.GrantedPage{ID: t.ID, Gen: t.Gen}
	}
	g.MAC = a.key.Sum(mac.Grant, 0, wire.Authenticated(g))
	a.from.out.put(g)
}

// sendAbort tells prefill, on the link on which it attached. One that has not attached hears it when it does.
func (a *decodeAttempt) sendAbort() {
	if a.from != nil {
		a.from.out.put(signedAbort(a.id, a.verdict, a.key, mac.AbortFromDecode))
	}
}

func signedAbort(id attempt.ID, v verdict.Verdict, key *mac.Key, kind mac.Kind) wire.Abort {
	f := wire.Abort{Attempt: id, Verdict: v}
	f.MAC = key.Sum(kind, 0, wire.Authenticated(f))
	return f
}

func (a *decodeAttempt) sendSealed() {
	m := a.machine
	a.outcome.Digest, a.outcome.Root = a.plan.Digest, a.manifest.Root
	a.outcome.Computed = m.Planned
	a.ctl.out.put(wire.Sealed{Attempt: a.id, Tokens: m.Planned, Written: m.Written, Held: m.Held, Digest: a.plan.Digest, Root: a.manifest.Root})
}

func (a *decodeAttempt) sendOutcome() {
	o := &a.outcome
	o.Verdict, o.Completion = a.verdict, a.machine.Emitted
	o.Reserved, o.Written, o.Held = a.machine.Reserved, a.machine.Written, a.machine.Held
	o.PhaseMicroBegin, o.PhaseMicroEnd = a.stages.span(StageGenerate)
	a.ctl.out.put(*o)
}

// settled forgets the attempt, but for what answers a late frame.
func (a *decodeAttempt) settled() {
	p := past{plan: a.plan, key: a.key, verdict: a.verdict}
	if guard.Unsafe {
		p.lease = a.lease
	}
	if a.from != nil {
		a.from.forget(a.id)
	}
	a.w.ended(a.id, a.verdict, &a.stages)
	a.w.table.settle(a.id, p)
	a.ctl.out.put(wire.Settled{Attempt: a.id})
	a.w.table.rest()
}

func (a *decodeAttempt) frame(f wire.Frame) bool {
	if _, ok := f.(wire.Stop); !ok {
		return false
	}
	a.step(handoff.StopAsked{}, because{})
	return true
}

func (a *decodeAttempt) abort(from handoff.Who, v verdict.Verdict) {
	a.step(handoff.AbortAsked{From: from, Code: v.Code}, because{said: v})
}

func (a *decodeAttempt) lost(from handoff.Who, detail string) {
	a.step(handoff.PeerLost{From: from}, because{detail: detail})
}

// attach takes prefill's Attach. The link is of the plan's prefill: inbound saw to it.
func (a *decodeAttempt) attach(in *inbound, f wire.Attach) {
	if !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.Attach, 0, wire.Authenticated(f)), mac.Tag(f.MAC)) {
		a.step(handoff.Violation{Code: verdict.MACMismatch}, because{detail: "an attach"})
		return
	}
	a.claim(in)
	a.step(handoff.Attached{}, because{})
}

// claim makes in the attempt's data link if it has none yet, and reports whether in is it.
func (a *decodeAttempt) claim(in *inbound) bool {
	a.mu.Lock()
	first := a.from == nil
	if first {
		a.from = in
	}
	mine := a.from == in
	a.mu.Unlock()
	if first && !in.join(a) {
		a.lost(handoff.PrefillLeg, "its data link closed")
	}
	return mine
}

// close takes prefill's closing statement, comparing it with what is known here.
func (a *decodeAttempt) close(f wire.Manifest) {
	a.mu.Lock()
	if !a.machine.Manifest.Seen {
		a.manifest = f
	}
	var here []mac.Tag
	for i, ok := range a.landed {
		if ok {
			here = append(here, a.macs[i])
		}
	}
	a.mu.Unlock()
	a.step(handoff.ManifestSeen{
		Tokens: f.Tokens, Pages: f.Pages,
		MACOK:    mac.Equal(a.key.Sum(mac.Manifest, 0, wire.Authenticated(f)), mac.Tag(f.MAC)),
		DigestOK: f.Digest == a.plan.Digest,
		RootOK:   f.Root == wire.RootOf(here),
		Verdict:  f.Verdict.Code,
	}, because{said: f.Verdict})
}

func (a *decodeAttempt) end(f wire.End) {
	a.step(handoff.EndSeen{MACOK: mac.Equal(a.key.Sum(mac.End, 0, wire.Authenticated(f)), mac.Tag(f.MAC))}, because{})
}

func (a *decodeAttempt) peerAbort(f wire.Abort) {
	if !guard.Off(guard.MAC) && !mac.Equal(a.key.Sum(mac.AbortFromPrefill, 0, wire.Authenticated(f)), mac.Tag(f.MAC)) {
		a.step(handoff.Violation{Code: verdict.MACMismatch}, because{detail: "an abort"})
		return
	}
	a.abort(handoff.PrefillLeg, f.Verdict)
}

// Echo implements engine.DecodeSink.
func (a *decodeAttempt) Echo(own wire.Echo) verdict.Verdict {
	a.mu.Lock()
	theirs, exact := a.manifest.Echo, a.from.exact
	a.mu.Unlock()
	err := theirs.Agrees(own, exact)
	why := because{}
	if err != nil {
		why.detail = err.Error()
	}
	a.step(handoff.EchoCompared{Agrees: err == nil}, why)
	return a.ended()
}

// ended is the attempt's verdict, zero while it has none.
func (a *decodeAttempt) ended() verdict.Verdict {
	v, _ := a.ticket.Verdict().Get()
	return v
}

// Token implements engine.DecodeSink.
func (a *decodeAttempt) Token(id int32) bool {
	a.advance(handoff.TokenReady{}, because{token: id})
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.stopped && !a.machine.Over()
}

// Done implements engine.DecodeSink.
func (a *decodeAttempt) Done(completion int, f engine.Finish, v verdict.Verdict) {
	a.mu.Lock()
	a.outcome.Finish = uint8(f)
	a.mu.Unlock()
	code := v.Code
	if v.IsZero() {
		code = verdict.OK
	}
	a.step(handoff.EngineDone{Tokens: uint32(completion), Code: code}, because{said: v})
}
