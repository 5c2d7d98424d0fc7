package kernel

import (
	"encoding/binary"
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
