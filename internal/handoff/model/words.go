package model

import (
	"fmt"
	"strings"
)

// Guard is something that the protocol checks or waits for. Each can be taken out: that is how the model shows what it is for.
type Guard uint32

const (
	GuardVerdict Guard = 1 << iota // prefill's refusal is heard by every layer
	GuardGate                      // bytes land only under a live grant, into the tag it names, once
	GuardMAC                       // a page's bytes are the ones that its sender sealed, a statement the one that its sender made
	GuardCount                     // tokens and pages add up to the plan, and its digest is the plan's
	GuardTag                       // a view reads only pages that are still this lease's
	GuardZero                      // pages are zeroed on release
	GuardPin                       // a page under a copy or a read is not handed over
	GuardFence                     // no page returns before its grant is revoked
	GuardHold                      // no byte leaves the gateway before both verdicts are in
	GuardEcho                      // decode recomputes the last position and compares

	// Of the gateway, beside Hold.
	GuardSwallow // output that comes after the verdict goes nowhere
	GuardSettle  // a pair is quiet only when both legs have said that their pages are back

	// Of one world each: see there.
	GuardBoot        // tags and plans carry the boot of the process that made them
	GuardOneGrant    // a tag is sent at most once; a resend needs a new grant
	GuardNewAttempt  // a retry has an id and a key of its own
	GuardRefcount    // a shared page goes when its last holder lets go of it
	GuardPinAtOnce   // held pages are pinned in the step that counts them
	GuardScope       // a prefix page serves its own scope alone
	GuardAllChunks   // all completions are counted, not the last one
	GuardAllRanks    // every sending rank is waited for, by name
	GuardSourceHold  // source pages stay until they are copied out
	GuardSealMAC     // the MAC is made when the page is sealed, not when it is sent
	GuardRevoke      // the writer's mapping is revoked before its bytes are verified
	GuardVerifyOnce  // the MACs are verified once, after the revocation, before the first read
	GuardRevokeFirst // the mapping is revoked before pages are freed, and that is waited for
	GuardQuarantine  // what cannot be proved quiet is not handed out
	GuardRecompute   // what was given up is computed again from the request's own tokens
	GuardWipe        // pages of a retracted reply are fenced before they are another's
	GuardResume      // a reply goes on where it was: what the client has is not sent again
	GuardLastWord    // a leg's word that its pages are back counts only after its last word on the attempt
	GuardRest        // after a mismatch the pair rests until the transfer is over, and nobody aborts
	numGuards        = iota
)

// AllGuards is every guard in its place.
const AllGuards Guard = 1<<numGuards - 1

var guardNames = [numGuards]string{"verdict", "gate", "mac", "count", "tag", "zero", "pin", "fence", "hold", "echo", "swallow", "settle",
	"boot", "one-grant", "new-attempt", "refcount", "pin-at-once", "scope", "all-chunks", "all-ranks", "source-hold", "seal-mac", "revoke",
	"verify-once", "revoke-first", "quarantine", "recompute", "wipe", "resume", "last-word", "rest"}

func (g Guard) String() string { return names(uint32(g), guardNames[:]) }

// Has reports whether all of x are in g.
func (g Guard) Has(x Guard) bool { return g&x == x }

// Fault is something that the world, or a part of it that lies, may do at any time. Aborts, deadlines and frames still in flight after
// them are no faults: they are always on.
type Fault uint32

const (
	FaultReject   Fault = 1 << iota // prefill refuses, and ships a one-page placeholder that it calls done
	FaultShort                      // prefill says that it is done before all pages were sent
	FaultEarly                      // prefill says that it is done while pages are still on their way
	FaultTorn                       // a frame's bytes are not those of its MAC
	FaultMisplace                   // a right page, rightly sealed, in the wrong place
	FaultForeign                    // a frame names another attempt's tag, or one of an earlier grant
	FaultTwice                      // a frame comes twice
	FaultCrash                      // a process ends; what it sent may still come
	FaultLinkLost                   // a link ends; what was in flight may still come before that
	FaultLieQuiet                   // a peer says that it is quiet and is not
	FaultAckLost                    // an acknowledgement never comes
	FaultAckEarly                   // an acknowledgement comes before what it is for
	FaultAckTwice                   // an acknowledgement comes twice
	FaultRestart                    // a process comes back as another boot
	FaultReorder                    // what was sent in order comes in any order
	FaultForge                      // a peer makes up statements
	FaultStray                      // a peer sends what has no place
	FaultLegLies                    // a leg says that all is well when it is not
	numFaults     = iota
)

// AllFaults is every fault at once.
const AllFaults Fault = 1<<numFaults - 1

var faultNames = [numFaults]string{"reject", "short", "early", "torn", "misplace", "foreign", "twice", "crash", "link-lost", "lie-quiet",
	"ack-lost", "ack-early", "ack-twice", "restart", "reorder", "forge", "stray", "leg-lies"}

