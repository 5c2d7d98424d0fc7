//go:build linux && !race

package gateway

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// canMap: under the race detector bodies stay on the heap, since it cannot see mapped memory.
const canMap = true

func mapped(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil && n >= hugePage {
		// A thousand faults less for a body of 4 MB. A kernel that does not know this does without.
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
	return b, err
}

const hugePage = 2 << 20

// remap moves no bytes: the kernel moves the pages.
func remap(b []byte, n int) ([]byte, error) { return unix.Mremap(b, n, unix.MREMAP_MAYMOVE) }

func unmap(b []byte) {
	if err := unix.Munmap(b); err != nil {
		panic(fmt.Sprintf("gateway: a body of %d bytes cannot be unmapped: %v", len(b), err))
	}
}
