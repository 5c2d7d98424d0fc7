package model

import "fmt"

// DecodeState is where decode stands.
type DecodeState uint8

const (
	Waiting   DecodeState = iota // for pages
	Cancelled                    // over, and the wait for pages is not yet told
	Reserved                     // pages are held and named by no grant
	Granted                      // the grant is live: pages land
	Closing                      // the statement agrees; nothing lands any more
	Sealing                      // the pool is asked to seal
	Echoing                      // sealed; the last position is being computed
	Serving                      // seal and echo agree: tokens go out
	Fencing                      // over; the grant is revoked; pages wait for pins, or the engine has not let go
	Settled                      // over, and nothing is left
)

var decodeNames = [...]string{"waiting", "cancelled", "reserved", "granted", "closing", "sealing", "echoing", "serving", "fencing", "settled"}

func (s DecodeState) String() string {
	if int(s) >= len(decodeNames) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return decodeNames[s]
}

// Decode is decode's end of an attempt.
type Decode[N Count] struct {
	State                               DecodeState
	Planned, Needed                     N // tokens and pages of the prompt
	Reserved, Held, Written, Landing    N // pages: leased; of Needed held by a prefix; landed; being copied
	ManifestSeen                        bool
	ManifestTokens, ManifestPages       N
	ManifestVerdict                     Code
	Emitted                             N
	Verdict                             Code
	Fenced, SealAsked, Running, Drained bool
}

// NewDecode is decode's end of a new attempt.
func NewDecode[N Count](tokens, pages N) Decode[N] { return Decode[N]{Planned: tokens, Needed: pages} }

// Over reports whether there is a verdict.
func (d Decode[N]) Over() bool { return d.Verdict != None }

// Step takes an event. on is the guards that are in their places. The error is the driver's.
func (d Decode[N]) Step(on Guard, e Event[N]) (Decode[N], Asks, error) {
	over := d.Over()
	ok := true // the driver may say this here
	var asks Asks
	switch e.Step {

	// The driver's own answers.
	case PagesReserved:
		ok = d.State == Waiting || d.State == Cancelled
		d.Reserved = e.A
		if d.State == Waiting {
			d.State, asks = Reserved, AskReserved
		} else {
			d.State, asks = Fencing, d.revoke(on)
		}
	case ReserveEnded:
		ok = d.State == Cancelled || d.State == Waiting && e.Code.no()
		if d.State == Waiting {
			d.Verdict, asks = e.Code, AskVerdict|AskAbortPrefill|AskOutcome
		}
		d.State = Settled
		asks |= AskSettled
	case PageLanded:
		ok = d.Landing > 0 && (e.Code == None || e.Code.no())
		d.Landing--
		if e.Code == None {
			d.Written++
		}
		switch {
		case over:
			asks = d.settle()
		case e.Code != None:
			asks = d.end(on, e.Code, Self)
		}
	case SealDone:
		ok = d.SealAsked && (e.Code == None || e.Code.no())
		d.SealAsked = false
		switch {
		case over:
			asks = d.settle()
		case e.Code != None:
			asks = d.end(on, e.Code, Self)
		default:
			d.State, d.Running, asks = Echoing, true, AskStart
		}
	case EchoCompared:
		ok = d.Running && d.State != Serving
		switch {
		case over:
		case e.A == 0 && on.Has(GuardEcho):
			asks = d.end(on, EchoMismatch, Self)
		default:
			d.State, asks = Serving, AskSealed
		}
	case TokenReady:
		ok = d.Running && d.State != Echoing
		if !over {
			d.Emitted++
			asks = AskEmit
		}
	case EngineDone:
		ok = d.Running && e.Code.known() && (over || e.Code != OK || d.State == Serving)
		d.Running = false
		if over {
			asks = d.settle()
		} else {
			asks = d.end(on, e.Code, Self)
		}
	case LeaseDrained:
		ok = d.State == Fencing && !d.Drained
		d.Drained = true
		asks = d.settle()

	// What prefill says.
	case Attached:
		switch {
		case over:
			asks = AskAbortPrefill
		case d.State == Reserved:
			d.State, asks = Granted, AskGrant
		default:
			asks = d.end(on, ProtocolViolation, Self)
		}
	case PageArrived:
		live := d.State == Granted && e.A >= d.Held && e.A < d.Needed
		switch {
		case live, !on.Has(GuardGate) && d.State >= Reserved && d.Reserved > 0:
			d.Landing++
			asks = AskLand
		case over:
			asks = AskRefuse
		default:
			asks = AskRefuse | d.end(on, GateRefused, Self)
		}
	case ManifestSeen:
		ok = over || d.State != Granted || d.Landing == 0
		if !over {
			asks = d.manifest(on, e)
		}
	case EndSeen:
		switch {
		case over:
		case d.State != Closing:
			asks = d.end(on, ProtocolViolation, Self)
		case e.Code != None && on.Has(GuardMAC):
			asks = d.end(on, MACMismatch, Self)
		default:
			d.State, d.SealAsked, asks = Sealing, true, AskSeal
		}

	// What the world and the others say.
	case Violation:
		ok = e.Code.no()
		if !over {
			asks = d.end(on, e.Code, Self)
		}
	case StopAsked:
		switch {
		case over:
		case d.State == Serving:
			asks = AskStop
		default:
			asks = d.end(on, ProtocolViolation, Self)
		}
	case AbortAsked:
		switch {
		case over:
		case !e.Code.no():
			asks = d.end(on, ProtocolViolation, Self)
		case e.A == PrefillLeg && d.State >= Sealing: // it is needed no more
		default:
			asks = d.end(on, e.Code, e.A)
		}
	case PeerLostStep:
		if !over && !(e.A == PrefillLeg && d.State >= Sealing) {
			asks = d.end(on, PeerLost, e.A)
		}
	case DeadlineOver:
		if !over {
			asks = d.end(on, Deadline, Self)
		}
	default:
		ok = false
	}
	if !ok {
		return d, 0, impossible("decode", d.State, e)
	}
	return d, asks, nil
}

