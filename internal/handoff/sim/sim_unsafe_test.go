//go:build unsafe_guards

package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/model"
)

// TestSeedsFindWhatAGuardHoldsBack: with a guard taken out of the real code some seed fails soon, and shrinks to a schedule that can be read.
func TestSeedsFindWhatAGuardHoldsBack(t *testing.T) {
	for _, g := range []guard.Guard{guard.Gate, guard.MAC, guard.Fence} {
		guard.Disable(g)
		var found []Act
		o := Options{Pages: 2, Lanes: 2, Liars: g == guard.MAC}
		fails := func(s []Act) (bad bool) {
			defer func() { bad = bad || recover() != nil }() // a broken invariant of a page panics
			return Replay(o, s) != nil
		}
		for seed := uint64(0); seed < 200 && found == nil; seed++ {
			func() {
				defer func() { recover() }()
				w, err := New(o)
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

// TestTheModelsPathsFindWhatAGuardHoldsBack: with a guard taken out of the real code, one of the model's own acts leads elsewhere.
func TestTheModelsPathsFindWhatAGuardHoldsBack(t *testing.T) {
	defer guard.Disable(0)
	for g, fault := range map[guard.Guard]model.Fault{
		guard.Gate: model.FaultTwice, guard.Pin: 0, guard.Fence: 0, guard.MAC: model.FaultTorn, guard.Count: model.FaultShort,
		guard.Verdict: model.FaultReject, guard.Echo: model.FaultMisplace, guard.Zero: 0,
	} {
		guard.Disable(g)
		m := twoPages(fault)
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("panic: %v", p)
				}
			}()
			_, err = everyStep(m, m.Look)
			return err
		}()
		if err == nil {
			t.Errorf("without %s the code is still the model's", g)
		} else {
			t.Logf("without %s: %s", g, strings.SplitN(err.Error(), "\n", 2)[0])
		}
		guard.Disable(0)
	}
}
