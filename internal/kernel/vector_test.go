package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestEveryHalfConverts(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		all := make([]uint16, 1<<16)
		for i := range all {
			all[i] = uint16(i)
		}
		f := make([]float32, len(all))
		FromF16(f, all)
		back := make([]uint16, len(all))
		ToF16(back, f)
		for i, h := range all {
			want := float64(h&0x3ff) / 1024
			e := int(h >> 10 & 0x1f)
			switch {
			case e == 31 && h&0x3ff != 0:
				if f[i] == f[i] || back[i] != h|0x200 {
					t.Fatalf("half %04x: %v, back %04x", h, f[i], back[i])
				}
				continue
			case e == 31:
				want = math.Inf(1)
			case e == 0:
				want = math.Ldexp(want, -14)
			default:
				want = math.Ldexp(1+want, e-15)
			}
			if h&0x8000 != 0 {
				want = -want
			}
			if float64(f[i]) != want || math.Signbit(float64(f[i])) != (h&0x8000 != 0) || back[i] != h {
				t.Fatalf("half %04x: %v, want %v; back %04x", h, f[i], want, back[i])
			}
			if math.Float32bits(f16to(h)) != math.Float32bits(f[i]) {
				t.Fatalf("half %04x alone: %v, in a slice %v", h, f16to(h), f[i])
			}
		}
	})
}

func TestFloatsRoundToTheNearestEvenHalf(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		for _, c := range []struct {
			f float32
			h uint16
		}{
			{1, 0x3c00}, {1 + 1.0/2048, 0x3c00}, {1 + 1.5/1024, 0x3c02}, {1 + 1.001/2048, 0x3c01}, {65504, 0x7bff}, {65519.99, 0x7bff}, {65520, 0x7c00},
			{1e30, 0x7c00}, {-1e30, 0xfc00}, {float32(math.Ldexp(1, -24)), 1}, {float32(math.Ldexp(1, -25)), 0}, {float32(math.Ldexp(1.0001, -25)), 1},
			{float32(math.Ldexp(3, -25)), 2}, {float32(math.Ldexp(1, -14)), 0x400}, {float32(math.Ldexp(2047.5, -25)), 0x400}, {1e-40, 0}, {float32(math.Copysign(0, -1)), 0x8000},
		} {
			got := make([]uint16, 9)
			in := make([]float32, 9)
			for i := range in {
				in[i] = c.f
			}
			ToF16(got, in)
			for i, h := range got {
				if h != c.h {
					t.Errorf("%v at %d: %04x, want %04x", c.f, i, h, c.h)
				}
			}
		}
	})
	// And the two paths on every exponent with mantissas around the ties.
	if len(Paths()) > 1 {
		usePath(t, "avx2")
		rng := rand.New(rand.NewPCG(1, 1))
		in, out := make([]float32, 8), make([]uint16, 8)
		for range 50000 {
			for i := range in {
				in[i] = math.Float32frombits(rng.Uint32()&^uint32(0x1fff>>rng.IntN(14)) | rng.Uint32()&1)
			}
			ToF16(out, in)
			for i := range in {
				if out[i] != f16from(in[i]) {
					t.Fatalf("%v (%08x): %04x by assembly, %04x by Go", in[i], math.Float32bits(in[i]), out[i], f16from(in[i]))
				}
			}
		}
	}
}

func TestExponentialsAreWithinTwoRoundings(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		for x := float32(-87.29); x < 88; x += 0.0371 {
			in, out := []float32{x}, []float32{0}
			ExpSum(out, in, 0)
			want := math.Exp(float64(x))
			if d := math.Abs(float64(out[0])-want) / want; d > 2.5e-7 {
				t.Fatalf("exp(%v) is %v, want %v", x, out[0], want)
			}
		}
		out := make([]float32, 4)
		sum := ExpSum(out, []float32{-87.4, -1e30, float32(math.Inf(-1)), 0}, 0)
		sameBits(t, out, []float32{0, 0, 0, 1}, "far below")
		if sum != 1 {
			t.Errorf("sum %v, want 1", sum)
		}
		ExpSum(out[:1], []float32{float32(math.NaN())}, 0)
		if out[0] == out[0] {
			t.Errorf("exp(NaN) is %v", out[0])
		}
	})
}

func TestExpSumOfAVocabulary(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(2, 2))
		x := floats(rng, 49157)
		top := Max(x)
		want := 0.0
		for i, v := range x {
			if v > top {
				t.Fatalf("x[%d] = %v is more than the largest, %v", i, v, top)
			}
			want += math.Exp(float64(v - top))
		}
		if got := ExpSum(x, x, top); math.Abs(got-want)/want > 1e-6 {
			t.Errorf("sum %v, want %v", got, want)
		}
		for n := 1; n < 40; n++ { // the largest is found wherever it is
			for at := range n {
				y := make([]float32, n)
				for i := range y {
					y[i] = -5
				}
				y[at] = -4
				if m := Max(y); m != -4 {
					t.Fatalf("largest at %d of %d not found: %v", at, n, m)
				}
			}
		}
	})
}

