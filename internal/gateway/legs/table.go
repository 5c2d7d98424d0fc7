package legs

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Engine is a row of the table.
type Engine uint8

const (
	Native Engine = iota
	VLLMNixl
	VLLMMooncake
	SGLang
	Plain
	numEngines
)

func (e Engine) String() string { return engines[e].name }

// engines is what differs between engines beside what must agree.
var engines = [numEngines]struct {
	name   string
	legs   int
	run    string // how the legs run
	atOnce bool   // decode is asked before prefill has answered, and fails if prefill does
	abort  bool   // an abort cannot itself start a late write (natively the gate stands where bytes land)
}{
	Native:       {"native", 2, "plan, then both", false, true},
	VLLMNixl:     {"vllm-nixl", 2, "prefill, then decode", false, false},
	VLLMMooncake: {"vllm-mooncake", 2, "both, transfer_id", true, false},
	SGLang:       {"sglang", 2, "both, bootstrap room", true, false},
	Plain:        {"plain", 1, "one", false, true},
}

// Phase of a reply at which things must agree.
type Phase uint8

const (
	FirstByte Phase = iota // before anything leaves, the status included
	End                    // before the reply is finished well
	numPhases
)

func (p Phase) String() string { return [...]string{"first byte", "end"}[p] }

// Needs is a set of needs.
type Needs uint32

// Has reports whether n is in the set.
func (s Needs) Has(n Need) bool { return s&(1<<n) != 0 }

// Of makes a set.
func Of(ns ...Need) (s Needs) {
	for _, n := range ns {
		s |= 1 << n
	}
	return s
}

// All yields the needs of the set.
func (s Needs) All(yield func(Need) bool) {
	for n := range numNeeds {
		if s.Has(n) && !yield(n) {
			return
		}
	}
}

// Need is one thing that must agree.
type Need uint8

const (
	Spoken            Need = iota // decode has something to say: content, or its end
	PrefillVerdict                // prefill's verdict is in and good
	Sealed                        // decode holds pages that it verified as this attempt's
	PromptCounts                  // prefill computed, decode holds and the plan says the same number of tokens
	PromptAgree                   // the legs say the same number of prompt tokens, at least 1
	Digests                       // the legs computed from the plan's token ids
	Roots                         // what landed is what was sent
	PageCounts                    // as many pages landed as were sent
	StatusOK                      // each leg answered 200
	PrefillFinish                 // prefill made its one token: finish "length", completion 1
	PrefillHandle                 // prefill's handle is there, fresh, ours
	FirstToken                    // the legs say alike what follows the prompt
	DecodeEnded                   // decode's marked end
	FinishSaid                    // decode said why it ended
	CompletionCounted             // decode says as many tokens as came
	WireKept                      // decode's reply keeps the rules of its wire
	Answered                      // each leg that was asked answers, to its end
	numNeeds
)

// answer to a need or a row.
type answer struct {
	met     bool
	need    Need
	verdict verdict.Verdict // of a breach
	silent  Leg             // 1 + the leg that did not say what it has to; 0: what was said is wrong
}

func (a answer) agreed() bool { return a.met }
func (a answer) broken() bool { return !a.verdict.IsZero() }
func (a answer) eject() bool  { return a.verdict.Code.About().Proof }

var (
	agreed  = answer{met: true}
	waiting = answer{}
)

func broken(format string, args ...any) answer {
	return answer{verdict: verdict.Of(verdict.LegsDisagree, verdict.Legs, format, args...)}
}

// unsaid is a breach too: leg l ended and did not say what it has to.
func unsaid(l Leg, format string, args ...any) answer {
	a := broken(format, args...)
	a.silent = 1 + l
	return a
}

// need is one row of what the machine can compare. Under guard hold natively: with it out, the need counts as met.
type need struct {
	name  string
	guard guard.Guard // 0: a reply without it cannot be finished at all
	what  string
	cost  string
	check func(m *Machine) answer
}

const free = "none: it waits for what is sent anyway"

