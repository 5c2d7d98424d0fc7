//go:build !race && !electricfence

package pool

import (
	"golang.org/x/sys/unix"

	"github.com/sluicekv/sluice/internal/page"
)

// freeProtection of pages that nobody has: they can be touched, and are trusted not to be.
const freeProtection = unix.PROT_READ | unix.PROT_WRITE

func (a *arena) open(page.ID) {}
func (a *arena) shut(page.ID) {}
