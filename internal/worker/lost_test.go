package worker

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// The connection ends before each frame of a handoff, and inside it, in each direction: to decode hello, auth, attach, four pages, manifest,
// end; to prefill hello, auth, grant. The attempt ends with an error that names the other leg, nothing is left of it, and the next
// attempt is served, over a new link.
func TestAConnectionCutAtEveryFrame(t *testing.T) {
	for _, how := range []deed{cut, tear} {
		for at := range 12 {
			toDecode, n := at < 9, at
			if !toDecode {
				n = at - 9
			}
			t.Run(fmt.Sprintf("deed %d, to decode %v, frame %d", how, toDecode, n), func(t *testing.T) {
				t.Parallel()
				var once atomic.Bool
				s := newScene(t, func(dir bool, i int, k wire.Kind) deed {
					if dir == toDecode && i == n && once.CompareAndSwap(false, true) {
						return how
					}
					return pass
				})
				prompt := needle("CUT", 50)[:60]
				c := s.door.call(prompt, s.through).run()
				p, d := c.conclude()
				if !once.Load() {
					t.Fatal("the connection was not cut")
				}
				if p.Verdict.IsZero() || d.Verdict.OK() {
					t.Errorf("prefill: %v; decode: %v", p.Verdict, d.Verdict)
				}
				if toDecode && n >= 3 {
					if d.Verdict.Code != verdict.PeerLost || !strings.Contains(d.Verdict.Reason, "prefill p0 was lost while decode d0 waited for") {
						t.Errorf("decode says %v", d.Verdict)
					}
				} else if p.Verdict.Code != verdict.PeerLost && d.Verdict.Code != verdict.PeerLost {
					t.Errorf("prefill: %v; decode: %v", p.Verdict, d.Verdict)
				}
				s.rig.clean()
				next := s.door.call(needle("AFTER", 100), s.through, tokens(5)).run()
				if p, _ := next.conclude(); p.Verdict.Code == verdict.PeerLost {
					// It came before prefill had noticed that the old link is gone. A gateway tries again, as it may: Retry.
					next = s.door.call(needle("AFTER", 100), s.through, tokens(5)).run()
				}
				served(t, next)
				if next.text() != "AFTER" {
					t.Errorf("the reply is %q", next.text())
				}
				s.rig.clean()
			})
		}
	}
}

// A peer that says nothing more keeps its connection. The deadline ends the attempt, and the reason names what was waited for.
func TestAStalledPeerIsNamed(t *testing.T) {
	for _, c := range []struct {
		hold  wire.Kind
		layer verdict.Layer
		want  string
	}{
		{wire.KindAttach, verdict.Reserve, "for prefill p0 to attach"},
		{wire.KindPage, verdict.Gate, "for pages of prefill p0: 0 of 4 landed"},
		{wire.KindManifest, verdict.Gate, "for pages of prefill p0: 4 of 4 landed"},
		{wire.KindEnd, verdict.Seal, "for the end of prefill p0"},
	} {
		t.Run(fmt.Sprint(c.hold), func(t *testing.T) {
			t.Parallel()
			s := newScene(t, holdAt(c.hold))
			call := s.door.call(needle("STALL", 50)[:60], s.through, budget(time.Second)).run()
			_, d := call.end()
			if d.Verdict.Code != verdict.Deadline || d.Verdict.Layer != c.layer || !strings.Contains(d.Verdict.Reason, c.want) ||
				!strings.HasPrefix(d.Verdict.Reason, "decode d0 waited ") {
				t.Errorf("decode says %v", d.Verdict)
			}
			s.rig.clean()
		})
	}
	t.Run("grant", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, holdAt(wire.KindGrant))
		call := s.door.call(needle("STALL", 50)[:60], s.through, budget(time.Second)).run()
		p, d := call.end()
		if p.Verdict.Code != verdict.Deadline || !strings.Contains(p.Verdict.Reason, "prefill p0 waited") || !strings.Contains(p.Verdict.Reason, "for the grant of decode d0") {
			t.Errorf("prefill says %v", p.Verdict)
		}
		if d.Verdict.Code != verdict.Deadline {
			t.Errorf("decode says %v", d.Verdict)
		}
		s.rig.clean()
	})
	t.Run("prompt", func(t *testing.T) {
		t.Parallel()
		s := newScene(t, all)
		call := s.door.call(needle("STALL", 50)[:60], s.through)
		s.door.decode.send(call)
		call.waitReserved()
		call.plan.Budget = 200 * time.Millisecond // prefill's timer alone is to end it
		s.door.prefill.send(call)
		p, _ := call.end()
		if p.Verdict.Code != verdict.Deadline || !strings.Contains(p.Verdict.Reason, "for the prompt: 0 of 60 token ids came") {
			t.Errorf("prefill says %v", p.Verdict)
		}
		s.rig.clean()
	})
}

