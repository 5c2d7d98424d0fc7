package handoff

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

// DecodeState is where decode stands with an attempt. The numbers are in recorded traces: append, never renumber.
type DecodeState uint8

const (
	// DecodeWaiting: the plan is open and no page is held; the driver waits for pages. PagesReserved leaves to Reserved;
	// ReserveEnded to Settled; anything that ends the attempt to Cancelled.
	DecodeWaiting DecodeState = iota
	// DecodeCancelled: there is a verdict, and the wait for pages has not yet been told. Only its answer leaves: PagesReserved to
	// Fencing (the pages go straight back), ReserveEnded to Settled.
	DecodeCancelled
	// DecodeReserved: the pages are leased, zero, and named by no grant; the gateway knows. Attached leaves to Granted.
	DecodeReserved
	// DecodeGranted: the grant is live, so pages land. ManifestSeen leaves to Closing.
	DecodeGranted
	// DecodeClosing: the manifest agrees with what landed; no page may land any more. EndSeen leaves to Sealing.
	DecodeClosing
	// DecodeSealing: all that prefill says agrees; the pool is asked to seal. SealDone leaves to Echoing.
	DecodeSealing
	// DecodeEchoing: the pages are sealed, the engine computes the last position. EchoCompared leaves to Serving.
	DecodeEchoing
	// DecodeServing: seal and echo agree, so tokens go out. EngineDone leaves to Fencing.
	DecodeServing
	// DecodeFencing: there is a verdict and the grant is revoked; pages wait for their pins, or the engine has not let go. The
	// last of LeaseDrained, EngineDone, PageLanded and SealDone leaves to Settled.
	DecodeFencing
	// DecodeSettled: there is a verdict, and nothing of the attempt is left. Nothing leaves it.
	DecodeSettled
)

var decodeStates = [...]string{"waiting", "cancelled", "reserved", "granted", "closing", "sealing", "echoing", "serving", "fencing", "settled"}

func (s DecodeState) String() string { return decodeStates[s] }

// Manifest is what a decode machine remembers of prefill's closing statement.
type Manifest struct {
	Seen          bool
	Tokens, Pages uint32
	Verdict       verdict.Code
}

// Decode is decode's end of one attempt. The value is comparable, and all there is.
//
// Between steps: Verdict is set if and only if State is Cancelled, Fencing or Settled; Fenced if and only if pages were
// leased and State is Fencing or Settled; Settled implies Landing == 0, !Sealing, !Running.
type Decode struct {
	State    DecodeState
	Planned  uint32 // prompt tokens of the plan
	Needed   uint32 // pages that hold them
	Reserved uint32 // pages leased: Needed, and some for generation
	Held     uint32 // of Needed: pages that a sealed prefix holds already
	Written  uint32 // pages that landed, each verified
	Landing  uint32 // pages that the pool is copying
	Manifest Manifest
	Emitted  uint32 // tokens sent
	Verdict  verdict.Code
	Fenced   bool // no write can land, no view can begin
	Sealing  bool // Seal is asked and not answered
	Running  bool // the engine has the lease
	Drained  bool // the pages are free
}

// NewDecode starts decode's end of an attempt whose prompt has tokens tokens on pages pages.
func NewDecode(tokens, pages uint32) Decode { return Decode{Planned: tokens, Needed: pages} }

// Step takes one event.
func (d Decode) Step(e Event) (Decode, Effects) {
	switch e := e.(type) {
	case PagesReserved:
		return d.pagesReserved(e)
	case ReserveEnded:
		return d.reserveEnded(e)
	case Attached:
		return d.attached()
	case PageArrived:
		return d.pageArrived(e)
	case PageLanded:
		return d.pageLanded(e)
	case ManifestSeen:
		return d.manifestSeen(e)
	case EndSeen:
		return d.endSeen(e)
	case Violation:
		return d.violation(e)
	case SealDone:
		return d.sealDone(e)
	case EchoCompared:
		return d.echoCompared(e)
	case TokenReady:
		return d.tokenReady()
	case StopAsked:
		return d.stopAsked()
	case EngineDone:
		return d.engineDone(e)
	case AbortAsked:
		return d.abortAsked(e)
	case PeerLost:
		return d.peerLost(e)
	case DeadlinePassed:
		return d.deadlinePassed()
	case LeaseDrained:
		return d.leaseDrained()
	}
	panic(d.illegal(e))
}

func (d Decode) illegal(e Event) string {
	return fmt.Sprintf("handoff: decode took %T%+v in state %s (verdict %s, written %d of %d)", e, e, d.State, d.Verdict, d.Written, d.Needed)
}

// Over reports whether the attempt has its verdict.
func (d Decode) Over() bool { return d.Verdict != verdict.None }

// Layer names the layer that is at work.
func (d Decode) Layer() verdict.Layer {
	switch d.State {
	case DecodeWaiting, DecodeCancelled, DecodeReserved:
		return verdict.Reserve
	case DecodeGranted:
		return verdict.Gate
	case DecodeClosing, DecodeSealing:
		return verdict.Seal
	case DecodeEchoing:
		return verdict.Echo
	}
	return verdict.Decode
}

