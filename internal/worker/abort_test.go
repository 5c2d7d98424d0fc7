package worker

import (
	"context"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// scene is a rig whose data link goes through a relay, with a call stopped in one phase.
type scene struct {
	rig   *rig
	door  *door
	relay *relay
	call  *call
	block *call // holds pages so that the call must wait for its own
}

func newScene(t *testing.T, ask func(toDecode bool, n int, k wire.Kind) deed, opts ...option) *scene {
	s := &scene{rig: newRig(t, opts...)}
	s.relay = newRelay(t, s.rig.decode.DataAddr().String(), ask)
	s.door = s.rig.door("g0")
	return s
}

func (s *scene) through(p *admission.Plan) { p.Decode.Data = s.relay.Addr().String() }

func holdAt(kind wire.Kind) func(bool, int, wire.Kind) deed {
	return func(_ bool, _ int, k wire.Kind) deed {
		if k == kind {
			return hold
		}
		return pass
	}
}

func all(bool, int, wire.Kind) deed { return pass }

// phases stop a call where the name says. The prompt has 20 pages of 16.
var phases = map[string]func(t *testing.T) *scene{
	"decode waits for pages": func(t *testing.T) *scene {
		s := newScene(t, holdAt(wire.KindEnd), pages(64))
		s.block = s.door.call(needle("BLOCK", 800), s.through).run() // 51 pages and 16 ahead, held by the relay
		s.rig.until(s.block, trace.Decode, uint8(handoff.DecodeClosing))
		s.call = s.door.call(needle("WAITS", 310), s.through)
		s.door.decode.send(s.call)
		s.turn(s.rig.decode)
		return s
	},
	"decode has reserved": func(t *testing.T) *scene {
		s := newScene(t, all)
		s.call = s.door.call(needle("RESERVED", 310), s.through)
		s.door.decode.send(s.call)
		s.call.waitReserved()
		return s
	},
	"prefill collects": func(t *testing.T) *scene {
		s := newScene(t, all)
		s.call = s.door.call(needle("COLLECTS", 310), s.through)
		s.door.decode.send(s.call)
		s.call.waitReserved()
		s.door.prefill.send(s.call)
		s.door.prefill.link.Send(wire.Prompt{Attempt: s.call.id, IDs: s.call.prompt[:100]})
		s.rig.until(s.call, trace.Decode, uint8(handoff.DecodeGranted))
		return s
	},
	"prefill waits for pages": func(t *testing.T) *scene {
		s := newScene(t, holdAt(wire.KindGrant), only("prefill", pages(64)))
		s.block = s.door.call(needle("BLOCK", 800), s.through).run()
		s.rig.until(s.block, trace.Prefill, uint8(handoff.PrefillShipping)) // 51 of 64 pages, and no grant to send them
		s.call = s.door.call(needle("WAITS", 310), s.through).run()
		s.rig.until(s.call, trace.Prefill, uint8(handoff.PrefillReserving))
		s.turn(s.rig.prefill)
		return s
	},
	"prefill has no grant": func(t *testing.T) *scene {
		s := newScene(t, holdAt(wire.KindAttach))
		s.call = s.door.call(needle("NOGRANT", 310), s.through).run()
		s.rig.until(s.call, trace.Prefill, uint8(handoff.PrefillShipping))
		return s
	},
	"pages are held up": func(t *testing.T) *scene {
		n := 0
		s := newScene(t, func(_ bool, _ int, k wire.Kind) deed {
			if k == wire.KindPage {
				if n++; n > 7 {
					return hold
				}
			}
			return pass
		})
		s.call = s.door.call(needle("PAGES", 310), s.through).run()
		s.rig.until(s.call, trace.Decode, uint8(handoff.DecodeGranted))
		s.rig.until(s.call, trace.Prefill, uint8(handoff.PrefillShipping))
		return s
	},
	"the manifest is held up": func(t *testing.T) *scene {
		s := newScene(t, holdAt(wire.KindManifest))
		s.call = s.door.call(needle("MANIFEST", 310), s.through).run()
		s.rig.until(s.call, trace.Prefill, uint8(handoff.PrefillSettled))
		return s
	},
	"the end is held up": func(t *testing.T) *scene {
		s := newScene(t, holdAt(wire.KindEnd))
		s.call = s.door.call(needle("END", 310), s.through).run()
		s.rig.until(s.call, trace.Decode, uint8(handoff.DecodeClosing))
		return s
	},
	"decode serves": func(t *testing.T) *scene {
		s := newScene(t, all, func(_ capacity.Role, c *Config) { c.Context, c.PoolPages = 4096, 256 })
		s.call = s.door.call(needle("SERVES", 310), s.through, tokens(2500)).run() // long enough to be still going when it is aborted
		s.rig.until(s.call, trace.Decode, uint8(handoff.DecodeServing))
		return s
	},
}

// turn waits until somebody waits for pages.
func (s *scene) turn(w *Worker) {
	s.rig.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); w.pages.queued() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.rig.t.Fatal("nobody waits for pages")
		}
	}
}

