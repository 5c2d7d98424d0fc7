package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/wire"
)

// sizes of pages: of the built-in model, of SmolLM2-135M, and the largest staging that the design allows for.
var sizes = []struct {
	name     string
	geometry page.Geometry
}{
	{"48 KiB (recall)", page.Geometry{Tokens: 64, Layers: 3, KVHeads: 1, HeadDim: 64, Layout: page.LayoutPairs16}},
	{"1.4 MiB (SmolLM2-135M)", page.Geometry{Tokens: 64, Layers: 30, KVHeads: 3, HeadDim: 64, Layout: page.LayoutPairs16}},
	{"4 MiB", page.Geometry{Tokens: 64, Layers: 32, KVHeads: 4, HeadDim: 128, Layout: page.LayoutPairs16}},
}

// shipped a round, in bytes: far more than any cache holds.
const shipped = 192 << 20

// ownCPU is the processor time of this process, in user and system mode: on a busy machine it says more than the clock.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // its arguments are constants
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// handoffs compares what carries pages, on loopback, in one process: the release build's own code, this program's.
func (b *bench) handoffs(ctx context.Context) error {
	fmt.Printf("\nhandoff over loopback TCP, both ends in one process; each round ships %d MB, MAC path %s\n", shipped>>20, mac.Path())
	fmt.Printf("  %-32s %8s %8s %8s %8s   %-42s   %-42s   %s\n", "page", "raw", "raw", "TCP+MAC", "handoff",
		"handoff costs against raw", "handoff costs against TCP+MAC", "A/A: raw against raw")
	for _, s := range sizes {
		x, err := newCarriers(ctx, s.geometry)
		if err != nil {
			return err
		}
		var speeds, cpus [4][]float64
		runs := [4]func() (cost, error){x.raw, x.raw, x.rawMAC, x.handoff}
		for _, run := range runs[1:] { // warm
			if _, err := run(); err != nil {
				return err
			}
		}
		rounds := max(int(24*b.scale+0.5), 4)
		for round := range rounds {
			for k := range runs {
				i := (k + round) % len(runs)
				c, err := runs[i]()
				if err != nil {
					return err
				}
				mb := float64(x.pages*s.geometry.Bytes()) / 1e6
				speeds[i] = append(speeds[i], mb/c.took.Seconds())
				cpus[i] = append(cpus[i], microseconds(c.cpu)/mb)
			}
		}
		x.close()
		over := func(x, y []float64) spread { // of y over x, minus 1
			var r []float64
			for k := range x {
				r = append(r, y[k]/x[k]-1)
			}
			return spreadOf(r)
		}
		v, c := speeds, cpus
		fmt.Printf("  %-32s %8.0f %8.0f %8.0f %8.0f   %-42s   %-42s   %s\n", s.name+", MB/s", median(v[0]), median(v[1]), median(v[2]), median(v[3]),
			over(v[3], v[0]), over(v[3], v[2]), over(v[1], v[0]))
		fmt.Printf("  %-32s %8.0f %8.0f %8.0f %8.0f   %-42s   %-42s   %s\n", "  processor time, µs/MB", median(c[0]), median(c[1]), median(c[2]), median(c[3]),
			over(c[0], c[3]), over(c[2], c[3]), over(c[0], c[1]))
	}
	return nil
}

// carriers are the ways to carry the same pages over loopback: a bare socket, a bare socket whose receiver makes the MAC, and the handoff.
// The sender's side of all three reads the same pages, out of a pool; the receiver's side of the first two drops them.
type carriers struct {
	pages    int
	size     int
	key      *mac.Key
	macs     []mac.Tag
	from, to *pool.Pool
	source   *pool.Lease
	send     *tcp.DataLink
	recv     *tcp.DataLink
	w, r     net.Conn
	staging  [2][]byte // the sender's, the receiver's
}

func newCarriers(ctx context.Context, g page.Geometry) (*carriers, error) {
	x := &carriers{pages: shipped / g.Bytes(), size: g.Bytes(), key: mac.New([32]byte{7}), staging: [2][]byte{make([]byte, g.Bytes()), make([]byte, g.Bytes())}}
	var err error
	config := pool.Config{Role: "bench", Boot: page.NewBoot(), Geometry: g, Pages: x.pages + 1}
	if x.from, err = pool.New(config); err != nil {
		return nil, err
	}
	config.Boot = page.NewBoot()
	if x.to, err = pool.New(config); err != nil {
		return nil, err
	}
	// The pages to send. One more is the tail, which stays.
	if x.source, err = reserve(x.from, x.pages+1, g); err != nil {
		return nil, err
	}
	payload := x.staging[0]
	for i, tag := range x.source.Tags() {
		for j := range payload {
			payload[j] = byte(i + j)
		}
		m := x.key.Sum(mac.Page, uint64(i), payload)
		x.macs = append(x.macs, m)
		if err := x.source.Land(i, tag, payload, x.key, m); err != nil {
			return nil, err
		}
	}
	if err := x.source.SealPrompt((x.pages + 1) * int(g.Tokens)); err != nil {
		return nil, err
	}
	return x, x.connect(ctx, g)
}

