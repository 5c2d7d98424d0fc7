//go:build !unsafe_guards

package drill

import "github.com/sluicekv/sluice/internal/guard"

// leave leaves only some guards on; in this build that is all of them.
func leave(guard.Guard) (restore func()) { return func() {} }
