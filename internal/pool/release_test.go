//go:build !unsafe_guards && !race

package pool

import (
	"debug/elf"
	"debug/gosym"
	"os"
	"strings"
	"testing"
)

// TestReleaseBuildHasNoWayAround looks into this very binary: what runs only when a guard is out was not even linked.
func TestReleaseBuildHasNoWayAround(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := f.Section(".gopclntab").Data()
	if err != nil {
		t.Fatal(err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(lines, f.Section(".text").Addr))
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{}
	for _, fn := range table.Funcs {
		if _, name, ok := strings.Cut(fn.Name, "internal/pool."); ok {
			linked[name] = true
		}
	}
	for _, name := range []string{"(*Lease).Land", "(*Lease).View", "(*Lease).landed"} {
		if !linked[name] {
			t.Errorf("%s is not in the list of functions: the list is no evidence", name)
		}
	}
	for _, name := range []string{"(*Pool).landAnyway", "(*Lease).ungated", "(*Lease).landable", "(*View).unpinSome", "(*Pool).HoldCopies"} {
		if linked[name] {
			t.Errorf("%s is in the release build", name)
		}
	}
}
