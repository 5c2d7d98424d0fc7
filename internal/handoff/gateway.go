package handoff

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

// GatewayState is where the gateway stands with an attempt. The numbers are in recorded traces: append, never renumber.
type GatewayState uint8

const (
	// GatewayAsking: decode has the plan, prefill does not. ReservedSeen leaves to Running.
	GatewayAsking GatewayState = iota
	// GatewayRunning: both legs have the plan, and what decode sends is held. When the seal and prefill's outcome are in and agree,
	// the attempt goes to Releasing.
	GatewayRunning
	// GatewayReleasing: the legs agree, so bytes go to the client. DecodeEnded leaves to Settling.
	GatewayReleasing
	// GatewaySettling: there is a verdict; output is swallowed; the legs that were asked have not all said that their pages
	// are back. The last LegSettled leaves to Quiet.
	GatewaySettling
	// GatewayQuiet: there is a verdict and both legs are quiet. Nothing leaves it.
	GatewayQuiet
)

var gatewayStates = [...]string{"asking", "running", "releasing", "settling", "quiet"}

func (s GatewayState) String() string { return gatewayStates[s] }

// Gateway is the gateway's end of one attempt on a native pair. The value is comparable, and all there is.
//
// Between steps: Verdict is set if and only if State is Settling or Quiet; a byte left only if State was Releasing; an
// attempt with the verdict OK went through Releasing.
type Gateway struct {
	State        GatewayState
	Planned      uint32 // prompt tokens of the plan
	PrefillAsked bool   // prefill has the plan
	Prefill      struct {
		Code     verdict.Code // None until its outcome is in
		Tokens   uint32
		DigestOK bool
	}
	Sealed struct {
		Seen, DigestOK bool
		Tokens, Pages  uint32
	}
	Output         uint32 // tokens that decode sent
	Completion     uint32 // tokens that decode says it sent
	DecodeCode     verdict.Code
	Stopped        bool // a stop string ended the reply
	Verdict        verdict.Code
	PrefillSettled bool
	DecodeSettled  bool
}

// NewGateway starts the gateway's end of an attempt, and the attempt itself: decode is asked first.
func NewGateway(tokens uint32) (Gateway, Effects) {
	return Gateway{Planned: tokens}, effects(SendPlan{DecodeLeg})
}

// Step takes one event.
func (g Gateway) Step(e Event) (Gateway, Effects) {
	switch e := e.(type) {
	case ReservedSeen:
		return g.reservedSeen()
	case SealedSeen:
		return g.sealedSeen(e)
	case PrefillEnded:
		return g.prefillEnded(e)
	case OutputSeen:
		return g.outputSeen(e)
	case DecodeEnded:
		return g.decodeEnded(e)
	case StopFound:
		return g.stopFound()
	case Violation:
		if !no(e.Code) {
			panic(g.illegal(e))
		}
		if g.Over() {
			return g, Effects{}
		}
		return g.end(e.Code, verdict.Legs)
	case AbortAsked:
		switch {
		case g.Over():
			return g, Effects{}
		case !no(e.Code):
			return g.end(verdict.ProtocolViolation, g.layer())
		}
		return g.end(e.Code, g.layer())
	case PeerLost:
		return g.peerLost(e)
	case DeadlinePassed:
		if g.Over() {
			return g, Effects{}
		}
		return g.end(verdict.Deadline, g.layer())
	case LegSettled:
		return g.legSettled(e)
	}
	panic(g.illegal(e))
}

func (g Gateway) illegal(e Event) string {
	return fmt.Sprintf("handoff: gateway took %T%+v in state %s (verdict %s)", e, e, g.State, g.Verdict)
}

// Over reports whether the attempt has its verdict.
func (g Gateway) Over() bool { return g.Verdict != verdict.None }

func (g Gateway) layer() verdict.Layer {
	switch g.State {
	case GatewayAsking:
		return verdict.Reserve
	case GatewayRunning:
		return verdict.Prefill
	}
	return verdict.Decode
}

func (g Gateway) reservedSeen() (Gateway, Effects) {
	switch {
	case g.Over():
		return g, Effects{}
	case g.State != GatewayAsking:
		return g.end(verdict.ProtocolViolation, verdict.Legs)
	}
	g.State, g.PrefillAsked = GatewayRunning, true
	return g, effects(SendPlan{PrefillLeg})
}

func (g Gateway) sealedSeen(e SealedSeen) (Gateway, Effects) {
	switch {
	case g.Over():
		return g, Effects{}
	case g.State != GatewayRunning || g.Sealed.Seen:
		return g.end(verdict.ProtocolViolation, verdict.Legs)
	}
	g.Sealed.Seen, g.Sealed.DigestOK, g.Sealed.Tokens, g.Sealed.Pages = true, e.DigestOK, e.Tokens, e.Written+e.Held
	return g.reconcile()
}

func (g Gateway) prefillEnded(e PrefillEnded) (Gateway, Effects) {
	first := g.PrefillAsked && g.Prefill.Code == verdict.None
	if first {
		g.Prefill.Code = e.Code // its last word, whatever it is worth: see legSettled
	}
	switch {
	case g.Over():
		return g, Effects{}
	case !first || !e.Code.Known():
		return g.end(verdict.ProtocolViolation, verdict.Legs)
	}
	g.Prefill.Tokens, g.Prefill.DigestOK = e.Tokens, e.DigestOK
	if e.Code != verdict.OK && !guard.Off(guard.Verdict) && !g.Sealed.Seen {
		return g.end(e.Code, verdict.Prefill)
	}
	return g.reconcile()
}

