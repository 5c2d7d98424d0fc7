package drill

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/guard"
)

// stops is which guards stop a lie when they are the only one left on. What no guard has taken on, the machines' own order of
// events refuses ("protocol").
var stops = map[liar.Lie]guard.Guard{
	liar.Placeholder:  guard.Admission | guard.Verdict | guard.Count | guard.Hold | guard.Echo,
	liar.Overstated:   guard.Verdict | guard.Count | guard.Hold | guard.Echo,
	liar.Silent:       guard.Count | guard.Hold | guard.Echo,
	liar.Short:        guard.Count | guard.Hold | guard.Echo,
	liar.WrongTag:     guard.Gate | guard.Count,
	liar.WrongOrdinal: guard.Gate,
	liar.Permuted:     guard.Echo,
	liar.OtherAttempt: guard.MAC | guard.Echo,
	liar.Flipped:      guard.MAC | guard.Echo,
	liar.Late:         guard.Gate,
}

func TestEveryLieIsStoppedByANamedGuard(t *testing.T) {
	together(t)
	r, err := Incident(t.Context(), Options{Seed: 1, Sets: []guard.Guard{guard.All}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != len(liar.Lies()) || r.Unsafe != guard.Unsafe {
		t.Fatalf("%d rows of %d lies", len(r.Rows), len(liar.Lies()))
	}
	for _, row := range r.Rows {
		lie := liar.Lie(row.Lie)
		if row.ForeignBytes != 0 || row.PoolFree != row.PoolTotal || row.PoolTotal == 0 || row.Nonzero != 0 {
			t.Errorf("%s: %+v", lie, row)
		}
		want := strings.Split((stops[lie] &^ guard.Admission).String(), ",")
		switch lie {
		case liar.Placeholder:
			if row.Status != 400 || row.Guard != "admission" || !strings.Contains(row.Said, "4096") {
				t.Errorf("the incident: %+v", row)
			}
			continue
		case liar.NoManifest, liar.TwoManifests:
			want = []string{"protocol"}
		case liar.Late:
			if row.Status != 200 || !row.Exact {
				t.Errorf("B had nothing to do with the aborted attempt: %+v", row)
			}
		}
		if lie != liar.Late && row.Status < 400 {
			t.Errorf("%s was answered %d", lie, row.Status)
		}
		if !slices.Contains(want, row.Guard) {
			t.Errorf("%s was stopped by %q, want one of %v: %+v", lie, row.Guard, want, row)
		}
	}
}

func TestForeignBytesAreThoseOfTheOther(t *testing.T) {
	for _, c := range []struct {
		text, own, other string
		want             int
	}{
		{"abcdefgh", "", "xabcdefghx", 8}, {"abcdefg", "", "xabcdefgx", 0}, {"abcdefgh", "abcdefgh", "abcdefgh", 0},
		{"__abcdefghij__", "q", "abcdefghij", 10}, {"", "a", "b", 0},
	} {
		if got := foreign(c.text, c.own, c.other); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
