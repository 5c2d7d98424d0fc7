package handoff

import (
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Event is something that happened to an attempt at one end. One type each; a driver feeds them to the machine's Step one at a
// time, under its lock. Events that a peer can cause may come in any state; events that only our own driver causes panic in a
// state where it may not send them.
type Event interface{ Trace() trace.Args }

// Who is at the other end of what was lost or said.
type Who uint8

const (
	Self       Who = iota // this worker: drain, its own limits
	GatewayEnd            // the gateway, over the control link
	PrefillLeg
	DecodeLeg
	ClientEnd // of the gateway
)

func (w Who) String() string {
	return [...]string{"this process", "the gateway", "prefill", "decode", "the client"}[min(int(w), 4)]
}

// Events of the legs.
type (
	// PagesReserved: the pool handed out Count pages, zeroed, under new generations. (Own driver; answers the wait for pages.)
	PagesReserved struct{ Count uint32 }

	// ReserveEnded: the wait for pages ended without any. Code is why; None when the attempt ended while waiting. (Own driver.)
	ReserveEnded struct{ Code verdict.Code }

	// Attached: prefill's authenticated Attach came on a data link of the key that the plan names. (Peer.)
	Attached struct{}

	// PageArrived: a whole page frame lies in staging. (Peer.)
	PageArrived struct{ Ordinal uint32 }

	// PageLanded answers LandPage: Code is None when the page is Written, else why it is not. (Own driver.)
	PageLanded struct {
		Ordinal uint32
		Code    verdict.Code
	}

	// ManifestSeen: prefill's closing statement, each part of it already compared by the driver with what is known here. (Peer.)
	ManifestSeen struct {
		Tokens, Pages uint32
		MACOK         bool
		DigestOK      bool // its digest is the plan's
		RootOK        bool // its root is the root of the MACs of the pages that landed
		Verdict       verdict.Code
	}

	// EndSeen: the marked end. (Peer.)
	EndSeen struct{ MACOK bool }

	// Violation: a frame of the attempt broke the wire's rules in a way that no other event tells. (Peer.)
	Violation struct{ Code verdict.Code }

	// SealDone answers Seal. (Own driver.)
	SealDone struct{ Code verdict.Code }

	// EchoCompared: the engine computed the last position from the pages. (Own driver.)
	EchoCompared struct{ Agrees bool }

	// TokenReady: the engine made one token. (Own driver.)
	TokenReady struct{}

	// StopAsked: the gateway found a stop string. (Peer.)
	StopAsked struct{}

	// EngineDone: the engine has let go of the attempt; Tokens is what it computed (prefill: prompt tokens; decode: completion).
	// Code is OK when the work was finished. Also the answer to a StartPrefill or StartDecode that could not be done. (Own driver.)
	EngineDone struct {
		Tokens uint32
		Code   verdict.Code
	}

	// PromptSeen: Count token ids from position Offset came; DigestOK tells of the whole prompt, once it is whole. (Peer.)
	PromptSeen struct {
		Offset, Count uint32
		DigestOK      bool
	}

	// GrantSeen: decode's grant, checked by the driver: Code is None when its MAC, boot and tags are right. (Peer.)
	GrantSeen struct {
		Pages uint32
		Code  verdict.Code
	}

	// PagesSealed: prefill's own pages [From, To) are computed and sealed and have their MACs. (Own driver.)
	PagesSealed struct{ From, To uint32 }

	// PageTaken: the link's sender wants to copy page Ordinal out to the socket. (Own driver.)
	PageTaken struct{ Ordinal uint32 }

	// PageSent: the whole frame of the page is written to the socket. (Own driver.)
	PageSent struct{ Ordinal uint32 }

	// PageDropped: the page was taken and could not be copied out or written. (Own driver; the attempt is over, or it is a bug.)
	PageDropped struct{ Ordinal uint32 }

	// ClosingSent: manifest and end are written to the socket. (Own driver.)
	ClosingSent struct{}

	// AbortAsked: somebody ends the attempt, with the verdict that ended it. (Peer, or own driver when draining.)
	AbortAsked struct {
		From Who
		Code verdict.Code
	}

	// PeerLost: the link to From ended. (The world.)
	PeerLost struct{ From Who }

	// DeadlinePassed: this process's own timer of the plan's budget. (The world.)
	DeadlinePassed struct{}

	// LeaseDrained: every page of the lease is fenced, without pins, zeroed and free. (Own driver; answers ReleaseLease.)
	LeaseDrained struct{}
)

// Events of the gateway.
type (
	// ReservedSeen: decode holds pages.
	ReservedSeen struct{ Pages uint32 }

	// SealedSeen: decode sealed. Agrees: its digest is the plan's.
	SealedSeen struct {
		Tokens, Written, Held uint32
		DigestOK              bool
	}

	// PrefillEnded: prefill's Outcome. RootOK: its root is decode's, as far as both are known.
	PrefillEnded struct {
		Tokens   uint32
		DigestOK bool
		Code     verdict.Code
	}

	// OutputSeen: decode sent Count tokens from Index.
	OutputSeen struct{ Index, Count uint32 }

	// DecodeEnded: decode's Outcome.
	DecodeEnded struct {
		Completion uint32
		Code       verdict.Code
	}

	// StopFound: the gateway found a stop string in the output.
	StopFound struct{}

	// LegSettled: the leg says that its pages are back, or will never be heard of again (its process is gone).
	LegSettled struct{ Leg Who }
)

// no reports whether a code that ends an attempt is a no: there is one road to OK, and no event says it from outside that road.
func no(c verdict.Code) bool { return c.Known() && c != verdict.OK }

// answer reports whether a code is what a driver's answer may be: None, which is done, or a no.
func answer(c verdict.Code) bool { return c == verdict.None || no(c) }

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func (e PagesReserved) Trace() trace.Args { return trace.Args{Step: trace.PagesReserved, A: e.Count} }
func (e ReserveEnded) Trace() trace.Args  { return trace.Args{Step: trace.ReserveEnded, Code: e.Code} }
func (e Attached) Trace() trace.Args      { return trace.Args{Step: trace.Attached} }
func (e PageArrived) Trace() trace.Args   { return trace.Args{Step: trace.PageArrived, A: e.Ordinal} }
func (e PageLanded) Trace() trace.Args {
	return trace.Args{Step: trace.PageLanded, A: e.Ordinal, Code: e.Code}
}
func (e ManifestSeen) Trace() trace.Args {
	right := flag(e.MACOK)*trace.MACRight | flag(e.DigestOK)*trace.DigestRight | flag(e.RootOK)*trace.RootRight
	return trace.Args{Step: trace.ManifestSeen, A: e.Tokens, B: e.Pages, C: right, Code: e.Verdict}
}
func (e EndSeen) Trace() trace.Args {
	if !e.MACOK {
		return trace.Args{Step: trace.EndSeen, Code: verdict.MACMismatch}
	}
	return trace.Args{Step: trace.EndSeen}
}
func (e Violation) Trace() trace.Args { return trace.Args{Step: trace.Violation, Code: e.Code} }
func (e SealDone) Trace() trace.Args  { return trace.Args{Step: trace.SealDone, Code: e.Code} }
func (e EchoCompared) Trace() trace.Args {
	return trace.Args{Step: trace.EchoCompared, A: flag(e.Agrees)}
}
func (e TokenReady) Trace() trace.Args { return trace.Args{Step: trace.TokenReady} }
func (e StopAsked) Trace() trace.Args  { return trace.Args{Step: trace.StopAsked} }
func (e EngineDone) Trace() trace.Args {
	return trace.Args{Step: trace.EngineDone, A: e.Tokens, Code: e.Code}
}
func (e PromptSeen) Trace() trace.Args {
	return trace.Args{Step: trace.PromptSeen, A: e.Offset, B: e.Count, C: flag(e.DigestOK)}
}
func (e GrantSeen) Trace() trace.Args {
	return trace.Args{Step: trace.GrantSeen, A: e.Pages, Code: e.Code}
}
func (e PagesSealed) Trace() trace.Args {
	return trace.Args{Step: trace.PagesSealed, A: e.From, B: e.To}
}
func (e PageTaken) Trace() trace.Args   { return trace.Args{Step: trace.PageTaken, A: e.Ordinal} }
func (e PageSent) Trace() trace.Args    { return trace.Args{Step: trace.PageSent, A: e.Ordinal} }
func (e PageDropped) Trace() trace.Args { return trace.Args{Step: trace.PageDropped, A: e.Ordinal} }
func (e ClosingSent) Trace() trace.Args { return trace.Args{Step: trace.ClosingSent} }
func (e AbortAsked) Trace() trace.Args {
	return trace.Args{Step: trace.AbortAsked, A: uint32(e.From), Code: e.Code}
}
func (e PeerLost) Trace() trace.Args       { return trace.Args{Step: trace.PeerLost, A: uint32(e.From)} }
func (e DeadlinePassed) Trace() trace.Args { return trace.Args{Step: trace.DeadlineOver} }
func (e LeaseDrained) Trace() trace.Args   { return trace.Args{Step: trace.LeaseDrained} }
func (e ReservedSeen) Trace() trace.Args   { return trace.Args{Step: trace.ReservedSeen, A: e.Pages} }
func (e SealedSeen) Trace() trace.Args {
	return trace.Args{Step: trace.SealedSeen, A: e.Tokens, B: e.Written + e.Held, C: flag(e.DigestOK)}
}
func (e PrefillEnded) Trace() trace.Args {
	return trace.Args{Step: trace.PrefillEnded, A: e.Tokens, C: flag(e.DigestOK), Code: e.Code}
}
func (e OutputSeen) Trace() trace.Args {
	return trace.Args{Step: trace.OutputSeen, A: e.Index, B: e.Count}
}
func (e DecodeEnded) Trace() trace.Args {
	return trace.Args{Step: trace.DecodeEnded, A: e.Completion, Code: e.Code}
}
func (e StopFound) Trace() trace.Args  { return trace.Args{Step: trace.StopFound} }
func (e LegSettled) Trace() trace.Args { return trace.Args{Step: trace.LegSettled, A: uint32(e.Leg)} }