func reserve(p *pool.Pool, pages int, g page.Geometry) (*pool.Lease, error) {
	n := uint32(pages * int(g.Tokens))
	t, v := admission.Admit(admission.Plan{Attempt: attempt.New(), PromptTokens: n, MaxTokens: 1}, capacity.Limit{Tokens: int(n)})
	if !v.IsZero() {
		return nil, v
	}
	return p.Reserve(t, pages)
}

// connect opens a data link as workers do, and a bare socket.
func (x *carriers) connect(ctx context.Context, g page.Geometry) error {
	fleet, ids := keyring.Ephemeral(keyring.Node{Name: "prefill", Role: wire.RolePrefill}, keyring.Node{Name: "decode", Role: wire.RoleDecode})
	config := func(name string, trusts wire.Role) tcp.Config {
		return tcp.Config{Identity: ids[name], Trust: fleet.Trust(trusts), Accept: fleet.Check, Hello: wire.Hello{
			Role: ids[name].Role, Name: name, Boot: page.NewBoot(), Model: [32]byte{1}, Geometry: g, MaxPage: uint32(g.Bytes()),
		}}
	}
	l, err := tcp.ListenData("127.0.0.1:0", config("decode", wire.RolePrefill))
	if err != nil {
		return err
	}
	defer l.Close()
	if x.send, err = tcp.DialData(ctx, l.Addr().String(), config("prefill", wire.RoleDecode)); err != nil {
		return err
	}
	if x.recv, err = l.Accept(ctx); err != nil {
		return err
	}
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer bare.Close()
	if x.w, err = net.Dial("tcp", bare.Addr().String()); err != nil {
		return err
	}
	x.r, err = bare.Accept()
	return err
}

func (x *carriers) close() {
	for _, c := range []io.Closer{x.send, x.recv, x.w, x.r} {
		c.Close()
	}
	x.source.Release()
	<-x.source.Done()
	x.from.Close()
	x.to.Close()
}

// cost of carrying every page once.
type cost struct{ took, cpu time.Duration }

// carry sends every page on a goroutine and receives every page on this one.
func (x *carriers) carry(send, receive func(i int) error) (cost, error) {
	sent := make(chan error, 1)
	before, began := ownCPU(), time.Now()
	go func() {
		for i := range x.pages {
			if err := send(i); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range x.pages {
		if err := receive(i); err != nil {
			return cost{}, err
		}
	}
	return cost{time.Since(began), ownCPU() - before}, <-sent
}

func (x *carriers) rawSend(i int) error {
	if _, err := x.source.CopyOut(x.staging[0], i); err != nil {
		return err
	}
	_, err := x.w.Write(x.staging[0])
	return err
}

func (x *carriers) raw() (cost, error) {
	return x.carry(x.rawSend, func(int) error {
		_, err := io.ReadFull(x.r, x.staging[1])
		return err
	})
}

func (x *carriers) rawMAC() (cost, error) {
	return x.carry(x.rawSend, func(i int) error {
		if _, err := io.ReadFull(x.r, x.staging[1]); err != nil {
			return err
		}
		if !mac.Equal(x.key.Sum(mac.Page, uint64(i), x.staging[1]), x.macs[i]) {
			return pool.ErrMAC
		}
		return nil
	})
}

// handoff is what workers do with a page, without the attempt's machine around it: out of a pool, over the link, through the gate.
func (x *carriers) handoff() (cost, error) {
	lease, err := reserve(x.to, x.pages, x.to.Geometry())
	if err != nil {
		return cost{}, err
	}
	tags, id := lease.Tags(), lease.Attempt()
	c, err := x.carry(func(i int) error {
		n, err := x.source.CopyOut(x.staging[0], i)
		if err != nil {
			return err
		}
		return x.send.SendPage(wire.PageHeader{Attempt: id, Tag: tags[i], Ordinal: uint32(i), Length: uint32(n), MAC: x.macs[i]}, x.staging[0][:n])
	}, func(int) error {
		f, payload, err := x.recv.Recv(x.staging[1])
		if err != nil {
			return err
		}
		h := f.(wire.PageHeader)
		return lease.Land(int(h.Ordinal), h.Tag, payload, x.key, mac.Tag(h.MAC))
	})
	lease.Release()
	<-lease.Done()
	return c, err
}
