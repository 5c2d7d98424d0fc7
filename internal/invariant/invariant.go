// Package invariant is what happens when something that cannot happen does.
//
// Most broken invariants panic where they are found, in every build: an illegal edge of a page, for one, means that memory
// can no longer be trusted. This package is for the few that leave the process usable (an attempt that got two
// verdicts): they panic in test builds, so that no test can pass over them, and are counted and kept in release builds, so
// that no customer loses a server over them and no operator misses them.
//
// The package imports nothing of the house and takes no logger; whoever wants to hear at once calls Observe.
package invariant

import (
	"fmt"
	"sync"
	"testing"
)

// kept is how many messages Recent remembers.
const kept = 16

var state struct {
	sync.Mutex
	count    uint64
	recent   []string
	observer func(string)
}

// Violated reports a broken invariant. The message carries ids and states, never content. In a test binary, and in builds
// with the tag invariants or race, it panics; elsewhere it records.
func Violated(format string, args ...any) {
	violated(Enabled || testing.Testing(), format, args...)
}

func violated(fatal bool, format string, args ...any) {
	msg := "invariant: " + fmt.Sprintf(format, args...)
	if fatal {
		panic(msg)
	}
	state.Lock()
	state.count++
	if len(state.recent) == kept {
		state.recent = append(state.recent[:0], state.recent[1:]...)
	}
	state.recent = append(state.recent, msg)
	observer := state.observer
	state.Unlock()
	if observer != nil {
		observer(msg)
	}
}

// Conflict makes the function that a set-once cell calls with the value it holds and the other one it was given, such as
// verdict.Cell.Conflict. what names the cell in the message.
func Conflict[T any](what string) func(first, second T) {
	return func(first, second T) { Violated("%s: set twice: first %v, then %v", what, first, second) }
}

// Count is the number of violations recorded since the process began. Anything but 0 is a bug.
func Count() uint64 {
	state.Lock()
	defer state.Unlock()
	return state.count
}

// Recent returns the last messages recorded, oldest first.
func Recent() []string {
	state.Lock()
	defer state.Unlock()
	return append([]string(nil), state.recent...)
}

// Observe sets the function that hears of each violation as it is recorded, outside any lock; nil for none.
func Observe(f func(msg string)) {
	state.Lock()
	defer state.Unlock()
	state.observer = f
}
