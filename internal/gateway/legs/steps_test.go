package legs

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

var (
	writeSteps = flag.Bool("write-steps", false, "write testdata/steps.txt from what the machine does now")
	tellStep   = flag.String("tell-step", "", "print every step of this line of testdata/steps.txt, without its sum: what two builds do differently is their difference")
)

// named is an event with the name that it has in testdata/steps.txt.
type named struct {
	name string
	Event
}

func topOf(id uint64, logprob float32) Top {
	var t Top
	t.ByID = true
	t.Add(id, logprob)
	t.Add(id+1, -3)
	t.Add(id+2, -4)
	return t
}

var (
	digest = [32]byte{0xd1}
	ours   = Handle{State: Ours, Pages: 1, Digest: digest, Root: [32]byte{1}}
	no     = func(c verdict.Code, l Leg) verdict.Verdict { return verdict.Of(c, l.Layer(), "no") }
)

// anything is what a leg, the client or the gateway may say, at any time.
func anything() (all []named) {
	put := func(name string, e Event) { all = append(all, named{name, e}) }
	for _, l := range []Leg{Prefill, Decode} {
		say := func(name string, e Event) { put(l.String()+": "+name, e) }
		for _, s := range []int{200, 204, 500} {
			say(fmt.Sprintf("status %d", s), LegStatus{l, s})
		}
		for _, u := range [][2]int{{-1, -1}, {0, -1}, {7, -1}, {8, -1}, {8, 0}, {8, 1}, {8, 2}, {8, 3}, {-1, 1}, {-1, 2}} {
			say(fmt.Sprintf("usage %d %d", u[0], u[1]), LegUsage{l, u[0], u[1]})
		}
		for f := Stop; f <= Other; f++ {
			say("finish "+f.String(), LegFinish{l, f})
		}
		for _, h := range []struct {
			name string
			Handle
		}{{"ours", ours}, {"of others", Handle{State: Foreign, Why: "its boot"}}, {"stale", Handle{State: Stale}}, {"of two pages", Handle{State: Ours, Pages: 2, Digest: digest, Root: [32]byte{1}}},
			{"of another digest", Handle{State: Ours, Pages: 1, Digest: [32]byte{2}, Root: [32]byte{1}}}, {"of another root", Handle{State: Ours, Pages: 1, Digest: digest, Root: [32]byte{2}}}} {
			say("handle "+h.name, LegHandle{l, h.Handle})
		}
		say("top", LegTop{l, topOf(5, -0.5)})
		say("another top", LegTop{l, topOf(70, -0.5)})
		say("a top near it", LegTop{l, topOf(5, -0.9)})
		say("a top by text", LegTop{l, Top{N: 1, Token: [TopMost]uint64{5}}})
		for _, n := range []int{0, 1, 2} {
			say(fmt.Sprintf("%d units", n), LegBytes{l, n})
		}
		for _, c := range []verdict.Code{verdict.PoolExhausted, verdict.TagMismatch, verdict.EngineFailed, verdict.Deadline, verdict.ContextLength, verdict.BadRequest} {
			say("no, "+c.String(), LegError{l, no(c, l)})
		}
		say("breach", LegBroke{Leg: l, Verdict: no(verdict.ProtocolViolation, l)})
		say("error in the stream", LegBroke{Leg: l, Verdict: no(verdict.EngineFailed, l), Failed: true})
		say("end", LegEnd{l})
		say("lost", LegLost{Leg: l, Reason: "lost"})
		say("lost, excused", LegLost{Leg: l, Reason: "lost", Excused: true})
	}
	put("lapsed", HandleLapsed{Why: "3 s"})
	put("full", HeldFull{})
	put("waited", Waited{})
	put("deadline", Deadline{})
	put("short deadline", Deadline{Short: true})
	put("client gone", ClientGone{})
	put("withdrawn", Withdrawn{verdict.Of(verdict.ShuttingDown, verdict.Decode, "drained")})
	return all
}

// course is how an attempt of an engine goes when all is well: in order.
func course(e Engine) []Event {
	end := []Event{LegBytes{Decode, 1}, LegUsage{Decode, 8, 2}, LegFinish{Decode, Length}, LegEnd{Decode}}
	prefill := []Event{LegStatus{Prefill, 200}, LegUsage{Prefill, 8, 1}, LegTop{Prefill, topOf(5, -0.5)}, LegFinish{Prefill, Length}, LegHandle{Prefill, ours}, LegEnd{Prefill}}
	decode := []Event{LegStatus{Decode, 200}, LegTop{Decode, topOf(5, -0.6)}, LegBytes{Decode, 1}, LegUsage{Decode, 8, 1}}
	switch e {
	case Native:
		return append([]Event{LegStatus{Decode, 200}, LegUsage{Prefill, 8, -1}, LegHandle{Prefill, ours}, LegEnd{Prefill}, LegHandle{Decode, ours}, LegUsage{Decode, 8, -1}, LegBytes{Decode, 1}}, end...)
	case Plain:
		return append(decode, end...)
	case VLLMNixl:
		return append(append(prefill, decode...), end...)
	}
	return append(append(append([]Event{}, decode[:3]...), prefill...), append(decode[3:], end...)...) // both at once
}

