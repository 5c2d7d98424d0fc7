package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/drill/replay"
	"github.com/sluicekv/sluice/internal/guard"
)

// The test binary is the nodes' binary, too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "drill" && os.Args[2] == NodeCommand {
		if err := node.Run(os.Stdin, os.Stdout, os.NewFile(3, "events")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// together lets tests run at once where they can: fleets mostly wait. In the unsafe build guards are taken out of this whole process.
func together(t *testing.T) {
	if !guard.Unsafe {
		t.Parallel()
	}
}

// release skips what shows nothing more in the build in which guards can be taken out.
func release(t *testing.T) {
	if guard.Unsafe {
		t.Skip("the release build's tests show it")
	}
}

// few are cells of each kind: lies, frames, networks, storms, disks, kills.
var few = map[[2]string]bool{
	{"rejected request admitted", "plan"}: true, {"rejected request admitted", "seal"}: true, {"late write after reuse", "stream"}: true,
	{"wrong page index, shape, dtype, rank mapping", "echo"}: true, {"duplicate, replayed or guessed attempt", "landing"}: true,
	{"retry reusing a handle", "plan"}: true, {"bytes changed on the way", "grant"}: true,
	{"source pages reused while read", "landing"}: true, {"page and pin leaks", "landing"}: true, {"disk full", "settle"}: true,
	{"kill -9 of decode", "landing"}: true, {"kill -9 of prefill", "grant"}: true, {"kill -9 of gateway", "stream"}: true,
	{"client-set control fields", "plan"}: true, {"stale prefix hit", "seal"}: true,
}

// mustRed are the cells that have nothing behind their guard: without it they go red.
var mustRed = []string{"late write after reuse", "wrong page index, shape, dtype, rank mapping", "page and pin leaks"}

func TestCellsOfEachKindAreGreenAndTheirGuardsAreWhatMakesThemSo(t *testing.T) {
	together(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := Matrix{}
	r := &runner{program: []string{self, "drill", NodeCommand}, m: &m}
	defer func() { _ = r.drop() }()
	run := 0
	for _, f := range faults() {
		if !few[[2]string{f.class, f.phase}] || guard.Unsafe && f.out == 0 {
			continue
		}
		run++
		c, err := r.cell(t.Context(), f, 3)
		if err != nil {
			t.Fatal(err)
		}
		if c.Red() || c.Fired == 0 || c.ForeignBytes != 0 || c.PoolTotal != (contextLen+decodePool)/node.PageTokens || c.Events == 0 {
			t.Errorf("%s at %s (%s): %+v", c.Class, c.Phase, c.Injected, c)
		}
		if (c.RedWithoutGuard != nil) != (guard.Unsafe && f.out != 0) {
			t.Errorf("%s at %s: without its guard: %v", c.Class, c.Phase, c.RedWithoutGuard)
		}
		if c.RedWithoutGuard != nil {
			if slices.Contains(mustRed, c.Class) && !*c.RedWithoutGuard {
				t.Errorf("%s at %s is green without %s: it was caught by %q", c.Class, c.Phase, c.Removed, c.CaughtNextBy)
			}
			if !*c.RedWithoutGuard && c.CaughtNextBy == "" {
				t.Errorf("%s at %s is green without %s, and nobody knows why", c.Class, c.Phase, c.Removed)
			}
		}
	}
	if run == 0 {
		t.Fatal("no cell was run")
	}
}

func TestEveryClassOfTheListIsInTheMatrix(t *testing.T) {
	have := map[string]int{}
	for _, f := range faults() {
		if !slices.Contains(Phases, f.phase) {
			t.Errorf("%s has the phase %q", f.class, f.phase)
		}
		have[f.class]++
	}
	for _, want := range []string{"rejected request admitted", "late write after reuse", "source pages reused while read", "partial transfer taken as complete",
		"metadata of another request", "duplicate, replayed or guessed attempt", "client-set control fields", "wrong page index, shape, dtype, rank mapping",
		"stale prefix hit", "abort lost", "acknowledgement lost", "acknowledgement early", "acknowledgement doubled", "status lost on the way", "retry reusing a handle",
		"page and pin leaks", "clock jump", "disk full", "network cut", "network half-open"} {
		if have[want] == 0 {
			t.Errorf("no fault is a %q", want)
		}
	}
	for _, who := range []string{node.Decode, node.Prefill, node.Gateway} {
		if have["kill -9 of "+who] != len(Phases) {
			t.Errorf("%s is killed in %d of %d phases", who, have["kill -9 of "+who], len(Phases))
		}
	}
}

func TestOnlyAnUnheldCellIsHeldAgain(t *testing.T) {
	for _, c := range []struct {
		cell Cell
		want bool
	}{
		{Cell{}, false},
		{Cell{Why: []string{notActed}}, true},
		{Cell{Why: []string{"drill: the phase echo was not reached"}}, true},
		{Cell{Why: []string{notActed, "3 of 4 pages came back"}}, false},
		{Cell{Why: []string{"the trace is not one of the model's: line 3"}}, false},
		{Cell{Why: []string{notActed}, ForeignBytes: 9}, false},
	} {
		if c.cell.unheld() != c.want {
			t.Errorf("%+v: %v", c.cell, !c.want)
		}
	}
}

func TestACellIsWrittenAsTheCommandPromises(t *testing.T) {
	yes := true
	b, err := json.Marshal([]Cell{{Class: "c", Phase: "p", Fired: 1, Guard: "g", Status: 502, PoolFree: 2, PoolTotal: 3, Injected: "x", Why: []string{"y"}}, {RedWithoutGuard: &yes, CaughtNextBy: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"class":"c","phase":"p","fired":1,"guard":"g","status":502,"foreign_bytes":0,"pool_free":2,"pool_total":3,"red_without_guard":null,"caught_next_by":""},` +
		`{"class":"","phase":"","fired":0,"guard":"","status":0,"foreign_bytes":0,"pool_free":0,"pool_total":0,"red_without_guard":true,"caught_next_by":"n"}]`
	if string(b) != want {
		t.Errorf("%s", b)
	}
}

func TestASoakEndsWithEveryPageFreeAndZero(t *testing.T) {
	release(t)
	together(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var recorded bytes.Buffer
	r, err := RunSoak(t.Context(), SoakOptions{Pages: 20_000, Seed: 1, Clients: 6, Program: []string{self, "drill", NodeCommand}, Trace: &recorded})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := replay.File(&recorded, false); err != nil || res.Lines != r.Events || res.Attempts != r.Attempts {
		t.Errorf("its recording: %+v, %v", res, err)
	}
	if len(r.Wrong) > 0 || r.Pages < 20_000 || r.PoolFree != r.PoolTotal || r.PoolTotal != (65536+131072)/16 || r.Nonzero != 0 || r.HungUp == 0 || r.Exact == 0 || r.Events == 0 {
		t.Errorf("%+v", r)
	}
}

// TestAnInterruptedSoakJudgesWhatItDid: pages that were handed over are looked at, however it ended.
func TestAnInterruptedSoakJudgesWhatItDid(t *testing.T) {
	release(t)
	together(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	r, err := RunSoak(ctx, SoakOptions{Pages: 1 << 40, Seed: 1, Clients: 6, Program: []string{self, "drill", NodeCommand},
		Progress: func(done, _ int, _ string) {
			if done > 1000 {
				interrupt()
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Cut || len(r.Wrong) > 0 || r.Pages < 1000 || r.PoolFree != r.PoolTotal || r.PoolTotal != (65536+131072)/16 || r.Nonzero != 0 || r.Events == 0 || len(r.Verdicts) == 0 {
		t.Errorf("%+v", r)
	}
}

func TestADrillOfNothingIsRefused(t *testing.T) {
	if m, err := RunMatrix(t.Context(), MatrixOptions{Only: "no such class"}); err == nil || len(m.Cells) != 0 {
		t.Errorf("%d cells, %v", len(m.Cells), err)
	}
}
