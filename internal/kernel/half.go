package kernel

import "math"

// f16from rounds to the nearest half, ties to even, as VCVTPS2PH does: too large becomes infinity, a NaN stays a (quiet) NaN.
func f16from(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN: the top of the payload, quiet
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x477ff000: // rounds to 65536 or more
		return sign | 0x7c00
	case b < 0x38800000: // subnormal or zero: adding 0.5 puts the last place of the sum at 2^-24
		v := math.Float32frombits(b) + 0.5
		return sign | uint16(math.Float32bits(v)-0x3f000000)
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13)
}

// f16to is exact: the half's bits in a float's place are 2^-112 of its value, subnormals too.
func f16to(h uint16) float32 {
	b := uint32(h&0x7fff) << 13
	v := math.Float32frombits(b) * (1 << 112)
	if b >= 0x7c00<<13 {
		return f16special(h)
	}
	return math.Float32frombits(math.Float32bits(v) | uint32(h&0x8000)<<16)
}

// f16special is an infinity or a NaN, made quiet.
func f16special(h uint16) float32 {
	m := uint32(h&0x3ff) << 13
	if m != 0 {
		m |= 1 << 22
	}
	return math.Float32frombits(uint32(h&0x8000)<<16 | 0x7f800000 | m)
}

// ToF16 converts src to halves, rounding to nearest even. The slices must be of one length.
func ToF16(dst []uint16, src []float32) {
	if len(dst) != len(src) {
		panic("kernel: ToF16 of two lengths")
	}
	n := 0
	if avx2 {
		n = len(src) &^ 7
		if n > 0 {
			toF16AVX2(&dst[0], &src[0], n)
		}
	}
	for i := n; i < len(src); i++ {
		dst[i] = f16from(src[i])
	}
}

// FromF16 converts halves to floats, exactly. The slices must be of one length.
func FromF16(dst []float32, src []uint16) {
	if len(dst) != len(src) {
		panic("kernel: FromF16 of two lengths")
	}
	n := 0
	if avx2 {
		n = len(src) &^ 7
		if n > 0 {
			fromF16AVX2(&dst[0], &src[0], n)
		}
	}
	for i := n; i < len(src); i++ {
		dst[i] = f16to(src[i])
	}
}
