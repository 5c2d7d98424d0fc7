package sim

import (
	"flag"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/handoff/model"
	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

var full = flag.Bool("full", false, "follow every step of the model under every fault, and paths of 9 acts (212,930 honest ones) and of 8 (163,061 under every fault): four minutes of a processor (make model-check)")

// twoPages is the model of the gated receiver with two pages, and two prompts of one page and of two.
func twoPages(faults model.Fault) model.Transfer {
	return model.Transfer{On: model.AllGuards, Faults: faults, Pages: 2, Need: [3]uint8{1, 2}}
}

// along replays a path of the model on the real machines and pool, and compares them after each act.
func along[S comparable](m model.Transfer, look func(S) model.Look, init S, path []Step[S]) (err error) {
	w, err := Beside(m)
	if err != nil {
		return err
	}
	for i, step := range path {
		if err := w.Along(step.Acts); err != nil {
			return fmt.Errorf("act %d, %v: %w\n%s", i+1, step.Acts, err, told(path[:i+1]))
		}
		if err := w.Compare(look(step.To)); err != nil {
			return fmt.Errorf("after act %d, %v: %w\n%s", i+1, step.Acts, err, told(path[:i+1]))
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("at the end: %w\n%s", err, told(path))
	}
	return nil
}

func told[S any](path []Step[S]) string {
	var b strings.Builder
	for _, s := range path {
		for _, a := range s.Acts {
			fmt.Fprintln(&b, " ", a)
		}
	}
	return b.String()
}

// TestEveryPathOfTheModelIsOneOfTheCode follows all paths of the two-page model of so many acts.
func TestEveryPathOfTheModelIsOneOfTheCode(t *testing.T) {
	for _, c := range []struct {
		name        string
		faults      model.Fault
		depth, long int
	}{{"honest", 0, 7, 9}, {"every fault", model.AllFaults, 6, 8}} {
		depth := c.depth
		switch {
		case *full:
			depth = c.long
		case testing.Short():
			depth = 5
		}
		m := twoPages(c.faults)
		paths, acts, err := everyPath(m, m.Look, depth)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		t.Logf("%s: %d paths of %d acts, %d acts replayed on the real machines", c.name, paths, depth, acts)
	}
}

func everyPath[S comparable](m check.System[S], look func(S) model.Look, depth int) (paths, acts int, err error) {
	sys := any(m).(model.Transfer)
	var down func(s S, path []Step[S]) error
	down = func(s S, path []Step[S]) error {
		steps, broken := Steps(m, s)
		if broken != nil {
			return broken
		}
		if len(path) == depth || len(steps) == 0 {
			paths, acts = paths+1, acts+len(path)
			return along(sys, look, m.Init(), path)
		}
		for _, x := range steps {
			if err := down(x.To, append(path[:len(path):len(path)], x)); err != nil {
				return err
			}
		}
		return nil
	}
	return paths, acts, down(m.Init(), nil)
}

// TestEveryStepOfTheModelIsOneOfTheCode takes every step of the model, from every state that it can come to, on the real machines: along
// shortest paths to where steps are left, and on from there.
func TestEveryStepOfTheModelIsOneOfTheCode(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults model.Fault
		quick  bool
	}{{"honest", 0, true}, {"every fault", model.AllFaults, false}} {
		if !c.quick && !*full || testing.Short() {
			continue
		}
		m := twoPages(c.faults)
		n, err := everyStep(m, m.Look)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		t.Logf("%s: %s", c.name, n)
	}
}

func everyStep[S comparable](m check.System[S], look func(S) model.Look) (string, error) {
	g, err := explore(m)
	if err != nil {
		return "", err
	}
	walks, acts := 0, 0
	for i := range g.nodes { // the nearest first: what is left behind them is taken on the way on
		for g.nodes[i].left != 0 {
			path := g.walk(m, int32(i))
			walks, acts = walks+1, acts+len(path)
			if walks%1024 == 0 {
				g.below()
			}
			if err := along(any(m).(model.Transfer), look, m.Init(), path); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("all %d steps from all %d states, in %d walks of %d acts", len(g.to), len(g.nodes), walks, acts), nil
}

// graph is all states of a model, and which of its steps are still to be taken.
type graph[S comparable] struct {
	nodes []place[S]
	to    []int32 // where steps lead: those of one state after those of another
}

type place[S comparable] struct {
	s      S
	parent int32
	by     uint8  // the parent's step that found it
	more   bool   // somewhere behind it steps are left, when it was last looked at
	first  int32  // of its steps, in to
	left   uint32 // a bit a step
	n      uint8  // steps
}

func explore[S comparable](m check.System[S]) (*graph[S], error) {
	g := &graph[S]{nodes: []place[S]{{s: m.Init(), parent: -1}}}
	at := map[S]int32{m.Init(): 0}
	for i := 0; i < len(g.nodes); i++ {
		steps, broken := Steps(m, g.nodes[i].s)
		if broken != nil || len(steps) > 32 {
			return nil, fmt.Errorf("%d steps from one state (%w)", len(steps), broken)
		}
		p := &g.nodes[i]
		p.first, p.n, p.left = int32(len(g.to)), uint8(len(steps)), 1<<len(steps)-1
		for k, x := range steps {
			j, known := at[x.To]
			if !known {
				j = int32(len(g.nodes))
				at[x.To] = j
				g.nodes = append(g.nodes, place[S]{s: x.To, parent: int32(i), by: uint8(k)})
			}
			g.to = append(g.to, j)
		}
	}
	g.below()
	return g, nil
}

// below notes behind which states steps are left. Steps lead mostly to states that were found later.
func (g *graph[S]) below() {
	for i := len(g.nodes) - 1; i >= 0; i-- {
		p := &g.nodes[i]
		p.more = p.left != 0
		for _, j := range g.to[p.first : p.first+int32(p.n)] {
			p.more = p.more || int(j) > i && g.nodes[j].more
		}
	}
}

// walk goes the shortest way to a state, takes a step that is left there, and goes on for as long as there are such ahead.
func (g *graph[S]) walk(m check.System[S], to int32) (path []Step[S]) {
	var back []int32
	for j := to; j > 0; j = g.nodes[j].parent {
		back = append(back, j)
	}
	from := int32(0)
	take := func(k uint8) {
		p := &g.nodes[from]
		steps, _ := Steps(m, p.s)
		path = append(path, steps[k])
		p.left &^= 1 << k
		from = g.to[p.first+int32(k)]
	}
	for i := len(back) - 1; i >= 0; i-- {
		take(g.nodes[back[i]].by)
	}
	for len(path) < 400 {
		p := &g.nodes[from]
		if p.left != 0 {
			take(uint8(bits.TrailingZeros32(p.left)))
			continue
		}
		next := -1
		for k, j := range g.to[p.first : p.first+int32(p.n)] {
			if j > from && g.nodes[j].more {
				next = k
			}
		}
		if next < 0 {
			break
		}
		take(uint8(next))
	}
	return path
}
