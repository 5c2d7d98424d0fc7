package legs

import "github.com/sluicekv/sluice/internal/verdict"

// Where both legs run at once, decode can fail because prefill refused, and be heard first: it waited for pages that nobody sends. What
// the client is told is prefill's to say then (its prompt is wrong, prefill is busy), so decode's failure waits for prefill's answer. It
// stands if prefill says yes, or nothing in the time that it is given (Waited). Nothing leaves meanwhile: the machine stays in Holding.

// Waited: prefill's answer was waited for long enough.
type Waited struct{}

func (Waited) event() {}

// Undecided reports whether decode failed, and prefill's answer decides what the verdict is. Who drives the machine bounds the wait.
func (m *Machine) Undecided() bool {
	return m.failure != nil || m.decodeEndedBadly() && m.mayExplain()
}

// mayExplain reports whether prefill's answer, which is not in yet, may be the reason for a failure of decode.
func (m *Machine) mayExplain() bool {
	p := m.legs[Prefill]
	return engines[m.engine].atOnce && m.state == Holding && !m.waited && !p.ended && !p.lost && !p.failed && !m.observe.Has(PrefillVerdict)
}

// decodeEndedBadly reports whether decode ended for a reason that is no reply's, or without what a reply has to say.
func (m *Machine) decodeEndedBadly() bool {
	d := m.legs[Decode]
	return d.finish == Other || d.ended && (d.finish == NoFinish || d.prompt < 0)
}

// putOff keeps a failure of decode until prefill has answered. A leg that was not reached, or that contradicts itself, fails for reasons
// of its own.
func (m *Machine) putOff(e Event, eject bool) bool {
	if eject || !m.mayExplain() {
		return false
	}
	switch e := e.(type) {
	case LegError:
		if e.Leg != Decode {
			return false
		}
	case LegLost:
		if e.Leg != Decode || e.Excused {
			return false
		}
	case LegBroke:
		if e.Leg != Decode || m.observe.Has(WireKept) {
			return false
		}
	default:
		return false
	}
	m.failure = e
	return true
}

// decide takes what comes while decode's failure waits for prefill's answer.
func (m *Machine) decide(e Event) Action {
	switch e := e.(type) {
	case LegBytes:
		if e.Leg == Decode {
			m.content += e.N // behind a refusal it is a contradiction
		}
		return Action{Do: Hold}
	case HeldFull:
		return Action{Do: Hold}
	case Waited, Deadline:
		return m.stand()
	default:
		if legOf(e) == Decode {
			return Action{Do: Hold} // it has failed: the rest is no news
		}
	}
	v, eject := m.hear(e)
	if !v.IsZero() && !m.overhear(e, &eject) {
		return m.refuse(v, eject)
	}
	if p := m.legs[Prefill]; p.ended || p.lost {
		return m.stand()
	}
	return Action{Do: Hold}
}

// stand makes decode's failure the verdict.
func (m *Machine) stand() Action {
	e, v, eject := m.failure, verdict.Verdict{}, false
	m.failure = nil
	switch e := e.(type) {
	case LegError:
		v = e.Verdict
	case LegBroke:
		v = e.Verdict
	case LegLost:
		v = verdict.Of(verdict.PeerLost, e.Leg.Layer(), "%s", e.Reason)
	}
	m.overhear(e, &eject)
	return m.refuse(v, eject)
}

// legOf is the leg that an event is of; numLegs: of none.
func legOf(e Event) Leg {
	switch e := e.(type) {
	case LegStatus:
		return e.Leg
	case LegUsage:
		return e.Leg
	case LegFinish:
		return e.Leg
	case LegHandle:
		return e.Leg
	case LegTop:
		return e.Leg
	case LegBytes:
		return e.Leg
	case LegError:
		return e.Leg
	case LegBroke:
		return e.Leg
	case LegEnd:
		return e.Leg
	case LegLost:
		return e.Leg
	case HandleLapsed:
		return Decode // it is decode that came too late
	}
	return numLegs
}