// reconcile compares the legs once both have spoken. Nothing has left by then, unless the hold is out.
func (g Gateway) reconcile() (Gateway, Effects) {
	if g.State != GatewayRunning || !g.Sealed.Seen {
		return g, Effects{}
	}
	if !guard.Off(guard.Hold) {
		switch {
		case g.Prefill.Code == verdict.None:
			return g, Effects{}
		case g.Prefill.Code != verdict.OK, // decode sealed what prefill refused
			g.Prefill.Tokens != g.Planned || g.Sealed.Tokens != g.Planned,
			!g.Prefill.DigestOK || !g.Sealed.DigestOK:
			return g.end(verdict.LegsDisagree, verdict.Legs)
		}
	}
	g.State = GatewayReleasing
	out := effects(ReleaseHeld{})
	if g.DecodeCode != verdict.None {
		return g.finish(out)
	}
	return g, out
}

func (g Gateway) outputSeen(e OutputSeen) (Gateway, Effects) {
	switch {
	case g.Over():
		return g, effects(SwallowOutput{})
	case !g.Sealed.Seen || g.DecodeCode != verdict.None || e.Index != g.Output || e.Count == 0:
		return g.end(verdict.ProtocolViolation, verdict.Legs) // before the seal, after the end, or with a hole
	}
	g.Output += e.Count
	if g.State == GatewayReleasing {
		return g, effects(PassOutput{})
	}
	return g, effects(HoldOutput{})
}

func (g Gateway) decodeEnded(e DecodeEnded) (Gateway, Effects) {
	first := g.DecodeCode == verdict.None
	if first {
		g.DecodeCode = e.Code
	}
	switch {
	case g.Over():
		return g, Effects{}
	case !first || !e.Code.Known():
		return g.end(verdict.ProtocolViolation, verdict.Legs)
	case e.Code != verdict.OK:
		return g.end(e.Code, verdict.Decode)
	case !g.Sealed.Seen: // served without a seal
		return g.end(verdict.LegsDisagree, verdict.Legs)
	}
	g.Completion = e.Completion
	if g.State == GatewayReleasing {
		return g.finish(Effects{})
	}
	return g, Effects{}
}

// finish ends a reply whose legs agree: what decode says that it sent must be what came.
func (g Gateway) finish(out Effects) (Gateway, Effects) {
	c, l := verdict.OK, verdict.Stream
	if g.Completion != g.Output {
		c, l = verdict.LegsDisagree, verdict.Legs
	}
	g, end := g.end(c, l)
	for e := range end.All() {
		out.add(e)
	}
	return g, out
}

func (g Gateway) stopFound() (Gateway, Effects) {
	if g.Over() || g.Stopped {
		return g, Effects{}
	}
	if g.State != GatewayReleasing {
		panic(fmt.Sprintf("handoff: gateway: a stop string in state %s, where no output is looked at", g.State))
	}
	g.Stopped = true
	return g, effects(SendStop{})
}

func (g Gateway) peerLost(e PeerLost) (Gateway, Effects) {
	var out Effects
	lost := func(settled *bool, asked bool) {
		if asked {
			*settled = true // its process forgot the attempt with the link, fenced it, and nobody will say more
		}
	}
	needed := true
	switch e.From {
	case PrefillLeg:
		needed = g.Prefill.Code == verdict.None
		lost(&g.PrefillSettled, g.PrefillAsked)
	case DecodeLeg:
		needed = g.DecodeCode == verdict.None
		lost(&g.DecodeSettled, true)
	}
	if g.Over() {
		return g.quiet(out)
	}
	if !needed {
		return g, out
	}
	return g.end(verdict.PeerLost, g.layer())
}

// end gives the attempt its verdict: every leg that has not said its own last word hears of it, and output goes nowhere.
func (g Gateway) end(c verdict.Code, l verdict.Layer) (Gateway, Effects) {
	if g.Over() {
		panic(fmt.Sprintf("handoff: gateway: a second verdict, %s after %s, in state %s", c, g.Verdict, g.State))
	}
	if c == verdict.None || c == verdict.OK && g.State != GatewayReleasing {
		panic(fmt.Sprintf("handoff: gateway: the verdict %s in state %s", c, g.State)) // only what was released went well
	}
	g.Verdict = c
	out := effects(SetVerdict{c, l})
	if c != verdict.OK {
		if g.PrefillAsked && g.Prefill.Code == verdict.None && !g.PrefillSettled {
			out.add(SendAbort{PrefillLeg})
		}
		if g.DecodeCode == verdict.None && !g.DecodeSettled {
			out.add(SendAbort{DecodeLeg})
		}
	}
	if c.About().Proof {
		out.add(RestPair{})
	}
	g.State = GatewaySettling
	return g.quiet(out)
}

// legSettled takes a leg's word that its pages are back. Before its last word on the attempt it cannot be true: it ends the attempt, or, once
// that is over, counts for nothing, so that a leg is not taken for quiet while it works.
func (g Gateway) legSettled(e LegSettled) (Gateway, Effects) {
	if e.Leg == PrefillLeg && g.Prefill.Code == verdict.None || e.Leg == DecodeLeg && g.DecodeCode == verdict.None {
		if g.Over() {
			return g, Effects{}
		}
		return g.end(verdict.ProtocolViolation, verdict.Legs)
	}
	switch e.Leg {
	case PrefillLeg:
		g.PrefillSettled = true
	case DecodeLeg:
		g.DecodeSettled = true
	}
	if !g.Over() {
		return g, Effects{} // a leg that is done early; its outcome came before
	}
	return g.quiet(Effects{})
}

func (g Gateway) quiet(out Effects) (Gateway, Effects) {
	if g.State != GatewaySettling || !g.DecodeSettled || g.PrefillAsked && !g.PrefillSettled {
		return g, out
	}
	g.State = GatewayQuiet
	out.add(Finish{})
	return g, out
}
