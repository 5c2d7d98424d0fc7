package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// rawMatrix makes the bytes of a GGUF tensor: blocks with random quants (all values, -128 too) and random scales.
func rawMatrix(rng *rand.Rand, t WeightType, n, k int) []byte {
	switch t {
	case F32:
		raw := make([]byte, n*k*4)
		for i := range n * k {
			binary.LittleEndian.PutUint32(raw[i*4:], math.Float32bits(float32(rng.NormFloat64())))
		}
		return raw
	case F16:
		raw := make([]byte, n*k*2)
		for i := range n * k {
			binary.LittleEndian.PutUint16(raw[i*2:], f16from(float32(rng.NormFloat64())))
		}
		return raw
	}
	size := t.blockBytes()
	raw := make([]byte, n*k/block*size)
	for i := range raw {
		raw[i] = byte(rng.Uint32())
	}
	for b := 0; b < len(raw); b += size {
		binary.LittleEndian.PutUint16(raw[b:], f16from(float32(rng.NormFloat64()*0.01)))
		if t == Q4_1 {
			binary.LittleEndian.PutUint16(raw[b+2:], f16from(float32(rng.NormFloat64()*0.1)))
		}
	}
	return raw
}

func floats(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// reference is the product in double precision, from the file's dequantised rows and, for quantised weights, the
// dequantised activations; bound is the sum of the terms' magnitudes.
func reference(a *Acts, m *Mat) (want, bound []float64) {
	want, bound = make([]float64, a.rows*m.n), make([]float64, a.rows*m.n)
	x := make([]float64, a.k)
	w := make([]float32, m.k)
	for j := range m.n {
		m.Row(w, j)
		for r := range a.rows {
			for c := range x {
				x[c] = float64(a.x[r*a.k+c])
				if m.Quantized() {
					b := &a.q[r*(a.k/block)+c/block]
					x[c] = float64(b.d) * float64(b.q[c%block])
				}
			}
			for c := range x {
				want[r*m.n+j] += x[c] * float64(w[c])
				bound[r*m.n+j] += math.Abs(x[c] * float64(w[c]))
			}
			if m.typ == Q4_1 { // its minimum meets the sum that was rounded to a half
				for b := range a.k / block {
					bound[r*m.n+j] += 1e3 * math.Abs(float64(a.q[r*(a.k/block)+b].s)) * 0.4
				}
			}
		}
	}
	return want, bound
}

var types = []WeightType{F32, F16, Q8_0, Q4_0, Q4_1}

func TestProductIsThatOfTheDequantisedRows(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, typ := range types {
			for _, n := range []int{1, 7, 8, 16, 17, 40, 130} {
				for _, k := range []int{32, 96, 576} {
					m, err := Pack(typ, rawMatrix(rng, typ, n, k), n, k)
					if err != nil {
						t.Fatal(err)
					}
					for _, rows := range []int{1, 2, 3, 5, 9} {
						var a Acts
						Quantize(floats(rng, rows*k), rows, k, &a)
						dst := make([]float32, rows*n)
						MatMul(dst, &a, m, 0, n, &Scratch{})
						want, bound := reference(&a, m)
						for i := range dst {
							if d := math.Abs(float64(dst[i]) - want[i]); !(d <= 2e-6*bound[i]) {
								t.Fatalf("%v %dx%d, %d rows: output %d is %g, want %g (bound %g)", typ, n, k, rows, i, dst[i], want[i], bound[i])
							}
						}
					}
				}
			}
		}
	})
}

// sameBits reports the first place where two slices differ.
func sameBits(t *testing.T, got, want []float32, format string, args ...any) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", fmt.Sprintf(format, args...), len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %v (%08x), want %v (%08x)", fmt.Sprintf(format, args...), i,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func TestProductDoesNotDependOnTheCut(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 6))
		for _, typ := range types {
			for _, n := range []int{1, 9, 16, 33, 100, 208} {
				const k = 160
				m, err := Pack(typ, rawMatrix(rng, typ, n, k), n, k)
				if err != nil {
					t.Fatal(err)
				}
				x := floats(rng, 65*k)
				single := make([]float32, 65*n)
				for r := range 65 {
					var a Acts
					Quantize(x[r*k:][:k], 1, k, &a)
					MatMul(single[r*n:][:n], &a, m, 0, n, &Scratch{})
				}
				for _, rows := range []int{1, 2, 3, 4, 5, 6, 7, 8, 64, 65} {
					var a Acts
					a.Set(x[:rows*k], rows, k)
					cut := rng.IntN(rows + 1)
					a.Quantize(cut, rows)
					a.Quantize(0, cut)
					got := make([]float32, rows*n)
					for n0 := 0; n0 < n; {
						n1 := min(n, n0+Panel*(1+rng.IntN(6)))
						MatMul(got, &a, m, n0, n1, &Scratch{})
						n0 = n1
					}
					sameBits(t, got, single[:rows*n], "%v, %d outputs, %d rows", typ, n, rows)
				}
			}
		}
	})
}

