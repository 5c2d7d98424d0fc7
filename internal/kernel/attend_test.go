package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// cache is KV of one layer over pages, with the floats that were stored beside it.
type cache struct {
	sh    Shape
	mem   [][]byte
	pages []Page
	k, v  []float32 // [token][KVHeads][HeadDim], as halves keep them
}

// newCache stores n random tokens in pages that hold garbage before.
func newCache(rng *rand.Rand, sh Shape, layer, n int, garbage byte) *cache {
	c := &cache{sh: sh}
	width := sh.KVHeads * sh.HeadDim
	for range (n + sh.Tokens - 1) / sh.Tokens {
		b := alignedBytes(sh.Tokens * sh.Layers * width * 4)
		for i := range b {
			b[i] = garbage
		}
		c.mem = append(c.mem, b)
		c.pages = append(c.pages, PageAt(unsafe.Pointer(&b[0])))
	}
	c.k, c.v = floats(rng, n*width), floats(rng, n*width)
	for t := range n {
		StoreKV(SlotAt(c.pages[t/sh.Tokens].base, t%sh.Tokens), sh, layer, c.k[t*width:][:width], c.v[t*width:][:width])
	}
	for i := range c.k {
		c.k[i], c.v[i] = f16to(f16from(c.k[i])), f16to(f16from(c.v[i]))
	}
	return c
}

// attention in double precision.
func (c *cache) reference(q []float32, heads, pos0, rows int) []float64 {
	hd, kvh := c.sh.HeadDim, c.sh.KVHeads
	out := make([]float64, len(q))
	for r := range rows {
		for h := range heads {
			at, n := (r*heads+h)*hd, pos0+r+1
			s, top := make([]float64, n), math.Inf(-1)
			for j := range s {
				for d := range hd {
					s[j] += float64(q[at+d]) * float64(c.k[(j*kvh+h/(heads/kvh))*hd+d])
				}
				s[j] /= math.Sqrt(float64(hd))
				top = max(top, s[j])
			}
			sum := 0.0
			for j := range s {
				s[j] = math.Exp(s[j] - top)
				sum += s[j]
			}
			for j := range s {
				for d := range hd {
					out[at+d] += s[j] / sum * float64(c.v[(j*kvh+h/(heads/kvh))*hd+d])
				}
			}
		}
	}
	return out
}

func TestAttentionIsThatOfTheStoredTokens(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, hd := range []int{8, 24, 64, 80, 96, 128} {
			for _, heads := range []int{2, 4, 6, 10} {
				for _, n := range []int{1, 15, 64, 65, 200} {
					sh := Shape{Tokens: 32, Layers: 2, KVHeads: 2, HeadDim: hd}
					c := newCache(rng, sh, 1, n, 0xff) // 0xffff is a NaN
					rows := min(n, 70)
					q := floats(rng, rows*heads*hd)
					o := make([]float32, len(q))
					Attend(o, q, c.pages, sh, 1, heads, n-rows, rows, 0, heads, &AttnScratch{})
					want := c.reference(q, heads, n-rows, rows)
					for i := range o {
						if d := math.Abs(float64(o[i]) - want[i]); !(d < 5e-6) {
							t.Fatalf("hd %d, %d heads, %d tokens: output %d is %g, want %g", hd, heads, n, i, o[i], want[i])
						}
					}
				}
			}
		}
	})
}