var needs = [numNeeds]need{
	Spoken: {"spoken", 0, "decode has something to say: a refusal before that is still a status", free, func(m *Machine) answer {
		return when(m.content > 0 || m.full || m.legs[Decode].ended)
	}},
	PrefillVerdict: {"prefill-verdict", guard.Hold, "prefill's verdict is in, and it is not a no", free, func(m *Machine) answer {
		return when(m.legs[Prefill].ended)
	}},
	Sealed: {"sealed", guard.Hold, "decode sealed pages that it verified as this attempt's, and its echo agreed", free, func(m *Machine) answer {
		return m.handle(Decode)
	}},
	PromptCounts: {"prompt-counts", guard.Hold, "prompt tokens: computed by prefill = held by decode = planned", free, func(m *Machine) answer {
		p, d := m.legs[Prefill].prompt, m.legs[Decode].prompt
		for _, n := range []int{p, d} {
			if n >= 0 && n != m.expect.PromptTokens {
				return broken("prompt tokens: %d planned, prefill computed %s, decode holds %s", m.expect.PromptTokens, count(p), count(d))
			}
		}
		return when(p >= 0 && d >= 0)
	}},
	PromptAgree: {"prompt-agree", guard.Hold, "prompt tokens: prefill's usage = decode's usage, at least 1", "usage is injected into streams and stripped for clients that did not ask", func(m *Machine) answer {
		p, d := m.legs[Prefill].prompt, m.legs[Decode].prompt
		if p == 0 || d == 0 || p > 0 && d > 0 && p != d {
			return broken("prompt tokens: prefill says %s, decode says %s", count(p), count(d))
		}
		for l, n := range [numLegs]int{p, d} {
			if m.legs[l].ended && n < 0 {
				return unsaid(Leg(l), "prompt tokens: prefill says %s, decode says %s, and has ended", count(p), count(d))
			}
		}
		// A reply that is longer than what may be held: decode's count is compared when it comes.
		return when(p > 0 && (d > 0 || (m.full || m.expect.UsageAtEnd) && m.state == Holding))
	}},
	Digests: {"digests", guard.Hold, "digest of the token ids: prefill's = decode's = the plan's", "one SHA-256 over the ids", func(m *Machine) answer {
		return m.compare("digests", func(h Handle) [32]byte { return h.Digest }, m.expect.Digest)
	}},
	Roots: {"roots", guard.Hold, "root over the page MACs: prefill's = decode's", free, func(m *Machine) answer {
		return m.compare("roots", func(h Handle) [32]byte { return h.Root }, m.legs[Prefill].handle.Root)
	}},
	PageCounts: {"page-counts", guard.Hold, "pages: sent by prefill = held by decode", free, func(m *Machine) answer {
		p, d := m.legs[Prefill].handle, m.legs[Decode].handle
		if p.State == Missing || d.State == Missing {
			return waiting
		}
		if p.Pages != d.Pages {
			return broken("pages: prefill sent %d, decode holds %d", p.Pages, d.Pages)
		}
		return agreed
	}},
	StatusOK: {"status", guard.Hold, "each leg answers 200", free, func(m *Machine) answer {
		for l := range Leg(engines[m.engine].legs) {
			l = Decode - l
			switch s := m.legs[l].status; {
			case l == Prefill && s == 0 && m.observe.Has(PrefillVerdict):
				// Not waited for: what it says is noted when it comes.
			case s == 0:
				return waiting
			case s != 200:
				return answer{verdict: verdict.Of(verdict.EngineFailed, l.Layer(), "%s answered %d", l, s)}
			}
		}
		return agreed
	}},
	PrefillFinish: {"prefill-finish", guard.Hold, `prefill made its one token: completion 1, finish "length" (or "stop" where the first token ended the text)`, free, func(m *Machine) answer {
		p := m.legs[Prefill]
		if p.finish == NoFinish || p.completion < 0 {
			if p.ended {
				return unsaid(Prefill, "prefill ended without saying that it made its one token")
			}
			return waiting
		}
		// With Mooncake a prefill that stops hands nothing over, so it is asked for a token whatever that is.
		if p.completion != 1 || p.finish != Length && (p.finish != Stop || m.engine == VLLMMooncake) {
			return broken("prefill finished with %q and %d tokens, not with \"length\" and 1", p.finish, p.completion)
		}
		return agreed
	}},
	PrefillHandle: {"prefill-handle", guard.Hold, "prefill's handle is present, fresh, of this attempt and of the worker that was asked; NIXL: and prefill still kept what it names when decode read it", "none; where decode speaks later than hold.lease after prefill: a request of one token and a reading of /metrics at prefill", func(m *Machine) answer {
		a := m.handle(Prefill)
		if a == waiting && m.legs[Prefill].ended {
			return unsaid(Prefill, "prefill ended without a handle")
		}
		return a
	}},
	FirstToken: {"first-token", guard.Hold, "logprobs of the token after the prompt: prefill's, from the KV that it computed = decode's, from the KV that it was handed (off unless told otherwise)",
		"one more position of top logprobs on prefill, top logprobs of every token on decode; both are stripped for clients that did not ask", (*Machine).firstToken},
	DecodeEnded: {"decode-ended", 0, "decode's end is marked: a stream that just ends is an error", free, func(m *Machine) answer {
		return when(m.legs[Decode].ended)
	}},
	FinishSaid: {"finish", 0, "decode says why it ended", free, func(m *Machine) answer {
		d := m.legs[Decode]
		switch {
		case d.finish == Other && m.mayExplain():
			return waiting
		case d.finish == NoFinish && d.ended:
			return answer{verdict: verdict.Of(verdict.ProtocolViolation, verdict.Decode, "decode ended without a finish reason"), silent: 1 + Decode}
		case d.finish == Other:
			v := verdict.Of(verdict.EngineFailed, verdict.Decode, "decode ended for a reason that is no reply's")
			if m.engine != Native {
				v.Status = 502 // another's engine: this one is a gateway
			}
			return answer{verdict: v}
		}
		return when(d.finish != NoFinish)
	}},
	CompletionCounted: {"completion-count", 0, "completion tokens: said by decode = received", free, func(m *Machine) answer {
		d := m.legs[Decode]
		if d.ended && d.completion != m.content {
			return broken("completion tokens: decode says %s, %d came", count(d.completion), m.content)
		}
		return when(d.ended)
	}},
	WireKept: {"wire", 0, "decode's reply keeps its wire's rules: one id, no error under 200, no empty success, no choice and no more tokens than were asked for, [DONE] in its place", free, func(m *Machine) answer {
		if n, most := m.legs[Decode].completion, m.expect.MaxTokens; most > 0 && n > most {
			return answer{verdict: verdict.Of(verdict.ProtocolViolation, verdict.Decode, "decode says that it made %d tokens, of at most %d", n, most)}
		}
		return agreed // other breaches are events of their own
	}},
	Answered: {"answered", 0, "each leg that was asked answers, to its end, and decode takes what prefill computed: else the attempt fails and is counted, the pair stays in use", free, func(m *Machine) answer {
		return agreed // a breach is an event of its own
	}},
}

