package legs

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

func anyEvent(t *rapid.T) Event {
	leg := Leg(rapid.IntRange(0, 1).Draw(t, "leg"))
	few := func(name string, vs ...int) int { return rapid.SampledFrom(vs).Draw(t, name) }
	switch rapid.IntRange(0, 18).Draw(t, "event") {
	case 0:
		return LegStatus{leg, few("status", 200, 200, 200, 500)}
	case 1, 2, 3:
		return LegUsage{leg, few("prompt", -1, 8, 8, 8, 1), few("completion", -1, 0, 1, 2)}
	case 4, 5:
		return LegFinish{leg, Finish(few("finish", int(Stop), int(Length), int(Length), int(Other)))}
	case 6, 7, 8, 9:
		return LegHandle{leg, Handle{State: HandleState(few("state", int(Ours), int(Ours), int(Ours), int(Foreign))), Pages: uint32(few("pages", 1, 1, 2)),
			Digest: [32]byte{byte(few("digest", 0xd1, 0xd1, 0xd2))}, Root: [32]byte{byte(few("root", 1, 1, 2))}}}
	case 10, 11, 12:
		return LegBytes{Decode, few("n", 1, 1, 2)}
	case 13:
		return LegError{leg, verdict.Of(verdict.Code(few("code", int(verdict.PoolExhausted), int(verdict.TagMismatch))), leg.Layer(), "no")}
	case 14:
		return LegLost{Leg: leg, Reason: "lost"}
	case 15:
		return []Event{Deadline{}, ClientGone{}}[few("end", 0, 1)]
	}
	return LegEnd{leg}
}

// story is what a reader of the events alone would say of them: an oracle that shares no code with the machine.
type story struct {
	prompt [2]int
	handle [2]*Handle
	ended  [2]bool
	no     bool // somebody said no, or time is up, or the client is gone
	bytes  int
	done   int // completion that decode said
	finish Finish
}

func (s *story) hear(e Event) {
	switch e := e.(type) {
	case LegUsage:
		if e.Prompt >= 0 {
			s.prompt[e.Leg] = e.Prompt
		}
		if e.Leg == Decode && e.Completion >= 0 {
			s.done = e.Completion
		}
	case LegHandle:
		h := e.Handle
		s.handle[e.Leg] = &h
	case LegBytes:
		s.bytes += e.N
	case LegFinish:
		if e.Leg == Decode {
			s.finish = e.Reason
		}
	case LegEnd:
		s.ended[e.Leg] = true
	case LegError, Deadline, ClientGone, Withdrawn:
		s.no = true
	}
}

// Nothing leaves a native attempt unless prefill's verdict is in and good, and both legs and the plan say the same; and one
// verdict is never replaced.
func TestNothingLeavesBeforeTheLegsAgree(t *testing.T) {
	if guard.Unsafe {
		t.Skip("guards are out in other tests of this build")
	}
	released, completed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		x := expect()
		m := New(Native, rapid.Bool().Draw(t, "streamed"), x, 0)
		s := story{prompt: [2]int{-1, -1}}
		var first verdict.Verdict
		rest := honest()
		for range rapid.IntRange(10, 25).Draw(t, "events") {
			// Mostly an honest attempt, so that there is something to release, with anything in between.
			e, leg := Event(nil), rapid.IntRange(0, 1).Draw(t, "whose")
			if len(rest[leg]) > 0 && rapid.IntRange(0, 19).Draw(t, "honest") < 18 {
				e, rest[leg] = rest[leg][0], rest[leg][1:]
			} else {
				e = anyEvent(t)
			}
			was := m.State()
			s.hear(e)
			var act Action
			m, act = m.Step(e)
			switch act.Do {
			case Release, Pass, Complete:
				p, d := s.handle[Prefill], s.handle[Decode]
				if was == Refused || s.no {
					t.Fatalf("%v after a no", act.Do)
				}
				if !s.ended[Prefill] || s.prompt[Prefill] != 8 || s.prompt[Decode] != 8 {
					t.Fatalf("%v though prefill's verdict or a count is missing: %+v", act.Do, s)
				}
				if p == nil || d == nil || *p != *d || d.State != Ours || d.Digest != x.Digest {
					t.Fatalf("%v though the handles differ", act.Do)
				}
				released++
				if act.Do == Complete && (!s.ended[Decode] || s.done != s.bytes || s.finish == NoFinish) {
					t.Fatalf("complete though decode did not end well: %+v", s)
				}
				if act.Do == Complete {
					completed++
				}
			case Hold:
				if was != Holding {
					t.Fatalf("held in state %v", was)
				}
			}
			if v := m.Verdict(); !first.IsZero() && v != first {
				t.Fatalf("verdict %v became %v", first, v)
			}
			first = m.Verdict()
			if (m.State() == Refused || m.State() == Completed) != !first.IsZero() {
				t.Fatalf("state %v with verdict %v", m.State(), first)
			}
		}
	})
	if (released == 0 || completed == 0) && !testing.Short() { // a few draws may be of no honest attempt
		t.Errorf("%d actions let content pass, %d replies completed: nothing was tested", released, completed)
	}
}

