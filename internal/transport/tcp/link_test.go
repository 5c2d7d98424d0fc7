package tcp

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

var (
	geometry = page.Geometry{Tokens: 64, Layers: 4, KVHeads: 2, HeadDim: 16, Layout: page.LayoutPairs16}
	model    = [32]byte{1, 2, 3}
	refusal  = verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")
)

// trio is a fleet of one gateway, one prefill and one decode.
type trio struct {
	fleet                    *keyring.Fleet
	ids                      map[string]keyring.Identity
	gateway, prefill, decode Config
}

func newTrio() trio {
	fleet, ids := keyring.Ephemeral(keyring.Node{Name: "gateway", Role: wire.RoleGateway},
		keyring.Node{Name: "prefill", Role: wire.RolePrefill}, keyring.Node{Name: "decode", Role: wire.RoleDecode})
	config := func(name string, trusts ...wire.Role) Config {
		id := ids[name]
		c := Config{Identity: id, Trust: fleet.Trust(trusts...), Accept: fleet.Check}
		c.Hello = wire.Hello{Role: id.Role, Name: id.Name, Boot: page.NewBoot()}
		if id.Role != wire.RoleGateway {
			c.Hello.Model, c.Hello.Geometry, c.Hello.MaxPage, c.Hello.Path = model, geometry, uint32(geometry.Bytes()), "go"
		}
		return c
	}
	return trio{fleet, ids, config("gateway", wire.RolePrefill, wire.RoleDecode),
		config("prefill", wire.RoleGateway, wire.RoleDecode), config("decode", wire.RoleGateway, wire.RolePrefill)}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// dataPair is an open data link, both ends.
func dataPair(t testing.TB, prefill, decode Config) (p, d *DataLink) {
	t.Helper()
	l, err := ListenData("127.0.0.1:0", decode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx := within(t, 10*time.Second)
	if p, err = DialData(ctx, l.Addr().String(), prefill); err != nil {
		t.Fatal(err)
	}
	if d, err = l.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(); d.Close() })
	return p, d
}

func controlPair(t testing.TB, gateway, worker Config) (g, w *Link) {
	t.Helper()
	l, err := ListenControl("127.0.0.1:0", worker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	ctx := within(t, 10*time.Second)
	if g, err = DialControl(ctx, l.Addr().String(), gateway); err != nil {
		t.Fatal(err)
	}
	if w, err = l.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(); w.Close() })
	return g, w
}

func TestPagesAndFramesKeepTheirOrder(t *testing.T) {
	for _, encrypt := range []bool{false, true} {
		f := newTrio()
		f.prefill.Encrypt, f.decode.Encrypt = encrypt, encrypt
		p, d := dataPair(t, f.prefill, f.decode)
		a := attempt.New()
		payload := bytes.Repeat([]byte{7, 8}, geometry.Bytes()/2)
		h := wire.PageHeader{Attempt: a, Tag: page.Tag{Boot: 1, ID: 2, Gen: 3}, Ordinal: 4, Length: uint32(len(payload)), MAC: [16]byte{5}}
		sent := []wire.Frame{wire.Attach{Attempt: a}, h, wire.End{Attempt: a}, wire.Ping{Nonce: 9}}
		for _, f := range sent {
			var err error
			if h, ok := f.(wire.PageHeader); ok {
				err = p.SendPage(h, payload)
			} else {
				err = p.Send(f)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		staging := make([]byte, geometry.Bytes())
		for _, want := range sent {
			got, body, err := d.Recv(staging)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
			if _, ok := want.(wire.PageHeader); ok != bytes.Equal(body, payload) || (!ok && body != nil) {
				t.Fatalf("%s came with %d bytes", want.Kind(), len(body))
			}
		}
	}
}

func TestControlLinkCarriesFramesBothWays(t *testing.T) {
	f := newTrio()
	g, w := controlPair(t, f.gateway, f.decode)
	if g.Peer().Name != "decode" || w.Peer().Name != "gateway" || g.Peer().Session != w.Own().Session || g.Own().Session != w.Peer().Session {
		t.Fatalf("peers: %+v and %+v", g.Peer(), w.Peer())
	}
	plan := wire.Plan{Signed: []byte("signed"), MACKey: [32]byte{1}}
	if err := g.Send(plan); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Recv(); err != nil || cmp.Diff(wire.Frame(plan), got) != "" {
		t.Fatal(got, err)
	}
	settled := wire.Settled{Attempt: attempt.New()}
	if err := w.Post(settled); err != nil {
		t.Fatal(err)
	}
	if got, err := g.Recv(); err != nil || got != wire.Frame(settled) {
		t.Fatal(got, err)
	}
}
