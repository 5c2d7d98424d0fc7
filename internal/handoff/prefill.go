package handoff

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

// PrefillState is where prefill stands with an attempt. The numbers are in recorded traces: append, never renumber.
type PrefillState uint8

const (
	// PrefillCollecting: the plan is open, the prompt is coming in, no page is held. The last PromptSeen leaves to Reserving;
	// anything that ends the attempt to Settled.
	PrefillCollecting PrefillState = iota
	// PrefillReserving: the prompt is whole and its digest is the plan's; the driver waits for pages. PagesReserved leaves to
	// Computing; ReserveEnded to Settled; anything that ends the attempt to Cancelled.
	PrefillReserving
	// PrefillCancelled: there is a verdict, and the wait for pages has not yet been told. Only its answer leaves: PagesReserved to
	// Fencing, ReserveEnded to Settled.
	PrefillCancelled
	// PrefillComputing: the engine computes; sealed pages go out while the grant is live. EngineDone leaves to Shipping.
	PrefillComputing
	// PrefillShipping: all is computed; the last pages, then the closing statement, go out. ClosingSent leaves to Fencing.
	PrefillShipping
	// PrefillFencing: there is a verdict and nothing more of a page goes out; pages wait for their pins, or the engine has not
	// let go. The last of LeaseDrained, EngineDone, PageSent and PageDropped leaves to Settled.
	PrefillFencing
	// PrefillSettled: there is a verdict, and nothing of the attempt is left. Nothing leaves it.
	PrefillSettled
)

var prefillStates = [...]string{"collecting", "reserving", "cancelled", "computing", "shipping", "fencing", "settled"}

func (s PrefillState) String() string { return prefillStates[s] }

// Prefill is prefill's end of one attempt. The value is comparable, and all there is.
//
// Between steps: Sent + Writing <= Queued <= Sealed <= Needed; Queued > 0 only if Granted; Closed (the closing statement
// is on its way) only if Granted, and once.
type Prefill struct {
	State    PrefillState
	Planned  uint32 // prompt tokens of the plan
	Needed   uint32 // pages that hold them
	Received uint32 // prompt tokens that came
	Reserved uint32 // pages leased
	Granted  bool   // decode's grant is here and right
	Sealed   uint32 // pages computed and sealed, from ordinal 0
	Queued   uint32 // of them: given to the sender
	Sent     uint32 // of them: written to the socket
	Writing  uint32 // pages that the sender is copying out
	Computed uint32 // tokens, once the engine is done
	Closed   bool   // the closing statement was handed to the sender
	Verdict  verdict.Code
	Fenced   bool
	Running  bool // the engine has the lease
	Drained  bool // the pages are free
}

// NewPrefill starts prefill's end of an attempt whose prompt has tokens tokens on pages pages.
func NewPrefill(tokens, pages uint32) Prefill { return Prefill{Planned: tokens, Needed: pages} }

// Step takes one event.
func (p Prefill) Step(e Event) (Prefill, Effects) {
	switch e := e.(type) {
	case PromptSeen:
		return p.promptSeen(e)
	case PagesReserved:
		return p.pagesReserved(e)
	case ReserveEnded:
		return p.reserveEnded(e)
	case GrantSeen:
		return p.grantSeen(e)
	case PagesSealed:
		return p.pagesSealed(e)
	case PageTaken:
		return p.pageTaken(e)
	case PageSent:
		return p.pageSent(e)
	case PageDropped:
		return p.pageDropped(e)
	case EngineDone:
		return p.engineDone(e)
	case ClosingSent:
		return p.closingSent()
	case Violation:
		return p.violation(e)
	case AbortAsked:
		return p.abortAsked(e)
	case PeerLost:
		return p.peerLost(e)
	case DeadlinePassed:
		return p.deadlinePassed()
	case LeaseDrained:
		return p.leaseDrained()
	}
	panic(p.illegal(e))
}

func (p Prefill) illegal(e Event) string {
	return fmt.Sprintf("handoff: prefill took %T%+v in state %s (verdict %s, sent %d of %d)", e, e, p.State, p.Verdict, p.Sent, p.Needed)
}

// Over reports whether the attempt has its verdict.
func (p Prefill) Over() bool { return p.Verdict != verdict.None }

