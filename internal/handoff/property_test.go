package handoff

import (
	goflag "flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicekv/sluice/internal/verdict"
)

// The properties drive each machine with any sequence of events that the world, the peers and an honest driver can cause: peers may send
// anything at any time; the driver answers only what it was asked.

func init() { goflag.Set("rapid.nofailfile", "true") } // the seed that rapid prints is enough to run a failure again

// ledger keeps what a machine asked for.
type ledger struct {
	asked    map[string]int
	verdicts []SetVerdict
	order    []string
}

func (l *ledger) take(out Effects) {
	if l.asked == nil {
		l.asked = map[string]int{}
	}
	for x := range out.All() {
		name := fmt.Sprintf("%T", x)
		l.asked[name]++
		l.order = append(l.order, name)
		if v, ok := x.(SetVerdict); ok {
			l.verdicts = append(l.verdicts, v)
		}
	}
}

func (l *ledger) count(x Effect) int { return l.asked[fmt.Sprintf("%T", x)] }

// first is the place of the first x in the order of effects, or -1.
func (l *ledger) first(x Effect) int { return slices.Index(l.order, fmt.Sprintf("%T", x)) }

// ends asserts how every attempt of a leg ends.
func (l *ledger) ends(t *rapid.T, leased bool) {
	t.Helper()
	if len(l.verdicts) != 1 {
		t.Fatalf("%d verdicts: %v", len(l.verdicts), l.verdicts)
	}
	if n := l.count(SendOutcome{}); n != 1 {
		t.Fatalf("%d outcomes", n)
	}
	if n := l.count(SendSettled{}); n != 1 {
		t.Fatalf("settled %d times", n)
	}
	if l.first(SendSettled{}) < l.first(SendOutcome{}) {
		t.Fatalf("settled before the outcome: %v", l.order)
	}
	want := 0
	if leased {
		want = 1
	}
	if l.count(Fence{}) != want || l.count(ReleaseLease{}) != want {
		t.Fatalf("leased %v: fenced %d times, released %d times", leased, l.count(Fence{}), l.count(ReleaseLease{}))
	}
	if leased && l.first(ReleaseLease{}) < l.first(Fence{}) {
		t.Fatalf("released before the fence: %v", l.order)
	}
}

// dice decide a sequence. wild is how often, in a thousand, something other than the honest course is thrown.
type dice struct {
	*rand.Rand
	wild int
}

// sequences runs f on sequences from calm, which are mostly served, to wild.
func sequences(t *testing.T, f func(t *rapid.T, d dice, steps int)) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		wild := rapid.SampledFrom([]int{20, 0, 100, 500}).Draw(t, "wild")
		steps := rapid.IntRange(0, 80).Draw(t, "steps")
		for i := range uint64(20) {
			f(t, dice{rand.New(rand.NewPCG(seed, i)), wild}, steps+int(i)%20)
		}
	})
}

func (d dice) odd() bool { return d.IntN(1000) < d.wild }

// good is true but for odd throws.
func (d dice) good() bool { return !d.odd() || d.IntN(2) == 0 }

// short is n, or one less on an odd throw.
func (d dice) short(n uint32) uint32 {
	if d.good() {
		return n
	}
	return n - 1
}

// code is the honest code, or one of the others.
func (d dice) code(honest verdict.Code, others ...verdict.Code) verdict.Code {
	if d.good() {
		return honest
	}
	return others[d.IntN(len(others))]
}

// word is the verdict that a peer says.
func (d dice) word() verdict.Code {
	return d.code(verdict.OK, verdict.None, verdict.ContextLength, verdict.EngineFailed, 250)
}

// course is what may happen next: the honest steps, and everything else.
type course struct {
	dice         dice
	honest, wild []func() Event
}

func (c *course) should(f func() Event) { c.honest = append(c.honest, f) }
func (c *course) may(f func() Event)    { c.wild = append(c.wild, f) }

func (c *course) next() Event {
	if len(c.honest) == 0 || c.dice.odd() {
		all := append(c.wild, c.honest...)
		return all[c.dice.IntN(len(all))]()
	}
	return c.honest[c.dice.IntN(len(c.honest))]()
}

