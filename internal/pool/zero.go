package pool

import "encoding/binary"

// isZero reports whether every byte of b is zero.
func isZero(b []byte) bool { return countNonzero(b) == 0 }

// clearBytes zeroes b.
func clearBytes(b []byte) { clear(b) }

// countNonzero counts the bytes that are not zero.
func countNonzero(b []byte) (n uint64) {
	for ; len(b) >= 8; b = b[8:] {
		if w := binary.LittleEndian.Uint64(b); w != 0 {
			for ; w != 0; w >>= 8 {
				if w&0xff != 0 {
					n++
				}
			}
		}
	}
	for _, x := range b {
		if x != 0 {
			n++
		}
	}
	return n
}