func when(ok bool) answer {
	if ok {
		return agreed
	}
	return waiting
}

func count(n int) string {
	if n < 0 {
		return "nothing"
	}
	return fmt.Sprint(n)
}

// handle judges one leg's handle.
func (m *Machine) handle(l Leg) answer {
	switch m.legs[l].handle.State {
	case Ours:
		return agreed
	case Foreign:
		return broken("%s's handle belongs to another attempt or worker%s", l, why(m.legs[l].handle))
	case Stale:
		return broken("%s's handle is too old%s", l, why(m.legs[l].handle))
	}
	return waiting
}

func why(h Handle) string {
	if h.Why == "" {
		return ""
	}
	return ": " + h.Why
}

// compare holds a value of both handles against want, as far as they are there.
func (m *Machine) compare(what string, of func(Handle) [32]byte, want [32]byte) answer {
	p, d := m.legs[Prefill].handle, m.legs[Decode].handle
	if p.State == Missing || d.State == Missing {
		return waiting
	}
	if pv, dv := of(p), of(d); pv != want || dv != want {
		return broken("%s differ: prefill %x, decode %x, expected %x", what, pv[:4], dv[:4], want[:4])
	}
	return agreed
}

// row is what must agree in a phase of one kind of reply.
type row struct {
	engine   Engine
	streamed bool
	phase    Phase
	needs    Needs
}

