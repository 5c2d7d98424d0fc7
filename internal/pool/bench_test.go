package pool

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// small and large are pages of 48 KiB (a small model) and 1 MiB (a large one).
var (
	small = page.Geometry{Tokens: 64, Layers: 3, KVHeads: 1, HeadDim: 64, Layout: page.LayoutPairs16}
	large = page.Geometry{Tokens: 64, Layers: 32, KVHeads: 2, HeadDim: 64, Layout: page.LayoutPairs16}
)

func benchPool(b *testing.B, g page.Geometry, pages int) *Pool {
	return newPool(b, pages, func(c *Config) { c.Geometry, c.Trace = g, nil })
}

// BenchmarkView is what a decode step pays for its pages: pins, tag checks, base addresses, unpins.
func BenchmarkView(b *testing.B) {
	for _, pages := range []int{1, 500, 16000} {
		b.Run(fmt.Sprintf("%dpages", pages), func(b *testing.B) {
			p := benchPool(b, shape, pages)
			l := filled(b, p, pages, 1)
			var v View
			b.ReportAllocs()
			for b.Loop() {
				if err := l.View(&v, pages*16, pages*16-1); err != nil {
					b.Fatal(err)
				}
				v.Done()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(pages), "ns/page")
			free(l)
		})
	}
}

// BenchmarkReserveRelease is a page's way out and back: verified zero, and zeroed. The pages are clean but for their first touch.
func BenchmarkReserveRelease(b *testing.B) {
	for name, g := range map[string]page.Geometry{"48KiB": small, "1MiB": large} {
		for _, pages := range []int{1, 128} {
			b.Run(fmt.Sprintf("%s/%dpages", name, pages), func(b *testing.B) {
				p := benchPool(b, g, pages)
				b.SetBytes(int64(pages * p.pageBytes))
				b.ReportAllocs()
				tk := ticket(b)
				for b.Loop() {
					l, err := p.Reserve(tk, pages)
					if err != nil {
						b.Fatal(err)
					}
					free(l)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(pages), "ns/page")
			})
		}
	}
}

// BenchmarkLand is the receiver's share of a handoff: gate, pin, MAC and copy into cold pages from a hot frame. Beside it, the
// copy alone.
func BenchmarkLand(b *testing.B) {
	for name, g := range map[string]page.Geometry{"48KiB": small, "1MiB": large} {
		pages := 256 << 20 / g.Bytes()
		frame := bytes.Repeat([]byte{7}, g.Bytes())
		key := mac.New([32]byte{1})
		sums := make([]mac.Tag, pages)
		for i := range sums {
			sums[i] = key.Sum(mac.Page, uint64(i), frame)
		}
		b.Run("land/"+name, func(b *testing.B) {
			p := benchPool(b, g, pages)
			b.SetBytes(int64(g.Bytes()))
			l := reserve(b, p, pages)
			tags, i := l.Tags(), 0
			for b.Loop() {
				if i == pages {
					b.StopTimer()
					free(l)
					l = reserve(b, p, pages)
					tags, i = l.Tags(), 0
					b.StartTimer()
				}
				if err := l.Land(i, tags[i], frame, key, sums[i]); err != nil {
					b.Fatal(err)
				}
				i++
			}
			free(l)
		})
		b.Run("copy/"+name, func(b *testing.B) {
			p := benchPool(b, g, pages)
			b.SetBytes(int64(g.Bytes()))
			l, i := reserve(b, p, pages), 0
			for b.Loop() {
				copy(p.arena.bytes(page.ID(i)), frame)
				i = (i + 1) % pages
			}
			free(l)
		})
	}
}

// BenchmarkScanFree reads free pages that were used before.
func BenchmarkScanFree(b *testing.B) {
	p := benchPool(b, large, 128)
	free(reserve(b, p, 128))
	b.SetBytes(128 << 20)
	for b.Loop() {
		if p.ScanFree() != 0 {
			b.Fatal("not zero")
		}
	}
}