// Decode is restarted on the same addresses: plans for the old boot are refused, by decode on its control link and by prefill, which
// finds another boot at the data address. A plan for the new boot is served.
func TestARestartedDecodeRefusesOldPlans(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	served(t, d.call(needle("BEFORE", 100)).run())
	old, addr, data := r.decode, r.decode.Addr().String(), r.decode.DataAddr().String()
	running := d.call(needle("RUNNING", 300), tokens(600)).run()
	r.until(running, trace.Decode, uint8(handoff.DecodeServing))
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if _, o := running.end(); o.Verdict.OK() {
		t.Errorf("a reply that was cut off says %v", o.Verdict)
	}
	r.decode = r.start("d0", capacity.Decode, func(_ capacity.Role, c *Config) { c.Listen, c.Data = addr, data })
	oldBoot := func(p *admission.Plan) { p.Decode.Boot = old.Boot() }

	d.decode = d.dial(r.decode)
	c := d.call(needle("STALE", 100), oldBoot)
	d.decode.send(c)
	if _, o := c.end(); o.Verdict.Code != verdict.PlanRefused || !strings.Contains(o.Verdict.Reason, old.Boot().String()) {
		t.Errorf("decode says %v of a plan for its old boot", o.Verdict)
	}
	for {
		c = d.call(needle("STALE", 100), oldBoot)
		d.prefill.send(c)
		d.prefill.sendPrompt(c)
		o, _ := c.end()
		if o.Verdict.Code == verdict.PeerLost {
			continue // prefill has not noticed yet that the link to the old process is gone
		}
		if o.Verdict.Code != verdict.PlanRefused || !strings.Contains(o.Verdict.Reason, r.decode.Boot().String()) {
			t.Errorf("prefill says %v of a plan for decode's old boot", o.Verdict)
		}
		break
	}
	c = d.call(needle("FRESH", 100), tokens(5)).run()
	served(t, c)
	if c.text() != "FRESH" {
		t.Errorf("the reply is %q", c.text())
	}
	r.clean()
}

func TestARestartedPrefillIsFoundAgain(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	served(t, d.call(needle("BEFORE", 100)).run())
	addr := r.prefill.Addr().String()
	old := r.prefill.Boot()
	r.prefill.Close()
	r.prefill = r.start("p0", capacity.Prefill, func(_ capacity.Role, c *Config) { c.Listen = addr })
	d.prefill = d.dial(r.prefill)
	served(t, d.call(needle("AFTER", 100)).run())

	// A plan that names prefill's old boot: the new process does not take it, and could not attach with it.
	c := d.call(needle("STALE", 100), func(p *admission.Plan) { p.Prefill.Boot = old })
	d.decode.send(c)
	c.waitReserved()
	d.prefill.send(c)
	p, _ := c.conclude()
	if p.Verdict.Code != verdict.PlanRefused {
		t.Errorf("prefill says %v", p.Verdict)
	}
	r.clean()
}

// Prefill cannot reach decode: nobody listens at the plan's address, or somebody else does.
func TestAnUnreachableDecodeIsNamed(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	for name, o := range map[string]planOption{
		"nobody":         func(p *admission.Plan) { p.Decode.Data = "127.0.0.1:1" },
		"another key":    func(p *admission.Plan) { p.Decode.Key = r.ids["p1"].Key() },
		"not an address": func(p *admission.Plan) { p.Decode.Data = "nowhere" },
	} {
		t.Run(name, func(t *testing.T) {
			c := d.call(needle("LOST", 100), o)
			d.decode.send(c)
			c.waitReserved()
			d.prefill.send(c)
			d.prefill.sendPrompt(c)
			p, _ := c.conclude()
			if p.Verdict.Code != verdict.PeerLost || !strings.Contains(p.Verdict.Reason, "prefill p0 cannot reach decode d0: ") {
				t.Errorf("prefill says %v", p.Verdict)
			}
			r.clean()
		})
	}
	if n := len(r.prefill.links.to); n != 0 {
		t.Errorf("%d links are kept", n)
	}
}