// manifest compares prefill's closing statement with what is known here. What it says comes first, then what it adds up to.
func (d *Decode[N]) manifest(on Guard, e Event[N]) Asks {
	if d.State != Granted {
		return d.end(on, ProtocolViolation, Self)
	}
	d.ManifestSeen, d.ManifestTokens, d.ManifestPages, d.ManifestVerdict = true, e.A, e.B, e.Code
	if on.Has(GuardMAC) && e.C&MACRight == 0 {
		return d.end(on, MACMismatch, Self)
	}
	if on.Has(GuardVerdict) && e.Code != OK {
		if !e.Code.known() {
			return d.end(on, ProtocolViolation, Self)
		}
		return d.end(on, e.Code, PrefillLeg)
	}
	if on.Has(GuardCount) {
		if e.A != d.Planned || e.B != d.Written || d.Written+d.Held != d.Needed {
			return d.end(on, CountMismatch, Self)
		}
		if e.C&DigestRight == 0 {
			return d.end(on, DigestMismatch, Self)
		}
	}
	if on.Has(GuardMAC) && e.C&RootRight == 0 {
		return d.end(on, RootMismatch, Self)
	}
	d.State = Closing
	return 0
}

// end sets the one verdict, says so, fences and gives back, in that order. Prefill is told unless it said so itself or is needed no more.
func (d *Decode[N]) end(on Guard, c Code, from N) Asks {
	asks := AskVerdict | AskOutcome
	if from != PrefillLeg && d.State < Sealing {
		asks |= AskAbortPrefill
	}
	d.Verdict = c
	if d.State == Waiting {
		d.State = Cancelled
		return asks
	}
	d.State = Fencing
	return asks | d.revoke(on)
}

func (d *Decode[N]) revoke(on Guard) Asks {
	if !on.Has(GuardFence) {
		return AskRelease
	}
	d.Fenced = true
	return AskFence | AskRelease
}

// settle is the end of the last thing that was still out.
func (d *Decode[N]) settle() Asks {
	if d.State != Fencing || !d.Drained || d.Landing != 0 || d.SealAsked || d.Running {
		return 0
	}
	d.State = Settled
	return AskSettled
}
