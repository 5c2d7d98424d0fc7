package kernel

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fence returns n bytes whose end, or whose start, is the edge of mapped memory: a read or write one byte past it is a
// fault, and the test dies.
func fence(t testing.TB, n int, atEnd bool) []byte {
	const size = 4096
	inner := (n + size - 1) &^ (size - 1)
	mem, err := unix.Mmap(-1, 0, inner+2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	for _, edge := range [][]byte{mem[:size], mem[size+inner:]} {
		if err := unix.Mprotect(edge, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	if atEnd {
		return mem[size+inner-n : size+inner : size+inner]
	}
	return mem[size : size+n : size+n]
}

func fenced[T any](t testing.TB, src []T, atEnd bool) []T {
	if len(src) == 0 {
		return nil
	}
	b := fence(t, len(src)*int(unsafe.Sizeof(src[0])), atEnd)
	dst := unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(src))
	copy(dst, src)
	return dst
}

func bothEdges(t *testing.T, f func(t *testing.T, atEnd bool)) {
	forPaths(t, func(t *testing.T) {
		t.Run("end", func(t *testing.T) { f(t, true) })
		t.Run("start", func(t *testing.T) { f(t, false) })
	})
}

func TestProductsStayInsideTheirOperands(t *testing.T) {
	bothEdges(t, func(t *testing.T, atEnd bool) {
		rng := rand.New(rand.NewPCG(21, 22))
		for _, typ := range types {
			for _, n := range []int{5, 8, 16, 24, 64, 72} {
				for _, rows := range []int{1, 2, 3, 4, 5, 6, 7, 13} {
					const k = 96
					m, err := Pack(typ, fenced(t, rawMatrix(rng, typ, n, k), atEnd), n, k)
					if err != nil {
						t.Fatal(err)
					}
					m.packed = fenced(t, m.packed, atEnd)
					var a Acts
					a.Set(fenced(t, floats(rng, rows*k), atEnd), rows, k)
					a.q = fenced(t, a.q, atEnd)
					a.Quantize(0, rows)
					dst := fenced(t, make([]float32, rows*n), atEnd)
					MatMul(dst, &a, m, 0, n, &Scratch{})
					m.Row(fenced(t, make([]float32, k), atEnd), n-1)
				}
			}
		}
	})
}

func TestAttentionStaysInsideItsPages(t *testing.T) {
	bothEdges(t, func(t *testing.T, atEnd bool) {
		rng := rand.New(rand.NewPCG(23, 24))
		for _, hd := range []int{8, 40, 96} {
			for _, tokens := range []int{16, 32, 64, 128} {
				sh := Shape{Tokens: tokens, Layers: 1, KVHeads: 1, HeadDim: hd}
				const n = 70
				var pages []Page
				for range (n + tokens - 1) / tokens {
					pages = append(pages, PageAt(unsafe.Pointer(&fence(t, tokens*hd*4, atEnd)[0])))
				}
				for p := range n {
					kv := fenced(t, floats(rng, hd), atEnd)
					StoreKV(SlotAt(pages[p/tokens].base, p%tokens), sh, 0, kv, kv)
				}
				for _, rows := range []int{1, 2, 66} {
					for _, heads := range []int{1, 4} {
						q := fenced(t, floats(rng, rows*heads*hd), atEnd)
						o := fenced(t, make([]float32, rows*heads*hd), atEnd)
						scr := AttnScratch{q: fenced(t, make([]float32, rows*heads*hd), atEnd)}
						Attend(o, q, pages, sh, 0, heads, n-rows, rows, 0, heads, &scr)
					}
				}
			}
		}
	})
}

func TestVectorsStayInsideTheirSlices(t *testing.T) {
	bothEdges(t, func(t *testing.T, atEnd bool) {
		rng := rand.New(rand.NewPCG(25, 26))
		for _, n := range []int{1, 7, 8, 9, 15, 16, 17, 31, 64, 1024, 1029} {
			x, y, z := fenced(t, floats(rng, n), atEnd), fenced(t, floats(rng, n), atEnd), fenced(t, floats(rng, n), atEnd)
			h := fenced(t, make([]uint16, n), atEnd)
			RMSNorm(z, x, y, 1)
			SiLUMul(z, x, y)
			Add(z, x)
			ExpSum(z, x, Max(x))
			ToF16(h, x)
			FromF16(z, h)
			if n%2 == 0 {
				RopeTable(y, 3, RopeFreqs(n, 10000))
				Rope(x, n, y)
			}
		}
		for _, n := range []int{1, 63, 64, 127, 128, 129, 1000, streamFrom, streamFrom + 1, streamFrom + 100} {
			b := fence(t, n, atEnd)
			if !IsZero(b) || NonZero(b) != 0 {
				t.Fatal("new memory is not zero")
			}
			Clear(b)
		}
	})
}
