//go:build electricfence && !race

package pool

import (
	"runtime/debug"
	"testing"

	"github.com/sluicekv/sluice/internal/page"
)

// TestAFreePageCannotBeTouched: whoever keeps the address of a page beyond its lease gets a fault, for a read and a write.
func TestAFreePageCannotBeTouched(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	p := newPool(t, 3)
	faults := func(id page.ID) bool {
		b := p.arena.bytes(id)
		var sum byte
		read := panics(func() { sum = b[100] })
		write := panics(func() { b[100] = sum })
		if (read == "") != (write == "") {
			t.Fatalf("page %d: a read ends in %q, a write in %q", id, read, write)
		}
		return read != ""
	}
	if !faults(1) {
		t.Fatal("a page that was never granted can be touched")
	}
	l := filled(t, p, 3, 7)
	for id := range page.ID(3) {
		if faults(id) {
			t.Fatalf("page %d is leased and cannot be touched", id)
		}
	}
	free(l)
	for id := range page.ID(3) {
		if !faults(id) {
			t.Fatalf("page %d is free and can be touched", id)
		}
	}
}
