package legs

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Expect is what the plan says, for the legs to agree with.
type Expect struct {
	PromptTokens int      // 0: not counted here
	MaxTokens    int      // completion tokens at most; 0: no bound known
	Digest       [32]byte // zero: the engine has none
	UsageAtEnd   bool     // decode's prompt tokens need not be known before a stream begins
	FirstToken   float32  // nats by which the legs' logprobs of the token after the prompt may differ; 0: not compared
}

// State of a Machine.
type State uint8

const (
	Holding State = iota
	Released
	Refused
	Completed
)

func (s State) String() string {
	return [...]string{"holding", "released", "refused", "completed"}[s]
}

// Machine reconciles one attempt. It is a comparable value; make it with New.
type Machine struct {
	engine   Engine
	streamed bool
	expect   Expect
	observe  Needs // of these, a breach is noted and the reply goes on
	state    State
	legs     [numLegs]said
	content  int             // units that came from decode
	full     bool            // HeldFull
	apart    verdict.Verdict // the legs' words on the token after the prompt, if they differ
	spoke    Needs
	why      [numNeeds]string // of those that spoke
	verdict  verdict.Verdict
	failure  Event // decode's, that waits for prefill's answer; nil: none
	waited   bool  // prefill's answer is not waited for any longer
}

// said is what one leg has said so far.
type said struct {
	status             int // 0: nothing
	prompt, completion int // -1: nothing
	finish             Finish
	handle             Handle
	top                Top // of the token after the prompt
	ended, lost        bool
	no                 bool // it said no
	// It said no, broke off or broke the rules of its wire: what else it did not say is no news.
	failed bool
}

// New starts the machine of an attempt. Needs in observe are only noted; natively it is empty.
func New(e Engine, streamed bool, x Expect, observe Needs) Machine {
	m := Machine{engine: e, streamed: streamed, expect: x, observe: observe}
	for i := range m.legs {
		m.legs[i].prompt, m.legs[i].completion = -1, -1
	}
	return m
}

// State of the machine.
func (m *Machine) State() State { return m.state }

// Verdict is the attempt's, zero while it has none.
func (m *Machine) Verdict() verdict.Verdict { return m.verdict }

// Spoke is the needs that objected, enforced or observed.
func (m *Machine) Spoke() Needs { return m.spoke }

// Said is what need n objected to, if a comparison did: numbers and ids.
func (m *Machine) Said(n Need) string { return m.why[n] }

// Usage is what the legs computed: prompt tokens that decode holds (what prefill computed, where decode does not say), and
// completion tokens. Never what was planned.
func (m *Machine) Usage() (prompt, completion int) {
	prompt = m.legs[Decode].prompt
	if prompt < 0 {
		prompt = m.legs[Prefill].prompt
	}
	return max(prompt, 0), max(m.legs[Decode].completion, 0)
}

// Finish is decode's finish reason.
func (m *Machine) Finish() Finish { return m.legs[Decode].finish }

// Step takes one event.
func (m Machine) Step(e Event) (Machine, Action) {
	act := m.Take(e)
	return m, act
}

// Take is Step in place: for who keeps a machine for each of ten thousand streams and steps it with each chunk.
func (m *Machine) Take(e Event) Action {
	if m.state == Refused || m.state == Completed {
		return m.after(e)
	}
	if m.failure != nil {
		return m.decide(e)
	}
	if v, eject := m.hear(e); !v.IsZero() {
		if m.putOff(e, eject) {
			return Action{Do: Hold}
		}
		if !m.overhear(e, &eject) {
			return m.refuse(v, eject)
		}
	}
	if m.state == Holding {
		answer := m.judge(m.row(FirstByte))
		switch {
		case answer.broken():
			return m.refuse(answer.verdict, answer.eject())
		case answer.agreed():
			m.state = Released
			if act := m.end(); act.Do != Pass {
				return act
			}
			return Action{Do: Release}
		}
		return Action{Do: Hold}
	}
	return m.end()
}

// end judges the last phase once content may leave.
func (m *Machine) end() Action {
	answer := m.judge(m.row(End))
	switch {
	case answer.broken():
		return m.refuse(answer.verdict, answer.eject())
	case answer.agreed():
		m.state = Completed
		m.verdict = verdict.Served(verdict.Decode)
		return Action{Do: Complete, Verdict: m.verdict}
	}
	return Action{Do: Pass}
}

