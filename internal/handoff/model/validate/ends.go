package validate

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/handoff/model"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// life is what is known of one attempt, at each of its ends that the trace holds.
type life struct {
	id   attempt.ID
	kept bool // among those that are over
	d    decodeEnd
	p    prefillEnd
	g    gatewayEnd
}

type decodeEnd struct {
	open    bool
	boot    uint64
	chain   uint64
	m       model.Decode[uint32]
	lease   lease
	granted bool   // the tags were sent
	staged  uint32 // ordinal of the page that the gate was asked for, plus 1; 0: none
	sealed  bool   // the gateway was told of the seal
	made    uint32 // tokens that the engine made
	ended   model.Code
	emitted uint32 // tokens, when the gateway was told of the end
}

type prefillEnd struct {
	open     bool
	boot     uint64
	chain    uint64
	m        model.Prefill[uint32]
	lease    lease
	took     uint32 // pages that the sender took, ever
	closing  bool
	closed   model.Event[uint32] // what the closing statement says
	ended    model.Code
	computed uint32 // tokens, when the gateway was told of the end
}

type gatewayEnd struct {
	open    bool
	givenUp bool
	chain   uint64
	m       model.Gateway[uint32]
}

// begin opens a machine.
func (l *life) begin(e *trace.Event) string {
	var state uint8
	var digest uint64
	again := false
	switch e.Machine {
	case trace.Decode:
		again = l.d.open
		l.d = decodeEnd{open: true, boot: e.Boot, chain: e.Digest, m: model.NewDecode(e.A, e.B)}
		l.d.lease = lease{boot: e.Boot, of: l}
		state, digest = uint8(l.d.m.State), model.DigestDecode(&l.d.m)
	case trace.Prefill:
		again = l.p.open
		l.p = prefillEnd{open: true, boot: e.Boot, chain: e.Digest, m: model.NewPrefill(e.A, e.B)}
		l.p.lease = lease{boot: e.Boot, of: l}
		state, digest = uint8(l.p.m.State), model.DigestPrefill(&l.p.m)
	case trace.Gateway:
		again = l.g.open
		l.g = gatewayEnd{open: true, chain: e.Digest, m: model.NewGateway(e.A)}
		state, digest = uint8(l.g.m.State), model.DigestGateway(&l.g.m)
	}
	switch {
	case again:
		return "it was opened before: an attempt is made once"
	case e.Machine != trace.Gateway && (e.A == 0 || e.B == 0 || e.B > e.A), e.Machine == trace.Gateway && e.B != 0:
		return "no prompt has so many tokens on so many pages"
	case l.g.open && l.d.open && l.g.m.Planned != l.d.m.Planned, l.g.open && l.p.open && l.g.m.Planned != l.p.m.Planned,
		l.d.open && l.p.open && l.d.m.Planned != l.p.m.Planned:
		return "the ends of the attempt do not agree how long its prompt is"
	case l.d.open && l.p.open && l.d.boot == l.p.boot:
		return "both legs are of one boot"
	case e.Machine == trace.Prefill && l.g.open && !l.g.m.PrefillAsked:
		return "the gateway has not asked prefill"
	case e.Machine == trace.Gateway && e.Boot != 0:
		return "a gateway has no boot"
	case e.Code != 0 || e.C != 0 || state != e.State || e.Digest != trace.Chain(0, e.Args, state, digest):
		return "it does not begin as a machine does"
	}
	return ""
}

// event is what the model takes of a line.
func event(e *trace.Event) model.Event[uint32] {
	return model.Event[uint32]{Step: model.Step(e.Step), A: e.A, B: e.B, C: e.C, Code: model.Code(e.Code)}
}

// follow compares a line with where the model came to, and moves the chain.
func follow(e *trace.Event, chain *uint64, state uint8, name fmt.Stringer, digest uint64) string {
	want := trace.Chain(*chain, e.Args, state, digest)
	*chain = e.Digest
	if state != e.State {
		return fmt.Sprintf("the model comes to state %s (%d), the trace to %d", name, state, e.State)
	}
	if want != e.Digest {
		return fmt.Sprintf("in state %s the digest is not the one of the model's value and of what was recorded before", name)
	}
	return ""
}

