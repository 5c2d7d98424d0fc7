package handoff

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Each file of testdata/stories is one story: what happened, told between the steps, with the machines' answers. Commands:
//
//	open tokens=40 pages=3          a new attempt at all three ends; resets them
//	decode EVENT arg=…              one step of a machine; EVENT is a step's name (trace/steps.go)
//	prefill EVENT arg=…
//	gateway EVENT arg=…
//
// The answer is the state after the step, the counters that changed hands, and the effects in order.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		var s stage
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

type stage struct {
	decode  Decode
	prefill Prefill
	gateway Gateway
}

func (s *stage) run(t *testing.T, d *datadriven.TestData) (answer string) {
	if d.Cmd == "open" {
		var tokens, pages uint32
		d.ScanArgs(t, "tokens", &tokens)
		d.ScanArgs(t, "pages", &pages)
		s.decode, s.prefill = NewDecode(tokens, pages), NewPrefill(tokens, pages)
		var out Effects
		s.gateway, out = NewGateway(tokens)
		return "gateway " + show(s.gateway.State, s.gateway.Verdict, "", out)
	}
	defer func() {
		if p := recover(); p != nil {
			answer = fmt.Sprintf("panic: %v\n", p)
		}
	}()
	e := event(t, d)
	var out Effects
	switch d.Cmd {
	case "decode":
		s.decode, out = s.decode.Step(e)
		m := s.decode
		return show(m.State, m.Verdict, fmt.Sprintf("written %d of %d", m.Written, m.Needed), out)
	case "prefill":
		s.prefill, out = s.prefill.Step(e)
		m := s.prefill
		return show(m.State, m.Verdict, fmt.Sprintf("sent %d of %d", m.Sent, m.Needed), out)
	case "gateway":
		s.gateway, out = s.gateway.Step(e)
		m := s.gateway
		return show(m.State, m.Verdict, fmt.Sprintf("%d tokens came", m.Output), out)
	}
	t.Fatalf("%s: no machine is named %q", d.Pos, d.Cmd)
	return ""
}

func show(state fmt.Stringer, v verdict.Code, count string, out Effects) string {
	var b strings.Builder
	b.WriteString(state.String())
	if count != "" {
		b.WriteString(", " + count)
	}
	if v != verdict.None {
		b.WriteString(", verdict " + v.String())
	}
	b.WriteByte('\n')
	for x := range out.All() {
		fmt.Fprintf(&b, "  %s\n", effectText(x))
	}
	return b.String()
}

func effectText(x Effect) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", x), "handoff.")
	switch x := x.(type) {
	case SetVerdict:
		return fmt.Sprintf("%s %s by %s", name, x.Code, x.Layer)
	case SendClosing:
		return fmt.Sprintf("%s %s", name, x.Code)
	case SendAbort:
		return fmt.Sprintf("%s to %s", name, x.To)
	case SendPlan:
		return fmt.Sprintf("%s to %s", name, x.To)
	}
	if s := fmt.Sprintf("%v", x); s != "{}" {
		return name + " " + s
	}
	return name
}

// event builds the event that a command names. A flag that is not given is true, a count 0, a code none.
func event(t *testing.T, d *datadriven.TestData) Event {
	step, err := trace.ParseStep(d.CmdArgs[0].Key)
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	num := func(key string) (n uint32) {
		d.MaybeScanArgs(t, key, &n)
		return n
	}
	yes := func(key string) bool {
		v := true
		d.MaybeScanArgs(t, key, &v)
		return v
	}
	code := func(or verdict.Code) verdict.Code {
		var s string
		if !d.MaybeScanArgs(t, "code", &s) {
			return or
		}
		var c verdict.Code
		if err := c.UnmarshalText([]byte(s)); err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		return c
	}
	from := func() Who {
		var s string
		d.ScanArgs(t, "from", &s)
		for w := Self; w <= ClientEnd; w++ {
			if strings.HasSuffix(w.String(), s) {
				return w
			}
		}
		t.Fatalf("%s: nobody is named %q", d.Pos, s)
		return Self
	}
	switch step {
	case trace.PagesReserved:
		return PagesReserved{num("count")}
	case trace.ReserveEnded:
		return ReserveEnded{code(verdict.None)}
	case trace.Attached:
		return Attached{}
	case trace.PageArrived:
		return PageArrived{num("ordinal")}
	case trace.PageLanded:
		return PageLanded{num("ordinal"), code(verdict.None)}
	case trace.ManifestSeen:
		return ManifestSeen{Tokens: num("tokens"), Pages: num("pages"), MACOK: yes("mac"), DigestOK: yes("digest"), RootOK: yes("root"), Verdict: code(verdict.OK)}
	case trace.EndSeen:
		return EndSeen{yes("mac")}
	case trace.SealDone:
		return SealDone{code(verdict.None)}
	case trace.EchoCompared:
		return EchoCompared{yes("agrees")}
	case trace.TokenReady:
		return TokenReady{}
	case trace.StopAsked:
		return StopAsked{}
	case trace.EngineDone:
		return EngineDone{num("tokens"), code(verdict.OK)}
	case trace.PromptSeen:
		return PromptSeen{num("offset"), num("count"), yes("digest")}
	case trace.GrantSeen:
		return GrantSeen{num("pages"), code(verdict.None)}
	case trace.PagesSealed:
		return PagesSealed{num("from"), num("to")}
	case trace.PageTaken:
		return PageTaken{num("ordinal")}
	case trace.PageSent:
		return PageSent{num("ordinal")}
	case trace.PageDropped:
		return PageDropped{num("ordinal")}
	case trace.ClosingSent:
		return ClosingSent{}
	case trace.AbortAsked:
		return AbortAsked{from(), code(verdict.None)}
	case trace.PeerLost:
		return PeerLost{from()}
	case trace.DeadlineOver:
		return DeadlinePassed{}
	case trace.LeaseDrained:
		return LeaseDrained{}
	case trace.Violation:
		return Violation{code(verdict.ProtocolViolation)}
	case trace.ReservedSeen:
		return ReservedSeen{num("pages")}
	case trace.SealedSeen:
		return SealedSeen{Tokens: num("tokens"), Written: num("pages"), DigestOK: yes("digest")}
	case trace.PrefillEnded:
		return PrefillEnded{num("tokens"), yes("digest"), code(verdict.OK)}
	case trace.OutputSeen:
		return OutputSeen{num("index"), num("count")}
	case trace.DecodeEnded:
		return DecodeEnded{num("tokens"), code(verdict.OK)}
	case trace.StopFound:
		return StopFound{}
	case trace.LegSettled:
		return LegSettled{from()}
	}
	t.Fatalf("%s: no command for step %s", d.Pos, step)
	return nil
}