// The table of contracts 6. A reply that is not streamed has one moment at which anything leaves, so it needs all of it there.
var table = func() (t [numEngines][2][numPhases]row) {
	last := Of(DecodeEnded, FinishSaid, CompletionCounted)
	foreignLast := Of(DecodeEnded, FinishSaid, WireKept, Answered)
	first := [numEngines]Needs{
		Native:       Of(PrefillVerdict, Sealed, PromptCounts, Digests, Roots, PageCounts),
		VLLMNixl:     Of(StatusOK, PrefillVerdict, PrefillFinish, PrefillHandle, PromptAgree, FirstToken),
		VLLMMooncake: Of(StatusOK, PrefillVerdict, PrefillFinish, PrefillHandle, PromptAgree, FirstToken),
		SGLang:       Of(StatusOK, PrefillVerdict, PrefillFinish, PromptAgree),
		Plain:        Of(StatusOK),
	}
	end := [numEngines]Needs{
		Native:       first[Native] | last,
		VLLMNixl:     first[VLLMNixl] | foreignLast,
		VLLMMooncake: first[VLLMMooncake] | foreignLast,
		SGLang:       first[SGLang] | foreignLast,
		Plain:        first[Plain] | foreignLast,
	}
	for e := range numEngines {
		first[e] |= Of(Spoken)
		t[e][1] = [numPhases]row{{e, true, FirstByte, first[e]}, {e, true, End, end[e]}}
		t[e][0] = [numPhases]row{{e, false, FirstByte, end[e]}, {e, false, End, end[e]}}
	}
	return t
}()

func (m *Machine) row(p Phase) row {
	s := 0
	if m.streamed {
		s = 1
	}
	return table[m.engine][s][p]
}

// judge asks every need of a row: the first enforced breach, else whether all are met.
func (m *Machine) judge(r row) answer {
	all := agreed
	for n := range r.needs.All {
		if g := needs[n].guard; g != 0 && guard.Off(g) {
			continue
		}
		a := needs[n].check(m)
		if a.silent == 1+Decode && m.mayExplain() {
			a = waiting
		}
		if a.broken() {
			if a.silent > 0 && m.legs[a.silent-1].failed && m.observe.Has(n) {
				continue
			}
			m.spoke |= 1 << n
			m.why[n] = a.verdict.Reason
			if m.observe.Has(n) {
				continue
			}
			a.need = n
			return a
		}
		if !a.met && !m.observe.Has(n) {
			all = waiting
		}
	}
	return all
}

// Name and What of a need, and the guard it belongs to ("" for what no reply can be finished without).
func (n Need) String() string { return needs[n].name }
func (n Need) What() string   { return needs[n].what }
func (n Need) Guard() string  { return needs[n].guard.String() }

// Cost of comparing it.
func (n Need) Cost() string { return needs[n].cost }

// Explain prints the table: what must agree, when, under which guard, at what cost.
func Explain(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "ENGINE\tLEGS RUN\tREPLY\tBEFORE\tMUST AGREE")
	for e := range numEngines {
		for s, kind := range []string{"whole", "streamed"} {
			for p := range numPhases {
				var names []string
				for n := range table[e][s][p].needs.All {
					names = append(names, n.String())
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", e, engines[e].run, kind, p, strings.Join(names, ", "))
			}
		}
	}
	fmt.Fprintln(tw, "\nNEED\tGUARD\tWHAT\t\tCOST")
	for n := range numNeeds {
		fmt.Fprintf(tw, "%s\t%s\t%s\t\t%s\n", n, n.Guard(), n.What(), needs[n].cost)
	}
	return tw.Flush()
}

// Legs is how many legs the engine runs.
func (e Engine) Legs() int { return engines[e].legs }

// Compares reports whether anything of the engine's replies must agree in n.
func (e Engine) Compares(n Need) bool { return table[e][1][End].needs.Has(n) }
