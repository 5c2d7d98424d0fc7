//go:build !race && electricfence

package pool

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluicekv/sluice/internal/page"
)

// freeProtection of pages that nobody has: touching one is a fault. Each page whose neighbour is in another state costs
// the kernel a mapping, of which a process has 65,530 by default (vm.max_map_count): for pools of up to 30,000 pages.
const freeProtection = unix.PROT_NONE

func (a *arena) open(id page.ID) { a.protect(id, unix.PROT_READ|unix.PROT_WRITE) }
func (a *arena) shut(id page.ID) { a.protect(id, unix.PROT_NONE) }

func (a *arena) protect(id page.ID, prot int) {
	if err := unix.Mprotect(a.padded(id), prot); err != nil {
		panic(fmt.Sprintf("pool: protecting page %d: %v", id, err))
	}
}
