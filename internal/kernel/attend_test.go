package kernel

import (
	"bytes"
	"encoding/binary"
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
				for _, n := range []int{1, 15, 65, 130} {
					sh := Shape{Tokens: 32, Layers: 2, KVHeads: 2, HeadDim: hd}
					c := newCache(rng, sh, 1, n, 0xff) // 0xffff is a NaN
					rows := min(n, 66/(hd/8)+3)
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

// The rule of Attend's comment, written out for one query: tiles from the newest, a running maximum, keys in order.
func TestAttentionFollowsItsRule(t *testing.T) {
	usePath(t, "go")
	rng := rand.New(rand.NewPCG(27, 28))
	const hd, n = 16, 170
	c := newCache(rng, Shape{Tokens: 16, Layers: 1, KVHeads: 1, HeadDim: hd}, 0, n, 0xff)
	q := floats(rng, hd)
	var o [hd]float32
	top, sum := float32(math.Inf(-1)), float32(0)
	for tile := (n - 1) / 64; tile >= 0; tile-- {
		end := min(n, tile*64+64)
		var s [64]float32
		best := top
		for j := tile * 64; j < end; j++ {
			var even, odd float32
			for d := 0; d < hd; d += 2 {
				even += float32(q[d] * 0.25 * c.k[j*hd+d])
				odd += float32(q[d+1] * 0.25 * c.k[j*hd+d+1])
			}
			s[j%64] = even + odd
			best = max(best, s[j%64])
		}
		var lanes [8]float32
		for j := range s {
			if tile*64+j < end {
				s[j] = expGo(s[j] - best)
				lanes[j%8] += s[j]
			}
		}
		corr := expGo(top - best)
		top, sum = best, float32(sum*corr)+sumLanes(&lanes)
		for d := range o {
			o[d] *= corr
			for j := tile * 64; j < end; j++ {
				o[d] += float32(s[j%64] * c.v[j*hd+d])
			}
		}
	}
	inv := 1 / sum
	for d := range o {
		o[d] *= inv
	}
	got := make([]float32, hd)
	Attend(got, q, c.pages, c.sh, 0, 1, n-1, 1, 0, 1, &AttnScratch{})
	sameBits(t, got, o[:], "170 keys")
}

// The same tokens in pages of every size, cut into every grouping of rows and heads, give the same bits.
func TestAttentionDoesNotDependOnTheCut(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		for _, c := range []struct{ hd, kvHeads, heads, n, rows int }{
			{64, 1, 2, 200, 70}, {64, 3, 9, 130, 67}, {8, 2, 2, 70, 70}, {80, 1, 4, 129, 5}, {24, 2, 10, 65, 3}, {128, 1, 1, 200, 1},
		} {
			var want []float32
			for i, size := range []int{64, 16, 32, 128, 192, 64} {
				garbage := []byte{0x00, 0xff, 0x7b, 0x81}[i%4] // in the slots that nobody wrote
				rng := rand.New(rand.NewPCG(15, 16))           // the same values each time
				sh := Shape{Tokens: size, Layers: 3, KVHeads: c.kvHeads, HeadDim: c.hd}
				kv := newCache(rng, sh, 1, c.n, garbage)
				q := floats(rng, c.rows*c.heads*c.hd)
				for i := range q {
					q[i] *= 10 // some tiles fall below others by more than 60
				}
				pos0 := c.n - c.rows
				got := make([]float32, len(q))
				Attend(got, q, kv.pages, sh, 1, c.heads, pos0, c.rows, 0, c.heads, &AttnScratch{})
				if want == nil {
					want = got
				}
				sameBits(t, got, want, "%+v, page %d, garbage %#x", c, size, garbage)
				for i := range got {
					got[i] = float32(math.NaN()) // what is in o before does not matter
				}
				var scr AttnScratch
				for r := 0; r < c.rows; {
					n := min(c.rows-r, 1+rng.IntN(40))
					for h := 0; h < c.heads; {
						e := min(c.heads, h+1+rng.IntN(4))
						w := c.heads * c.hd
						Attend(got[r*w:][:n*w], q[r*w:][:n*w], kv.pages, sh, 1, c.heads, pos0+r, n, h, e, &scr)
						h = e
					}
					r += n
				}
				sameBits(t, got, want, "%+v cut, page %d, garbage %#x", c, size, garbage)
			}
		}
	})
}

// Scores in the millions, as the built-in model makes them: the one key that matches takes everything, wherever it lies, and the rest is exactly nothing.
func TestAttentionWithHugeScores(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		const hd, n = 64, 500
		sh := Shape{Tokens: 64, Layers: 1, KVHeads: 1, HeadDim: hd}
		rng := rand.New(rand.NewPCG(17, 18))
		c := newCache(rng, sh, 0, n, 0xff)
		for _, at := range []int{0, 63, 64, 200, 498, 499} {
			q := make([]float32, hd)
			k, v := make([]float32, hd), make([]float32, hd)
			for d := range hd {
				q[d], k[d], v[d] = 16384, 64*float32(d%2), float32(d)
			}
			for p := range n {
				kk := k
				if p != at {
					kk = make([]float32, hd)
					kk[0] = 64
				}
				StoreKV(SlotAt(c.pages[p/64].base, p%64), sh, 0, kk, v)
				for d := range v {
					v[d] = float32(p%7*64 + d)
				}
			}
			for d := range v {
				v[d] = float32(1000 + d)
			}
			StoreKV(SlotAt(c.pages[at/64].base, at%64), sh, 0, k, v)
			o := make([]float32, hd)
			Attend(o, q, c.pages, sh, 0, 1, n-1, 1, 0, 1, &AttnScratch{})
			sameBits(t, o, v, "the one key at %d", at)
		}
	})
}

func TestStoreKeepsHalvesInTheLayout(t *testing.T) {
	forPaths(t, func(t *testing.T) {
		sh := Shape{Tokens: 32, Layers: 3, KVHeads: 2, HeadDim: 24}
		rng := rand.New(rand.NewPCG(19, 20))
		mem := alignedBytes(32 * 3 * 2 * 24 * 4)
		want := make([]byte, len(mem))
		for layer := range 3 {
			for slot := range 32 {
				k, v := floats(rng, 48), floats(rng, 48)
				StoreKV(SlotAt(unsafe.Pointer(&mem[0]), slot), sh, layer, k, v)
				for h := range 2 {
					kOffset := (layer*2 + h) * 32 * 24 * 4 // as page.Geometry has it
					vOffset := kOffset + 32*24*2
					for d := range 24 {
						at := kOffset + slot/16*24*16*2 + (d/2*16+slot%16)*4 + d%2*2
						binary.LittleEndian.PutUint16(want[at:], f16from(k[h*24+d]))
						binary.LittleEndian.PutUint16(want[vOffset+(slot*24+d)*2:], f16from(v[h*24+d]))
					}
				}
			}
		}
		if !bytes.Equal(mem, want) {
			t.Fatal("a page is not in the layout pairs16")
		}
	})
}
