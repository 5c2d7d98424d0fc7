//go:build !race

package pool

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guardBytes is the unmapped room at each end: an overread of a vector or of a whole page of the machine faults. A
// multiple of every page size in use on Linux.
const guardBytes = 64 << 10

// backing is the memfd and the reserved range around the arena. The descriptor stays open: it shows, to this process
// and to whoever looks in from outside, which parts were ever touched.
type backing struct {
	fd    int
	whole unsafe.Pointer
}

// mapArena maps a memfd of the given name, lazily: a page takes memory when it is first touched. A fresh memfd is zero; that
// no part of it holds data yet is verified.
func mapArena(name string, pages, size int) (*arena, error) {
	a := &arena{size: size, stride: strideOf(size)}
	n := pages * a.stride
	if pages > (1<<46)/a.stride {
		return nil, fmt.Errorf("pool: an arena of %d pages of %d bytes is larger than the address space", pages, a.stride)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("pool: memfd %s: %w", name, err)
	}
	a.fd = fd
	if err := a.mapAt(n); err != nil {
		return nil, fmt.Errorf("pool: mapping %d bytes of %s: %w", n, name, errors.Join(err, unix.Close(fd)))
	}
	return a, nil
}

func (a *arena) mapAt(n int) error {
	if err := unix.Ftruncate(a.fd, int64(n)); err != nil {
		return err
	}
	// Nobody who holds the descriptor can cut the file off under the mapping.
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return err
	}
	switch off, err := unix.Seek(a.fd, 0, unix.SEEK_DATA); {
	case err == nil:
		return fmt.Errorf("a fresh memfd holds data at %d", off)
	case !errors.Is(err, unix.ENXIO): // there is none: it is zero from end to end
		return err
	}
	whole, err := unix.MmapPtr(-1, 0, nil, uintptr(n+2*guardBytes), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	at, err := unix.MmapPtr(a.fd, 0, unsafe.Add(whole, guardBytes), uintptr(n), freeProtection, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_NORESERVE)
	if err != nil {
		return errors.Join(err, unix.MunmapPtr(whole, uintptr(n+2*guardBytes)))
	}
	a.whole, a.mem = whole, unsafe.Slice((*byte)(at), n)
	return unix.Madvise(a.mem, unix.MADV_DONTDUMP) // customers' prompts do not belong in a core file
}

// touched is the first page from the given one on of which any part was ever written or read, or a number past the last: a
// page that was not takes no memory, and is zero. An error that is not the end of the data is no reason to look away.
func (a *arena) touched(from int) int {
	data, err := unix.Seek(a.fd, int64(from)*int64(a.stride), unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return len(a.mem) / a.stride
	case err != nil:
		return from
	}
	return int(data) / a.stride
}

func (a *arena) unmap() error {
	n := len(a.mem) + 2*guardBytes
	a.mem = nil
	return errors.Join(unix.MunmapPtr(a.whole, uintptr(n)), unix.Close(a.fd))
}
