package handoff

import (
	"iter"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Effect is something that the driver does because of a step. One type each. The driver performs the effects of a step in
// order, and feeds what came of them back as events.
type Effect interface{ effect() }

// Effects of the legs.
type (
	// SendReserved tells the gateway that the pages are held.
	SendReserved struct{}
	// SendGrant sends the tags to prefill. Since this step the grant is live.
	SendGrant struct{}
	// LandPage gives the frame in staging to the pool's gate; PageLanded answers.
	LandPage struct{ Ordinal uint32 }
	// RefusePage drops the frame in staging and counts it: it came without a live grant.
	RefusePage struct{ Ordinal uint32 }
	// Seal seals the landed pages; SealDone answers.
	Seal struct{}
	// StartDecode hands the sealed lease to the engine; EngineDone answers, once.
	StartDecode struct{}
	// SendSealed tells the gateway that the seal and the echo agree.
	SendSealed struct{}
	// Emit sends the token to the gateway.
	Emit struct{}
	// StopDecode makes the engine end the reply well.
	StopDecode struct{}

	// ReservePages waits for prefill's own pages; PagesReserved or ReserveEnded answers.
	ReservePages struct{}
	// StartPrefill hands prompt and lease to the engine; PagesSealed and EngineDone answer.
	StartPrefill struct{}
	// QueuePages lets the sender take the pages [From, To).
	QueuePages struct{ From, To uint32 }
	// WritePage lets the sender copy the page out and write its frame; PageSent answers.
	WritePage struct{ Ordinal uint32 }
	// SkipPage tells the sender that the page is not to be sent any more.
	SkipPage struct{ Ordinal uint32 }
	// SendClosing sends the manifest with the verdict Code, then the end; ClosingSent answers when Code is OK.
	SendClosing struct{ Code verdict.Code }

	// SetVerdict puts the one verdict into the attempt's cell. Code is what the machine decided and Layer who says so; when the
	// step was a peer's word, the driver puts the peer's whole verdict there.
	SetVerdict struct {
		Code  verdict.Code
		Layer verdict.Layer
	}
	// SendAbort tells the leg at the other end of the data link, or (gateway) the leg named.
	SendAbort struct{ To Who }
	// SendOutcome tells the gateway this leg's terminal word.
	SendOutcome struct{}
	// Fence revokes the grant: since this effect no write can land and no view can begin.
	Fence struct{}
	// ReleaseLease gives the pages back as their pins drain; LeaseDrained answers. Never before Fence.
	ReleaseLease struct{}
	// SendSettled tells the gateway that the pages are back. The attempt is over.
	SendSettled struct{}
)

// Effects of the gateway.
type (
	// SendPlan sends the leg its plan (prefill: and the prompt).
	SendPlan struct{ To Who }
	// HoldOutput keeps the output that just came.
	HoldOutput struct{}
	// ReleaseHeld lets what is held go to the client, and all that comes after it.
	ReleaseHeld struct{}
	// PassOutput lets the output that just came go to the client.
	PassOutput struct{}
	// SwallowOutput drops the output that just came: the attempt has its verdict.
	SwallowOutput struct{}
	// SendStop asks decode to end the reply well.
	SendStop struct{}
	// RestPair takes the pair out of use: the legs contradict each other.
	RestPair struct{}
	// Finish writes the record: both legs are quiet.
	Finish struct{}
)

func (SendReserved) effect()  {}
func (SendGrant) effect()     {}
func (LandPage) effect()      {}
func (RefusePage) effect()    {}
func (Seal) effect()          {}
func (StartDecode) effect()   {}
func (SendSealed) effect()    {}
func (Emit) effect()          {}
func (StopDecode) effect()    {}
func (ReservePages) effect()  {}
func (StartPrefill) effect()  {}
func (QueuePages) effect()    {}
func (WritePage) effect()     {}
func (SkipPage) effect()      {}
func (SendClosing) effect()   {}
func (SetVerdict) effect()    {}
func (SendAbort) effect()     {}
func (SendOutcome) effect()   {}
func (Fence) effect()         {}
func (ReleaseLease) effect()  {}
func (SendSettled) effect()   {}
func (SendPlan) effect()      {}
func (HoldOutput) effect()    {}
func (ReleaseHeld) effect()   {}
func (PassOutput) effect()    {}
func (SwallowOutput) effect() {}
func (SendStop) effect()      {}
func (RestPair) effect()      {}
func (Finish) effect()        {}

// maxEffects is the most effects of one step.
const maxEffects = 8

// Effects is what one step asks of its driver, in order: a value, without memory of its own.
type Effects struct {
	list [maxEffects]Effect
	n    uint8
}

// All yields the effects in order.
func (e Effects) All() iter.Seq[Effect] {
	return func(yield func(Effect) bool) {
		for _, x := range e.list[:e.n] {
			if !yield(x) {
				return
			}
		}
	}
}

// Len is the number of effects.
func (e Effects) Len() int { return int(e.n) }

func (e *Effects) add(x Effect) {
	e.list[e.n] = x // more than maxEffects is a bug of ours, and panics
	e.n++
}

func effects(xs ...Effect) (e Effects) {
	for _, x := range xs {
		e.add(x)
	}
	return e
}
