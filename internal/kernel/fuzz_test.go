package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The assembly against the plain Go twin, on shapes and values that the fuzzer draws.

func FuzzProduct(f *testing.F) {
	for typ := range types {
		f.Add(uint64(typ), uint8(typ), uint8(17), uint8(2), uint8(5))
	}
	f.Fuzz(func(t *testing.T, seed uint64, typ, n, blocks, rows uint8) {
		if len(Paths()) < 2 {
			t.Skip("one path")
		}
		w := types[int(typ)%len(types)]
		N, k, R := int(n)+1, (int(blocks)%8+1)*block, int(rows)%20+1
		rng := rand.New(rand.NewPCG(seed, 1))
		m, err := Pack(w, rawMatrix(rng, w, N, k), N, k)
		if err != nil {
			t.Fatal(err)
		}
		x := floats(rng, R*k)
		scale := float32(math.Exp(rng.NormFloat64() * 3))
		for i := range x {
			x[i] *= scale
		}
		var out [2][]float32
		var acts [2]Acts
		for i, p := range Paths() {
			usePath(t, p)
			Quantize(x, R, k, &acts[i])
			out[i] = make([]float32, R*N)
			MatMul(out[i], &acts[i], m, 0, N, &Scratch{})
		}
		for i := range acts[0].q {
			if acts[0].q[i] != acts[1].q[i] {
				t.Fatalf("block %d quantised as %+v and %+v", i, acts[0].q[i], acts[1].q[i])
			}
		}
		_, bound := reference(&acts[0], m)
		for i := range bound {
			if d := math.Abs(float64(out[0][i] - out[1][i])); !(d <= 1e-5*bound[i]) {
				t.Fatalf("%v %dx%d, %d rows: output %d is %v and %v", w, N, k, R, i, out[0][i], out[1][i])
			}
		}
	})
}

func FuzzAttend(f *testing.F) {
	f.Add(uint64(1), uint8(7), uint8(1), uint8(2), uint16(100), uint16(30), uint8(1), uint8(20))
	f.Add(uint64(2), uint8(1), uint8(2), uint8(0), uint16(0), uint16(0), uint8(0), uint8(1))
	f.Add(uint64(3), uint8(9), uint8(0), uint8(4), uint16(300), uint16(90), uint8(3), uint8(90))
	f.Fuzz(func(t *testing.T, seed uint64, dims, kvHeads, group uint8, tokens, rows uint16, size, scale uint8) {
		sh := Shape{Tokens: []int{16, 32, 64, 128}[size%4], Layers: 1, KVHeads: int(kvHeads)%3 + 1, HeadDim: (int(dims)%16 + 1) * 8}
		heads := sh.KVHeads * (int(group)%5 + 1)
		n := int(tokens)%320 + 1
		r := int(rows)%n + 1
		rng := rand.New(rand.NewPCG(seed, 2))
		c := newCache(rng, sh, 0, n, 0xff)
		q := floats(rng, r*heads*sh.HeadDim)
		for i := range q {
			q[i] *= float32(scale) / 16
		}
		want := c.reference(q, heads, n-r, r)
		o := make([]float32, len(q))
		for _, p := range Paths() {
			usePath(t, p)
			Attend(o, q, c.pages, sh, 0, heads, n-r, r, 0, heads, &AttnScratch{})
			for i := range o {
				if d := math.Abs(float64(o[i]) - want[i]); !(d < 1e-4) {
					t.Fatalf("%s, %+v, %d heads, %d of %d: output %d is %v, want %v", p, sh, heads, r, n, i, o[i], want[i])
				}
			}
		}
	})
}

func FuzzVectors(f *testing.F) {
	f.Add([]byte{0, 0, 128, 63, 1, 2, 3, 4, 255, 255, 127, 127})
	f.Add([]byte{0, 0, 128, 127, 0, 0, 192, 255, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(Paths()) < 2 || len(raw) < 4 {
			t.Skip("one path")
		}
		x := make([]float32, len(raw)/4)
		for i := range x {
			x[i] = math.Float32frombits(uint32(raw[i*4]) | uint32(raw[i*4+1])<<8 | uint32(raw[i*4+2])<<16 | uint32(raw[i*4+3])<<24)
		}
		type result struct {
			half       []uint16
			silu, norm []float32
			zero       bool
			count      int
		}
		var res [2]result
		for i, p := range Paths() {
			usePath(t, p)
			r := &res[i]
			r.half, r.silu, r.norm = make([]uint16, len(x)), make([]float32, len(x)), make([]float32, len(x))
			ToF16(r.half, x)
			SiLUMul(r.silu, x, x)
			RMSNorm(r.norm, x, x, 1e-5)
			r.zero, r.count = IsZero(raw), NonZero(raw)
		}
		for i := range x {
			if res[0].half[i] != res[1].half[i] {
				t.Fatalf("half of %v: %04x and %04x", x[i], res[0].half[i], res[1].half[i])
			}
			a, b := res[0].silu[i], res[1].silu[i]
			if !(a == b || a != a && b != b || math.Abs(float64(a-b)) <= 1e-6*math.Abs(float64(a))+1e-36) {
				t.Fatalf("gate of %v: %v and %v", x[i], a, b)
			}
			if a, b := res[0].norm[i], res[1].norm[i]; !(a == b || a != a && b != b) {
				t.Fatalf("norm of %v: %v and %v", x[i], a, b)
			}
		}
		if res[0].zero != res[1].zero || res[0].count != res[1].count || res[0].zero != (res[0].count == 0) {
			t.Fatalf("zero: %+v and %+v", res[0].zero, res[1].zero)
		}
	})
}