// Layer names the layer that is at work.
func (p Prefill) Layer() verdict.Layer {
	switch p.State {
	case PrefillCollecting:
		return verdict.Open
	case PrefillReserving, PrefillCancelled:
		return verdict.Reserve
	}
	return verdict.Prefill
}

func (p Prefill) promptSeen(e PromptSeen) (Prefill, Effects) {
	switch {
	case p.Over():
		return p, Effects{}
	case p.State != PrefillCollecting || e.Offset != p.Received || e.Count == 0:
		return p.end(verdict.ProtocolViolation, verdict.Open, Self)
	case e.Count > p.Planned-p.Received:
		return p.end(verdict.CountMismatch, verdict.Open, Self)
	}
	p.Received += e.Count
	if p.Received < p.Planned {
		return p, Effects{}
	}
	if !e.DigestOK {
		return p.end(verdict.DigestMismatch, verdict.Open, Self)
	}
	p.State = PrefillReserving
	return p, effects(ReservePages{})
}

func (p Prefill) pagesReserved(e PagesReserved) (Prefill, Effects) {
	switch p.State {
	case PrefillReserving:
		p.State, p.Reserved, p.Running = PrefillComputing, e.Count, true
		return p, effects(StartPrefill{})
	case PrefillCancelled:
		p.State, p.Reserved = PrefillFencing, e.Count
		var out Effects
		p.revoke(&out)
		return p, out
	}
	panic(p.illegal(e))
}

func (p Prefill) reserveEnded(e ReserveEnded) (Prefill, Effects) {
	switch p.State {
	case PrefillReserving:
		if !no(e.Code) {
			panic(p.illegal(e))
		}
		p, out := p.end(e.Code, verdict.Reserve, Self)
		p.State = PrefillSettled
		out.add(SendSettled{})
		return p, out
	case PrefillCancelled:
		p.State = PrefillSettled
		return p, effects(SendSettled{})
	}
	panic(p.illegal(e))
}

func (p Prefill) grantSeen(e GrantSeen) (Prefill, Effects) {
	if !answer(e.Code) {
		panic(p.illegal(e))
	}
	switch {
	case p.Over():
		return p, Effects{} // decode hears of our verdict, or said its own
	case p.Granted:
		return p.end(verdict.ProtocolViolation, p.Layer(), Self) // a tag is sent once: there is one grant
	case e.Code != verdict.None:
		return p.end(e.Code, p.Layer(), Self)
	case e.Pages != p.Needed:
		return p.end(verdict.CountMismatch, p.Layer(), Self)
	}
	p.Granted = true
	return p.queue()
}

func (p Prefill) pagesSealed(e PagesSealed) (Prefill, Effects) {
	if !p.Running || e.From != p.Sealed || e.To <= e.From || e.To > p.Needed {
		panic(p.illegal(e))
	}
	p.Sealed = e.To
	if p.Over() {
		return p, Effects{}
	}
	return p.queue()
}

// queue hands to the sender what is sealed, granted and not handed over yet.
func (p Prefill) queue() (Prefill, Effects) {
	if !p.Granted || p.Queued == p.Sealed {
		return p, Effects{}
	}
	from := p.Queued
	p.Queued = p.Sealed
	return p, effects(QueuePages{from, p.Sealed})
}

func (p Prefill) pageTaken(e PageTaken) (Prefill, Effects) {
	if p.Over() {
		return p, effects(SkipPage(e))
	}
	if e.Ordinal != p.Sent+p.Writing || e.Ordinal >= p.Queued {
		panic(p.illegal(e)) // out of order, or a second time: a tag is sent once
	}
	p.Writing++
	return p, effects(WritePage(e))
}

func (p Prefill) pageSent(e PageSent) (Prefill, Effects) {
	if p.Writing == 0 || e.Ordinal != p.Sent {
		panic(p.illegal(e))
	}
	p.Writing--
	p.Sent++
	if p.Over() {
		return p.settle()
	}
	return p.close()
}

func (p Prefill) pageDropped(e PageDropped) (Prefill, Effects) {
	if p.Writing == 0 || e.Ordinal != p.Sent {
		panic(p.illegal(e))
	}
	p.Writing--
	if p.Over() {
		return p.settle()
	}
	return p.end(verdict.Internal, verdict.Prefill, Self)
}

