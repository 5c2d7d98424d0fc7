package model

import "fmt"

// GatewayState is where the gateway stands.
type GatewayState uint8

const (
	Asking    GatewayState = iota // decode has the plan, prefill does not
	Running                       // both have it; output is held
	Releasing                     // the legs agree: output goes to the client
	Settling                      // over; output is swallowed; the legs are not both quiet
	Quiet                         // over, and both legs are quiet
)

var gatewayNames = [...]string{"asking", "running", "releasing", "settling", "quiet"}

func (s GatewayState) String() string {
	if int(s) >= len(gatewayNames) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return gatewayNames[s]
}

// Gateway is the gateway's end of an attempt.
type Gateway[N Count] struct {
	State                         GatewayState
	Planned                       N // tokens of the prompt
	PrefillAsked                  bool
	PrefillCode                   Code // None until its outcome is in
	PrefillTokens                 N
	PrefillDigest                 bool
	SealSeen, SealDigest          bool
	SealTokens, SealPages         N
	Output, Completion            N // tokens that came, tokens that decode says it sent
	DecodeCode                    Code
	Stopped                       bool
	Verdict                       Code
	PrefillSettled, DecodeSettled bool
}

// NewGateway is the gateway's end of a new attempt: decode is asked.
func NewGateway[N Count](tokens N) Gateway[N] { return Gateway[N]{Planned: tokens} }

// Over reports whether there is a verdict.
func (g Gateway[N]) Over() bool { return g.Verdict != None }

// Step takes an event. on is the guards that are in their places. The error is the driver's.
func (g Gateway[N]) Step(on Guard, e Event[N]) (Gateway[N], Asks, error) {
	over := g.Over()
	ok := true
	var asks Asks
	switch e.Step {
	case ReservedSeen:
		switch {
		case over:
		case g.State != Asking:
			asks = g.end(on, ProtocolViolation)
		default:
			g.State, g.PrefillAsked, asks = Running, true, AskPlanPrefill
		}
	case SealedSeen:
		switch {
		case over:
		case g.State != Running || g.SealSeen:
			asks = g.end(on, ProtocolViolation)
		default:
			g.SealSeen, g.SealTokens, g.SealPages, g.SealDigest = true, e.A, e.B, e.C != 0
			asks = g.reconcile(on)
		}
	case PrefillEnded:
		first := g.PrefillAsked && g.PrefillCode == None
		if first {
			g.PrefillCode = e.Code
		}
		switch {
		case over:
		case !first || !e.Code.known():
			asks = g.end(on, ProtocolViolation)
		default:
			g.PrefillTokens, g.PrefillDigest = e.A, e.C != 0
			if e.Code != OK && !g.SealSeen && on.Has(GuardVerdict) {
				asks = g.end(on, e.Code)
			} else {
				asks = g.reconcile(on)
			}
		}
	case OutputSeen:
		switch {
		case over && on.Has(GuardSwallow):
			asks = AskSwallow
		case over:
			asks = AskPass
		case !g.SealSeen || g.DecodeCode != None || e.A != g.Output || e.B == 0:
			asks = g.end(on, ProtocolViolation)
		default:
			g.Output += e.B
			if asks = AskHold; g.State == Releasing {
				asks = AskPass
			}
		}
	case DecodeEnded:
		first := g.DecodeCode == None
		if first {
			g.DecodeCode = e.Code
		}
		switch {
		case over:
		case !first || !e.Code.known():
			asks = g.end(on, ProtocolViolation)
		case e.Code != OK:
			asks = g.end(on, e.Code)
		case !g.SealSeen:
			asks = g.end(on, LegsDisagree)
		default:
			g.Completion = e.A
			if g.State == Releasing {
				asks = g.finish(on)
			}
		}
	case StopFound:
		ok = over || g.Stopped || g.State == Releasing
		if !over && !g.Stopped {
			g.Stopped, asks = true, AskStopDecode
		}
	case Violation:
		ok = e.Code.no()
		if !over {
			asks = g.end(on, e.Code)
		}
	case AbortAsked:
		switch {
		case over:
		case !e.Code.no():
			asks = g.end(on, ProtocolViolation)
		default:
			asks = g.end(on, e.Code)
		}
	case DeadlineOver:
		if !over {
			asks = g.end(on, Deadline)
		}
	case PeerLostStep:
		needed := true
		switch e.A {
		case PrefillLeg:
			needed = g.PrefillCode == None
			g.PrefillSettled = g.PrefillSettled || g.PrefillAsked
		case DecodeLeg:
			needed = g.DecodeCode == None
			g.DecodeSettled = true
		}
		switch {
		case over:
			asks = g.quiet(on)
		case needed:
			asks = g.end(on, PeerLost)
		}
	case LegSettled:
		early := e.A == PrefillLeg && g.PrefillCode == None || e.A == DecodeLeg && g.DecodeCode == None
		switch {
		case early && on.Has(GuardLastWord) && over:
		case early && on.Has(GuardLastWord):
			asks = g.end(on, ProtocolViolation)
		default:
			g.PrefillSettled = g.PrefillSettled || e.A == PrefillLeg
			g.DecodeSettled = g.DecodeSettled || e.A == DecodeLeg
			if over {
				asks = g.quiet(on)
			}
		}
	case GivenUp:
		ok = over && g.State != Quiet
	default:
		ok = false
	}
	if !ok {
		return g, 0, impossible("gateway", g.State, e)
	}
	return g, asks, nil
}

// reconcile compares the legs once both have spoken.
func (g *Gateway[N]) reconcile(on Guard) Asks {
	if g.State != Running || !g.SealSeen {
		return 0
	}
	if on.Has(GuardHold) {
		if g.PrefillCode == None {
			return 0
		}
		agree := g.PrefillCode == OK && g.PrefillTokens == g.Planned && g.SealTokens == g.Planned && g.PrefillDigest && g.SealDigest
		if !agree {
			return g.end(on, LegsDisagree)
		}
	}
	g.State = Releasing
	if g.DecodeCode != None {
		return AskLetGo | g.finish(on)
	}
	return AskLetGo
}

// finish ends a reply whose legs agree: what decode says that it sent must be what came.
func (g *Gateway[N]) finish(on Guard) Asks {
	if g.Completion != g.Output {
		return g.end(on, LegsDisagree)
	}
	return g.end(on, OK)
}

// end sets the one verdict; legs that have not said their last word hear of a no.
func (g *Gateway[N]) end(on Guard, c Code) Asks {
	g.Verdict = c
	asks := AskVerdict
	if c != OK {
		if g.PrefillAsked && g.PrefillCode == None && !g.PrefillSettled {
			asks |= AskAbortPrefill
		}
		if g.DecodeCode == None && !g.DecodeSettled {
			asks |= AskAbortDecode
		}
	}
	if c.proof() {
		asks |= AskRest
	}
	g.State = Settling
	return asks | g.quiet(on)
}

func (g *Gateway[N]) quiet(on Guard) Asks {
	done := g.DecodeSettled && (g.PrefillSettled || !g.PrefillAsked)
	if g.State != Settling || !done && on.Has(GuardSettle) {
		return 0
	}
	g.State = Quiet
	return AskFinish
}