// A long activation makes several blocks of rows.
func TestProductOfManyLongRowsIsThatOfEach(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(7, 8))
		for _, typ := range types {
			const n, k, rows = 17, 4096, 23
			m, err := Pack(typ, rawMatrix(rng, typ, n, k), n, k)
			if err != nil {
				t.Fatal(err)
			}
			var all, one Acts
			x := floats(rng, rows*k)
			Quantize(x, rows, k, &all)
			got := make([]float32, rows*n)
			MatMul(got, &all, m, 0, n, &Scratch{})
			for r := range rows {
				Quantize(x[r*k:][:k], 1, k, &one)
				want := make([]float32, n)
				MatMul(want, &one, m, 0, n, &Scratch{})
				sameBits(t, got[r*n:][:n], want, "%v, row %d", typ, r)
			}
		}
	})
}

// The largest sums of each type, where 16-bit arithmetic would saturate.
func TestProductOfExtremesIsExact(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		const n, k = 8, 64
		for _, typ := range []WeightType{Q8_0, Q4_0, Q4_1} {
			for _, q := range []byte{0x00, 0x7f, 0x80, 0x81, 0xff, 0x0f, 0xf0} {
				for _, sign := range []float32{1, -1} {
					size := typ.blockBytes()
					raw := make([]byte, n*k/block*size)
					for i := range raw {
						raw[i] = q
					}
					for b := 0; b < len(raw); b += size {
						binary.LittleEndian.PutUint16(raw[b:], f16from(1))
						if typ == Q4_1 {
							binary.LittleEndian.PutUint16(raw[b+2:], f16from(0))
						}
					}
					m, err := Pack(typ, raw, n, k)
					if err != nil {
						t.Fatal(err)
					}
					x := make([]float32, k)
					for i := range x {
						x[i] = 127 * sign // quantises to +-127 with scale 1
						if q == 0x81 && i%2 == 1 {
							x[i] = -x[i]
						}
					}
					var a Acts
					Quantize(x, 1, k, &a)
					got, w := make([]float32, n), make([]float32, k)
					MatMul(got, &a, m, 0, n, &Scratch{})
					m.Row(w, 0)
					want := float32(0)
					for i := range x {
						want += x[i] * w[i]
					}
					for _, g := range got {
						if g != want {
							t.Fatalf("%v of %#x by %v: %v, want %v", typ, q, 127*sign, g, want)
						}
					}
				}
			}
		}
	})
}

func TestPathsAgreeOnProducts(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, typ := range types {
		const n, k, rows = 50, 320, 7
		m, err := Pack(typ, rawMatrix(rng, typ, n, k), n, k)
		if err != nil {
			t.Fatal(err)
		}
		x := floats(rng, rows*k)
		var outs [][]float32
		forPaths(t, func(t *testing.T) {
			var a Acts
			Quantize(x, rows, k, &a)
			out := make([]float32, rows*n)
			MatMul(out, &a, m, 0, n, &Scratch{})
			outs = append(outs, out)
		})
		for _, out := range outs[1:] {
			for i := range out {
				if d := math.Abs(float64(out[i] - outs[0][i])); d > 1e-4*max(1, math.Abs(float64(out[i]))) {
					t.Fatalf("%v: output %d differs: %v and %v", typ, i, out[i], outs[0][i])
				}
			}
		}
	}
}

// The file's formats, spelled out again: byte i of a 4-bit block holds columns i and i+16.
func TestRowIsTheFilesRow(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, typ := range types {
		const n, k = 19, 96
		raw := rawMatrix(rng, typ, n, k)
		m, err := Pack(typ, raw, n, k)
		if err != nil {
			t.Fatal(err)
		}
		if m.Rows() != n || m.Cols() != k || m.Type() != typ || m.Bytes() > len(raw)*32/19+64 {
			t.Fatalf("%v: packed as %d x %d of %v in %d bytes", typ, m.Rows(), m.Cols(), m.Type(), m.Bytes())
		}
		half := func(b []byte) float32 { return f16to(binary.LittleEndian.Uint16(b)) }
		got := make([]float32, k)
		for i := range n {
			want := make([]float32, k)
			for c := range want {
				b := raw[(i*k+c)/block*typ.blockBytes():]
				in := c % block
				switch typ {
				case F32:
					want[c] = math.Float32frombits(binary.LittleEndian.Uint32(raw[(i*k+c)*4:]))
				case F16:
					want[c] = half(raw[(i*k+c)*2:])
				case Q8_0:
					want[c] = half(b) * float32(int8(b[2+in]))
				case Q4_0:
					want[c] = half(b) * (float32(b[2+in%16]>>(in/16*4)&15) - 8)
				case Q4_1:
					v := half(b) * float32(b[4+in%16]>>(in/16*4)&15)
					want[c] = v + half(b[2:])
				}
			}
			m.Row(got, i)
			sameBits(t, got, want, "%v, row %d", typ, i)
		}
	}
}

