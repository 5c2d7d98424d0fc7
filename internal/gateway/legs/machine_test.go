package legs

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Each story in testdata/stories is one attempt: "attempt" makes its machine, "hear" feeds it one event a line and prints what
// the machine does.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		var m Machine
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "attempt":
				e, x, observe := engineNamed(t, d.CmdArgs[0].Key), expect(), Needs(0)
				if e != Native {
					x.MaxTokens = 0
					d.MaybeScanArgs(t, "most", &x.MaxTokens)
				}
				if d.HasArg("observe") {
					observe = Of(PrefillVerdict, PrefillFinish, PrefillHandle, PromptAgree, FinishSaid, WireKept)
				}
				m = New(e, d.HasArg("stream"), x, observe)
				return ""
			case "spoke":
				var names []string
				for n := range m.Spoke().All {
					names = append(names, n.String())
				}
				return strings.Join(names, " ")
			case "hear":
				var out strings.Builder
				for line := range strings.SplitSeq(d.Input, "\n") {
					var act Action
					m, act = m.Step(parseEvent(t, line))
					fmt.Fprintf(&out, "%-28s %s%s\n", line, m.state, describe(act))
				}
				return out.String()
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func describe(a Action) string {
	s := " " + a.Do.String()
	if !a.Verdict.IsZero() {
		s += fmt.Sprintf(" | %v", a.Verdict)
	}
	for l, on := range a.Abort {
		if on {
			s += " | abort " + Leg(l).String()
		}
	}
	if a.Eject {
		s += " | eject"
	}
	return s
}

func engineNamed(t *testing.T, name string) Engine {
	for e := range numEngines {
		if e.String() == name {
			return e
		}
	}
	t.Fatalf("no engine %s", name)
	return 0
}

func expect() Expect { return Expect{PromptTokens: 8, MaxTokens: 4, Digest: [32]byte{0xd1}} }

// parseEvent reads "LEG WHAT ARGS…", or "deadline" ("deadline short": the client's), "client gone", "withdrawn", "waited". "LEG lost excused": the
// leg is not to blame.
func parseEvent(t *testing.T, line string) Event {
	f := strings.Fields(line)
	num := func(i int) int {
		if f[i] == "-" {
			return -1
		}
		n, err := strconv.Atoi(f[i])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	switch f[0] {
	case "deadline":
		return Deadline{Short: len(f) > 1}
	case "client":
		return ClientGone{}
	case "waited":
		return Waited{}
	case "withdrawn":
		return Withdrawn{verdict.Of(verdict.ShuttingDown, verdict.PlanLayer, "the gateway is shutting down")}
	}
	leg := Prefill
	if f[0] == "decode" {
		leg = Decode
	}
	switch f[1] {
	case "status":
		return LegStatus{leg, num(2)}
	case "usage":
		return LegUsage{leg, num(2), num(3)}
	case "finish":
		return LegFinish{leg, map[string]Finish{"stop": Stop, "length": Length, "other": Other}[f[2]]}
	case "handle": // state, digest, root, pages
		h := Handle{State: map[string]HandleState{"ours": Ours, "foreign": Foreign, "stale": Stale}[f[2]]}
		if len(f) > 3 {
			h.Digest[0], h.Root[0], h.Pages = f[3][0], f[4][0], uint32(num(5))
			if f[3] == "plan" {
				h.Digest = [32]byte{0xd1}
			}
		}
		return LegHandle{leg, h}
	case "bytes":
		return LegBytes{leg, num(2)}
	case "no":
		for c := verdict.OK; c.Known(); c++ {
			if c.String() == f[2] {
				return LegError{leg, verdict.Of(c, leg.Layer(), "no")}
			}
		}
	case "broke":
		return LegBroke{Leg: leg, Verdict: verdict.Of(verdict.ProtocolViolation, verdict.Legs, "a frame out of place")}
	case "end":
		return LegEnd{leg}
	case "lost":
		return LegLost{Leg: leg, Reason: "the control link ended", Excused: len(f) > 2}
	}
	t.Fatalf("no event %q", line)
	return nil
}
