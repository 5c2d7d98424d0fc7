package tcp

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/wire"
)

// Pages of the built-in model and of a 135M model, and what a link makes of them against a bare socket: rounds of both alternate
// in one run, so that the machine's moods hit both. Metrics: median MB/s of each, and the median of the rounds' ratios.
func BenchmarkHandoff(b *testing.B) {
	for _, size := range []int{48 << 10, 1474560} {
		for _, encrypt := range []bool{false, true} {
			b.Run(fmt.Sprintf("page=%d/encrypt=%v", size, encrypt), func(b *testing.B) { handoff(b, size, encrypt) })
		}
	}
}

func handoff(b *testing.B, size int, encrypt bool) {
	const round = 128 << 20
	pages := round / size
	payload := make([]byte, size)
	staging := make([]byte, size)

	f := newTrio()
	f.prefill.Encrypt, f.decode.Encrypt = encrypt, encrypt
	f.decode.Hello.MaxPage = uint32(max(size, geometry.Bytes()))
	p, d := dataPair(b, f.prefill, f.decode)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	w, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	r, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()

	bare := func() time.Duration {
		began := time.Now()
		go func() {
			for range pages {
				w.Write(payload)
			}
		}()
		for range pages {
			if _, err := io.ReadFull(r, staging); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(began)
	}
	link := func() time.Duration {
		began := time.Now()
		go func() {
			for i := range pages {
				h := wire.PageHeader{Attempt: someAttempt, Tag: page.Tag{Boot: 1, ID: page.ID(i), Gen: 1}, Ordinal: uint32(i), Length: uint32(size)}
				if err := p.SendPage(h, payload); err != nil {
					b.Error(err)
					return
				}
			}
		}()
		for range pages {
			if _, _, err := d.Recv(staging); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(began)
	}
	bare()
	link()
	var raws, links, ratios []float64
	for i := 0; b.Loop(); i++ {
		var x, y time.Duration
		if i%2 == 0 {
			x, y = bare(), link()
		} else {
			y, x = link(), bare()
		}
		raws, links = append(raws, speed(pages*size, x)), append(links, speed(pages*size, y))
		ratios = append(ratios, float64(x)/float64(y))
	}
	b.ReportMetric(median(raws), "bare-MB/s")
	b.ReportMetric(median(links), "link-MB/s")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op")
}

func speed(n int, d time.Duration) float64 { return float64(n) / 1e6 / d.Seconds() }

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// A token's way over a control link: queue, TLS record, decode.
func BenchmarkOutput(b *testing.B) {
	f := newTrio()
	g, w := controlPair(b, f.gateway, f.decode)
	go func() {
		for i := 0; ; i++ {
			if w.Send(wire.Output{Attempt: someAttempt, Index: uint32(i), IDs: []int32{65}}) != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Recv(); err != nil {
			b.Fatal(err)
		}
	}
}
