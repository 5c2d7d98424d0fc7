//go:build unsafe_guards

package drill

import (
	"slices"
	"testing"

	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/guard"
)

// leaks are the lies that put A's text into B's reply when every guard is out.
var leaks = []liar.Lie{liar.Placeholder, liar.Overstated, liar.Silent, liar.OtherAttempt, liar.Late}

// Both directions: with one guard left on, each guard that can stop a lie does so under its own name, and the others let it
// through; with none, B's reply has A's code.
func TestEachGuardAloneStopsWhatItCan(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet for each of 156 rows")
	}
	r, err := Incident(t.Context(), Options{Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		lie := liar.Lie(row.Lie)
		if len(row.GuardsOn) > 1 || lie == liar.NoManifest || lie == liar.TwoManifests {
			if row.ForeignBytes != 0 || row.Guard == "" {
				t.Errorf("%s with %v on: %+v", lie, row.GuardsOn, row)
			}
			continue
		}
		if len(row.GuardsOn) == 0 {
			if leaky := slices.Contains(leaks, lie); leaky != (row.ForeignBytes > 0) || row.Status != 200 || row.Guard != "" {
				t.Errorf("%s with no guard on: leaks is %v: %+v", lie, leaky, row)
			}
			continue
		}
		on, err := guard.Parse(row.GuardsOn[0])
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case stops[lie]&on != 0:
			if row.Guard != on.String() || row.ForeignBytes != 0 {
				t.Errorf("%s with %s alone: stopped by %q: %+v", lie, on, row.Guard, row)
			}
		case on == guard.Zero: // it stops the leak of what was there before, and finds what was written out of turn
			if lie != liar.OtherAttempt && lie != liar.Late && row.ForeignBytes != 0 {
				t.Errorf("%s with zero alone: %+v", lie, row)
			}
			if row.Nonzero != 0 && lie != liar.Late {
				t.Errorf("%s with zero alone left %d bytes", lie, row.Nonzero)
			}
		default:
			if row.Guard != "" || row.Status != 200 {
				t.Errorf("%s is not one that %s can stop: %+v", lie, on, row)
			}
			if slices.Contains(leaks, lie) && row.ForeignBytes == 0 {
				t.Errorf("%s with %s alone: the positive control shows no foreign text: %+v", lie, on, row)
			}
		}
	}
}