// after is what comes for an attempt that has its verdict. Nothing changes the verdict; a refusal that comes behind a success
// still says that the pair cannot be trusted, and so does a reply behind prefill's refusal. Guards that only observe go on noting.
func (m *Machine) after(e Event) Action {
	act := Action{Do: Swallow}
	switch e := e.(type) {
	case LegError:
		if m.state == Completed {
			act.Eject = e.Verdict.Code.About().Proof
		}
	case LegBytes:
		if m.state == Refused && m.contradicts(e) {
			act.Eject = m.legs[Prefill].no
		}
	case LegEnd:
		if p := m.legs[Prefill]; e.Leg == Prefill && m.engine != Native && m.state == Refused && m.legs[Decode].no && !p.failed {
			m.legs[Prefill].ended = true
			m.answered(LegError{Decode, m.verdict})
		}
	case LegBroke:
		if m.state == Completed && m.engine != Native && e.Leg == Decode {
			m.spoke |= Of(WireKept) // none of it leaves: the reply is complete
		}
	}
	if m.state == Completed && m.observe != 0 {
		if v, _ := m.hear(e); !v.IsZero() {
			m.overhear(e, new(bool))
		}
		m.judge(m.row(End))
	}
	return act
}

// contradicts notes content of decode behind a prefill that said no or broke off.
func (m *Machine) contradicts(e LegBytes) bool {
	p := m.legs[Prefill]
	if m.engine == Native || e.Leg != Decode || e.N == 0 || !p.no && !p.lost || m.spoke.Has(PrefillVerdict) {
		return false
	}
	m.spoke |= Of(PrefillVerdict)
	return true
}

// answered notes a leg's no that nothing of the client's explains: the engine failed, or decode refused what prefill computed. It is no
// proof of anything, and it is no reply either.
func (m *Machine) answered(e LegError) {
	p := m.legs[Prefill]
	switch e.Verdict.Code {
	case verdict.EngineFailed, verdict.Deadline:
	case verdict.BadRequest, verdict.ContextLength:
		if e.Leg == Prefill || engines[m.engine].legs == 1 || !p.ended || p.failed {
			return
		}
	default:
		return
	}
	m.spoke |= Of(Answered)
}

// overhear takes a no that an event was by itself, from a foreign engine: it is noted under the need that it breaks, and reports
// whether that need is only observed, so that the reply goes on.
func (m *Machine) overhear(e Event, eject *bool) bool {
	if m.engine == Native {
		return false
	}
	var n Need
	switch e := e.(type) {
	case LegError:
		m.legs[e.Leg].no, m.legs[e.Leg].failed = true, true
		m.answered(e)
		if e.Leg == Decode {
			return false // an error is the engine's own answer
		}
		// Decode can have nothing to say about a prompt that prefill refused. A refusal alone, heard, is no incident.
		if n = PrefillVerdict; m.content == 0 {
			return m.observe.Has(n)
		}
		*eject = true
	case LegLost:
		m.legs[e.Leg].failed = true
		if !e.Excused {
			m.spoke |= Of(Answered)
		}
		if e.Leg == Decode {
			return false
		}
		if n = PrefillVerdict; m.content == 0 {
			return m.observe.Has(n)
		}
	case Deadline:
		if !e.Short {
			m.spoke |= Of(Answered)
		}
		return false
	case LegBroke:
		n = WireKept
		m.legs[e.Leg].failed = true
		if e.Failed { // it is an answer like a 5xx, and no breach
			m.answered(LegError{e.Leg, e.Verdict})
			return m.observe.Has(n)
		}
		if e.Leg == Prefill {
			n = PrefillVerdict
			m.legs[Prefill].ended = true
		}
	case LegUsage:
		n = PromptAgree
	case LegHandle, HandleLapsed:
		n = PrefillHandle
	case LegTop:
		n = FirstToken
	case LegStatus, LegFinish, LegBytes, LegEnd:
		n = WireKept
	default:
		return false
	}
	m.spoke |= Of(n)
	return m.observe.Has(n)
}

func (m *Machine) refuse(v verdict.Verdict, eject bool) Action {
	m.state, m.verdict = Refused, v
	act := Action{Do: Refuse, Verdict: v, Eject: eject || v.Code.About().Proof, Settle: true}
	if engines[m.engine].abort {
		for i := range m.legs {
			has := Leg(i) == Decode || engines[m.engine].legs > 1
			act.Abort[i] = has && !m.legs[i].ended && !m.legs[i].lost
		}
	}
	return act
}

