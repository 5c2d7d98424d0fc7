package check

import (
	"errors"
	"fmt"
	"testing"
)

// locks is two processes that each take two locks: the textbook deadlock.
type locks struct{ ordered, mayFail bool }

type held struct{ at, owner [2]int8 }

func (l locks) Init() held { return held{} }

func (l locks) Next(s held, yield func(Act, held, error)) {
	for r := range int8(2) {
		order := [2]int8{0, 1}
		if r == 1 && !l.ordered {
			order = [2]int8{1, 0}
		}
		switch at := s.at[r]; {
		case at < 2:
			if s.owner[order[at]] == 0 {
				t := s
				t.owner[order[at]], t.at[r] = r+1, at+1
				yield(Act{"takes", r, order[at]}, t, nil)
			}
		case at == 2:
			t := s
			t.owner, t.at[r] = [2]int8{}, 3
			var err error
			if l.mayFail && r == 1 {
				err = errors.New("r1 worked")
			}
			yield(Act{"works", r, -1}, t, err)
		}
	}
}

func (l locks) Holds(held) error  { return nil }
func (l locks) Rests(s held) bool { return s.at == [2]int8{3, 3} }
func story[S comparable](r Result[S]) (acts []string) {
	for _, s := range r.Story {
		acts = append(acts, s.Act.String())
	}
	return acts
}

func TestShortestWayToADeadlock(t *testing.T) {
	r := Run[held](locks{}, 0)
	if !errors.Is(r.Broken, ErrDeadlock) || fmt.Sprint(story(r)) != "[r0 takes 0 r1 takes 1]" {
		t.Fatalf("%v: %v", r.Broken, story(r))
	}
	if r := Run[held](locks{ordered: true}, 0); r.Broken != nil || r.States != 12 {
		t.Fatalf("ordered: %d states, %v: %v", r.States, r.Broken, story(r))
	}
}

func TestAStepThatBreaksAPromise(t *testing.T) {
	r := Run[held](locks{ordered: true, mayFail: true}, 0)
	if r.Broken == nil || len(r.Story) != 3 || r.Story[2].Act.What != "works" || r.Story[0].From != (held{}) {
		t.Fatalf("%v: %v", r.Broken, story(r))
	}
}

// well is a number that goes up, and from trap on only round in circles.
type well struct {
	top, trap int
	wrong     int
}

func (w well) Init() int { return 0 }
func (w well) Next(s int, yield func(Act, int, error)) {
	switch {
	case s >= w.trap && w.trap > 0:
		yield(Act{"circles", -1, -1}, w.trap+(s+1-w.trap)%3, nil)
	case s < w.top:
		yield(Act{"rises", -1, -1}, s+1, nil)
		yield(Act{"stays", -1, -1}, s, nil)
	}
}
func (w well) Holds(s int) error {
	if s == w.wrong && w.wrong > 0 {
		return errors.New("wrong")
	}
	return nil
}
func (w well) Rests(s int) bool { return s == w.top }

func TestNoWayBackToRest(t *testing.T) {
	r := Run[int](well{top: 100, trap: 7}, 0)
	if !errors.Is(r.Broken, ErrNoRest) || r.Stuck != 10 || len(r.Story) != 0 {
		t.Fatalf("%+v", r)
	}
	if r := Run[int](well{top: 100}, 0); r.Broken != nil || r.States != 101 || r.Depth != 100 {
		t.Fatalf("%+v", r)
	}
}

func TestAWrongStateEndsTheSearch(t *testing.T) {
	r := Run[int](well{top: 100, wrong: 30}, 0)
	if r.Broken == nil || len(r.Story) != 30 || r.Story[29].To != 30 {
		t.Fatalf("%v after %d steps", r.Broken, len(r.Story))
	}
}

func TestTheBoundIsNoAnswer(t *testing.T) {
	if r := Run[int](well{top: 1 << 20}, 1000); !errors.Is(r.Broken, ErrBound) {
		t.Fatalf("%+v", r)
	}
}

func TestManyStates(t *testing.T) {
	const n = 1 << 17 // the table grows a few times
	if r := Run[int](well{top: n}, 0); r.Broken != nil || r.States != n+1 || r.Steps != 2*n {
		t.Fatalf("%d states, %d steps, %v", r.States, r.Steps, r.Broken)
	}
}
