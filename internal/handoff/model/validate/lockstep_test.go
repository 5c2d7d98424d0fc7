package validate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/model"
	"github.com/sluicekv/sluice/internal/verdict"
)

// asksOf are the effects of a real step, as the model names them.
func asksOf(machine string, out handoff.Effects) (a model.Asks) {
	names := map[string]model.Asks{
		"SetVerdict": model.AskVerdict, "SendOutcome": model.AskOutcome, "Fence": model.AskFence, "ReleaseLease": model.AskRelease,
		"SendSettled": model.AskSettled, "SendReserved": model.AskReserved, "SendGrant": model.AskGrant, "LandPage": model.AskLand,
		"RefusePage": model.AskRefuse, "Seal": model.AskSeal, "StartDecode": model.AskStart, "StartPrefill": model.AskStart,
		"SendSealed": model.AskSealed, "Emit": model.AskEmit, "StopDecode": model.AskStop, "ReservePages": model.AskPages,
		"QueuePages": model.AskQueue, "WritePage": model.AskWrite, "SkipPage": model.AskSkip, "SendClosing": model.AskClosing,
		"HoldOutput": model.AskHold, "ReleaseHeld": model.AskLetGo, "PassOutput": model.AskPass, "SwallowOutput": model.AskSwallow,
		"SendStop": model.AskStopDecode, "RestPair": model.AskRest, "Finish": model.AskFinish,
	}
	for x := range out.All() {
		switch x := x.(type) {
		case handoff.SendPlan:
			a |= model.AskPlanDecode
			if x.To == handoff.PrefillLeg {
				a |= model.AskPlanPrefill
				a &^= model.AskPlanDecode
			}
		case handoff.SendAbort:
			if x.To == handoff.PrefillLeg {
				a |= model.AskAbortPrefill
			} else {
				a |= model.AskAbortDecode
			}
		default:
			name := strings.TrimPrefix(fmt.Sprintf("%T", x), "handoff.")
			ask, ok := names[name]
			if !ok {
				panic(machine + " has an effect that the model does not know: " + name)
			}
			a |= ask
		}
	}
	return a
}

// TestTheMachinesStepAsTheModelDoes feeds the real machines and the model's the same events, likely and unlikely, side by side: after each
// step the values must be the same, and so must be what is asked of the driver; where one says that it is the driver's error, so must the other.
func TestTheMachinesStepAsTheModelDoes(t *testing.T) {
	walks := 10000
	if testing.Short() {
		walks = 1200
	}
	r := rand.New(rand.NewPCG(1, 2))
	steps := map[string]int{}
	type place struct {
		machine string
		state   uint8
	}
	states := map[place]int{}
	for range walks {
		var (
			tokens, pages = uint32(1 + r.IntN(3)), uint32(1)
			d, md         = handoff.NewDecode(tokens, pages), model.NewDecode(tokens, pages)
			p, mp         = handoff.NewPrefill(tokens, pages), model.NewPrefill(tokens, pages)
			g, _          = handoff.NewGateway(tokens)
			mg            = model.NewGateway(tokens)
		)
		if r.IntN(2) == 0 {
			pages = tokens
			d, md = handoff.NewDecode(tokens, pages), model.NewDecode(tokens, pages)
			p, mp = handoff.NewPrefill(tokens, pages), model.NewPrefill(tokens, pages)
		}
		focus, calm := r.IntN(3), []int{3, 40, 40}[r.IntN(3)]
		for range 30 {
			var e handoff.Event
			var me model.Event[uint32]
			for range 20 { // one that the machine in focus can take, more often than not
				e = anyEvent(r, tokens, pages, calm)
				a := e.Trace()
				me = model.Event[uint32]{Step: model.Step(a.Step), A: a.A, B: a.B, C: a.C, Code: model.Code(a.Code)}
				var err error
				changed := false
				switch focus {
				case 0:
					var next model.Decode[uint32]
					next, _, err = md.Step(model.AllGuards, me)
					changed = next != md && (!next.Over() || md.Over() || r.IntN(60) == 0)
				case 1:
					var next model.Prefill[uint32]
					next, _, err = mp.Step(model.AllGuards, me)
					changed = next != mp && (!next.Over() || mp.Over() || r.IntN(60) == 0)
				case 2:
					var next model.Gateway[uint32]
					next, _, err = mg.Step(model.AllGuards, me)
					changed = next != mg && (!next.Over() || mg.Over() || r.IntN(60) == 0)
				}
				if err == nil && changed {
					break
				}
			}
			compare := func(name string, step func() (uint64, uint8, handoff.Effects), modelStep func() (uint64, uint8, model.Asks, error)) {
				digest, state, out, panicked := guarded(step)
				wantDigest, wantState, asks, err := modelStep()
				if panicked != (err != nil) {
					t.Fatalf("%s, %T%+v: the machine panicked: %v; the model says %v", name, e, e, panicked, err)
				}
				if panicked {
					return
				}
				steps[name]++
				states[place{name, state}]++
				if digest != wantDigest || state != wantState {
					t.Fatalf("%s, %T%+v: the machine comes to state %d, the model to %d, or to another value", name, e, e, state, wantState)
				}
				if got := asksOf(name, out); got != asks {
					t.Fatalf("%s, %T%+v: the machine asks for %b, the model for %b", name, e, e, got, asks)
				}
			}
			compare("decode", func() (uint64, uint8, handoff.Effects) {
				next, out := d.Step(e)
				d = next
				return d.Digest(), uint8(d.State), out
			}, func() (uint64, uint8, model.Asks, error) {
				next, asks, err := md.Step(model.AllGuards, me)
				if err == nil {
					md = next
				}
				return model.DigestDecode(&md), uint8(md.State), asks, err
			})
			compare("prefill", func() (uint64, uint8, handoff.Effects) {
				next, out := p.Step(e)
				p = next
				return p.Digest(), uint8(p.State), out
			}, func() (uint64, uint8, model.Asks, error) {
				next, asks, err := mp.Step(model.AllGuards, me)
				if err == nil {
					mp = next
				}
				return model.DigestPrefill(&mp), uint8(mp.State), asks, err
			})
			compare("gateway", func() (uint64, uint8, handoff.Effects) {
				next, out := g.Step(e)
				g = next
				return g.Digest(), uint8(g.State), out
			}, func() (uint64, uint8, model.Asks, error) {
				next, asks, err := mg.Step(model.AllGuards, me)
				if err == nil {
					mg = next
				}
				return model.DigestGateway(&mg), uint8(mg.State), asks, err
			})
		}
	}
	t.Logf("steps that both took: %v; in states %v", steps, states)
	for machine, n := range map[string]uint8{"decode": 10, "prefill": 7, "gateway": 5} {
		for s := uint8(1); s < n; s++ {
			if states[place{machine, s}] < walks/600 {
				t.Errorf("%s was in state %d only %d times", machine, s, states[place{machine, s}])
			}
		}
	}
	for _, name := range []string{"decode", "prefill", "gateway"} {
		if steps[name] < walks {
			t.Errorf("%s: only %d steps", name, steps[name])
		}
	}
}

