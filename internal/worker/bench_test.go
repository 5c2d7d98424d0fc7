package worker

import (
	"io"
	"net"
	"testing"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// BenchmarkHandoff is the data path alone: pages from a sender that has them and their MACs ready, over loopback, into decode's pool. raw
// writes the same bytes into a buffer; mac adds the MAC over each page, on the receiver, and nothing else.
//
//	go test -run - -bench Handoff ./internal/worker
func BenchmarkHandoff(b *testing.B) {
	const pages, slots = 1024, 64
	g := copier().Geometry(slots)
	payload := make([]byte, g.Bytes())
	for i := range payload {
		payload[i] = byte(i * 31)
	}
	b.Run("raw", func(b *testing.B) { plain(b, payload, pages, nil) })
	b.Run("mac", func(b *testing.B) { plain(b, payload, pages, mac.New([32]byte{1})) })
	b.Run("handoff", func(b *testing.B) { handoffs(b, payload, pages, slots) })
}

func plain(b *testing.B, payload []byte, pages int, key *mac.Key) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	from, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer to.Close()
	b.SetBytes(int64(len(payload) * pages))
	got := make(chan struct{})
	go func() {
		defer close(got)
		staging, dst := make([]byte, len(payload)), make([]byte, len(payload))
		for {
			for i := range pages {
				if _, err := io.ReadFull(to, staging); err != nil {
					return
				}
				if key == nil {
					copy(dst, staging)
				} else {
					key.SumCopy(mac.Page, uint64(i), dst, staging)
				}
			}
			got <- struct{}{}
		}
	}()
	for b.Loop() {
		for range pages {
			if _, err := from.Write(payload); err != nil {
				b.Fatal(err)
			}
		}
		<-got
	}
	from.Close()
	<-got
}

func handoffs(b *testing.B, payload []byte, pages, slots int) {
	landed := make(chan struct{}, 1)
	r := newRig(b, func(_ capacity.Role, c *Config) {
		c.PageTokens, c.PoolPages, c.Context, c.Limits.Ahead = slots, pages+1, pages*slots, 1
		c.Trace = counter{pages, new(int), landed}
	})
	l, d := newLiarOf(b, r, slots), r.door("g0")
	prompt := make([]int32, pages*slots)
	b.SetBytes(int64(len(payload) * pages))
	for b.Loop() {
		b.StopTimer()
		c := d.call(prompt, l.as, tokens(1))
		d.decode.send(c)
		if !c.waitReserved() {
			b.Fatal(c.ended[d.decode].Verdict)
		}
		t := &tale{liar: l, c: c, key: mac.New(c.key)}
		t.attach()
		grant := (<-l.from).(wire.Grant)
		heads := make([]wire.PageHeader, pages)
		for i, p := range grant.Pages {
			heads[i] = wire.PageHeader{Attempt: c.id, Tag: page.Tag{Boot: grant.Boot, ID: p.ID, Gen: p.Gen}, Ordinal: uint32(i),
				Length: uint32(len(payload)), MAC: t.key.Sum(mac.Page, uint64(i), payload)}
		}
		b.StartTimer()
		for _, h := range heads {
			if err := l.link.SendPage(h, payload); err != nil {
				b.Fatal(err)
			}
		}
		<-landed
		b.StopTimer()
		d.decode.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "measured")})
		c.end()
		t.told()
		b.StartTimer()
	}
}

// counter is a recorder that says when an attempt's pages have all landed.
type counter struct {
	pages  int
	n      *int
	landed chan struct{}
}

func (c counter) Record(e trace.Event) {
	if e.Machine == trace.Decode && e.Step == trace.PageLanded && e.Code == verdict.None {
		if *c.n++; *c.n == c.pages {
			*c.n = 0
			c.landed <- struct{}{}
		}
	}
}
