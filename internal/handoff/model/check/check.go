// Package check explores every state of a system and says whether what was promised holds in all of them.
//
// It goes breadth first, so a counterexample is a shortest one. Three things are looked at: what a step itself breaks, what must hold in each
// state, and that from each state the system can still come to rest (in temporal logic, AG EF rest: no deadlock, no livelock that cannot
// be left, nothing lost for ever). States are comparable values of fixed size; two equal values are one state.
//
// The package knows nothing of handoffs. It is not for proofs: what it says, it says of the bounds that the system was given.
package check

import (
	"errors"
	"fmt"
	"hash/maphash"
)

// Act names a step: what happened, at whose end, to which of several.
type Act struct {
	What string // a constant of the system: "decode reserves"
	R, X int8   // whose it is, and which; -1: none
}

func (a Act) String() string {
	s := a.What
	if a.R >= 0 {
		s = fmt.Sprintf("r%d %s", a.R, s)
	}
	if a.X >= 0 {
		s = fmt.Sprintf("%s %d", s, a.X)
	}
	return s
}

// System is what is explored.
type System[S comparable] interface {
	Init() S
	// Next calls yield for each step that is possible in s, in an order that is always the same. broken says that the step itself
	// breaks a promise.
	Next(s S, yield func(a Act, next S, broken error))
	// Holds says what is wrong with a state, if anything is.
	Holds(S) error
	// Rests reports whether the system has come to rest: nothing is under way, nothing is held.
	Rests(S) bool
}

// Step is one line of a counterexample.
type Step[S comparable] struct {
	Act  Act
	From S
	To   S
}

// Result of an exploration.
type Result[S comparable] struct {
	States, Steps, Depth int
	Broken               error     // nil: everything holds
	Story                []Step[S] // the shortest way there
	Stuck                int       // states from which rest cannot be reached
}

// ErrBound is Broken when the states did not fit the bound: nothing is known then.
var ErrBound = errors.New("more states than the bound")

// Errors that are not the system's own.
var (
	ErrDeadlock = errors.New("nothing can happen any more, and the system is not at rest")
	ErrNoRest   = errors.New("the system can never come to rest from here")
)

// explorer holds the states in the order in which they were found.
type explorer[S comparable] struct {
	sys    System[S]
	seed   maphash.Seed
	states []S
	parent []int32
	table  []int32 // open addressing, by hash: index into states, plus 1
	next   []int32 // successors, of one state after another
	ends   []int64 // where each state's successors end
}

// Run explores sys. bound is the most states that it keeps; 0: as many as there are.
func Run[S comparable](sys System[S], bound int) (r Result[S]) {
	e := &explorer[S]{sys: sys, seed: maphash.MakeSeed(), table: make([]int32, 1<<12)}
	e.add(sys.Init(), -1)
	depth := []int{0, 1} // where each level begins
	for i := 0; i < len(e.states); i++ {
		if i == depth[len(depth)-1] {
			depth = append(depth, len(e.states))
		}
		s := e.states[i]
		if err := sys.Holds(s); err != nil {
			r.Broken, r.Story = err, e.story(i)
			break
		}
		moved := false
		sys.Next(s, func(a Act, t S, broken error) {
			if r.Broken != nil {
				return
			}
			moved = true
			r.Steps++
			if broken != nil {
				r.Broken, r.Story = broken, append(e.story(i), Step[S]{a, s, t})
				return
			}
			e.next = append(e.next, e.add(t, int32(i)))
		})
		e.ends = append(e.ends, int64(len(e.next)))
		if r.Broken == nil && !moved && !sys.Rests(s) {
			r.Broken, r.Story = ErrDeadlock, e.story(i)
		}
		if bound > 0 && len(e.states) > bound && r.Broken == nil {
			r.Broken = ErrBound
		}
		if r.Broken != nil {
			break
		}
	}
	r.States, r.Depth = len(e.states), len(depth)-2
	if r.Broken == nil {
		e.rest(&r)
	}
	return r
}

// add returns the index of a state, which it may be the first to find.
func (e *explorer[S]) add(s S, parent int32) int32 {
	if 4*len(e.states) > 3*len(e.table) {
		e.grow()
	}
	at := e.slot(s)
	if e.table[at] == 0 {
		e.states = append(e.states, s)
		e.parent = append(e.parent, parent)
		e.table[at] = int32(len(e.states))
	}
	return e.table[at] - 1
}

func (e *explorer[S]) slot(s S) int {
	mask := len(e.table) - 1
	at := int(maphash.Comparable(e.seed, s)) & mask
	for e.table[at] != 0 && e.states[e.table[at]-1] != s {
		at = (at + 1) & mask
	}
	return at
}

func (e *explorer[S]) grow() {
	e.table = make([]int32, 2*len(e.table))
	for i := range e.states {
		e.table[e.slot(e.states[i])] = int32(i + 1)
	}
}

// story is the shortest way to state i. The acts were not kept: they are found again.
func (e *explorer[S]) story(i int) (steps []Step[S]) {
	var path []int
	for ; i > 0; i = int(e.parent[i]) {
		path = append(path, i)
	}
	from := e.states[0]
	for k := len(path) - 1; k >= 0; k-- {
		to, act, found := e.states[path[k]], Act{}, false
		e.sys.Next(from, func(a Act, t S, broken error) {
			if !found && broken == nil && t == to {
				act, found = a, true
			}
		})
		steps = append(steps, Step[S]{act, from, to})
		from = to
	}
	return steps
}

// rest looks for states from which rest cannot be reached. Successors have mostly higher numbers, so going backwards settles nearly all
// states in one pass.
func (e *explorer[S]) rest(r *Result[S]) {
	good := make([]bool, len(e.states))
	for i, s := range e.states {
		good[i] = e.sys.Rests(s)
	}
	for changed := true; changed; {
		changed = false
		for i := len(e.states) - 1; i >= 0; i-- {
			if good[i] {
				continue
			}
			from := int64(0)
			if i > 0 {
				from = e.ends[i-1]
			}
			for _, j := range e.next[from:e.ends[i]] {
				if good[j] {
					good[i], changed = true, true
					break
				}
			}
		}
	}
	for i := range good {
		if good[i] {
			continue
		}
		if r.Stuck == 0 {
			r.Broken, r.Story = ErrNoRest, e.story(i)
		}
		r.Stuck++
	}
}