func (p Prefill) engineDone(e EngineDone) (Prefill, Effects) {
	if !p.Running || !e.Code.Known() {
		panic(p.illegal(e))
	}
	p.Running, p.Computed = false, e.Tokens
	switch {
	case p.Over():
		return p.settle()
	case e.Code != verdict.OK:
		return p.end(e.Code, verdict.Prefill, Self)
	case e.Tokens != p.Planned || p.Sealed != p.Needed:
		panic(p.illegal(e)) // the engine says that all is well, and it is not
	}
	p.State = PrefillShipping
	return p.close()
}

// close sends the closing statement once the last page is on the socket.
func (p Prefill) close() (Prefill, Effects) {
	if p.State != PrefillShipping || p.Sent != p.Needed || p.Closed {
		return p, Effects{}
	}
	p.Closed = true
	return p, effects(SendClosing{verdict.OK})
}

func (p Prefill) closingSent() (Prefill, Effects) {
	if !p.Closed {
		panic(p.illegal(ClosingSent{}))
	}
	if p.Over() {
		return p, Effects{}
	}
	return p.end(verdict.OK, verdict.Prefill, Self)
}

func (p Prefill) violation(e Violation) (Prefill, Effects) {
	if !no(e.Code) {
		panic(p.illegal(e))
	}
	if p.Over() {
		return p, Effects{}
	}
	return p.end(e.Code, p.Layer(), Self)
}

func (p Prefill) abortAsked(e AbortAsked) (Prefill, Effects) {
	switch {
	case p.Over():
		return p, Effects{}
	case !no(e.Code):
		return p.end(verdict.ProtocolViolation, p.Layer(), Self)
	}
	return p.end(e.Code, p.Layer(), e.From)
}

func (p Prefill) peerLost(e PeerLost) (Prefill, Effects) {
	if p.Over() {
		return p, Effects{}
	}
	return p.end(verdict.PeerLost, p.Layer(), e.From)
}

func (p Prefill) deadlinePassed() (Prefill, Effects) {
	if p.Over() {
		return p, Effects{}
	}
	return p.end(verdict.Deadline, p.Layer(), Self)
}

// end gives the attempt its verdict. Decode is told unless decode said it: by the closing statement when there is a grant and it
// was not sent, else by an abort.
func (p Prefill) end(c verdict.Code, l verdict.Layer, from Who) (Prefill, Effects) {
	if p.Over() {
		panic(fmt.Sprintf("handoff: prefill: a second verdict, %s after %s, in state %s", c, p.Verdict, p.State))
	}
	if c == verdict.None || c == verdict.OK && !p.Closed {
		panic(fmt.Sprintf("handoff: prefill: the verdict %s in state %s", c, p.State)) // only what decode was told of went well
	}
	out := effects(SetVerdict{c, l})
	if c != verdict.OK && from != DecodeLeg {
		if p.Granted && !p.Closed {
			p.Closed = true
			out.add(SendClosing{c})
		} else {
			out.add(SendAbort{DecodeLeg})
		}
	}
	out.add(SendOutcome{})
	p.Verdict = c
	switch p.State {
	case PrefillCollecting:
		p.State = PrefillSettled
		out.add(SendSettled{})
	case PrefillReserving:
		p.State = PrefillCancelled
	default:
		p.State = PrefillFencing
		p.revoke(&out)
	}
	return p, out
}

func (p *Prefill) revoke(out *Effects) {
	if !guard.Off(guard.Fence) {
		p.Fenced = true
		out.add(Fence{})
	}
	if !p.Fenced && !guard.Off(guard.Fence) {
		panic("handoff: prefill: pages would be released before the fence")
	}
	out.add(ReleaseLease{})
}

func (p Prefill) leaseDrained() (Prefill, Effects) {
	if p.State != PrefillFencing || p.Drained {
		panic(p.illegal(LeaseDrained{}))
	}
	p.Drained = true
	return p.settle()
}

func (p Prefill) settle() (Prefill, Effects) {
	if p.State != PrefillFencing || !p.Drained || p.Writing != 0 || p.Running {
		return p, Effects{}
	}
	p.State = PrefillSettled
	return p, effects(SendSettled{})
}