func honest() [2][]Event {
	h := Handle{State: Ours, Digest: [32]byte{0xd1}, Root: [32]byte{1}, Pages: 1}
	return [2][]Event{
		{LegUsage{Prefill, 8, -1}, LegHandle{Prefill, h}, LegEnd{Prefill}},
		{LegStatus{Decode, 200}, LegHandle{Decode, h}, LegUsage{Decode, 8, -1}, LegBytes{Decode, 2}, LegUsage{Decode, 8, 2}, LegFinish{Decode, Stop}, LegEnd{Decode}},
	}
}

// An honest attempt, its two legs interleaved in any way, is served.
func TestHonestLegsAreServedInAnyOrder(t *testing.T) {
	legs := honest()
	rapid.Check(t, func(t *rapid.T) {
		m := New(Native, rapid.Bool().Draw(t, "streamed"), expect(), 0)
		var act Action
		for i := [2]int{}; i[0] < len(legs[0]) || i[1] < len(legs[1]); {
			l := rapid.IntRange(0, 1).Draw(t, "leg")
			if i[l] == len(legs[l]) {
				l = 1 - l
			}
			m, act = m.Step(legs[l][i[l]])
			i[l]++
			if act.Do == Refuse {
				t.Fatalf("refused: %v", act.Verdict)
			}
		}
		if act.Do != Complete || m.State() != Completed {
			t.Fatalf("ended with %v in state %v", act.Do, m.State())
		}
		if p, c := m.Usage(); p != 8 || c != 2 {
			t.Fatalf("usage %d, %d", p, c)
		}
	})
}

func TestExplainNamesEveryNeedAndEngine(t *testing.T) {
	var b strings.Builder
	if err := Explain(&b); err != nil {
		t.Fatal(err)
	}
	for n := range numNeeds {
		if !strings.Contains(b.String(), n.What()) {
			t.Errorf("need %v is not explained", n)
		}
	}
	for e := range numEngines {
		if strings.Count(b.String(), "\n"+e.String()+" ") != 4 {
			t.Errorf("engine %v does not have four rows", e)
		}
	}
}

// Prefill's refusal is the verdict, however much earlier decode's failure is heard; and nothing leaves either way.
func TestPrefillsNoDecidesInAnyOrder(t *testing.T) {
	if guard.Unsafe {
		t.Skip("guards are out in other tests of this build")
	}
	no := LegError{Prefill, verdict.Of(verdict.Overloaded, verdict.Prefill, "busy")}
	failures := []Event{
		LegError{Decode, verdict.Of(verdict.EngineFailed, verdict.Decode, "500")}, LegLost{Leg: Decode, Reason: "lost"},
		LegBroke{Decode, verdict.Of(verdict.EngineFailed, verdict.Decode, "an error under 200"), false}, LegBroke{Decode, verdict.Of(verdict.EngineFailed, verdict.Decode, "an error in a stream"), true}, LegFinish{Decode, Other},
	}
	rapid.Check(t, func(t *rapid.T) {
		m := New(rapid.SampledFrom([]Engine{SGLang, VLLMMooncake}).Draw(t, "engine"), rapid.Bool().Draw(t, "streamed"), Expect{}, 0)
		decode := []Event{LegStatus{Decode, 200}, LegUsage{Decode, 8, -1}, LegBytes{Decode, 1}, LegUsage{Decode, 8, 1}}
		decode = append(decode[:rapid.IntRange(0, len(decode)).Draw(t, "before")], rapid.SampledFrom(failures).Draw(t, "failure"), LegEnd{Decode})
		at := rapid.IntRange(0, len(decode)).Draw(t, "prefill")
		for _, e := range append(decode[:at:at], append([]Event{no}, decode[at:]...)...) {
			var act Action
			m, act = m.Step(e)
			if act.Do == Release || act.Do == Pass || act.Do == Complete {
				t.Fatalf("%v on %+v", act.Do, e)
			}
		}
		if m.Verdict() != no.Verdict {
			t.Fatalf("the verdict is %v", m.Verdict())
		}
	})
}