func TestDecodeServesOnlyWhatAgreed(t *testing.T) {
	served := 0
	sequences(t, func(t *rapid.T, dice dice, steps int) {
		const planned, needed = 40, 3
		d := NewDecode(planned, needed)
		var l ledger
		landed := map[uint32]bool{}
		var landing []uint32
		var manifests []ManifestSeen
		agreedEnd, sealed, echoed, reserving := false, false, false, true
		step := func(e Event) {
			next, out := d.Step(e)
			if over := d.Over(); over && next.Verdict != d.Verdict {
				t.Fatalf("the verdict changed from %s to %s", d.Verdict, next.Verdict)
			}
			d = next
			l.take(out)
			for x := range out.All() {
				switch x := x.(type) {
				case LandPage:
					landing = append(landing, x.Ordinal)
				case SendSealed, Emit:
					m := ManifestSeen{}
					if len(manifests) > 0 {
						m = manifests[0]
					}
					if len(landed) != needed || len(manifests) != 1 || m.Tokens != planned || m.Pages != needed || !m.MACOK || !m.DigestOK ||
						!m.RootOK || m.Verdict != verdict.OK || !agreedEnd || !sealed || !echoed || d.Over() {
						t.Fatalf("%T although not everything agreed: landed %v, manifests %+v, end %v, seal %v, echo %v, %+v",
							x, landed, manifests, agreedEnd, sealed, echoed, d)
					}
				}
			}
		}
		for range steps {
			can := course{dice: dice}
			// Peers and the world: anything, any time. One link's frames come one after another, so none while a page lands.
			if len(landing) == 0 {
				manifest := func() Event {
					return ManifestSeen{dice.short(planned), dice.short(needed), dice.good(), dice.good(), dice.good(), dice.word()}
				}
				end := func() Event { return EndSeen{dice.good()} }
				switch {
				case d.State == DecodeReserved:
					can.should(func() Event { return Attached{} })
				case d.State == DecodeGranted && len(landed) < needed:
					can.should(func() Event { return PageArrived{uint32(len(landed))} })
				case d.State == DecodeGranted:
					can.should(manifest)
				case d.State == DecodeClosing:
					can.should(end)
				}
				can.may(manifest)
				can.may(end)
				can.may(func() Event { return Attached{} })
				can.may(func() Event { return PageArrived{uint32(dice.IntN(needed + 1))} })
				can.may(func() Event { return AbortAsked{PrefillLeg, dice.word()} })
				can.may(func() Event { return PeerLost{PrefillLeg} })
			}
			can.may(func() Event { return AbortAsked{GatewayEnd, dice.word()} })
			can.may(func() Event { return PeerLost{GatewayEnd} })
			can.may(func() Event { return DeadlinePassed{} })
			can.may(func() Event { return StopAsked{} })
			// Our own driver: what it was asked.
			if reserving {
				can.should(func() Event { return PagesReserved{4} })
				can.may(func() Event {
					if d.Over() {
						return ReserveEnded{}
					}
					return ReserveEnded{verdict.PoolExhausted}
				})
			}
			if len(landing) > 0 {
				can.should(func() Event {
					return PageLanded{landing[0], dice.code(verdict.None, verdict.MACMismatch, verdict.GateRefused)}
				})
			}
			if d.Sealing {
				can.should(func() Event { return SealDone{dice.code(verdict.None, verdict.CountMismatch)} })
			}
			done := func() Event {
				return EngineDone{d.Emitted, dice.code(verdict.OK, verdict.EngineFailed, verdict.TagMismatch, verdict.ShuttingDown)}
			}
			switch {
			case d.Running && d.State == DecodeEchoing:
				can.should(func() Event { return EchoCompared{dice.good()} })
				can.may(func() Event { return EngineDone{0, verdict.EngineFailed} })
			case d.Running && d.State == DecodeServing:
				can.should(func() Event { return TokenReady{} })
				can.should(done)
			case d.Running:
				can.should(done)
			}
			if l.count(ReleaseLease{}) == 1 && !d.Drained {
				can.should(func() Event { return LeaseDrained{} })
			}
			if len(can.honest)+len(can.wild) == 0 {
				break
			}
			e := can.next()
			switch e := e.(type) {
			case PagesReserved, ReserveEnded:
				reserving = false
			case PageLanded:
				landing = landing[1:]
				if e.Code == verdict.None {
					if landed[e.Ordinal] {
						e.Code = verdict.GateRefused // the pool takes a tag once
					} else {
						landed[e.Ordinal] = true
					}
				}
				step(e)
				continue
			case ManifestSeen:
				if d.State == DecodeGranted || d.State == DecodeClosing {
					manifests = append(manifests, e)
				}
			case EndSeen:
				agreedEnd = agreedEnd || e.MACOK && d.State == DecodeClosing
			case SealDone:
				sealed = sealed || e.Code == verdict.None
			case EchoCompared:
				echoed = echoed || e.Agrees
			}
			step(e)
		}
		// Time passes, and everything that was asked is answered.
		step(DeadlinePassed{})
		for len(landing) > 0 {
			landing = landing[1:]
			step(PageLanded{0, verdict.GateRefused})
		}
		if reserving {
			step(ReserveEnded{})
		}
		if d.Sealing {
			step(SealDone{})
		}
		if d.Running {
			step(EngineDone{d.Emitted, verdict.Deadline})
		}
		if l.count(ReleaseLease{}) == 1 && !d.Drained {
			step(LeaseDrained{})
		}
		if d.State != DecodeSettled {
			t.Fatalf("not settled: %+v", d)
		}
		l.ends(t, d.Reserved > 0)
		if d.Verdict == verdict.OK {
			served++
		}
	})
	if served == 0 {
		t.Error("no sequence was served: the property says nothing")
	}
	t.Logf("%d sequences were served", served)
}