// ways end a call from one side. The verdict is what decode must say, if that is settled by who comes first.
var ways = map[string]struct {
	do   func(s *scene)
	code verdict.Code
}{
	"the gateway aborts decode":  {func(s *scene) { abortOn(s, s.door.decode) }, verdict.ClientGone},
	"the gateway aborts prefill": {func(s *scene) { abortOn(s, s.door.prefill); s.prefillEnds() }, verdict.ClientGone},
	"the gateway is gone":        {func(s *scene) { s.door.prefill.close(); s.door.decode.close() }, verdict.PeerLost},
	"decode drains out of time":  {func(s *scene) { drainNow(s.rig.decode) }, verdict.ShuttingDown},
	"prefill drains out of time": {func(s *scene) { drainNow(s.rig.prefill) }, verdict.None},
	"the data link is cut":       {func(s *scene) { s.relay.cutAll() }, verdict.None},
}

// prefillEnds waits for prefill's outcome, if it has the plan.
func (s *scene) prefillEnds() {
	if s.askedPrefill() {
		s.call.await("prefill ends", func() bool { _, ok := s.call.ended[s.door.prefill]; return ok })
	}
}

func abortOn(s *scene, l *line) {
	for _, c := range []*call{s.call, s.block} {
		if c != nil {
			l.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
		}
	}
}

func drainNow(w *Worker) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w.Drain(ctx)
}

func (s *scene) askedPrefill() bool {
	s.door.prefill.mu.Lock()
	defer s.door.prefill.mu.Unlock()
	_, ok := s.door.prefill.calls[s.call.id]
	return ok
}

func TestEveryPhaseCanBeAbortedFromEverySide(t *testing.T) {
	for phase, set := range phases {
		for way, w := range ways {
			t.Run(phase+", "+way, func(t *testing.T) {
				t.Parallel()
				s := set(t)
				w.do(s)
				if phase == "decode serves" && (way == "prefill drains out of time" || way == "the data link is cut" || way == "the gateway aborts prefill") {
					served(t, s.call) // prefill said its last word, and is needed no more
					s.rig.clean()
					return
				}
				abortOn(s, s.door.decode) // as a gateway that hears of one leg's end tells the other
				abortOn(s, s.door.prefill)
				p, d := s.call.end()
				if d.Verdict.IsZero() || d.Verdict.OK() {
					t.Errorf("decode says %v", d.Verdict)
				}
				if w.code != verdict.None && d.Verdict.Code != w.code {
					t.Errorf("decode says %v, want %s", d.Verdict, w.code)
				}
				if s.askedPrefill() && p.Verdict.IsZero() {
					t.Error("prefill said nothing")
				}
				if s.block != nil {
					s.block.end()
				}
				s.rig.clean()
			})
		}
	}
}
