package model

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	full    = flag.Bool("full", false, "explore the large configurations too (make model-check)")
	rewrite = flag.Bool("rewrite", false, "write the stories of testdata anew")
)

// expected is one configuration and what must come of it. broken is a part of what is said; "": it holds.
type expected struct {
	world   string
	without Guard
	faults  Fault
	leaks   bool
	broken  string
	story   string // file of testdata that tells it; "": it holds, or its story is told elsewhere
}

const (
	everyFault = AllFaults
	honest     = Fault(0)
)

// table is what the model says of the protocol, both ways. The targets hold under every fault at once. Each guard that carries weight is
// taken out, and what comes of it is told in a file. Each guard that is there for depth is taken out, and nothing comes of it: another
// stands behind it. Then both of such a pair are taken out, and it does.
var table = []expected{
	// The gated receiver.
	{world: "transfer", faults: everyFault},
	{world: "transfer", without: GuardGate, faults: everyFault, broken: "a copy of r0's goes into it"},
	{world: "transfer", without: GuardGate, leaks: true, broken: "LEAK", story: "transfer_gate"},
	{world: "transfer", without: GuardPin, faults: everyFault, broken: "a copy of r0's goes into it"},
	{world: "transfer", without: GuardPin, leaks: true, broken: "LEAK", story: "transfer_pin"},
	{world: "transfer", without: GuardFence, faults: everyFault, broken: "a copy of r0's goes into it"},
	{world: "transfer", without: GuardFence, leaks: true, broken: "LEAK", story: "transfer_fence"},
	{world: "transfer", without: GuardMAC, faults: FaultTorn, broken: "never wrote whole", story: "transfer_mac"},
	{world: "transfer", without: GuardVerdict, faults: FaultReject, broken: "although prefill refused", story: "transfer_verdict"},
	{world: "transfer", without: GuardCount, faults: FaultShort, broken: "never wrote whole", story: "transfer_count"},
	{world: "transfer", without: GuardEcho, faults: FaultMisplace, broken: "wrong place", story: "transfer_echo"},
	{world: "transfer", without: GuardTag, faults: everyFault},
	{world: "transfer", without: GuardZero, faults: everyFault},
	{world: "transfer", without: GuardCount, faults: everyFault, leaks: true}, // zeroing stands behind it: nonsense, and nobody's
	{world: "transfer", without: GuardEcho, faults: everyFault, leaks: true},
	{world: "transfer", without: GuardMAC, faults: everyFault, leaks: true},
	// The incident: the count did not hold, the pages were as others left them, and nobody looked at what they said.
	{world: "transfer", without: GuardCount | GuardZero, faults: FaultReject, leaks: true, broken: "LEAK", story: "incident"},

	// No gate.
	{world: "one-sided", faults: everyFault},
	{world: "one-sided", without: GuardRevokeFirst, faults: everyFault, broken: "a write of r0's can land in it"},
	{world: "one-sided", without: GuardRevokeFirst, faults: FaultEarly, leaks: true, broken: "LEAK", story: "one_sided_revoke_first"},
	{world: "one-sided", without: GuardQuarantine, faults: everyFault, broken: "a write of r0's can land in it"},
	{world: "one-sided", without: GuardQuarantine, faults: FaultAckLost, leaks: true, broken: "LEAK", story: "one_sided_quarantine"},
	{world: "one-sided", without: GuardRevoke, faults: FaultTwice, broken: "never wrote whole", story: "one_sided_revoke"},
	{world: "one-sided", without: GuardVerifyOnce, faults: FaultEarly, broken: "never wrote whole", story: "one_sided_verify"},
	{world: "one-sided", without: GuardVerdict, faults: FaultReject, broken: "although prefill refused", story: "one_sided_verdict"},
	{world: "one-sided", without: GuardZero, faults: everyFault},
	{world: "one-sided, verified before it is revoked", faults: FaultTwice, broken: "never wrote whole", story: "one_sided_order"},

	// The gateway.
	{world: "three ends", faults: everyFault},
	{world: "three ends", without: GuardHold, broken: "before prefill has said", story: "gateway_hold"},
	{world: "three ends", without: GuardSwallow, broken: "after the attempt was refused", story: "gateway_swallow"},
	{world: "three ends", without: GuardSettle, broken: "still holds pages", story: "gateway_settle"},
	{world: "three ends", without: GuardLastWord, faults: FaultAckEarly, broken: "still holds pages", story: "gateway_last_word"},
	{world: "three ends", without: GuardVerdict, faults: everyFault}, // the hold stands behind it
	{world: "three ends, decode deaf", faults: everyFault},
	{world: "three ends, decode deaf", without: GuardHold | GuardVerdict, faults: FaultReject, broken: "prefill", story: "gateway_deaf"},
	{world: "foreign"},
	{world: "foreign", without: GuardRest, broken: "LEAK", story: "foreign_abort"},
	{world: "foreign", without: GuardSettle, broken: "LEAK", story: "foreign_settle"},

	// One aspect each.
	{world: "source"},
	{world: "source", without: GuardSourceHold},
	{world: "source", without: GuardSealMAC},
	{world: "source", without: GuardSourceHold | GuardSealMAC, broken: "LEAK", story: "source_both"},
	{world: "resend", faults: everyFault},
	{world: "resend", without: GuardOneGrant, faults: everyFault, broken: "half full", story: "resend_one_grant"},
	{world: "resend", without: GuardOneGrant},
	{world: "retry"},
	{world: "retry", without: GuardNewAttempt, broken: "although that try's prefill refused", story: "retry_new_attempt"},
	{world: "retry", without: GuardResume, broken: "bytes of two tries", story: "retry_resume"},
	{world: "restart"},
	{world: "restart", without: GuardBoot, leaks: true, broken: "LEAK", story: "restart_decode"},
	{world: "restart", without: GuardBoot, broken: "under one key", story: "restart_prefill"},
	{world: "prefix"},
	{world: "prefix", without: GuardRefcount, broken: "LEAK", story: "prefix_refcount"},
	{world: "prefix", without: GuardPinAtOnce, broken: "LEAK", story: "prefix_pin_at_once"},
	{world: "prefix", without: GuardScope, broken: "LEAK", story: "prefix_scope"},
	{world: "chunks", faults: everyFault},
	{world: "chunks", without: GuardAllChunks, faults: FaultReorder, broken: "nothing has landed", story: "chunks_last"},
	{world: "chunks", without: GuardAllChunks, faults: FaultAckTwice, broken: "nothing has landed", story: "chunks_twice"},
	{world: "chunks", without: GuardAllChunks},
	{world: "ranks", faults: everyFault},
	{world: "ranks", without: GuardAllRanks, broken: "LEAK", story: "ranks_all"},
	{world: "ranks", without: GuardFence, faults: FaultAckEarly, broken: "LEAK", story: "ranks_fence"},
	{world: "retract"},
	{world: "retract", without: GuardWipe, broken: "LEAK", story: "retract_wipe"},
	{world: "retract", without: GuardRecompute, broken: "LEAK", story: "retract_recompute"},
	{world: "retract", without: GuardResume, broken: "where the client has", story: "retract_resume"},
	{world: "echo", faults: FaultMisplace},
	{world: "echo", without: GuardEcho, faults: FaultMisplace, broken: "wrong place", story: "echo_misplaced"},
	{world: "echo", faults: FaultLegLies, broken: "computed wrongly", story: "echo_blind"}, // known: no guard of decode's sees it
}