// appendDid is did for sums: millions of steps are taken.
func appendDid(b []byte, m *Machine, a Action) []byte {
	flags := func(fs ...bool) {
		for _, f := range fs {
			if f {
				b = append(b, 1)
			} else {
				b = append(b, 0)
			}
		}
	}
	word := func(v verdict.Verdict) {
		b = append(b, byte(v.Code), byte(v.Layer), byte(v.Status), byte(v.Status>>8), byte(len(v.Reason)))
		b = append(b, v.Reason...)
	}
	b = append(b, byte(a.Do), byte(m.State()), byte(m.Finish()))
	flags(a.Abort[0], a.Abort[1], a.Eject, a.Settle, m.Undecided(), m.Compared())
	word(a.Verdict)
	word(m.Verdict())
	p, c := m.Usage()
	b = append(b, byte(p), byte(c))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Spoke()))
	for n := range m.Spoke().All {
		b = append(b, m.Said(n)...)
	}
	return b
}

// did is everything that a step shows to the outside.
func did(m *Machine, a Action) string {
	var b strings.Builder
	p, c := m.Usage()
	fmt.Fprintf(&b, "%v %v %v %v %v | %v %v %v %d %d %v %v %v", a.Do, a.Verdict, a.Abort, a.Eject, a.Settle, m.State(), m.Verdict(), m.Spoke(), p, c, m.Finish(), m.Undecided(), m.Compared())
	for n := range m.Spoke().All {
		fmt.Fprintf(&b, "; %v: %v", n, m.Said(n))
	}
	return b.String()
}

// TestEveryStepIsTheOneOfTheList: the machine decides what leaves the gateway, so no change of what it does goes by unseen. From every state
// on an honest course, on every course that leaves it by one event, and on some that leave it more often, it takes every event; testdata/steps.txt has a sum of what it did for
// each event, engine, kind of reply and mode. Where a change is meant: -args -write-steps, and the difference is for the reviewer to read;
// -args -tell-step LINE shows each step behind a sum.
func TestEveryStepIsTheOneOfTheList(t *testing.T) {
	if guard.Unsafe {
		t.Skip("guards may be out")
	}
	var out bytes.Buffer
	all := anything()
	steps := 0
	var b []byte
	for e := range numEngines {
		for _, streamed := range []bool{false, true} {
			for _, mode := range []struct {
				name    string
				observe Needs
				first   float32
				late    bool
			}{{name: "enforce"}, {name: "observe", observe: 1<<numNeeds - 1}, {name: "first token", first: 0.5}, {name: "usage at the end", late: true}} {
				if mode.name != "enforce" && (e == Native || testing.Short()) {
					continue
				}
				kind := map[bool]string{false: "whole", true: "streamed"}[streamed]
				begin := New(e, streamed, Expect{PromptTokens: 8, MaxTokens: 2, Digest: digest, FirstToken: mode.first, UsageAtEnd: mode.late}, mode.observe)
				states := reach(begin, course(e), all)
				for _, x := range all {
					line := fmt.Sprintf("%s, %s, %s, %s", e, kind, mode.name, x.name)
					h := fnv.New64a()
					for i := range states {
						m := states[i]
						a := m.Take(x.Event)
						if *tellStep == line {
							fmt.Printf("%d (%s): %s\n", i, did(&states[i], Action{}), did(&m, a))
						}
						b = appendDid(b[:0], &m, a)
						h.Write(b)
						steps++
					}
					fmt.Fprintf(&out, "%s: %016x\n", line, h.Sum64())
				}
			}
		}
	}
	t.Logf("%d steps", steps)
	const file = "testdata/steps.txt"
	if *writeSteps {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for l := range strings.Lines(string(want)) {
		known[l] = true
	}
	changed, made := 0, 0
	for l := range strings.Lines(out.String()) {
		if made++; !known[l] {
			if changed++; changed <= 10 {
				t.Errorf("not what the list says: %s", l)
			}
		}
	}
	if changed > 0 || made != len(known) && !testing.Short() {
		t.Errorf("%d of %d lines differ, the list has %d: see this test's comment", changed, made, len(known))
	}
}

// reach is every state on the honest course, and on each that leaves it by one event; and some that leave it more often.
func reach(m Machine, course []Event, all []named) (states []Machine) {
	begin := m
	seen := map[Machine]bool{}
	put := func(m Machine) {
		if !seen[m] {
			seen[m] = true
			states = append(states, m)
		}
	}
	put(m)
	for i := range len(course) + 1 {
		for _, x := range all {
			off := m
			off.Take(x.Event)
			put(off)
			for _, e := range course[i:] {
				off.Take(e)
				put(off)
			}
		}
		if i < len(course) {
			m.Take(course[i])
			put(m)
		}
	}
	// Courses that are left more than once: the same ones every time.
	r := rand.New(rand.NewPCG(3, uint64(len(course))))
	for range 400 {
		w := begin
		for _, e := range course {
			for r.IntN(5) < 2 {
				w.Take(all[r.IntN(len(all))].Event)
				put(w)
			}
			if r.IntN(8) > 0 {
				w.Take(e)
				put(w)
			}
		}
	}
	return states
}