func TestPrefillSendsEachPageOnceAndOnlyUnderAGrant(t *testing.T) {
	served := 0
	sequences(t, func(t *rapid.T, dice dice, steps int) {
		const planned, needed = 40, 3
		p := NewPrefill(planned, needed)
		var l ledger
		granted := false
		next := uint32(0) // the sender's
		var queued uint32
		writing, reserving, closing := false, false, false
		step := func(e Event) {
			before := p
			after, out := p.Step(e)
			p = after
			l.take(out)
			if before.Over() && after.Verdict != before.Verdict {
				t.Fatalf("the verdict changed from %s to %s", before.Verdict, after.Verdict)
			}
			for x := range out.All() {
				switch x := x.(type) {
				case QueuePages:
					if x.From != queued || x.To <= x.From || !granted {
						t.Fatalf("queued [%d, %d) after %d pages, granted %v", x.From, x.To, queued, granted)
					}
					queued = x.To
				case WritePage:
					if !granted || p.Over() {
						t.Fatalf("page %d would be written: granted %v, verdict %s", x.Ordinal, granted, p.Verdict)
					}
					writing = true
				case SendClosing:
					if x.Code == verdict.OK && (p.Sent != needed || p.Computed != planned) {
						t.Fatalf("closed well with %d pages sent and %d tokens computed", p.Sent, p.Computed)
					}
					closing = true
				case ReservePages:
					reserving = true
				}
			}
			if p.Sent+p.Writing > p.Queued || p.Queued > p.Sealed || p.Sealed > needed {
				t.Fatalf("counters: %+v", p)
			}
		}
		for range steps {
			can := course{dice: dice}
			prompt := func() Event {
				n := planned - p.Received
				if n > 1 && dice.IntN(2) == 0 {
					n /= 2
				}
				if dice.odd() {
					n++
				}
				return PromptSeen{p.Received, n, dice.good()}
			}
			grant := func() Event { return GrantSeen{needed, dice.code(verdict.None, verdict.MACMismatch)} }
			if p.State == PrefillCollecting {
				can.should(prompt)
			}
			if !granted && !p.Over() {
				can.should(grant)
			}
			can.may(prompt)
			can.may(grant)
			for _, from := range []Who{GatewayEnd, DecodeLeg} {
				can.may(func() Event { return AbortAsked{from, dice.word()} })
				can.may(func() Event { return PeerLost{from} })
			}
			can.may(func() Event { return DeadlinePassed{} })
			if reserving {
				can.should(func() Event { return PagesReserved{needed} })
				can.may(func() Event {
					if p.Over() {
						return ReserveEnded{}
					}
					return ReserveEnded{verdict.PoolExhausted}
				})
			}
			if p.Running && p.Sealed < needed {
				can.should(func() Event { return PagesSealed{p.Sealed, p.Sealed + 1 + uint32(dice.IntN(int(needed-p.Sealed)))} })
				can.may(func() Event { return EngineDone{17, verdict.EngineFailed} })
			} else if p.Running {
				can.should(func() Event { return EngineDone{planned, verdict.OK} })
			}
			if next < queued && !writing {
				can.should(func() Event { return PageTaken{next} })
			}
			if writing {
				can.should(func() Event { return PageSent{next} })
				if p.Over() {
					can.may(func() Event { return PageDropped{next} })
				}
			}
			if closing && !writing {
				can.should(func() Event { return ClosingSent{} })
			}
			if l.count(ReleaseLease{}) == 1 && !p.Drained {
				can.should(func() Event { return LeaseDrained{} })
			}
			e := can.next()
			switch e := e.(type) {
			case GrantSeen:
				granted = granted || e.Code == verdict.None
			case PagesReserved, ReserveEnded:
				reserving = false
			case PageTaken:
				step(e)
				if !writing {
					next = queued // skipped, and so are those behind it
				}
				continue
			case PageSent, PageDropped:
				writing = false
				next++
			case ClosingSent:
				closing = false
			}
			step(e)
		}
		step(DeadlinePassed{})
		if writing {
			step(PageSent{next})
		}
		if reserving {
			step(ReserveEnded{})
		}
		if p.Running {
			step(EngineDone{0, verdict.Deadline})
		}
		if l.count(ReleaseLease{}) == 1 && !p.Drained {
			step(LeaseDrained{})
		}
		if p.State != PrefillSettled {
			t.Fatalf("not settled: %+v", p)
		}
		l.ends(t, p.Reserved > 0)
		if n := l.count(SendClosing{}); n > 1 {
			t.Fatalf("%d closing statements", n)
		}
		if p.Verdict == verdict.OK {
			served++
		}
	})
	if served == 0 {
		t.Error("no sequence was served: the property says nothing")
	}
	t.Logf("%d sequences were served", served)
}