// hear notes what an event says. A verdict ends the attempt: an event can be a no by itself.
func (m *Machine) hear(e Event) (v verdict.Verdict, eject bool) {
	switch e := e.(type) {
	case LegStatus:
		return m.say(e.Leg, "status", func(s *said) bool {
			ok := s.status == 0 || s.status == e.Status
			s.status = e.Status
			return ok
		})
	case LegUsage:
		return m.say(e.Leg, "usage", func(s *said) bool {
			// Usage may come with every chunk: the prompt stays, the completion grows.
			ok := (e.Prompt < 0 || s.prompt < 0 || s.prompt == e.Prompt) && (e.Completion < 0 || s.completion <= e.Completion)
			if e.Prompt >= 0 {
				s.prompt = e.Prompt
			}
			if e.Completion >= 0 {
				s.completion = e.Completion
			}
			return ok
		})
	case LegFinish:
		return m.say(e.Leg, "finish reason", func(s *said) bool {
			ok := s.finish == NoFinish || s.finish == e.Reason
			s.finish = e.Reason
			return ok
		})
	case LegHandle:
		return m.say(e.Leg, "handle", func(s *said) bool {
			ok := s.handle == (Handle{}) || s.handle == e.Handle
			s.handle = e.Handle
			return ok
		})
	case LegTop:
		v, eject = m.say(e.Leg, "logprobs", func(s *said) bool {
			ok := s.top.N == 0 || s.top == e.Top
			s.top = e.Top
			return ok
		})
		m.compareTops()
		return v, eject
	case HandleLapsed:
		// Whose pages they are now nobody says. It is decode that came too late: the pair is not at fault.
		v = verdict.Of(verdict.EngineFailed, verdict.Decode, "prefill's handle lapsed before decode had read it: %s", e.Why)
		v.Status = 502
		return v, false
	case LegBytes:
		v, eject = m.say(e.Leg, "content", func(*said) bool { return true })
		if e.Leg == Decode {
			m.content += e.N
			m.contradicts(e)
		}
		if most := m.expect.MaxTokens; v.IsZero() && m.engine == Native && m.content > most {
			v = verdict.Of(verdict.ProtocolViolation, e.Leg.Layer(), "%s sent %d tokens of at most %d", e.Leg, m.content, most)
		}
		return v, eject
	case LegError:
		return m.hearNo(e)
	case LegBroke:
		return e.Verdict, false
	case HeldFull:
		m.full = true
		return v, false
	case Waited:
		m.waited = true
		return v, false
	case LegEnd:
		return m.say(e.Leg, "end", func(s *said) bool { s.ended = true; return true })
	case LegLost:
		s := &m.legs[e.Leg]
		if s.ended {
			return v, false
		}
		s.lost = true
		if e.Leg == Prefill && guard.Off(guard.Hold) && guard.Off(guard.Verdict) {
			return v, false
		}
		return verdict.Of(verdict.PeerLost, e.Leg.Layer(), "%s", e.Reason), false
	case Deadline:
		return m.late(), false
	case ClientGone:
		return verdict.Of(verdict.ClientGone, verdict.Stream, "the client closed the connection"), false
	case Withdrawn:
		return e.Verdict, false
	}
	panic(fmt.Sprintf("legs: unknown event %T in state %s", e, m.state))
}

// say notes something that a leg said once, or says again in the same words. A leg that contradicts itself, or speaks after its
// end, cannot be trusted about what it did.
func (m *Machine) say(l Leg, what string, note func(*said) (consistent bool)) (verdict.Verdict, bool) {
	if m.legs[l].ended {
		return verdict.Of(verdict.ProtocolViolation, l.Layer(), "%s sent more (%s) after its end", l, what), false
	}
	if !note(&m.legs[l]) {
		return verdict.Of(verdict.LegsDisagree, verdict.Legs, "%s contradicts its own %s", l, what), true
	}
	return verdict.Verdict{}, false
}

// hearNo takes a leg's refusal: the one verdict that every layer hears (guard verdict). With that guard out, the hold alone still
// sees that prefill's word is no success.
func (m *Machine) hearNo(e LegError) (verdict.Verdict, bool) {
	s := &m.legs[e.Leg]
	if s.ended {
		return verdict.Of(verdict.LegsDisagree, verdict.Legs, "%s ended well and then said %s", e.Leg, e.Verdict.Code), true
	}
	s.ended = true
	if e.Leg == Prefill && guard.Off(guard.Verdict) && guard.Off(guard.Hold) {
		return verdict.Verdict{}, false
	}
	return e.Verdict, false
}

// late is the verdict of a deadline: it names the layer that was waited for.
func (m *Machine) late() verdict.Verdict {
	p, d := m.legs[Prefill], m.legs[Decode]
	layer, waited := verdict.Decode, "decode's reply to end"
	switch {
	case m.state == Released:
	case m.engine != Native:
		if engines[m.engine].legs > 1 && !p.ended {
			layer, waited = verdict.Prefill, "prefill's answer"
		}
	case d.status == 0 && d.prompt < 0:
		layer, waited = verdict.Reserve, "decode to reserve pages"
	case engines[m.engine].legs > 1 && !p.ended:
		layer, waited = verdict.Prefill, "prefill's verdict"
	case m.engine == Native && d.handle.State == Missing:
		layer, waited = verdict.Seal, "decode to seal the pages"
	}
	return verdict.Of(verdict.Deadline, layer, "out of time while waiting for %s", waited)
}
