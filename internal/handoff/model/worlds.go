package model

import (
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// World is one aspect of the protocol that can be explored.
type World struct {
	Name, About string
	Faults      Fault // that it knows
	Guards      Guard // that it knows
	explore     func(Setting) Outcome
}

// Setting is what is explored of a World.
type Setting struct {
	Without Guard // taken out
	Faults  Fault
	Leaks   bool   // look for foreign bytes that are read, and for nothing else; worlds with pages
	Size    string // of worlds that come in sizes; "": the smallest
}

// Outcome of an exploration.
type Outcome struct {
	States, Steps, Depth int
	Broken               error  // nil: it holds
	Story                string // the shortest way there, one numbered step a line
}

// Explore explores the world.
func (w World) Explore(s Setting) Outcome { return w.explore(s) }

// Worlds are all of them: first the two targets, then the gateway's view, then one aspect each.
func Worlds() []World {
	return []World{
		{
			Name: "transfer", About: "the gated receiver, as implemented over TCP: many attempts, one pool",
			Faults: FaultReject | FaultShort | FaultEarly | FaultTorn | FaultMisplace | FaultForeign | FaultTwice | FaultForge | FaultLinkLost | FaultCrash,
			Guards: GuardVerdict | GuardGate | GuardMAC | GuardCount | GuardTag | GuardZero | GuardPin | GuardFence | GuardEcho,
			explore: func(s Setting) Outcome {
				z := transferSizes[s.Size]
				return run[transferState](Transfer{On: AllGuards &^ s.Without, Faults: s.Faults, Pages: z.pages, Need: z.need, Leaks: s.Leaks})
			},
		},
		{
			Name: "one-sided", About: "no gate where bytes land, as with RDMA or shared memory: revoke, then verify once, then read",
			Faults: FaultReject | FaultShort | FaultEarly | FaultTorn | FaultTwice | FaultCrash | FaultAckLost,
			Guards: GuardVerdict | GuardRevoke | GuardVerifyOnce | GuardRevokeFirst | GuardQuarantine | GuardZero,
			explore: func(s Setting) Outcome {
				z := transferSizes[s.Size]
				return run[sideState](OneSided{On: AllGuards &^ s.Without, Faults: s.Faults, Pages: z.pages, Need: [two]uint8(z.need[:two]), Leaks: s.Leaks})
			},
		},
		{
			Name: "one-sided, verified before it is revoked", About: "the two in the wrong order",
			Faults: FaultReject | FaultShort | FaultEarly | FaultTorn | FaultTwice | FaultCrash | FaultAckLost,
			explore: func(s Setting) Outcome {
				return run[sideState](OneSided{On: AllGuards, Faults: s.Faults, Pages: 2, Need: [two]uint8{1, 2}, VerifyFirst: true})
			},
		},
		{
			Name: "three ends", About: "one attempt at gateway, decode and prefill: what is held, let go, swallowed and waited for",
			Faults: FaultReject | FaultLinkLost | FaultAckEarly,
			Guards: GuardVerdict | GuardHold | GuardSwallow | GuardSettle | GuardLastWord,
			explore: func(s Setting) Outcome {
				return run[threeState](ThreeEnds{On: AllGuards &^ s.Without, Faults: s.Faults})
			},
		},
		{
			Name: "three ends, decode deaf", About: "the same with a decode that does not hear prefill's refusal",
			Faults: FaultReject | FaultLinkLost,
			Guards: GuardHold | GuardSwallow | GuardSettle,
			explore: func(s Setting) Outcome {
				return run[threeState](ThreeEnds{On: AllGuards &^ s.Without, Faults: s.Faults, Blind: GuardVerdict})
			},
		},
		{
			Name: "foreign", About: "the gateway in front of engines that are not ours, and have no gate",
			Guards:  GuardRest | GuardSettle,
			explore: func(s Setting) Outcome { return run[foreignState](Foreign{On: AllGuards &^ s.Without}) },
		},
		{
			Name: "source", About: "prefill's own pages, while they are sent",
			Guards:  GuardSourceHold | GuardSealMAC,
			explore: func(s Setting) Outcome { return run[sourceState](Source{On: AllGuards &^ s.Without}) },
		},
		{
			Name: "resend", About: "a page that is sent again on one grant",
			Faults:  FaultReorder,
			Guards:  GuardOneGrant,
			explore: func(s Setting) Outcome { return run[resendState](Resend{On: AllGuards &^ s.Without, Faults: s.Faults}) },
		},
		{
			Name: "retry", About: "one request in two tries",
			Guards:  GuardNewAttempt | GuardResume,
			explore: func(s Setting) Outcome { return run[retryState](Retry{On: AllGuards &^ s.Without}) },
		},
		{
			Name: "restart", About: "either worker comes back as another boot",
			Guards:  GuardBoot,
			explore: func(s Setting) Outcome { return run[restartState](Restart{On: AllGuards &^ s.Without, Leaks: s.Leaks}) },
		},
		{
			Name: "prefix", About: "sealed pages that outlive their attempt, and are shared",
			Guards:  GuardRefcount | GuardPinAtOnce | GuardScope,
			explore: func(s Setting) Outcome { return run[prefixState](Prefix{On: AllGuards &^ s.Without}) },
		},
		{
			Name: "chunks", About: "a transfer of several completions",
			Faults:  FaultReorder | FaultAckTwice,
			Guards:  GuardAllChunks,
			explore: func(s Setting) Outcome { return run[chunkState](Chunks{On: AllGuards &^ s.Without, Faults: s.Faults}) },
		},
		{
			Name: "ranks", About: "several sending ranks, with one acknowledgement each and no gate",
			Faults:  FaultAckEarly | FaultAckTwice,
			Guards:  GuardAllRanks | GuardFence,
			explore: func(s Setting) Outcome { return run[rankState](Ranks{On: AllGuards &^ s.Without, Faults: s.Faults}) },
		},
		{
			Name: "retract", About: "a reply that gives up its pages after bytes were streamed, and comes back",
			Guards:  GuardWipe | GuardRecompute | GuardResume,
			explore: func(s Setting) Outcome { return run[retractState](Retract{On: AllGuards &^ s.Without}) },
		},
		{
			Name: "echo", About: "right pages in the wrong place, and what no echo sees",
			Faults:  FaultMisplace | FaultLegLies,
			Guards:  GuardEcho,
			explore: func(s Setting) Outcome { return run[placedState](Placed{On: AllGuards &^ s.Without, Faults: s.Faults}) },
		},
	}
}

// size is how many pages decode's pool has, and how many each attempt's prompt needs.
type size struct {
	pages int
	need  [attempts]uint8
}

var transferSizes = map[string]size{
	"":              {2, [attempts]uint8{1, 2}},
	"2 pages, 2+2":  {2, [attempts]uint8{2, 2}},
	"3 pages, 2+2":  {3, [attempts]uint8{2, 2}},
	"4 pages, 2+2":  {4, [attempts]uint8{2, 2}},
	"1 page, 1+1+1": {1, [attempts]uint8{1, 1, 1}},
}

// teller is a state that can be shown in a line.
type teller interface {
	comparable
	tell() string
}

func run[S teller](sys check.System[S]) Outcome {
	r := check.Run(sys, mostStates)
	o := Outcome{States: r.States, Steps: r.Steps, Depth: r.Depth, Broken: r.Broken}
	if r.Broken == nil {
		return o
	}
	var b strings.Builder
	width := 0
	for _, s := range r.Story {
		width = max(width, len(s.Act.String()))
	}
	for i, s := range r.Story {
		line := fmt.Sprintf("%2d  %-*s   %s", i+1, width, s.Act, s.To.tell())
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	fmt.Fprintf(&b, "    => %v\n", r.Broken)
	o.Story = b.String()
	return o
}

// mostStates bounds one exploration: past it, there is no answer.
const mostStates = 40_000_000