func TestGatewayReleasesOnlyWhatBothLegsSay(t *testing.T) {
	served := 0
	sequences(t, func(t *rapid.T, dice dice, steps int) {
		const planned = 40
		g, out := NewGateway(planned)
		var l ledger
		l.take(out)
		var prefill []PrefillEnded
		var sealed []SealedSeen
		step := func(e Event) {
			before := g
			after, out := g.Step(e)
			g = after
			l.take(out)
			if before.Over() && after.Verdict != before.Verdict {
				t.Fatalf("the verdict changed from %s to %s", before.Verdict, after.Verdict)
			}
			for x := range out.All() {
				switch x.(type) {
				case ReleaseHeld, PassOutput:
					if len(prefill) == 0 || len(sealed) == 0 {
						t.Fatalf("%T before both spoke: %+v", x, g)
					}
					p, s := prefill[0], sealed[0]
					if p.Code != verdict.OK || !p.DigestOK || !s.DigestOK || p.Tokens != planned || s.Tokens != planned || before.Over() {
						t.Fatalf("%T although the legs differ: %+v %+v", x, p, s)
					}
				}
			}
		}
		for range steps {
			can := course{dice: dice}
			seal := func() Event { return SealedSeen{dice.short(planned), 3, 0, dice.good()} }
			prefillEnds := func() Event { return PrefillEnded{dice.short(planned), dice.good(), dice.word()} }
			output := func() Event {
				at := g.Output
				if dice.odd() {
					at++
				}
				return OutputSeen{at, 2}
			}
			decodeEnds := func() Event { return DecodeEnded{g.Output, dice.word()} }
			if g.State == GatewayAsking {
				can.should(func() Event { return ReservedSeen{4} })
			}
			if g.State == GatewayRunning {
				if len(sealed) == 0 {
					can.should(seal)
				}
				if len(prefill) == 0 {
					can.should(prefillEnds)
				}
			}
			if len(sealed) > 0 && g.DecodeCode == verdict.None && !g.Over() {
				can.should(output)
				can.should(decodeEnds)
			}
			if g.State == GatewayReleasing {
				can.may(func() Event { return StopFound{} })
			}
			can.may(func() Event { return ReservedSeen{4} })
			for _, f := range []func() Event{seal, prefillEnds, output, decodeEnds} {
				can.may(f)
			}
			can.may(func() Event { return AbortAsked{ClientEnd, verdict.ClientGone} })
			can.may(func() Event { return DeadlinePassed{} })
			for _, leg := range []Who{PrefillLeg, DecodeLeg} {
				can.may(func() Event { return PeerLost{leg} })
				can.may(func() Event { return LegSettled{leg} })
			}
			e := can.next()
			switch e := e.(type) {
			case PrefillEnded:
				prefill = append(prefill, e)
			case SealedSeen:
				sealed = append(sealed, e)
			}
			step(e)
		}
		step(DeadlinePassed{})
		for _, leg := range []Who{PrefillLeg, DecodeLeg} { // too early to be true, unless the leg has spoken
			step(LegSettled{leg})
		}
		step(PrefillEnded{Code: verdict.Deadline})
		step(DecodeEnded{Code: verdict.Deadline})
		step(LegSettled{PrefillLeg})
		step(LegSettled{DecodeLeg})
		if g.State != GatewayQuiet || len(l.verdicts) != 1 || l.count(Finish{}) != 1 {
			t.Fatalf("not quiet: %+v; verdicts %v, finished %d times", g, l.verdicts, l.count(Finish{}))
		}
		if l.count(ReleaseHeld{}) > 1 {
			t.Fatal("released twice")
		}
		if g.Verdict == verdict.OK {
			served++
			if l.count(ReleaseHeld{}) != 1 {
				t.Fatal("served and never released")
			}
		}
	})
	if served == 0 {
		t.Error("no sequence was served: the property says nothing")
	}
	t.Logf("%d sequences were served", served)
}

func TestMachinesAreValues(t *testing.T) {
	d, _ := NewDecode(40, 3).Step(PagesReserved{4})
	e, _ := NewDecode(40, 3).Step(PagesReserved{4})
	if d != e || d.Digest() != e.Digest() {
		t.Error("equal histories gave different machines")
	}
	f, _ := d.Step(Attached{})
	if f == d || f.Digest() == d.Digest() {
		t.Error("a step left no trace in the value")
	}
	if d != e {
		t.Error("a step changed the value that it was asked of")
	}
}