func worldOf(t *testing.T, name string) World {
	for _, w := range Worlds() {
		if w.Name == name {
			return w
		}
	}
	t.Fatalf("there is no world %q", name)
	return World{}
}

func (x expected) String() string {
	s := x.world
	if x.without != 0 {
		s += ", without " + x.without.String()
	}
	switch {
	case x.faults == everyFault:
		s += ", every fault"
	case x.faults != 0:
		s += ", " + x.faults.String()
	}
	if x.leaks {
		s += ", leaks alone"
	}
	return s
}

// TestBothWays is the table: the target holds, and each removal does what it is said to do.
func TestBothWays(t *testing.T) {
	told := map[string]bool{}
	for _, x := range table {
		t.Run(strings.ReplaceAll(x.String(), ", ", "/"), func(t *testing.T) {
			if testing.Short() && x.faults == everyFault && x.broken == "" && x.story == "" {
				t.Skip("the large ones: one goroutine explores, so the race detector has nothing to see")
			}
			w := worldOf(t, x.world)
			began := time.Now()
			o := w.Explore(Setting{Without: x.without, Faults: x.faults & w.Faults, Leaks: x.leaks})
			t.Logf("%d states, %d steps, depth %d, %s", o.States, o.Steps, o.Depth, time.Since(began).Round(time.Millisecond))
			x.judge(t, o)
			if x.story != "" {
				told[x.story+".txt"] = true
			}
		})
	}
	all := 0
	for _, x := range table {
		if x.story != "" {
			all++
		}
	}
	if len(told) < all {
		return // not all of them were run
	}
	files, _ := filepath.Glob("testdata/*.txt")
	for _, f := range files {
		if !told[filepath.Base(f)] {
			t.Errorf("%s tells a story that no configuration comes to", f)
		}
	}
}

