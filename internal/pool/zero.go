//go:build !race

package pool

import "github.com/sluicekv/sluice/internal/kernel"

// isZero reports whether every byte of b is zero.
func isZero(b []byte) bool { return kernel.IsZero(b) }

// clearBytes zeroes b.
func clearBytes(b []byte) { kernel.Clear(b) }

// countNonzero counts the bytes that are not zero.
func countNonzero(b []byte) uint64 { return uint64(kernel.NonZero(b)) }
