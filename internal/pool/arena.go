package pool

import (
	"iter"
	"os"
	"unsafe"

	"github.com/sluicekv/sluice/internal/page"
)

// arena is the memory of a pool. Pages start on multiples of the machine's page size, so that neighbours share none of
// those and each can be protected by itself; the bytes between a page's end and the next one's start stay zero.
//
// Each build has its own mapArena, and the methods touched, open, shut and unmap: see arena_mapped.go and arena_heap.go.
type arena struct {
	mem    []byte // pages * stride
	size   int    // bytes of a page
	stride int    // from one page to the next
	backing
}

// strideOf rounds a page's size up to the machine's pages.
func strideOf(size int) int {
	m := os.Getpagesize()
	return (size + m - 1) / m * m
}

// base is the address of page id. The slice expression is the bounds check.
func (a *arena) base(id page.ID) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(a.padded(id)))
}

// bytes are page id's own; they never leave the package.
func (a *arena) bytes(id page.ID) []byte { return a.padded(id)[:a.size:a.size] }

// padded is page id with the bytes up to the next.
func (a *arena) padded(id page.ID) []byte { return a.run(id, 1) }

// run is n pages from id on, with the bytes between them.
func (a *arena) run(id page.ID, n int) []byte {
	off, end := int(id)*a.stride, (int(id)+n)*a.stride
	return a.mem[off:end:end]
}

// runs cuts tags into stretches of pages that lie next to each other in the arena.
func runs(tags []page.Tag) iter.Seq[[]page.Tag] {
	return func(yield func([]page.Tag) bool) {
		for len(tags) > 0 {
			n := 1
			for n < len(tags) && tags[n].ID == tags[n-1].ID+1 {
				n++
			}
			if !yield(tags[:n]) {
				return
			}
			tags = tags[n:]
		}
	}
}
