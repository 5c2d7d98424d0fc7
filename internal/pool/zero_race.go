//go:build race

package pool

// In plain Go, because the race detector does not see what assembly touches.

func isZero(b []byte) bool { return countNonzero(b) == 0 }

func clearBytes(b []byte) { clear(b) }

func countNonzero(b []byte) (n uint64) {
	for _, x := range b {
		if x != 0 {
			n++
		}
	}
	return n
}
