//go:build unsafe_guards

package pool

import "github.com/sluicekv/sluice/internal/page"

// HoldCopies sets what Land and CopyOut call between the pin and the copy: how a drill holds a copy in its middle while the
// lease goes. Set it before the pool is used. Unsafe build only.
func (p *Pool) HoldCopies(f func(page.Tag)) { p.midCopy = f }