func (d Decode) pagesReserved(e PagesReserved) (Decode, Effects) {
	switch d.State {
	case DecodeWaiting:
		d.State, d.Reserved = DecodeReserved, e.Count
		return d, effects(SendReserved{})
	case DecodeCancelled:
		d.State, d.Reserved = DecodeFencing, e.Count
		var out Effects
		d.revoke(&out)
		return d, out
	}
	panic(d.illegal(e))
}

func (d Decode) reserveEnded(e ReserveEnded) (Decode, Effects) {
	switch d.State {
	case DecodeWaiting:
		if !no(e.Code) {
			panic(d.illegal(e))
		}
		d.State, d.Verdict = DecodeSettled, e.Code
		return d, effects(SetVerdict{e.Code, verdict.Reserve}, SendAbort{PrefillLeg}, SendOutcome{}, SendSettled{})
	case DecodeCancelled:
		d.State = DecodeSettled
		return d, effects(SendSettled{})
	}
	panic(d.illegal(e))
}

func (d Decode) attached() (Decode, Effects) {
	switch d.State {
	case DecodeReserved:
		d.State = DecodeGranted
		return d, effects(SendGrant{})
	case DecodeCancelled, DecodeFencing, DecodeSettled:
		return d, effects(SendAbort{PrefillLeg}) // it crossed our verdict; prefill must hear that
	}
	// Before the pages are held, prefill has no plan; after the grant, a second Attach would ask for the same tags again.
	return d.end(verdict.ProtocolViolation, d.Layer(), Self)
}

// pageArrived asks the gate.
func (d Decode) pageArrived(e PageArrived) (Decode, Effects) {
	open := d.State == DecodeGranted && e.Ordinal >= d.Held && e.Ordinal < d.Needed
	if open || guard.Off(guard.Gate) && d.State >= DecodeReserved && d.Reserved > 0 {
		d.Landing++
		return d, effects(LandPage(e))
	}
	if d.Over() {
		return d, effects(RefusePage(e)) // an honest abort races with frames in flight
	}
	d, out := d.end(verdict.GateRefused, verdict.Gate, Self)
	return d, prepend(RefusePage(e), out)
}

func (d Decode) pageLanded(e PageLanded) (Decode, Effects) {
	if d.Landing == 0 || !answer(e.Code) {
		panic(d.illegal(e))
	}
	d.Landing--
	if e.Code == verdict.None {
		d.Written++
	}
	if d.Over() {
		return d.settle()
	}
	if e.Code != verdict.None {
		return d.end(e.Code, verdict.Gate, Self)
	}
	return d, Effects{}
}

func (d Decode) manifestSeen(e ManifestSeen) (Decode, Effects) {
	if d.Over() {
		return d, Effects{}
	}
	if d.State != DecodeGranted {
		return d.end(verdict.ProtocolViolation, verdict.Seal, Self) // none was asked for, or it is the second
	}
	if d.Landing != 0 {
		panic(d.illegal(e)) // a link's frames are taken one after another
	}
	d.Manifest = Manifest{Seen: true, Tokens: e.Tokens, Pages: e.Pages, Verdict: e.Verdict}
	if !guard.Off(guard.MAC) && !e.MACOK {
		return d.end(verdict.MACMismatch, verdict.Seal, Self)
	}
	if !guard.Off(guard.Verdict) && e.Verdict != verdict.OK {
		if !e.Verdict.Known() {
			return d.end(verdict.ProtocolViolation, verdict.Seal, Self)
		}
		return d.end(e.Verdict, verdict.Prefill, PrefillLeg)
	}
	if !guard.Off(guard.Count) {
		if e.Tokens != d.Planned || e.Pages != d.Written || d.Written+d.Held != d.Needed {
			return d.end(verdict.CountMismatch, verdict.Seal, Self)
		}
		if !e.DigestOK {
			return d.end(verdict.DigestMismatch, verdict.Seal, Self)
		}
	}
	if !guard.Off(guard.MAC) && !e.RootOK {
		return d.end(verdict.RootMismatch, verdict.Seal, Self)
	}
	d.State = DecodeClosing
	return d, Effects{}
}

func (d Decode) endSeen(e EndSeen) (Decode, Effects) {
	switch {
	case d.Over():
		return d, Effects{}
	case d.State != DecodeClosing: // without a manifest, or the second
		return d.end(verdict.ProtocolViolation, verdict.Seal, Self)
	case !guard.Off(guard.MAC) && !e.MACOK:
		return d.end(verdict.MACMismatch, verdict.Seal, Self)
	}
	d.State, d.Sealing = DecodeSealing, true
	return d, effects(Seal{})
}

func (d Decode) violation(e Violation) (Decode, Effects) {
	if !no(e.Code) {
		panic(d.illegal(e))
	}
	if d.Over() {
		return d, Effects{}
	}
	return d.end(e.Code, d.Layer(), Self)
}

