package model

import "fmt"

// PrefillState is where prefill stands.
type PrefillState uint8

const (
	Collecting PrefillState = iota // the prompt is coming in; no page is held
	Reserving                      // the prompt is whole and the plan's; waits for pages
	GivingUp                       // over, and the wait for pages is not yet told
	Computing                      // the engine has the lease; sealed pages go out while the grant is live
	Shipping                       // all is computed; the last pages and the closing statement go out
	Revoked                        // over; pages wait for pins, or the engine has not let go
	Done                           // over, and nothing is left
)

var prefillNames = [...]string{"collecting", "reserving", "cancelled", "computing", "shipping", "fencing", "settled"}

func (s PrefillState) String() string {
	if int(s) >= len(prefillNames) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return prefillNames[s]
}

// Prefill is prefill's end of an attempt.
type Prefill[N Count] struct {
	State                         PrefillState
	Planned, Needed               N // tokens and pages of the prompt
	Received                      N // tokens
	Reserved                      N // pages
	Granted                       bool
	Sealed, Queued, Sent, Writing N // pages
	Computed                      N // tokens, once the engine is done
	Closed                        bool
	Verdict                       Code
	Fenced, Running, Drained      bool
}

// NewPrefill is prefill's end of a new attempt.
func NewPrefill[N Count](tokens, pages N) Prefill[N] {
	return Prefill[N]{Planned: tokens, Needed: pages}
}

// Over reports whether there is a verdict.
func (p Prefill[N]) Over() bool { return p.Verdict != None }

// Step takes an event. on is the guards that are in their places. The error is the driver's.
func (p Prefill[N]) Step(on Guard, e Event[N]) (Prefill[N], Asks, error) {
	over := p.Over()
	ok := true
	var asks Asks
	switch e.Step {

	// The driver's own answers.
	case PagesReserved:
		ok = p.State == Reserving || p.State == GivingUp
		p.Reserved = e.A
		if p.State == Reserving {
			p.State, p.Running, asks = Computing, true, AskStart
		} else {
			p.State, asks = Revoked, p.revoke(on)
		}
	case ReserveEnded:
		ok = p.State == GivingUp || p.State == Reserving && e.Code.no()
		if p.State == Reserving {
			asks = p.end(on, e.Code, Self)
		}
		p.State = Done
		asks |= AskSettled
	case PagesSealed:
		ok = p.Running && e.A == p.Sealed && e.B > e.A && e.B <= p.Needed
		p.Sealed = e.B
		if !over {
			asks = p.queue()
		}
	case EngineDone:
		ok = p.Running && e.Code.known() && (over || e.Code != OK || e.A == p.Planned && p.Sealed == p.Needed)
		p.Running, p.Computed = false, e.A
		switch {
		case over:
			asks = p.settle()
		case e.Code != OK:
			asks = p.end(on, e.Code, Self)
		default:
			p.State = Shipping
			asks = p.close()
		}
	case LeaseDrained:
		ok = p.State == Revoked && !p.Drained
		p.Drained = true
		asks = p.settle()

	// The link's sender. Each ordinal is taken once, in order.
	case PageTaken:
		ok = over || e.A == p.Sent+p.Writing && e.A < p.Queued
		if over {
			asks = AskSkip
		} else {
			p.Writing++
			asks = AskWrite
		}
	case PageSent:
		ok = p.Writing > 0 && e.A == p.Sent
		p.Writing--
		p.Sent++
		if over {
			asks = p.settle()
		} else {
			asks = p.close()
		}
	case PageDropped:
		ok = p.Writing > 0 && e.A == p.Sent
		p.Writing--
		if over {
			asks = p.settle()
		} else {
			asks = p.end(on, Internal, Self)
		}
	case ClosingSent:
		ok = p.Closed
		if !over {
			asks = p.end(on, OK, Self)
		}

	// What the gateway and decode say.
	case PromptSeen:
		switch {
		case over:
		case p.State != Collecting || e.A != p.Received || e.B == 0:
			asks = p.end(on, ProtocolViolation, Self)
		case e.B > p.Planned-p.Received:
			asks = p.end(on, CountMismatch, Self)
		default:
			p.Received += e.B
			switch {
			case p.Received < p.Planned:
			case e.C == 0:
				asks = p.end(on, DigestMismatch, Self)
			default:
				p.State, asks = Reserving, AskPages
			}
		}
	case GrantSeen:
		ok = e.Code == None || e.Code.no()
		switch {
		case over:
		case p.Granted:
			asks = p.end(on, ProtocolViolation, Self)
		case e.Code != None:
			asks = p.end(on, e.Code, Self)
		case e.A != p.Needed:
			asks = p.end(on, CountMismatch, Self)
		default:
			p.Granted = true
			asks = p.queue()
		}
	case Violation:
		ok = e.Code.no()
		if !over {
			asks = p.end(on, e.Code, Self)
		}
	case AbortAsked:
		switch {
		case over:
		case !e.Code.no():
			asks = p.end(on, ProtocolViolation, Self)
		default:
			asks = p.end(on, e.Code, e.A)
		}
	case PeerLostStep:
		if !over {
			asks = p.end(on, PeerLost, e.A)
		}
	case DeadlineOver:
		if !over {
			asks = p.end(on, Deadline, Self)
		}
	default:
		ok = false
	}
	if !ok {
		return p, 0, impossible("prefill", p.State, e)
	}
	return p, asks, nil
}

// queue hands over to the sender what is sealed and granted.
func (p *Prefill[N]) queue() Asks {
	if !p.Granted || p.Queued == p.Sealed {
		return 0
	}
	p.Queued = p.Sealed
	return AskQueue
}

// close is the closing statement, behind the last page.
func (p *Prefill[N]) close() Asks {
	if p.State != Shipping || p.Sent != p.Needed || p.Closed {
		return 0
	}
	p.Closed = true
	return AskClosing
}

// end sets the one verdict. Decode hears of a no unless it said it: in the closing statement if it can still be sent, else by an abort.
func (p *Prefill[N]) end(on Guard, c Code, from N) Asks {
	asks := AskVerdict | AskOutcome
	switch {
	case c == OK || from == DecodeLeg:
	case p.Granted && !p.Closed:
		p.Closed = true
		asks |= AskClosing
	default:
		asks |= AskAbortDecode
	}
	p.Verdict = c
	switch p.State {
	case Collecting:
		p.State = Done
		return asks | AskSettled
	case Reserving:
		p.State = GivingUp
		return asks
	}
	p.State = Revoked
	return asks | p.revoke(on)
}

func (p *Prefill[N]) revoke(on Guard) Asks {
	if !on.Has(GuardFence) {
		return AskRelease
	}
	p.Fenced = true
	return AskFence | AskRelease
}

func (p *Prefill[N]) settle() Asks {
	if p.State != Revoked || !p.Drained || p.Writing != 0 || p.Running {
		return 0
	}
	p.State = Done
	return AskSettled
}
