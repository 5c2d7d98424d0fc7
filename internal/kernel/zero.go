package kernel

import "unsafe"

// IsZero says that every byte of b is zero, at the speed of memory: a page's verification when it is granted.
func IsZero(b []byte) bool {
	for avx2 && len(b) >= 128 {
		n := min(len(b)&^127, memoryCall)
		if !isZeroAVX2(&b[0], n) {
			return false
		}
		b = b[n:]
	}
	return isZeroGo(b)
}

// NonZero counts the bytes of b that are not zero.
func NonZero(b []byte) (n int) {
	for len(b) >= 1<<12 && IsZero(b[:1<<12]) {
		b = b[1<<12:]
	}
	for _, v := range b {
		if v != 0 {
			n++
		}
	}
	return n
}

// Clear zeroes b, past the caches if it is large: what was released is not about to be read.
func Clear(b []byte) {
	if !avx2 || len(b) < streamFrom {
		clear(b)
		return
	}
	head := int(-uintptr(unsafe.Pointer(&b[0])) & 63)
	clear(b[:head])
	for b = b[head:]; len(b) >= 64; {
		n := min(len(b)&^63, memoryCall)
		clearStreamAVX2(&b[0], n)
		b = b[n:]
	}
	clear(b)
}

const (
	streamFrom = 256 << 10
	memoryCall = 1 << 20 // bytes a call: assembly cannot be preempted
)

func isZeroGo(b []byte) bool {
	for len(b) >= 64 && uintptr(unsafe.Pointer(&b[0]))%8 == 0 {
		w := (*[8]uint64)(unsafe.Pointer(&b[0]))
		if w[0]|w[1]|w[2]|w[3]|w[4]|w[5]|w[6]|w[7] != 0 {
			return false
		}
		b = b[64:]
	}
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}