func TestPackRefusesWhatIsNotTheMatrix(t *testing.T) {
	for _, c := range []struct {
		name     string
		typ      WeightType
		bytes    int
		n, k     int
		accepted bool
	}{
		{"right", Q8_0, 34 * 2, 1, 64, true},
		{"right, floats", F16, 30, 5, 3, true},
		{"one byte short", Q8_0, 34*2 - 1, 1, 64, false},
		{"one byte long", F32, 65, 4, 4, false},
		{"a row short", F32, 48, 4, 4, false},
		{"a row long", Q4_0, 18 * 3, 2, 32, false},
		{"half a block", Q4_1, 20, 1, 16, false},
		{"no rows", F32, 0, 0, 4, false},
		{"no columns", F32, 0, 4, 0, false},
		{"negative", F32, 16, -2, -2, false},
		{"product that overflows", F32, 0, 1 << 40, 1 << 40, false},
		{"size that overflows", F32, 0, 1, 1 << 62, false},
		{"unknown type", 99, 32, 1, 32, false},
	} {
		m, err := Pack(c.typ, make([]byte, c.bytes), c.n, c.k)
		if (err == nil) != c.accepted || (m != nil) != c.accepted {
			t.Errorf("%s: %v, %v", c.name, m, err)
		}
	}
}

// Blocks whose quantisation is known: rounding to even, zeros, a scale too small for a half.
func TestQuantizeRoundsAsGGMLDoesOnX86(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		x := make([]float32, 6*block)
		copy(x, []float32{127, 0.5, 1.5, 2.5, -0.5, -1.5, -127, 126.5, 0.49})
		x[2*block+7] = -3 // alone in its block: -127
		x[3*block] = 1e-9
		x[5*block], x[5*block+1], x[5*block+2] = 127e5, 127e5, 1
		for i := range block {
			x[4*block+i] = float32(i) * 0.37
		}
		var a Acts
		Quantize(x, 1, len(x), &a)
		b := a.q[0]
		if got, want := [9]int8(b.q[:]), [9]int8{127, 0, 2, 2, 0, -2, -127, 126, 0}; got != want || b.d != 1 || b.s != 128 || b.sum8 != -8*128 {
			t.Errorf("first block: %v scale %v sum %v offset %v", got, b.d, b.s, b.sum8)
		}
		if b := a.q[1]; b != (actBlock{}) {
			t.Errorf("a block of zeros: %+v", b)
		}
		if b := a.q[2]; b.q[7] != -127 || b.d != f16to(f16from(3.0/127)) || b.s != -3 || b.sum8 != 127*8 {
			t.Errorf("one value: %+v", b)
		}
		if b := a.q[3]; b.q[0] != 127 || b.d != 0 || b.s != 0 {
			t.Errorf("a tiny value: %+v", b)
		}
		if b := a.q[5]; b.q[0] != 127 || b.q[2] != 0 || b.d != 1e5 || b.s != 254e5 {
			t.Errorf("beyond a half: %+v", b)
		}
		var want actBlock
		amax, sum := float32(31)*0.37, 0
		d := amax / 127
		for i := range block {
			want.q[i] = int8(math.RoundToEven(float64(x[4*block+i] * (127 / amax))))
			sum += int(want.q[i])
		}
		want.d, want.s, want.sum8 = f16to(f16from(d)), f16to(f16from(d*float32(sum))), int32(-8*sum)
		if a.q[4] != want {
			t.Errorf("a ramp: %+v, want %+v", a.q[4], want)
		}
	})
}

func TestQuantizeIsTheSameOnEveryPath(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	x := floats(rng, 200*block)
	for i := range x {
		x[i] *= float32(math.Exp(rng.NormFloat64() * 8))
	}
	var outs []*Acts
	forPaths(t, func(t *testing.T) {
		var a Acts
		Quantize(x, 2, 100*block, &a)
		outs = append(outs, &a)
	})
	for _, a := range outs[1:] {
		for i := range a.q {
			if a.q[i] != outs[0].q[i] {
				t.Fatalf("block %d: %+v and %+v", i, a.q[i], outs[0].q[i])
			}
		}
	}
}
