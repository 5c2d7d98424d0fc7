package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// The small worlds look at one aspect each, in few states. Each is a type with the methods of check.System; what they share is here.

// two attempts are enough for most of them.
const two = 2

// steps calls yield for steps that are written as changes of a copy of the state.
type steps[S any] struct {
	s     S
	yield func(check.Act, S, error)
}

// do takes a step. f changes the copy that it is given, and says what the step breaks.
func (n steps[S]) do(what string, r, x int8, f func(t *S) error) {
	t := n.s
	err := f(&t)
	n.yield(check.Act{What: what, R: r, X: x}, t, err)
}

// may takes a step that breaks nothing by itself.
func (n steps[S]) may(when bool, what string, r, x int8, f func(t *S)) {
	if when {
		n.do(what, r, x, func(t *S) error { f(t); return nil })
	}
}

// leak is what a reader says of a page that holds another's bytes.
func leak(r int8, holds fmt.Stringer) error {
	return fmt.Errorf("LEAK: r%d reads a page that holds %s", r, holds)
}
