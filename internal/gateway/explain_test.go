package gateway

import (
	"strings"
	"testing"
)

// The explanation names every guard with the mode that it has, its engines and its cost, and what no guard sees.
func TestExplainNamesEachGuardsMode(t *testing.T) {
	var b strings.Builder
	if err := ExplainGuards(&b, Modes{All: Observe, Each: map[string]Mode{"prompt-agree": Enforce, "first-token": Enforce, "plausibility": Off}}); err != nil {
		t.Fatal(err)
	}
	_, modes, _ := strings.Cut(b.String(), "GUARDS AND THEIR MODES")
	for guard, want := range map[string]string{"prompt-agree": "enforce", "first-token": "enforce", "plausibility": "off", "wire": "observe", "admission": "observe", "control": "always enforced"} {
		found := false
		for line := range strings.SplitSeq(modes, "\n") {
			if f := strings.Fields(line); len(f) > 3 && f[0] == guard {
				found = strings.HasPrefix(strings.Join(f[1:], " "), want)
			}
		}
		if !found {
			t.Errorf("%s is not said to be %s:\n%s", guard, want, modes)
		}
	}
	for _, g := range Guards() {
		if !strings.Contains(modes, "\n"+g+" ") {
			t.Errorf("%s is not explained", g)
		}
	}
	for _, r := range residual {
		if !strings.Contains(b.String(), r[1]) {
			t.Errorf("%q is not said", r[1])
		}
	}
	for _, bad := range []Modes{{All: Off}, {Each: map[string]Mode{"wire": Off}}, {Each: map[string]Mode{"nonsense": Observe}}} {
		if err := ExplainGuards(&b, bad); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}
