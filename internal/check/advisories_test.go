package check

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/finding"
	"github.com/sluicekv/sluice/internal/check/source"
)

// Every advisory has a fixture on which it fires and one on which it does not. An entry without either fails here.
func TestEveryAdvisoryFiresAndIsQuiet(t *testing.T) {
	es, err := advisory.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := os.ReadDir("testdata/advisories")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, d := range dirs {
		have[d.Name()] = true
	}
	for _, e := range es {
		if !have[e.ID] {
			t.Errorf("%s has no fixture", e.ID)
		}
		delete(have, e.ID)
		for _, c := range []struct {
			name string
			want bool
		}{{"fires", true}, {"quiet", false}} {
			t.Run(e.ID+"/"+c.name, func(t *testing.T) {
				got, all := firing(t, filepath.Join("testdata/advisories", e.ID, c.name+".txt"), es)
				if got[e.ID] != c.want {
					t.Errorf("fires: %v, want %v; findings: %s", got[e.ID], c.want, all)
				}
			})
		}
	}
	for id := range have {
		t.Errorf("testdata/advisories/%s has no entry", id)
	}
}

// firing is the set of ids that have a finding of their own for a file.
func firing(t *testing.T, file string, es []*advisory.Entry) (map[string]bool, string) {
	t.Helper()
	inv, err := source.Read(context.Background(), []string{file}, source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Nodes) == 0 {
		t.Fatalf("no node in %s: %v", file, inv.Problems)
	}
	f := finding.Fleet{Inventory: inv, Advisories: es}
	got := map[string]bool{}
	var all []string
	for _, x := range f.Check() {
		got[x.ID] = true
		all = append(all, x.ID+"@"+x.Node+": "+x.Message)
	}
	return got, strings.Join(all, "\n")
}
