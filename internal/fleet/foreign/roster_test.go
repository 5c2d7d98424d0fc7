package foreign

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// What is pinned otherwise takes effect at once, on the same process: what was read of it and what it has in flight stay known.
func TestRepinning(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(1, 1, nil)})
	f.byName["p0"].boots = 3
	p := pick(t, f, Need{Tokens: 10, Load: 10})
	diff, err := f.Reconfigure(Config{Engine: SGLang, Model: "m", Workers: pinnedWorkers(1, 1, func(i int, w *Worker) {
		if i == 0 {
			w.PoolTokens = 2048
		}
	})})
	if err != nil || len(diff) != 1 || diff[0] != "worker p0: pool_tokens was 4096, now 2048" {
		t.Fatal(diff, err)
	}
	n := f.byName["p0"]
	if n.boots != 3 || *n.load != 10 || f.Limit().Tokens != 2016 || n == p.Prefill {
		t.Errorf("boots %d, load %d, limit %d", n.boots, *n.load, f.Limit().Tokens)
	}
	if p.Prefill.PoolTokens != 4096 {
		t.Error("an attempt's own worker changed under it")
	}
	f.Failed(p.Prefill)
	f.Gap(p.Prefill)
	if n.failures != 1 || n.suspect == "" {
		t.Error("what an attempt says of the worker as it was is not heard")
	}
	f.Done(p)
	if *n.load != 0 {
		t.Errorf("load %d", *n.load)
	}
}

// A configuration that cannot be changes nothing.
func TestABadConfigurationChangesNothing(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(2, 2, nil)})
	before := f.byName["p0"]
	twice := pinnedWorkers(2, 2, nil)
	twice[1].Name = twice[0].Name
	for _, c := range []Config{{Engine: VLLMNixl, Workers: pinnedWorkers(1, 1, nil)}, {Engine: SGLang, Workers: twice}, {Engine: SGLang, Workers: []Worker{{}}},
		{Engine: SGLang, Sources: []Source{&DNS{Host: "x", Port: 1}, &DNS{Host: "x", Port: 1}}}} {
		if _, err := f.Reconfigure(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
		if f.byName["p0"] != before || len(f.workers) != 4 {
			t.Fatal("a bad configuration changed something")
		}
	}
}

// A drained worker gets nothing and stays drained when it is stated otherwise; a rest outlives its workers.
func TestDrainAndRestsStay(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(2, 2, nil)})
	if f.Drain("nobody", true) || !f.Drain("d1", true) {
		t.Fatal("which workers there are")
	}
	for range 100 {
		if p := pick(t, f, Need{Tokens: 1}); p.Decode.Name != "d0" {
			t.Fatal(p.key())
		}
	}
	bad := pick(t, f, Need{Tokens: 1})
	f.Rest(bad, "a test")(true)
	for _, n := range []int{1, 2} { // away, and back
		ws := pinnedWorkers(2, 2, func(_ int, w *Worker) { w.PoolTokens = 8192 })
		if n == 1 {
			ws = append(ws[:2:2], ws[3]) // without d0
		}
		if _, err := f.Reconfigure(Config{Engine: SGLang, Model: "m", Workers: ws}); err != nil {
			t.Fatal(err)
		}
		if n == 1 { // another pair's rest is when old ones are forgotten
			f.Rest(Pair{Prefill: f.byName["p0"], Decode: f.byName["d1"]}, "a test")(true)
		}
	}
	for range 100 {
		if p := pick(t, f, Need{Tokens: 1}); p.key() == bad.key() || p.Decode.Name == "d1" {
			t.Fatal(p.key(), "a rest was absolved, or a drain forgotten, by leaving and coming back")
		}
	}
}

// Signs that a process is another.
func TestMarks(t *testing.T) {
	was := mark{start: "1", startup: "a", engineID: "x", prompts: 100}
	for _, c := range []struct {
		now  mark
		want bool
	}{
		{was, false},
		{mark{prompts: -1}, false}, // nothing is said
		{mark{start: "2", prompts: -1}, true},
		{mark{startup: "b", prompts: 100}, true},
		{mark{engineID: "y", prompts: 100}, true},
		{mark{start: "1", prompts: 99}, true}, // counters never go back
		{mark{start: "1", prompts: 5000}, false},
	} {
		if got := c.now.after(was); got != c.want {
			t.Errorf("%+v: %v", c.now, got)
		}
	}
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(1, 1, nil)})
	n := f.byName["p0"]
	said := func(start string) *facts.Node {
		x := &facts.Node{}
		x.Put(facts.BootTime, start, facts.Source{}, facts.Said)
		x.Put(facts.Pool, "100", facts.Source{}, facts.Said)
		return x
	}
	for range 2 {
		if n.take(reading{node: said("1")}) || n.boots != 1 {
			t.Error("a first reading is no restart, nor is the same again")
		}
	}
	if n.take(reading{refused: true}); n.suspect == "" {
		t.Error("a worker that takes no connection is used")
	}
	if n.take(reading{node: said("1")}) || n.suspect != "" || n.boots != 1 {
		t.Error("the same process is no restart, though it could not be reached")
	}
	n.take(reading{refused: true})
	if !n.take(reading{node: said("2")}) || n.boots != 2 {
		t.Error("another process is a restart")
	}
	for range staleAfter - 1 {
		n.take(reading{late: true})
	}
	if n.suspect != "" {
		t.Error("a busy worker is taken out")
	}
	if n.take(reading{late: true}); !strings.Contains(n.why(), "does not answer") {
		t.Error("what is known of a worker gets old")
	}
}