// decode walks a step of decode's machine.
func (l *life) decode(on model.Guard, e *trace.Event) string {
	d := &l.d
	if !d.open || d.boot != e.Boot {
		return "this machine was not opened there"
	}
	before := d.m
	next, asks, err := d.m.Step(on, event(e))
	if err != nil {
		return err.Error()
	}
	if why := follow(e, &d.chain, uint8(next.State), next.State, model.DigestDecode(&next)); why != "" {
		return why
	}
	if why := l.decodeMay(on, before, e); why != "" {
		return why
	}
	d.m = next
	if asks.Has(model.AskGrant) {
		d.granted = true
	}
	if asks.Has(model.AskLand) {
		d.staged = e.A + 1
		d.lease.landing, d.lease.landed = false, false
	}
	if asks.Has(model.AskSealed) {
		d.sealed = true
	}
	if asks.Has(model.AskOutcome) {
		d.ended, d.emitted = next.Verdict, next.Emitted
	}
	d.lease.asked(asks)
	return ""
}

// decodeMay says what an event of decode's machine takes for granted that did not happen: in its pool, or at prefill.
func (l *life) decodeMay(on model.Guard, m model.Decode[uint32], e *trace.Event) string {
	d, p := &l.d, &l.p
	switch e.Step {
	case trace.PagesReserved:
		if e.A != d.lease.m.Pages || e.A < m.Needed {
			return fmt.Sprintf("its pool handed over %d pages, its prompt needs %d", d.lease.m.Pages, m.Needed)
		}
		d.lease.m.Granted = e.A
	case trace.PageArrived:
		if p.open && e.A >= p.took {
			return fmt.Sprintf("prefill's sender has taken %d pages", p.took)
		}
	case trace.PageLanded:
		switch {
		case e.A+1 != d.staged:
			return "another page was in staging"
		case d.lease.landing:
			return "the pool has not ended the copy"
		case d.lease.landed != (e.Code == 0):
			return "the pool's copy ended otherwise"
		}
		d.staged = 0
	case trace.ManifestSeen:
		if !p.open || e.C&model.MACRight == 0 {
			break
		}
		said := p.closed
		switch {
		case !p.closing:
			return "prefill has made no closing statement"
		case on.Has(model.GuardMAC) && (e.A != said.A || e.B != said.B || model.Code(e.Code) != said.Code):
			return fmt.Sprintf("prefill stated %d tokens on %d pages, code %d", said.A, said.B, said.Code)
		}
	case trace.EndSeen:
		if p.open && !p.closing && e.Code == 0 {
			return "prefill has not ended"
		}
	case trace.SealDone:
		if d.lease.m.Sealed != (e.Code == 0) {
			return "the pool's seal ended otherwise"
		}
	case trace.EchoCompared:
		if d.lease.m.Viewed == 0 {
			return "no step has read the pages"
		}
	case trace.TokenReady:
		if d.made++; d.made > d.lease.m.Viewed {
			return fmt.Sprintf("token %d after %d steps that read the pages", d.made, d.lease.m.Viewed)
		}
	case trace.EngineDone:
		if e.A != d.made || d.lease.m.Views != 0 {
			return fmt.Sprintf("the engine made %d tokens, and reads the pages in %d steps", d.made, d.lease.m.Views)
		}
	case trace.LeaseDrained:
		if !d.lease.m.Gone() || d.lease.m.Pages == 0 {
			return fmt.Sprintf("%d of %d pages are free", d.lease.m.Freed, d.lease.m.Pages)
		}
	}
	return ""
}

// prefill walks a step of prefill's machine.
func (l *life) prefill(on model.Guard, e *trace.Event) string {
	p := &l.p
	if !p.open || p.boot != e.Boot {
		return "this machine was not opened there"
	}
	before := p.m
	next, asks, err := p.m.Step(on, event(e))
	if err != nil {
		return err.Error()
	}
	if why := follow(e, &p.chain, uint8(next.State), next.State, model.DigestPrefill(&next)); why != "" {
		return why
	}
	if why := l.prefillMay(before, e); why != "" {
		return why
	}
	p.m = next
	if asks.Has(model.AskWrite) {
		p.took = max(p.took, e.A+1)
		p.lease.taken, p.lease.copied = e.A, false
	}
	if asks.Has(model.AskClosing) {
		p.closing = true
		p.closed = model.Event[uint32]{A: next.Computed, B: next.Sent + next.Writing, Code: model.OK}
		if next.Over() {
			p.closed.Code = next.Verdict
		}
	}
	if asks.Has(model.AskOutcome) {
		p.ended, p.computed = next.Verdict, next.Computed
	}
	p.lease.asked(asks)
	return ""
}

