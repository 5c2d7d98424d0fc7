//go:build linux && !race

package gateway

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// canMap: under the race detector bodies stay on the heap, since it cannot see mapped memory.
const canMap = true

func mapped(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// remap moves no bytes: the kernel moves the pages.
func remap(b []byte, n int) ([]byte, error) { return unix.Mremap(b, n, unix.MREMAP_MAYMOVE) }

func unmap(b []byte) {
	if err := unix.Munmap(b); err != nil {
		panic(fmt.Sprintf("gateway: a body of %d bytes cannot be unmapped: %v", len(b), err))
	}
}