func TestNormRopeGateAndSum(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 3))
		for _, d := range []int{1, 7, 8, 15, 16, 17, 24, 40, 576} {
			x, w, u := floats(rng, 2*d), floats(rng, d), floats(rng, 2*d)
			got := make([]float32, 2*d)
			RMSNorm(got, x, w, 1e-5)
			for r := range 2 {
				ss := 0.0
				for _, v := range x[r*d:][:d] {
					ss += float64(v) * float64(v)
				}
				for i := range d {
					want := float64(x[r*d+i]) / math.Sqrt(ss/float64(d)+1e-5) * float64(w[i])
					if math.Abs(float64(got[r*d+i])-want) > 1e-6*math.Abs(want) {
						t.Fatalf("norm of %d: %v, want %v", d, got[r*d+i], want)
					}
				}
			}
			SiLUMul(got, x, u)
			one := make([]float32, 1)
			for i, v := range x {
				want := float64(v) / (1 + math.Exp(-float64(v))) * float64(u[i])
				if math.Abs(float64(got[i])-want) > 1e-6*math.Abs(want) {
					t.Fatalf("gate of %d: %v, want %v", d, got[i], want)
				}
				// The element alone, as the end of some thread's share, has the same bits.
				SiLUMul(one, x[i:i+1], u[i:i+1])
				sameBits(t, one, got[i:i+1], "gate of %d, element %d alone", d, i)
			}
			copy(got, u)
			Add(got, x)
			for i := range got {
				if got[i] != u[i]+x[i] {
					t.Fatalf("sum of %d: %v, want %v", d, got[i], u[i]+x[i])
				}
			}
		}
	})
}

func TestGateFarOut(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		g := []float32{100, -100, 0, 3e38, -3e38, float32(math.NaN())}
		u := []float32{1, 1, 1, 1, 1, 1}
		SiLUMul(g, g, u)
		for i, want := range []float32{100, 0, 0, 3e38, 0} {
			if math.Abs(float64(g[i]-want)) > 3 {
				t.Errorf("gate %d is %v, want %v", i, g[i], want)
			}
		}
		if g[5] == g[5] {
			t.Errorf("gate of NaN is %v", g[5])
		}
	})
}

func TestRopeTurnsPairsByTheirAngles(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(4, 4))
		for _, c := range []struct{ hd, dims int }{{64, 64}, {80, 20}, {24, 24}, {8, 6}} {
			for _, pos := range []int{0, 1, 777, 1 << 20} {
				freqs := RopeFreqs(c.dims, 10000)
				cs := make([]float32, c.dims)
				RopeTable(cs, pos, freqs)
				x := floats(rng, 3*c.hd)
				y := append([]float32(nil), x...)
				Rope(y, c.hd, cs)
				for i := range x {
					d := i % c.hd
					want := float64(x[i])
					if d < c.dims {
						a := float64(pos) * math.Pow(10000, -float64(d/2*2)/float64(c.dims))
						if d%2 == 0 {
							want = float64(x[i])*math.Cos(a) - float64(x[i+1])*math.Sin(a)
						} else {
							want = float64(x[i-1])*math.Sin(a) + float64(x[i])*math.Cos(a)
						}
					}
					if math.Abs(float64(y[i])-want) > 1e-6 {
						t.Fatalf("%+v at %d: dim %d is %v, want %v", c, pos, i, y[i], want)
					}
				}
			}
		}
	})
}

func TestZeroIsSeenAndMade(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		mem := make([]byte, 1<<10)
		for n := range 400 {
			for start := range 9 {
				b := mem[start : start+n]
				if !IsZero(b) || NonZero(b) != 0 {
					t.Fatalf("%d zeros at %d not seen", n, start)
				}
				for _, at := range []int{0, 1, n / 2, n - 2, n - 1} {
					if at < 0 || at >= n {
						continue
					}
					b[at] = 0x80
					if IsZero(b) || NonZero(b) != 1 {
						t.Fatalf("a byte at %d of %d not seen", at, n)
					}
					b[at] = 0
				}
				mem[start+n] = 1 // just after
				if !IsZero(b) {
					t.Fatalf("%d bytes at %d: read past the end", n, start)
				}
				mem[start+n] = 0
			}
		}
		big := make([]byte, memoryCall*2+3*64)
		for _, at := range []int{0, memoryCall - 1, memoryCall, 2*memoryCall + 5, len(big) - 1} {
			big[at] = 1
			if IsZero(big) || NonZero(big) != 1 {
				t.Fatalf("a byte at %d of %d not seen", at, len(big))
			}
			big[at] = 0
		}
		for _, cut := range [][2]int{{0, 10}, {3, streamFrom + 77}, {1, len(big) - 1}, {64, len(big)}, {7, streamFrom + 7}} {
			for i := range big {
				big[i] = 0xa5
			}
			Clear(big[cut[0]:cut[1]])
			if n := NonZero(big); n != len(big)-(cut[1]-cut[0]) || NonZero(big[cut[0]:cut[1]]) != 0 {
				t.Fatalf("clearing %v left %d of %d", cut, n, len(big))
			}
		}
		Clear(nil)
	})
}
