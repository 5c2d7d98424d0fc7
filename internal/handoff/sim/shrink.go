package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Replay runs a schedule in a new world: acts that are not possible when they come are left out. It returns what was wrong, if anything.
func Replay(o Options, schedule []Act) error {
	w, err := New(o)
	if err != nil {
		return err
	}
	for _, a := range schedule {
		w.Do(a)
		if w.wrong != nil {
			break
		}
	}
	return w.Close()
}

// Shrink takes acts out of a schedule for as long as it still fails: first long stretches, then single acts.
func Shrink(schedule []Act, fails func([]Act) bool) []Act {
	for n := len(schedule) / 2; n > 0; {
		shorter := false
		for from := 0; from+n <= len(schedule); {
			without := slices.Delete(slices.Clone(schedule), from, from+n)
			if fails(without) {
				schedule, shorter = without, true
			} else {
				from += n
			}
		}
		if !shorter || n > 1 {
			n /= 2
		}
	}
	return schedule
}

// Text writes a schedule as the scenarios of testdata hold it, an act a line.
func Text(schedule []Act) string {
	var b strings.Builder
	for _, a := range schedule {
		fmt.Fprintln(&b, a)
	}
	return b.String()
}
