//go:build unsafe_guards

package sim

import (
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
)

// TestSeedsFindWhatAGuardHoldsBack: with a guard taken out of the real code some seed fails soon, and shrinks to a schedule that can be read.
func TestSeedsFindWhatAGuardHoldsBack(t *testing.T) {
	for _, g := range []guard.Guard{guard.Gate, guard.MAC, guard.Fence} {
		guard.Disable(g)
		var found []Act
		fails := func(s []Act) (bad bool) {
			defer func() { bad = bad || recover() != nil }() // a broken invariant of a page panics
			return Replay(2, 2, s) != nil
		}
		for seed := uint64(0); seed < 200 && found == nil; seed++ {
			func() {
				defer func() { recover() }()
				w, err := New(2, 2)
				if err != nil {
					t.Fatal(err)
				}
				if s := w.Walk(seed, 300, true); w.wrong != nil && fails(s) {
					found = s
				}
			}()
		}
		if found == nil {
			t.Errorf("without %s: no seed of 200 fails", g)
		} else {
			short := Shrink(found, fails)
			t.Logf("without %s: %d acts, shrunk to %d:\n%s", g, len(found), len(short), Text(short))
			if len(short) > 20 || !fails(short) {
				t.Errorf("without %s: %d acts after shrinking", g, len(short))
			}
		}
		guard.Disable(0)
	}
}
