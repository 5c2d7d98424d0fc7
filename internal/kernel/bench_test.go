package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func benchPaths(b *testing.B, f func(b *testing.B)) {
	for _, p := range Paths() {
		b.Run(p, func(b *testing.B) {
			usePath(b, p)
			f(b)
		})
	}
}

// BenchmarkDecode multiplies one row by enough matrices in turn that no cache holds them: GB/s of weights.
func BenchmarkDecode(b *testing.B) {
	benchPaths(b, func(b *testing.B) {
		for _, typ := range types {
			b.Run(typ.String(), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 1))
				const n, k = 4096, 1536
				raw := rawMatrix(rng, typ, n, k)
				var ms []*Mat
				total := 0
				for total < 96<<20 {
					m, err := Pack(typ, raw, n, k)
					if err != nil {
						b.Fatal(err)
					}
					ms = append(ms, m)
					total += m.Bytes()
				}
				var a Acts
				Quantize(floats(rng, k), 1, k, &a)
				dst := make([]float32, n)
				var ws Scratch
				b.SetBytes(int64(ms[0].Bytes()))
				for i := 0; b.Loop(); i++ {
					MatMul(dst, &a, ms[i%len(ms)], 0, n, &ws)
				}
			})
		}
	})
}

// BenchmarkProduct is prefill and small batches: multiply-adds a second, counted as two operations.
func BenchmarkProduct(b *testing.B) {
	benchPaths(b, func(b *testing.B) {
		for _, typ := range types {
			for _, shape := range [][2]int{{1536, 576}, {576, 1536}} {
				for _, rows := range []int{1, 4, 8, 64, 512} {
					b.Run(fmt.Sprintf("%v/%dx%d/rows=%d", typ, shape[0], shape[1], rows), func(b *testing.B) {
						rng := rand.New(rand.NewPCG(1, 1))
						n, k := shape[0], shape[1]
						m, err := Pack(typ, rawMatrix(rng, typ, n, k), n, k)
						if err != nil {
							b.Fatal(err)
						}
						var a Acts
						Quantize(floats(rng, rows*k), rows, k, &a)
						dst := make([]float32, rows*n)
						var ws Scratch
						for b.Loop() {
							MatMul(dst, &a, m, 0, n, &ws)
						}
						b.ReportMetric(2*float64(rows)*float64(n)*float64(k)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
					})
				}
			}
		}
	})
}

func BenchmarkAttend(b *testing.B) {
	benchPaths(b, func(b *testing.B) {
		for _, c := range []struct{ hd, kvHeads, group, tokens, rows, page int }{
			{64, 8, 1, 32768, 1, 64}, {64, 8, 4, 32768, 1, 64}, {128, 8, 1, 32768, 1, 64}, {128, 8, 2, 32768, 1, 64}, {128, 8, 4, 32768, 1, 64},
			{64, 1, 2, 32768, 1, 64}, {64, 3, 3, 512, 1, 64}, {64, 3, 3, 512, 1, 16}, {64, 1, 2, 8192, 512, 64}, {64, 3, 3, 512, 512, 64}, {128, 1, 2, 4096, 256, 64},
		} {
			b.Run(fmt.Sprintf("hd=%d/kv=%d/group=%d/tokens=%d/rows=%d/page=%d", c.hd, c.kvHeads, c.group, c.tokens, c.rows, c.page), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 1))
				sh := Shape{Tokens: c.page, Layers: 1, KVHeads: c.kvHeads, HeadDim: c.hd}
				kv := newCache(rng, sh, 0, c.tokens, 0)
				heads := c.kvHeads * c.group
				q := floats(rng, c.rows*heads*c.hd)
				o := make([]float32, len(q))
				var scr AttnScratch
				for b.Loop() {
					Attend(o, q, kv.pages, sh, 0, heads, c.tokens-c.rows, c.rows, 0, heads, &scr)
				}
				perOp := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
				b.ReportMetric(float64(c.tokens*c.kvHeads*c.hd*4)/perOp, "KV-GB/s")
				b.ReportMetric(4*float64(c.rows*heads*c.hd)*(float64(c.tokens)-float64(c.rows)/2)/perOp, "GFLOP/s")
			})
		}
	})
}

func BenchmarkStore(b *testing.B) {
	benchPaths(b, func(b *testing.B) {
		rng := rand.New(rand.NewPCG(1, 1))
		sh := Shape{Tokens: 64, Layers: 1, KVHeads: 3, HeadDim: 64}
		kv := newCache(rng, sh, 0, 64, 0)
		k, v := floats(rng, 192), floats(rng, 192)
		for i := 0; b.Loop(); i++ {
			StoreKV(SlotAt(kv.pages[0].base, i%64), sh, 0, k, v)
		}
	})
}

func BenchmarkVector(b *testing.B) {
	benchPaths(b, func(b *testing.B) {
		rng := rand.New(rand.NewPCG(1, 1))
		x, y, z := floats(rng, 1536), floats(rng, 1536), floats(rng, 1536)
		cs := make([]float32, 64)
		RopeTable(cs, 1000, RopeFreqs(64, 10000))
		var a Acts
		h := make([]uint16, 1536)
		for _, f := range []struct {
			name string
			f    func()
		}{
			{"norm", func() { RMSNorm(z, x, y, 1e-5) }},
			{"rope", func() { Rope(x, 64, cs) }},
			{"silu", func() { SiLUMul(z, x, y) }},
			{"add", func() { Add(z, x) }},
			{"exp", func() { ExpSum(z, x, 4) }},
			{"max", func() { Max(x) }},
			{"quantize", func() { Quantize(x, 1, 1536, &a) }},
			{"tohalf", func() { ToF16(h, x) }},
		} {
			b.Run(f.name, func(b *testing.B) {
				b.SetBytes(1536 * 4)
				for b.Loop() {
					f.f()
				}
			})
		}
	})
}

func BenchmarkPage(b *testing.B) {
	benchPaths(b, func(b *testing.B) {
		for _, size := range []int{64 << 10, 1 << 20, 4 << 20} {
			mem := make([]byte, 128<<20)
			for i := range mem {
				mem[i] = 1 // so that every page is there, and its own
			}
			clear(mem)
			for _, f := range []struct {
				name string
				f    func([]byte)
			}{{"zero?", func(p []byte) { IsZero(p) }}, {"clear", Clear}, {"runtime", func(p []byte) { clear(p) }}} {
				b.Run(fmt.Sprintf("%s/%dK", f.name, size>>10), func(b *testing.B) {
					b.SetBytes(int64(size))
					for at := 0; b.Loop(); at = (at + size) % len(mem) {
						f.f(mem[at:][:size])
					}
				})
			}
		}
	})
}
