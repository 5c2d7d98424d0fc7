package sim

import (
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Act is one step of a schedule: what happens, in which lane. As text: "r0 decode-reserves".
type Act struct {
	Lane int8
	What string
}

func (a Act) String() string { return fmt.Sprintf("r%d %s", a.Lane, a.What) }

// ParseAct reads what String writes.
func ParseAct(s string) (a Act, err error) {
	if _, err = fmt.Sscanf(s, "r%d %s", &a.Lane, &a.What); err != nil {
		return Act{}, fmt.Errorf("sim: %q is no act: %w", s, err)
	}
	if _, known := acts[a.What]; !known {
		return Act{}, fmt.Errorf("sim: nothing is called %q", a.What)
	}
	return a, nil
}

// act is something that can be done in a lane, when it can be.
type act struct {
	may func(*lane) bool
	do  func(*lane)
}

// order of the acts: what is possible is always listed in it.
var order = strings.Fields(`begin decode-reserves decode-is-aborted prefill-attaches decode-takes decode-steps decode-frees
	prefill-opens prefill-computes prefill-hears prefill-sends prefill-is-aborted prefill-lies prefill-frees`)

var acts = map[string]act{
	"begin": {
		func(l *lane) bool { return l.over() },
		(*lane).begin,
	},
	"decode-reserves": {
		func(l *lane) bool {
			return l.d.State == handoff.DecodeWaiting && l.w.decode.Stats().Free >= int(l.d.Needed)
		},
		func(l *lane) {
			lease, err := l.w.decode.Reserve(l.at, int(l.d.Needed))
			if err != nil {
				l.fail("decode's pool: %v", err)
				return
			}
			l.dl = lease
			l.decodeTakes(handoff.PagesReserved{Count: l.d.Needed})
		},
	},
	"decode-is-aborted": {
		func(l *lane) bool { return !l.d.Over() },
		func(l *lane) {
			l.decodeTakes(handoff.AbortAsked{From: handoff.GatewayEnd, Code: verdict.ClientGone})
			if l.d.State == handoff.DecodeCancelled {
				l.decodeTakes(handoff.ReserveEnded{})
			}
		},
	},
	"prefill-attaches": {
		func(l *lane) bool { return l.opened && l.d.State == handoff.DecodeReserved },
		func(l *lane) { l.decodeTakes(handoff.Attached{}) },
	},
	"decode-takes": {
		func(l *lane) bool { return len(l.link) > 0 },
		(*lane).take,
	},
	"decode-steps": {
		func(l *lane) bool { return l.d.Running },
		(*lane).step,
	},
	"decode-frees": {
		func(l *lane) bool {
			return l.d.State == handoff.DecodeFencing && !l.d.Drained && (l.w.scrubD != nil || done(l.dl.Done()))
		},
		func(l *lane) {
			if f := l.w.scrubD; f != nil {
				l.w.scrubD = nil
				f()
			}
			if done(l.dl.Done()) {
				l.decodeTakes(handoff.LeaseDrained{})
			}
		},
	},
	"prefill-opens": {
		func(l *lane) bool { return !l.opened && l.d.State >= handoff.DecodeReserved && l.d.Reserved > 0 },
		func(l *lane) {
			l.opened = true
			l.ptr = trace.Begin(l.w, prefillBoot, trace.Prefill, l.id, uint32(l.tokens), l.p.Needed, uint8(l.p.State), l.p.Digest())
			l.prefillTakes(handoff.PromptSeen{Count: uint32(l.tokens), DigestOK: true})
			lease, err := l.w.prefill.Reserve(l.pt, int(l.p.Needed))
			if err != nil {
				l.prefillTakes(handoff.ReserveEnded{Code: verdict.PoolExhausted})
				return
			}
			l.pl = lease
			l.prefillTakes(handoff.PagesReserved{Count: l.p.Needed})
		},
	},
	"prefill-computes": {
		func(l *lane) bool { return l.p.Running },
		(*lane).compute,
	},
	"prefill-hears": {
		func(l *lane) bool { return l.opened && (l.granted || l.abort != verdict.None) },
		func(l *lane) {
			if l.granted {
				l.granted = false
				l.prefillTakes(handoff.GrantSeen{Pages: l.p.Needed})
				return
			}
			c := l.abort
			l.abort = verdict.None
			if c == verdict.OK {
				c = verdict.ClientGone
			}
			l.prefillTakes(handoff.AbortAsked{From: handoff.DecodeLeg, Code: c})
		},
	},
	"prefill-sends": {
		func(l *lane) bool { return l.opened && (l.next < l.queued || l.closing != verdict.None) },
		(*lane).send,
	},
	"prefill-is-aborted": {
		func(l *lane) bool { return l.opened && !l.p.Over() },
		func(l *lane) { l.prefillTakes(handoff.AbortAsked{From: handoff.GatewayEnd, Code: verdict.ClientGone}) },
	},
	"prefill-lies": { // one frame is torn, or comes again
		func(l *lane) bool { return !l.lied && len(l.link) > 0 && l.link[0].payload != nil },
		func(l *lane) {
			l.lied = true
			f := l.link[0]
			if l.id[0]%2 == 0 {
				l.link = append(l.link[:1:1], append([]frame{f}, l.link[1:]...)...)
				return
			}
			torn := append([]byte(nil), f.payload...)
			torn[7] ^= 1
			l.link[0].payload = torn
		},
	},
	"prefill-frees": {
		func(l *lane) bool {
			return l.opened && l.p.State == handoff.PrefillFencing && !l.p.Drained && (l.w.scrubP != nil || done(l.pl.Done()))
		},
		func(l *lane) {
			if f := l.w.scrubP; f != nil {
				l.w.scrubP = nil
				f()
			}
			if done(l.pl.Done()) {
				l.prefillTakes(handoff.LeaseDrained{})
			}
		},
	},
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// over reports whether nothing of the attempt is left at either end.
func (l *lane) over() bool {
	return l.d.State == handoff.DecodeSettled && (!l.opened || l.p.State == handoff.PrefillSettled)
}

// may reports whether an act is possible now. None is while the lane's reader is in the middle of a copy: see Do.
func (w *World) may(a Act) bool {
	return int(a.Lane) < len(w.lanes) && acts[a.What].may(w.lanes[a.Lane])
}

// Do performs an act if it is possible, and reports whether it was. during is performed in the middle of the copy that the act makes, if it
// makes one: the abort that overtakes a landing page.
func (w *World) Do(a Act, during ...Act) bool {
	if !w.may(a) {
		return false
	}
	if len(during) > 0 && a.What == "decode-takes" {
		w.mid = func() {
			for _, b := range during {
				if b.Lane != a.Lane || b.What == "decode-is-aborted" { // its reader is busy
					w.Do(b)
				}
			}
		}
	}
	acts[a.What].do(w.lanes[a.Lane])
	w.mid = nil
	return true
}

// Possible lists what may happen next, in an order that is always the same.
func (w *World) Possible(into []Act) []Act {
	into = into[:0]
	for i := range w.lanes {
		for _, what := range order {
			if a := (Act{int8(i), what}); w.may(a) {
				into = append(into, a)
			}
		}
	}
	return into
}

// finish lets everything under way end: aborts, and then whatever else is possible, but no new attempt.
func (w *World) finish() {
	for again := true; again; {
		again = false
		for i := range w.lanes {
			for _, what := range order[1:] {
				if what != "decode-reserves" && what != "prefill-opens" && what != "prefill-lies" && w.Do(Act{int8(i), what}) {
					again = true
				}
			}
		}
	}
}
