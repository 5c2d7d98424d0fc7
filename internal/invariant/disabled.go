//go:build !invariants && !race

package invariant

// Enabled is true in builds whose checks may cost time and whose violations panic.
const Enabled = false