func (x expected) judge(t *testing.T, o Outcome) {
	t.Helper()
	if x.broken == "" && x.story == "" {
		if o.Broken != nil {
			t.Fatalf("it should hold: %v\n%s", o.Broken, o.Story)
		}
		return
	}
	if o.Broken == nil || !strings.Contains(o.Broken.Error(), x.broken) {
		t.Fatalf("it should break: %q; it says %v\n%s", x.broken, o.Broken, o.Story)
	}
	if x.story == "" {
		return
	}
	file := filepath.Join("testdata", x.story+".txt")
	story := fmt.Sprintf("%s\n\n%s", x, o.Story)
	if *rewrite {
		if err := os.WriteFile(file, []byte(story), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != story {
		t.Errorf("%s tells another story (%v); -rewrite writes this one:\n%s", file, err, story)
	}
}

// TestEveryGuardIsTakenOut holds the table to the worlds: a guard that a world knows and no configuration takes out is untested.
func TestEveryGuardIsTakenOut(t *testing.T) {
	for _, w := range Worlds() {
		var out Guard
		for _, x := range table {
			if x.world == w.Name {
				out |= x.without
			}
		}
		if left := w.Guards &^ out; left != 0 && !strings.Contains(w.Name, ",") {
			t.Errorf("%s: nothing takes out %s", w.Name, left)
		}
	}
}

// TestLargeConfigurations explores the targets in all sizes, with every fault at once.
func TestLargeConfigurations(t *testing.T) {
	if !*full {
		t.Skip("make model-check")
	}
	for _, name := range []string{"transfer", "one-sided"} {
		w := worldOf(t, name)
		for _, size := range []string{"", "2 pages, 2+2", "3 pages, 2+2", "4 pages, 2+2", "1 page, 1+1+1"} {
			if name == "one-sided" && strings.Count(size, "+") > 1 {
				continue // it has two attempts
			}
			t.Run(name+"/"+size, func(t *testing.T) {
				began := time.Now()
				o := w.Explore(Setting{Faults: w.Faults, Size: size})
				fmt.Printf("%-10s %-16s %10d states %11d steps depth %3d %8s %v\n", name, size, o.States, o.Steps, o.Depth, time.Since(began).Round(time.Second), o.Broken)
				if o.Broken != nil {
					t.Errorf("%v\n%s", o.Broken, o.Story)
				}
			})
		}
	}
}
