package sim

import (
	"fmt"
	"maps"
	"strings"

	"github.com/sluicekv/sluice/internal/handoff"
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
var order = strings.Fields(`begin decode-reserves decode-is-aborted decode-stops-waiting prefill-attaches decode-takes decode-lands decode-copied
	decode-seals decode-looks decode-reads decode-frees prefill-opens prefill-computes prefill-hears prefill-sends prefill-is-aborted
	link-breaks prefill-frees prefill-dies prefill-refuses prefill-sends-torn prefill-sends-misplaced prefill-sends-to-another
	prefill-sends-again prefill-replays prefill-says-done-and-dies prefill-claims-all-and-dies prefill-claims-all-and-goes-on
	closing-is-forged prefill-ships-placeholder-as-done prefill-ships-placeholder-and-refuses`)

func init() { maps.Copy(acts, lies) }

var acts = map[string]act{
	"begin": { // an attempt, in a lane whose last one is over
		func(l *lane) bool { return !l.began || l.over() },
		(*lane).begin,
	},
	"decode-reserves": {
		func(l *lane) bool {
			return l.began && l.d.State == handoff.DecodeWaiting && l.w.decode.Stats().Free >= int(l.d.Needed)
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
		func(l *lane) bool { return l.began && !l.d.Over() },
		func(l *lane) { l.decodeTakes(handoff.AbortAsked{From: handoff.GatewayEnd, Code: verdict.ClientGone}) },
	},
	"decode-stops-waiting": {
		func(l *lane) bool { return l.d.State == handoff.DecodeCancelled },
		func(l *lane) { l.decodeTakes(handoff.ReserveEnded{}) },
	},
	"prefill-attaches": {
		func(l *lane) bool { return l.opened && l.d.State == handoff.DecodeReserved },
		func(l *lane) { l.decodeTakes(handoff.Attached{}) },
	},
	"decode-takes": { // its reader, the frame in front
		func(l *lane) bool { return len(l.link) > 0 && l.staged == nil && l.copy == nil },
		(*lane).take,
	},
	"decode-lands": { // its pool, the page in staging: the other half of the gate, the pin, and half of the copy
		func(l *lane) bool { return l.staged != nil },
		(*lane).land,
	},
	"decode-copied": { // the other half, the comparison, and the unpin
		func(l *lane) bool { return l.copy != nil },
		(*lane).endCopy,
	},
	"decode-seals": {
		func(l *lane) bool { return l.seal },
		(*lane).sealPages,
	},
	"decode-looks": { // a step of its engine begins
		func(l *lane) bool { return l.d.Running && !l.reading },
		(*lane).look,
	},
	"decode-reads": { // and ends
		func(l *lane) bool { return l.reading },
		(*lane).read,
	},
	"decode-frees": {
		func(l *lane) bool {
			return l.d.State == handoff.DecodeFencing && !l.d.Drained && (l.w.scrubD != nil || done(l.dl.Done()))
		},
		(*lane).decodeFrees,
	},
	"prefill-opens": {
		func(l *lane) bool {
			return l.began && !l.opened && l.d.State >= handoff.DecodeReserved && l.d.Reserved > 0
		},
		func(l *lane) {
			l.open()
			l.prompt()
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
				l.hearsGrant()
			} else {
				l.hearsAbort()
			}
		},
	},
	"prefill-sends": {
		func(l *lane) bool { return l.opened && (l.next < l.queued || l.closing != verdict.None) },
		func(l *lane) { l.send(nil) },
	},
	"prefill-is-aborted": {
		func(l *lane) bool { return l.opened && !l.p.Over() },
		func(l *lane) { l.prefillTakes(handoff.AbortAsked{From: handoff.GatewayEnd, Code: verdict.ClientGone}) },
	},
	"link-breaks": { // what is on it is gone, and both ends hear
		func(l *lane) bool {
			return l.opened && l.staged == nil && l.copy == nil && (len(l.link) > 0 || !l.d.Over() && l.d.State >= handoff.DecodeGranted && l.d.State < handoff.DecodeSealing)
		},
		func(l *lane) {
			l.link = nil
			l.decodeTakes(handoff.PeerLost{From: handoff.PrefillLeg})
			l.prefillTakes(handoff.PeerLost{From: handoff.DecodeLeg})
		},
	},
	"prefill-frees": {
		func(l *lane) bool {
			return l.opened && l.p.State == handoff.PrefillFencing && !l.p.Drained && (l.w.scrubP != nil || done(l.pl.Done()))
		},
		(*lane).prefillFrees,
	},
}

// decodeFrees lets the pool zero and free what it may.
func (l *lane) decodeFrees() {
	if f := l.w.scrubD; f != nil {
		l.w.scrubD = nil
		f()
	}
	if done(l.dl.Done()) {
		l.decodeTakes(handoff.LeaseDrained{})
	}
}

func (l *lane) prefillFrees() {
	if f := l.w.scrubP; f != nil {
		l.w.scrubP = nil
		f()
	}
	if done(l.pl.Done()) {
		l.prefillTakes(handoff.LeaseDrained{})
	}
}

// prompt gives prefill the whole prompt, and its pages.
func (l *lane) prompt() {
	l.prefillTakes(handoff.PromptSeen{Count: uint32(l.tokens), DigestOK: true})
	lease, err := l.w.prefill.Reserve(l.pt, int(l.p.Needed))
	if err != nil {
		l.prefillTakes(handoff.ReserveEnded{Code: verdict.PoolExhausted})
		return
	}
	l.pl = lease
	l.prefillTakes(handoff.PagesReserved{Count: l.p.Needed})
}

func (l *lane) hearsGrant() {
	l.granted = false
	l.prefillTakes(handoff.GrantSeen{Pages: l.p.Needed})
}

func (l *lane) hearsAbort() {
	c := l.abort
	l.abort = verdict.None
	if c == verdict.OK {
		c = verdict.ClientGone
	}
	l.prefillTakes(handoff.AbortAsked{From: handoff.DecodeLeg, Code: c})
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
	return l.d.State == handoff.DecodeSettled && (!l.opened || l.p.State == handoff.PrefillSettled) && l.staged == nil && l.copy == nil
}

// may reports whether an act is possible now.
func (w *World) may(a Act) bool {
	return int(a.Lane) < len(w.lanes) && acts[a.What].may(w.lanes[a.Lane])
}

// Do performs an act if it is possible, and reports whether it was.
func (w *World) Do(a Act) bool {
	if !w.may(a) {
		return false
	}
	acts[a.What].do(w.lanes[a.Lane])
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

// starts are the acts that begin something.
var starts = map[string]bool{"begin": true, "decode-reserves": true, "prefill-opens": true, "link-breaks": true}

// finish lets everything under way end: aborts, and then whatever else is possible, but no new attempt.
func (w *World) finish() {
	for again := true; again; {
		again = false
		for i := range w.lanes {
			for _, what := range order {
				if _, bad := lies[what]; !bad && !starts[what] && w.Do(Act{int8(i), what}) {
					again = true
				}
			}
		}
	}
}
