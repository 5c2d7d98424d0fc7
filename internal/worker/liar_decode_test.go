package worker

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// decoy is a decode that says to prefill what a test tells it to say.
type decoy struct {
	t    *testing.T
	r    *rig
	boot page.Boot
	l    *tcp.Listener[*tcp.DataLink]
	link *tcp.DataLink
}

func newDecoy(t *testing.T, r *rig) *decoy {
	t.Helper()
	d := &decoy{t: t, r: r, boot: page.NewBoot()}
	g := copier().Geometry(pageTokens)
	var err error
	d.l, err = tcp.ListenData("127.0.0.1:0", tcp.Config{
		Identity: r.ids["d0"], Trust: r.fleet.Trust(wire.RolePrefill), Hello: wire.Hello{
			Role: wire.RoleDecode, Name: "d0", Boot: d.boot, Model: copier().Fingerprint(), Geometry: g, Path: "go", MaxPage: uint32(g.Bytes()),
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.l.Close() })
	return d
}

func (d *decoy) as(p *admission.Plan) {
	p.Decode.Boot, p.Decode.Data = d.boot, d.l.Addr().String()
}

// begin gives prefill a plan for the decoy, and takes its attach.
func (d *decoy) begin(door *door, opts ...planOption) *call {
	d.t.Helper()
	c := door.call(needle("DECOY", 50)[:60], append([]planOption{d.as}, opts...)...)
	door.prefill.send(c)
	if d.link == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var err error
		if d.link, err = d.l.Accept(ctx); err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { d.link.Close() })
	}
	f, _ := d.next()
	a, ok := f.(wire.Attach)
	if !ok || a.Attempt != c.id {
		d.t.Fatalf("prefill says %+v", f)
	}
	if !mac.Equal(mac.New(c.key).Sum(mac.Attach, 0, wire.Authenticated(a)), mac.Tag(a.MAC)) {
		d.t.Error("the attach's MAC is wrong")
	}
	return c
}

func (d *decoy) next() (wire.Frame, int) {
	d.t.Helper()
	late := time.AfterFunc(20*time.Second, func() { d.link.Close() })
	defer late.Stop()
	f, payload, err := d.link.Recv(make([]byte, copier().Geometry(pageTokens).Bytes()))
	if err != nil {
		d.t.Fatal(err)
	}
	return f, len(payload)
}

func (d *decoy) grant(c *call) wire.Grant {
	g := wire.Grant{Attempt: c.id, Boot: d.boot}
	for i := range 4 {
		g.Pages = append(g.Pages, wire.GrantedPage{ID: page.ID(i), Gen: 1})
	}
	return g
}

func (d *decoy) say(c *call, g wire.Grant) {
	g.MAC = mac.New(c.key).Sum(mac.Grant, 0, wire.Authenticated(g))
	d.link.Send(g)
}

func TestPrefillSendsEachPageOnceUnderAGoodGrant(t *testing.T) {
	r := newRig(t)
	door, d := r.door("g0"), newDecoy(t, r)
	c := d.begin(door)
	d.say(c, d.grant(c))
	door.prefill.sendPrompt(c)
	key := mac.New(c.key)
	var macs [][16]byte
	for i := range 4 {
		f, n := d.next()
		h, ok := f.(wire.PageHeader)
		if !ok || h.Ordinal != uint32(i) || h.Tag != (page.Tag{Boot: d.boot, ID: page.ID(i), Gen: 1}) || n != copier().Geometry(pageTokens).Bytes() {
			t.Fatalf("frame %d: %+v of %d bytes", i, f, n)
		}
		macs = append(macs, h.MAC)
	}
	f, _ := d.next()
	m, ok := f.(wire.Manifest)
	if !ok || m.Tokens != 60 || m.Pages != 4 || m.Digest != c.plan.Digest || m.Root != wire.RootOf(macs) || m.Echo.IsZero() || !m.Verdict.OK() ||
		!mac.Equal(key.Sum(mac.Manifest, 0, wire.Authenticated(m)), mac.Tag(m.MAC)) {
		t.Errorf("manifest: %+v", f)
	}
	f, _ = d.next()
	if e, ok := f.(wire.End); !ok || !mac.Equal(key.Sum(mac.End, 0, wire.Authenticated(e)), mac.Tag(e.MAC)) {
		t.Errorf("end: %+v", f)
	}
	p, _ := c.end()
	if !p.Verdict.OK() {
		t.Errorf("prefill says %v", p.Verdict)
	}
	r.clean(r.prefill)
}

