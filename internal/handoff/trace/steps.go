package trace

import "fmt"

// Machine names the end of a handoff that made a step. The numbers are in recorded files: append, never renumber.
type Machine uint8

const (
	Decode  Machine = 1
	Prefill Machine = 2
	Gateway Machine = 3
	Pool    Machine = 4
)

func (m Machine) String() string {
	switch m {
	case Decode:
		return "decode"
	case Prefill:
		return "prefill"
	case Gateway:
		return "gateway"
	case Pool:
		return "pool"
	}
	return fmt.Sprintf("machine(%d)", uint8(m))
}

// Step names a kind of transition: the event that a machine took, or what a pool did. A model binds to these names, so they are listed
// here alone, and neither a name nor a number changes once it is released. What A, B and C of an Event hold is said beside each.
type Step uint8

const (
	None          Step = 0
	PagesReserved Step = 1  // A: pages leased
	ReserveEnded  Step = 2  // Code: why no pages came
	Attached      Step = 3  //
	PageArrived   Step = 4  // A: ordinal; the gate is asked
	PageLanded    Step = 5  // A: ordinal; Code: none, or why it did not become Written
	ManifestSeen  Step = 6  // A: tokens, B: pages, C: Flags; Code: its verdict
	EndSeen       Step = 7  // Code: none, or what is wrong with it
	SealDone      Step = 8  // Code: none, or why the pool would not seal
	EchoCompared  Step = 9  // A: 1 when they agree
	TokenReady    Step = 10 //
	StopAsked     Step = 11 //
	EngineDone    Step = 12 // A: tokens; Code: how the engine's work ended
	PromptSeen    Step = 13 // A: offset, B: count, C: 1 when it is whole and its digest is the plan's
	GrantSeen     Step = 14 // A: pages; Code: none, or what is wrong with it
	PagesSealed   Step = 15 // A: from, B: to
	PageTaken     Step = 16 // A: ordinal; a sender asks to copy it out
	PageSent      Step = 17 // A: ordinal
	ClosingSent   Step = 18 // manifest and end are written
	AbortAsked    Step = 19 // A: who; Code: the verdict
	PeerLost      Step = 20 // A: who
	DeadlineOver  Step = 21 //
	LeaseDrained  Step = 22 // every page is fenced, drained, zeroed and free
	ReservedSeen  Step = 23 // gateway; A: pages
	SealedSeen    Step = 24 // gateway; A: tokens, B: pages, C: 1 when the digest is the plan's
	PrefillEnded  Step = 25 // gateway; A: tokens, C: 1 when the digest is the plan's; Code: prefill's verdict
	OutputSeen    Step = 26 // gateway; A: index, B: count
	DecodeEnded   Step = 27 // gateway; A: completion tokens; Code: decode's verdict
	StopFound     Step = 28 // gateway
	LegSettled    Step = 29 // gateway; A: which leg
	Violation     Step = 30 // Code: a frame of the attempt that breaks the wire's rules
	PageDropped   Step = 31 // A: ordinal; taken, and not written after all
	Opened        Step = 32 // the machine was made; A: prompt tokens, B: their pages (gateway: 0)
	GivenUp       Step = 33 // gateway: a leg did not settle in time; nothing of the attempt is heard any more

	// Of a pool. A: the first page's id, B: pages, of those that the attempt was handed, in the order it was handed them.
	Reserve   Step = 40 // pages with consecutive ids were handed over, each under its next generation
	LandBegin Step = 41 // the gate let a copy in
	LandEnd   Step = 42 // State 1: written; 0: refused, or overtaken by a fence
	Seal      Step = 43 // the prompt's pages; the last of them is the tail
	SealOwn   Step = 44 // one page that the attempt's own compute filled
	ViewBegin Step = 45 // one step's reading of the first B pages, of which it may write the last C; or, B 1 and C 0, of one page
	ViewEnd   Step = 46 // the same pages
	Fence     Step = 47 // all pages that the attempt had
	Scrub     Step = 48 // pages with consecutive ids are about to be zeroed
	Free      Step = 49 // the same pages are zero and free
	numSteps  Step = 50
)

// Flags of ManifestSeen's C: what of the statement is right.
const (
	MACRight    = 1 << iota // its MAC
	DigestRight             // its digest is the plan's
	RootRight               // its root is that of the pages that landed
)

var stepNames = [numSteps]string{
	None: "none", PagesReserved: "pages-reserved", ReserveEnded: "reserve-ended", Attached: "attached",
	PageArrived: "page-arrived", PageLanded: "page-landed", ManifestSeen: "manifest-seen", EndSeen: "end-seen",
	SealDone: "seal-done", EchoCompared: "echo-compared", TokenReady: "token-ready", StopAsked: "stop-asked",
	EngineDone: "engine-done", PromptSeen: "prompt-seen", GrantSeen: "grant-seen", PagesSealed: "pages-sealed",
	PageTaken: "page-taken", PageSent: "page-sent", ClosingSent: "closing-sent", AbortAsked: "abort-asked",
	PeerLost: "peer-lost", DeadlineOver: "deadline-over", LeaseDrained: "lease-drained", ReservedSeen: "reserved-seen",
	SealedSeen: "sealed-seen", PrefillEnded: "prefill-ended", OutputSeen: "output-seen", DecodeEnded: "decode-ended",
	StopFound: "stop-found", LegSettled: "leg-settled", Violation: "violation", PageDropped: "page-dropped",
	Opened: "opened", GivenUp: "given-up",
	Reserve: "reserve", LandBegin: "land-begin", LandEnd: "land-end", Seal: "seal", SealOwn: "seal-own", ViewBegin: "view-begin",
	ViewEnd: "view-end", Fence: "fence", Scrub: "scrub", Free: "free",
}

// OfPool reports whether the step is a pool's.
func (s Step) OfPool() bool { return s >= Reserve && s < numSteps }

func (s Step) String() string {
	if s >= numSteps || stepNames[s] == "" {
		return fmt.Sprintf("step(%d)", uint8(s))
	}
	return stepNames[s]
}

// stepsByName is ParseStep's.
var stepsByName = func() map[string]Step {
	m := map[string]Step{}
	for i, n := range stepNames {
		if n != "" {
			m[n] = Step(i)
		}
	}
	return m
}()

// ParseStep reads a name that String writes.
func ParseStep(name string) (Step, error) {
	if s, ok := stepsByName[name]; ok {
		return s, nil
	}
	return None, fmt.Errorf("trace: no step is named %q", name)
}