func (l *life) prefillMay(m model.Prefill[uint32], e *trace.Event) string {
	p, d := &l.p, &l.d
	switch e.Step {
	case trace.PagesReserved:
		if e.A != p.lease.m.Pages || e.A < m.Needed {
			return fmt.Sprintf("its pool handed over %d pages, its prompt needs %d", p.lease.m.Pages, m.Needed)
		}
		p.lease.m.Granted = 0 // nobody else writes there
	case trace.GrantSeen:
		if d.open && !d.granted && e.Code == 0 {
			return "decode has granted nothing"
		}
	case trace.PagesSealed:
		if p.lease.m.Final != e.B {
			return fmt.Sprintf("its pool has sealed %d pages", p.lease.m.Final)
		}
	case trace.PageSent:
		if !p.lease.copied || p.lease.taken != e.A {
			return "the page was not copied out since it was taken"
		}
	case trace.EngineDone:
		if p.lease.m.Views != 0 {
			return "the engine still computes"
		}
	case trace.LeaseDrained:
		if !p.lease.m.Gone() || p.lease.m.Pages == 0 {
			return fmt.Sprintf("%d of %d pages are free", p.lease.m.Freed, p.lease.m.Pages)
		}
	}
	return ""
}

// gateway walks a step of the gateway's machine.
func (l *life) gateway(on model.Guard, e *trace.Event) string {
	g := &l.g
	if !g.open || e.Boot != 0 {
		return "this machine was not opened there"
	}
	if g.givenUp {
		return "the attempt was given up on before"
	}
	next, _, err := g.m.Step(on, event(e))
	if err != nil {
		return err.Error()
	}
	if why := follow(e, &g.chain, uint8(next.State), next.State, model.DigestGateway(&next)); why != "" {
		return why
	}
	if why := l.gatewayMay(next, e); why != "" {
		return why
	}
	g.m = next
	g.givenUp = e.Step == trace.GivenUp
	return ""
}

// gatewayMay compares what the gateway heard, and believed, with what the legs said, as far as the trace holds them.
func (l *life) gatewayMay(next model.Gateway[uint32], e *trace.Event) string {
	d, p, was := &l.d, &l.p, &l.g.m
	switch e.Step {
	case trace.ReservedSeen:
		if d.open && e.A != d.m.Reserved {
			return fmt.Sprintf("decode has reserved %d pages", d.m.Reserved)
		}
	case trace.SealedSeen:
		if d.open && next.SealSeen && !was.SealSeen && (!d.sealed || e.A != d.m.Planned || e.B != d.m.Written+d.m.Held) {
			return "decode has not said so of its seal"
		}
	case trace.OutputSeen:
		if d.open && uint64(e.A)+uint64(e.B) > uint64(d.m.Emitted) {
			return fmt.Sprintf("decode has sent %d tokens", d.m.Emitted)
		}
	case trace.DecodeEnded:
		if d.open && (model.Code(e.Code) != d.ended || e.A != d.emitted) {
			return fmt.Sprintf("decode has ended with code %d after %d tokens", d.ended, d.emitted)
		}
	case trace.PrefillEnded:
		if p.open && (model.Code(e.Code) != p.ended || e.A != p.computed) {
			return fmt.Sprintf("prefill has ended with code %d after %d tokens", p.ended, p.computed)
		}
	case trace.LegSettled:
		if next.DecodeSettled && !was.DecodeSettled && d.open && d.m.State != model.Settled ||
			next.PrefillSettled && !was.PrefillSettled && p.open && p.m.State != model.Done {
			return "the leg is not settled"
		}
	}
	return ""
}

// open says what of an attempt is not over.
func (l *life) open() string {
	switch {
	case l.d.open && l.d.m.State != model.Settled:
		return "decode is " + l.d.m.State.String()
	case l.p.open && l.p.m.State != model.Done:
		return "prefill is " + l.p.m.State.String()
	case l.g.open && l.g.m.State != model.Quiet && !l.g.givenUp:
		return "the gateway is " + l.g.m.State.String()
	case !l.d.lease.m.Gone():
		return "decode's pool has pages of it"
	case !l.p.lease.m.Gone():
		return "prefill's pool has pages of it"
	}
	return ""
}