func guarded(step func() (uint64, uint8, handoff.Effects)) (digest uint64, state uint8, out handoff.Effects, panicked bool) {
	defer func() {
		if recover() != nil {
			panicked = true
		}
	}()
	digest, state, out = step()
	return digest, state, out, false
}

// anyEvent is any event, with arguments that are right more often than not.
func anyEvent(r *rand.Rand, tokens, pages uint32, calm int) handoff.Event {
	yes := func() bool { return r.IntN(calm) > 0 }
	near := func(n uint32) uint32 {
		if yes() {
			return n
		}
		return uint32(r.IntN(int(n) + 2))
	}
	ordinal := uint32(r.IntN(int(pages)))
	code := func(right verdict.Code) verdict.Code {
		if yes() {
			return right
		}
		return []verdict.Code{verdict.None, verdict.OK, verdict.ContextLength, verdict.MACMismatch, verdict.ClientGone, 250}[r.IntN(6)]
	}
	who := handoff.Who(r.IntN(5))
	events := []func() handoff.Event{
		func() handoff.Event { return handoff.PagesReserved{Count: pages} },
		func() handoff.Event { return handoff.PagesReserved{Count: pages} },
		func() handoff.Event { return handoff.Attached{} },
		func() handoff.Event { return handoff.PageArrived{Ordinal: near(ordinal)} },
		func() handoff.Event { return handoff.PageLanded{Ordinal: ordinal, Code: code(verdict.None)} },
		func() handoff.Event {
			return handoff.ManifestSeen{Tokens: near(tokens), Pages: near(pages), MACOK: yes(), DigestOK: yes(), RootOK: yes(), Verdict: code(verdict.OK)}
		},
		func() handoff.Event { return handoff.EndSeen{MACOK: yes()} },
		func() handoff.Event { return handoff.SealDone{Code: code(verdict.None)} },
		func() handoff.Event { return handoff.EchoCompared{Agrees: yes()} },
		func() handoff.Event { return handoff.TokenReady{} },
		func() handoff.Event { return handoff.EngineDone{Tokens: near(tokens), Code: code(verdict.OK)} },
		func() handoff.Event { return handoff.PromptSeen{Count: near(tokens), DigestOK: yes()} },
		func() handoff.Event { return handoff.GrantSeen{Pages: near(pages), Code: code(verdict.None)} },
		func() handoff.Event { return handoff.PagesSealed{From: ordinal, To: near(ordinal + 1)} },
		func() handoff.Event { return handoff.PageTaken{Ordinal: ordinal} },
		func() handoff.Event { return handoff.PageSent{Ordinal: ordinal} },
		func() handoff.Event { return handoff.ClosingSent{} },
		func() handoff.Event { return handoff.LeaseDrained{} },
		func() handoff.Event { return handoff.ReservedSeen{Pages: pages} },
		func() handoff.Event {
			return handoff.SealedSeen{Tokens: near(tokens), Written: pages, DigestOK: yes()}
		},
		func() handoff.Event {
			return handoff.PrefillEnded{Tokens: near(tokens), DigestOK: yes(), Code: code(verdict.OK)}
		},
		func() handoff.Event { return handoff.OutputSeen{Index: near(0), Count: near(1)} },
		func() handoff.Event { return handoff.DecodeEnded{Completion: near(1), Code: code(verdict.OK)} },
		func() handoff.Event { return handoff.StopFound{} },
		func() handoff.Event { return handoff.LegSettled{Leg: who} },
	}
	rare := []func() handoff.Event{
		func() handoff.Event { return handoff.ReserveEnded{Code: code(verdict.PoolExhausted)} },
		func() handoff.Event { return handoff.StopAsked{} },
		func() handoff.Event { return handoff.PageDropped{Ordinal: ordinal} },
		func() handoff.Event { return handoff.AbortAsked{From: who, Code: code(verdict.ClientGone)} },
		func() handoff.Event { return handoff.PeerLost{From: who} },
		func() handoff.Event { return handoff.DeadlinePassed{} },
		func() handoff.Event { return handoff.Violation{Code: verdict.ProtocolViolation} },
	}
	if r.IntN(10*calm) < 10 {
		return rare[r.IntN(len(rare))]()
	}
	return events[r.IntN(len(events))]()
}