func (d Decode) sealDone(e SealDone) (Decode, Effects) {
	if !d.Sealing || !answer(e.Code) {
		panic(d.illegal(e))
	}
	d.Sealing = false
	if d.Over() {
		return d.settle()
	}
	if e.Code != verdict.None {
		return d.end(e.Code, verdict.Seal, Self)
	}
	d.State, d.Running = DecodeEchoing, true
	return d, effects(StartDecode{})
}

func (d Decode) echoCompared(e EchoCompared) (Decode, Effects) {
	if !d.Running || d.State == DecodeServing {
		panic(d.illegal(e))
	}
	if d.Over() {
		return d, Effects{}
	}
	if !guard.Off(guard.Echo) && !e.Agrees {
		return d.end(verdict.EchoMismatch, verdict.Echo, Self)
	}
	d.State = DecodeServing
	return d, effects(SendSealed{})
}

func (d Decode) tokenReady() (Decode, Effects) {
	if !d.Running || d.State == DecodeEchoing {
		panic(d.illegal(TokenReady{}))
	}
	if d.Over() {
		return d, Effects{} // computed before the engine heard; it goes nowhere
	}
	d.Emitted++
	return d, effects(Emit{})
}

func (d Decode) stopAsked() (Decode, Effects) {
	switch {
	case d.Over():
		return d, Effects{}
	case d.State != DecodeServing:
		return d.end(verdict.ProtocolViolation, d.Layer(), Self) // there was no output to find a stop string in
	}
	return d, effects(StopDecode{})
}

func (d Decode) engineDone(e EngineDone) (Decode, Effects) {
	if !d.Running || !e.Code.Known() {
		panic(d.illegal(e))
	}
	d.Running = false
	switch {
	case d.Over():
		return d.settle()
	case e.Code == verdict.OK && d.State != DecodeServing:
		panic(d.illegal(e)) // done without an echo
	}
	return d.end(e.Code, d.Layer(), Self)
}

func (d Decode) abortAsked(e AbortAsked) (Decode, Effects) {
	switch {
	case d.Over():
		return d, Effects{}
	case !no(e.Code):
		return d.end(verdict.ProtocolViolation, d.Layer(), Self)
	case e.From == PrefillLeg && d.State >= DecodeSealing:
		return d, Effects{} // it said its last word, and is needed no more
	}
	return d.end(e.Code, d.Layer(), e.From)
}

func (d Decode) peerLost(e PeerLost) (Decode, Effects) {
	if d.Over() || e.From == PrefillLeg && d.State >= DecodeSealing {
		return d, Effects{}
	}
	return d.end(verdict.PeerLost, d.Layer(), e.From)
}

func (d Decode) deadlinePassed() (Decode, Effects) {
	if d.Over() {
		return d, Effects{}
	}
	return d.end(verdict.Deadline, d.Layer(), Self)
}

// end gives the attempt its verdict. from is who said it: prefill is told unless it was prefill, or needs no more telling.
func (d Decode) end(c verdict.Code, l verdict.Layer, from Who) (Decode, Effects) {
	if d.Over() {
		panic(fmt.Sprintf("handoff: decode: a second verdict, %s after %s, in state %s", c, d.Verdict, d.State))
	}
	if c == verdict.None || c == verdict.OK && d.State != DecodeServing {
		panic(fmt.Sprintf("handoff: decode: the verdict %s in state %s", c, d.State)) // only a reply that was served went well
	}
	out := effects(SetVerdict{c, l})
	if from != PrefillLeg && d.State < DecodeSealing {
		out.add(SendAbort{PrefillLeg})
	}
	out.add(SendOutcome{})
	d.Verdict = c
	if d.State == DecodeWaiting {
		d.State = DecodeCancelled
		return d, out
	}
	d.State = DecodeFencing
	d.revoke(&out)
	return d, out
}

// revoke fences and then, never before, gives back.
func (d *Decode) revoke(out *Effects) {
	if !guard.Off(guard.Fence) {
		d.Fenced = true
		out.add(Fence{})
	}
	if !d.Fenced && !guard.Off(guard.Fence) {
		panic("handoff: decode: pages would be released before the fence")
	}
	out.add(ReleaseLease{})
}

func (d Decode) leaseDrained() (Decode, Effects) {
	if d.State != DecodeFencing || d.Drained {
		panic(d.illegal(LeaseDrained{}))
	}
	d.Drained = true
	return d.settle()
}

func (d Decode) settle() (Decode, Effects) {
	if d.State != DecodeFencing || !d.Drained || d.Landing != 0 || d.Sealing || d.Running {
		return d, Effects{}
	}
	d.State = DecodeSettled
	return d, effects(SendSettled{})
}

func prepend(first Effect, rest Effects) Effects {
	out := effects(first)
	for e := range rest.All() {
		out.add(e)
	}
	return out
}