func (f Fault) String() string { return names(uint32(f), faultNames[:]) }

// Has reports whether any of x is in f.
func (f Fault) Has(x Fault) bool { return f&x != 0 }

func names(bits uint32, of []string) string {
	var s []string
	for i, n := range of {
		if bits>>i&1 != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, "+")
}

// Code is the outcome of an attempt. Machines tell apart what they must; a world may fold the others together.
type Code uint8

// The codes that machines make themselves. The numbers are those of recorded traces.
const (
	None              Code = 0 // no verdict yet
	OK                Code = 1
	ContextLength     Code = 8
	ClientGone        Code = 15
	Deadline          Code = 16
	PeerLost          Code = 17
	ProtocolViolation Code = 19
	GateRefused       Code = 20
	MACMismatch       Code = 21
	CountMismatch     Code = 22
	DigestMismatch    Code = 23
	RootMismatch      Code = 24
	EchoMismatch      Code = 25
	LegsDisagree      Code = 28
	EngineFailed      Code = 29
	Internal          Code = 30
	numCodes               = 32
)

// known reports whether c is a code of this protocol that ends an attempt.
// no is a code that may end an attempt from outside: there is one road to OK.
func (c Code) no() bool { return c.known() && c != OK }

func (c Code) known() bool { return c > None && c < numCodes }

// proof reports whether c means that the legs contradict each other.
func (c Code) proof() bool { return c >= GateRefused && c <= LegsDisagree }

// Step names what a machine takes. The numbers are those of recorded traces.
type Step uint8

const (
	PagesReserved Step = 1
	ReserveEnded  Step = 2
	Attached      Step = 3
	PageArrived   Step = 4
	PageLanded    Step = 5
	ManifestSeen  Step = 6
	EndSeen       Step = 7
	SealDone      Step = 8
	EchoCompared  Step = 9
	TokenReady    Step = 10
	StopAsked     Step = 11
	EngineDone    Step = 12
	PromptSeen    Step = 13
	GrantSeen     Step = 14
	PagesSealed   Step = 15
	PageTaken     Step = 16
	PageSent      Step = 17
	ClosingSent   Step = 18
	AbortAsked    Step = 19
	PeerLostStep  Step = 20
	DeadlineOver  Step = 21
	LeaseDrained  Step = 22
	ReservedSeen  Step = 23
	SealedSeen    Step = 24
	PrefillEnded  Step = 25
	OutputSeen    Step = 26
	DecodeEnded   Step = 27
	StopFound     Step = 28
	LegSettled    Step = 29
	Violation     Step = 30
	PageDropped   Step = 31
	Opened        Step = 32
	GivenUp       Step = 33
)

// What of a closing statement is right.
const (
	MACRight    = 1 << iota // its MAC
	DigestRight             // its digest is the plan's
	RootRight               // its root is that of the pages that landed
)

// Who said something, or was lost.
const (
	Self = iota
	GatewayEnd
	PrefillLeg
	DecodeLeg
	ClientEnd
)

// Count is the type of a machine's counters: small where states are kept by the million, wide where a recorded run is replayed.
type Count interface{ ~uint8 | ~uint32 }

// Event is one step of a machine: see recorded traces for what A, B and C hold.
type Event[N Count] struct {
	Step    Step
	A, B, C N
	Code    Code
}

// Asks is what a step asks of the machine's driver.
type Asks uint32

const (
	AskVerdict      Asks = 1 << iota // set the attempt's one verdict
	AskAbortPrefill                  // tell prefill
	AskAbortDecode                   // tell decode
	AskOutcome                       // tell the gateway this leg's last word
	AskFence                         // revoke, before anything else
	AskRelease                       // give the pages back as their pins drain
	AskSettled                       // tell the gateway that the pages are back

	AskReserved // decode: tell the gateway that pages are held
	AskGrant    // the tags, to prefill; live from here on
	AskLand     // the frame in staging goes to the gate
	AskRefuse   // the frame in staging is dropped
	AskSeal
	AskStart // the engine gets the lease
	AskSealed
	AskEmit
	AskStop

	AskPages   // prefill: wait for pages
	AskQueue   // sealed pages go to the sender
	AskWrite   // the page may be copied out and written
	AskSkip    // it may not
	AskClosing // the closing statement, then the end

	AskPlanDecode // gateway
	AskPlanPrefill
	AskHold
	AskLetGo // what is held goes to the client
	AskPass
	AskSwallow
	AskStopDecode
	AskRest
	AskFinish
)

// Has reports whether all of x are asked.
func (a Asks) Has(x Asks) bool { return a&x == x }

// impossible is what a machine answers to its own driver's error: a step that was not asked for, or is not its kind.
func impossible[N Count](machine string, state fmt.Stringer, e Event[N]) error {
	return fmt.Errorf("%s cannot take step %d (%d, %d, code %d) in state %s", machine, e.Step, e.A, e.B, e.Code, state)
}
