package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Decode reads whole blocks of a tensor's bytes into values: F32, F16, Q8_0, Q4_0 and Q4_1. It is the plain meaning of the formats,
// for small tensors, tests and oracles; the fast paths are in package kernel. len(out) says how many values.
func Decode(t Type, b []byte, out []float32) error {
	size, err := t.Size([]uint64{uint64(len(out))})
	if err != nil {
		return fmt.Errorf("gguf: decode: %w", err)
	}
	if size != uint64(len(b)) {
		return fmt.Errorf("gguf: decode: %d values of %s take %d bytes, not %d", len(out), t, size, len(b))
	}
	le := binary.LittleEndian
	switch t {
	case F32:
		for i := range out {
			out[i] = math.Float32frombits(le.Uint32(b[4*i:]))
		}
	case F16:
		for i := range out {
			out[i] = FromHalf(le.Uint16(b[2*i:]))
		}
	case Q8_0: // half d, 32 int8
		for ; len(b) > 0; b, out = b[34:], out[32:] {
			d := FromHalf(le.Uint16(b))
			for i, q := range b[2:34] {
				out[i] = d * float32(int8(q))
			}
		}
	case Q4_0: // half d, 16 bytes: value i in the low half of byte i, value i+16 in the high one, both less 8
		for ; len(b) > 0; b, out = b[18:], out[32:] {
			d := FromHalf(le.Uint16(b))
			for i, q := range b[2:18] {
				out[i] = d * float32(int(q&15)-8)
				out[i+16] = d * float32(int(q>>4)-8)
			}
		}
	case Q4_1: // half d, half m, 16 bytes: d*q + m
		for ; len(b) > 0; b, out = b[20:], out[32:] {
			d, m := FromHalf(le.Uint16(b)), FromHalf(le.Uint16(b[2:]))
			for i, q := range b[4:20] {
				// The conversion keeps the compiler from fusing: the value is the same on every machine.
				out[i] = float32(d*float32(q&15)) + m
				out[i+16] = float32(d*float32(q>>4)) + m
			}
		}
	default:
		return fmt.Errorf("gguf: decode: %s is not supported", t)
	}
	return nil
}

// Encode is the inverse of Decode; it rounds. A row, and so len(v), is whole blocks.
func Encode(t Type, v []float32) ([]byte, error) {
	size, err := t.Size([]uint64{uint64(len(v))})
	if err != nil {
		return nil, fmt.Errorf("gguf: encode: %w", err)
	}
	le := binary.LittleEndian
	b := make([]byte, 0, size)
	switch t {
	case F32:
		for _, x := range v {
			b = le.AppendUint32(b, math.Float32bits(x))
		}
	case F16:
		for _, x := range v {
			b = le.AppendUint16(b, ToHalf(x))
		}
	case Q8_0:
		for ; len(v) > 0; v = v[32:] {
			lo, hi := span(v[:32])
			d, inv := step(max(hi, -lo) / 127)
			b = le.AppendUint16(b, d)
			for _, x := range v[:32] {
				b = append(b, byte(int8(nearest(x*inv, -127, 127))))
			}
		}
	case Q4_0: // the value of largest magnitude becomes exactly -8
		for ; len(v) > 0; v = v[32:] {
			lo, hi := span(v[:32])
			far := lo
			if hi > -lo {
				far = hi
			}
			d, inv := step(far / -8)
			b = le.AppendUint16(b, d)
			for i := range 16 {
				b = append(b, byte(nearest(v[i]*inv, -8, 7)+8|(nearest(v[i+16]*inv, -8, 7)+8)<<4))
			}
		}
	case Q4_1:
		for ; len(v) > 0; v = v[32:] {
			lo, hi := span(v[:32])
			d, inv := step((hi - lo) / 15)
			b = le.AppendUint16(le.AppendUint16(b, d), ToHalf(lo))
			for i := range 16 {
				b = append(b, byte(nearest((v[i]-lo)*inv, 0, 15)|nearest((v[i+16]-lo)*inv, 0, 15)<<4))
			}
		}
	default:
		return nil, fmt.Errorf("gguf: encode: %s is not supported", t)
	}
	return b, nil
}

func span(v []float32) (lo, hi float32) {
	lo, hi = v[0], v[0]
	for _, x := range v {
		lo, hi = min(lo, x), max(hi, x)
	}
	return lo, hi
}

// step returns the half that is stored for a block's step, and its inverse; 0 and 0 for a block of zeroes.
func step(d float32) (half uint16, inv float32) {
	half = ToHalf(d)
	if r := FromHalf(half); r != 0 {
		inv = 1 / r
	}
	return half, inv
}

func nearest(x float32, lo, hi int) int {
	return min(max(int(math.RoundToEven(float64(x))), lo), hi)
}

// FromHalf widens an IEEE half, exactly.
func FromHalf(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&31), uint32(h&0x3ff)
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp != 0:
		return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
	}
	f := float32(frac) * 0x1p-24
	return math.Float32frombits(sign | math.Float32bits(f))
}

// ToHalf rounds to the nearest IEEE half, ties to even; what is too large becomes infinite.
func ToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign, mag := uint16(b>>16)&0x8000, b&0x7fffffff
	switch {
	case mag > 0x7f800000: // not a number
		return sign | 0x7e00
	case mag >= 0x477ff000: // 65520 and more
		return sign | 0x7c00
	case mag < 0x38800000: // below the least normal half: whole multiples of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(mag))*0x1p24))
	}
	return sign | uint16((mag-0x38000000+0xfff+mag>>13&1)>>13)
}