// A grant that is not decode's own, or not for this attempt's pages, sends no page: decode hears why, and so does the gateway.
func TestPrefillRefusesBadGrants(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(d *decoy, c *call)
		code verdict.Code
		says string
	}{
		"without the key": {func(d *decoy, c *call) { d.link.Send(d.grant(c)) }, verdict.MACMismatch, "the grant's MAC is wrong"},
		"of another boot": {func(d *decoy, c *call) {
			g := d.grant(c)
			g.Boot++
			d.say(c, g)
		}, verdict.PlanRefused, "the grant is of boot"},
		"of too few pages": {func(d *decoy, c *call) {
			g := d.grant(c)
			g.Pages = g.Pages[:3]
			d.say(c, g)
		}, verdict.CountMismatch, "granted 3 pages where prefill p0 needs 4"},
		"of too many pages": {func(d *decoy, c *call) {
			g := d.grant(c)
			g.Pages = append(g.Pages, wire.GrantedPage{ID: 9, Gen: 1})
			d.say(c, g)
		}, verdict.CountMismatch, "granted 5 pages"},
		"a second one": {func(d *decoy, c *call) {
			d.say(c, d.grant(c))
			d.say(c, d.grant(c))
		}, verdict.ProtocolViolation, ""},
		"an abort without the key": {func(d *decoy, c *call) {
			d.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.Deadline, verdict.Decode, "late"), MAC: [16]byte{1}})
		}, verdict.MACMismatch, "an abort"},
		"an abort": {func(d *decoy, c *call) {
			d.link.Send(signedAbort(c.id, verdict.Of(verdict.GateRefused, verdict.Gate, "page 7"), mac.New(c.key), mac.AbortFromDecode))
		}, verdict.GateRefused, "page 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			door, d := r.door("g0"), newDecoy(t, r)
			call := d.begin(door)
			c.lie(d, call)
			p, _ := call.end()
			if p.Verdict.Code != c.code || !strings.Contains(p.Verdict.Reason, c.says) {
				t.Errorf("prefill says %v", p.Verdict)
			}
			if name != "an abort" { // decode needs no telling of what it said
				f, _ := d.next()
				switch f := f.(type) {
				case wire.Abort:
					if f.Verdict != p.Verdict || !mac.Equal(mac.New(call.key).Sum(mac.AbortFromPrefill, 0, wire.Authenticated(f)), mac.Tag(f.MAC)) {
						t.Errorf("decode is told %+v", f)
					}
				case wire.Manifest:
					if f.Verdict != p.Verdict || f.Pages != 0 {
						t.Errorf("decode is told %+v", f)
					}
				default:
					t.Errorf("decode is told %+v", f)
				}
			}
			r.clean(r.prefill)
		})
	}
}

// Decode's words about attempts that this link has no part in touch nobody, and end the link when there are too many.
func TestStrayGrantsEndTheLink(t *testing.T) {
	r := newRig(t, pages(128), func(_ capacity.Role, c *Config) { c.Limits.Strays = 4 })
	door, d := r.door("g0"), newDecoy(t, r)
	c := d.begin(door)
	other := door.call(needle("OTHER", 100))
	for range 5 {
		d.say(other, d.grant(other))
	}
	p, _ := c.end()
	if p.Verdict.Code != verdict.ProtocolViolation || !strings.Contains(p.Verdict.Reason, "no part in") {
		t.Errorf("prefill says %v", p.Verdict)
	}
	for err := error(nil); err == nil; {
		_, _, err = d.link.Recv(nil)
	}
	r.clean(r.prefill)
}
