// Package legs is the gateway's one reconcile machine: what the two legs of an attempt said goes in, what happens to the
// reply comes out.
//
// It is pure: a Machine is a comparable value, Step takes it and an event and returns the next one and an action. It knows no
// wire: adapters (gateway/upstream) translate frames, bodies and streams into events and know nothing of policy. What must agree,
// and when, is the table in table.go, one row per engine, kind of reply and phase; Explain prints it.
//
// # States
//
//	Holding   nothing has left; also while decode has failed and prefill has not answered (undecided.go). Left by Release, Refuse, Complete.
//	Released  the legs agreed; content passes. Left by Refuse (mid-stream), Complete.
//	Refused   the attempt has a verdict that is a no; whatever still comes is swallowed. Final.
//	Completed everything agreed to the end. What still comes is a violation that nobody hears of but the pair. Final.
package legs

import (
	"github.com/sluicekv/sluice/internal/verdict"
)

// Leg of an attempt. An engine with one leg (plain) uses Decode.
type Leg uint8

const (
	Prefill Leg = iota
	Decode
	numLegs
)

func (l Leg) String() string {
	if l == Prefill {
		return "prefill"
	}
	return "decode"
}

// Layer that speaks when this leg fails.
func (l Leg) Layer() verdict.Layer {
	if l == Prefill {
		return verdict.Prefill
	}
	return verdict.Decode
}

// Finish reason of a leg.
type Finish uint8

const (
	NoFinish Finish = iota
	Stop
	Length
	Other // anything else: abort, error, content filter, tool calls
)

func (f Finish) String() string { return [...]string{"none", "stop", "length", "other"}[f] }

// HandleState is what a leg's handle looks like to its adapter.
type HandleState uint8

const (
	Missing HandleState = iota
	Ours                // well formed, of this attempt, from the worker that was asked, fresh
	Foreign             // of another attempt or worker
	Stale               // too old to be used
)

// Handle is what one leg gives the other: natively the seal (or prefill's closing statement of it), elsewhere the transfer
// parameters. Digest and Root are zero where an engine has none.
type Handle struct {
	State        HandleState
	Why          string // of Foreign and Stale: which part of it says so; never a value
	Pages        uint32 // 0: not said
	Digest, Root [32]byte
}

// Event is one of the types below.
type Event interface{ event() }

// LegStatus: a leg answered with a status, before any content. An answer that says why it refuses is a LegError instead.
type LegStatus struct {
	Leg    Leg
	Status int // HTTP
}

// LegUsage: a leg says what it computed. A negative number was not said.
type LegUsage struct {
	Leg                Leg
	Prompt, Completion int
}

// LegFinish: a leg says why it ended.
type LegFinish struct {
	Leg    Leg
	Reason Finish
}

// LegHandle: a leg names what it hands over or accepted.
type LegHandle struct {
	Leg    Leg
	Handle Handle
}

// LegTop: a leg says how likely it found the token after the prompt, and others in its place. Comes before the content of that token.
type LegTop struct {
	Leg Leg
	Top Top
}

// HandleLapsed: prefill gave back what it handed over before decode read it. Why holds numbers.
type HandleLapsed struct{ Why string }

// LegBytes: N more units of content (natively token ids) came. They lie with the adapter until the action says what happens.
type LegBytes struct {
	Leg Leg
	N   int
}

// LegError: a leg says no. The verdict is the leg's own, whole.
type LegError struct {
	Leg     Leg
	Verdict verdict.Verdict
}

// LegBroke: a leg broke the rules of its wire. The verdict is its adapter's: what the leg did may be fine, what it said is not.
type LegBroke struct {
	Leg     Leg
	Verdict verdict.Verdict
	Failed  bool // in a stream, the engine says that it failed: its status was sent, and there is no other place to say it
}

// HeldFull: as much of decode's output lies with the adapter as may. What the engine says only at the end of a reply cannot be waited
// for any longer without reading on: it is compared at the end.
type HeldFull struct{}

// LegEnd: a leg's marked end (natively its outcome, elsewhere [DONE] or a complete body). A stream that just ends is LegLost.
type LegEnd struct{ Leg Leg }

// LegLost: a leg's connection ended before its marked end. Reason holds no content.
type LegLost struct {
	Leg     Leg
	Reason  string
	Excused bool // the leg is not to blame: nothing reached it, or the gateway itself closed the connection
}

// Deadline: the attempt's time is up.
type Deadline struct {
	Short bool // the client had asked for less time than the gateway gives: that a leg said nothing in it says nothing of the leg
}

// ClientGone: nobody waits for the reply any more.
type ClientGone struct{}

// Withdrawn: the gateway itself ends the attempt (drained, switched off).
type Withdrawn struct{ Verdict verdict.Verdict }

func (LegStatus) event()    {}
func (LegUsage) event()     {}
func (LegFinish) event()    {}
func (LegHandle) event()    {}
func (LegTop) event()       {}
func (HandleLapsed) event() {}
func (LegBytes) event()     {}
func (LegError) event()     {}
func (LegBroke) event()     {}
func (LegEnd) event()       {}
func (HeldFull) event()     {}
func (LegLost) event()      {}
func (Deadline) event()     {}
func (ClientGone) event()   {}
func (Withdrawn) event()    {}

// Do is what happens to the reply.
type Do uint8

const (
	Hold     Do = iota // nothing leaves yet
	Release            // content may leave from now on, also what was held
	Pass               // content leaves
	Refuse             // the attempt ends with Action.Verdict: a status, or mid-stream an error event
	Swallow            // drop it: the attempt has its verdict
	Complete           // finish the reply well
)

func (d Do) String() string {
	return [...]string{"hold", "release", "pass", "refuse", "swallow", "complete"}[d]
}

// Action answers an event.
type Action struct {
	Do      Do
	Verdict verdict.Verdict // of Refuse and Complete
	Abort   [numLegs]bool   // tell these legs, where the engine's abort cannot itself start a late write
	Eject   bool            // proof that the legs contradict each other: the pair rests
	Settle  bool            // the transfer may not be over: the pair's slot is not free until it provably is
}
