//go:build race

package pool

import (
	"os"
	"unsafe"

	"github.com/sluicekv/sluice/internal/page"
)

// backing is empty: under the race detector the arena is in the Go heap.
type backing struct{}

func mapArena(_ string, pages, size int) (*arena, error) {
	a := &arena{size: size, stride: strideOf(size)}
	mem := make([]byte, pages*a.stride+os.Getpagesize())
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & uintptr(os.Getpagesize()-1)
	a.mem = mem[skip:][: pages*a.stride : pages*a.stride]
	return a, nil
}

func (a *arena) touched(from int) int { return from }
func (a *arena) open(page.ID)         {}
func (a *arena) shut(page.ID)         {}
func (a *arena) unmap() error         { a.mem = nil; return nil }
