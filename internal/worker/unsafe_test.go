//go:build unsafe_guards

package worker

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/verdict"
)

// The positive control: what the guards hold back is real. Tenant A's reply is served; then tenant B sends a prompt of which the lying
// prefill ships one page and says that all is well. With no guard, B's reply holds A's code; with one of those that can stop this lie,
// it is stopped under its name.
func TestTheIncidentLeaksWithoutGuards(t *testing.T) {
	const code = "SECRET-77-OF-A"
	run := func(t *testing.T, on guard.Guard, lie func(*tale)) (string, verdict.Verdict) {
		guard.Disable(guard.All &^ on)
		defer guard.Disable(0)
		r := newRig(t)
		l, d := newLiar(t, r), r.door("g0")
		a := d.call(needle(code, 600), tokens(len(code))).run()
		served(t, a)
		if a.text() != code {
			t.Fatalf("A's reply is %q", a.text())
		}
		// B's prompt is as long, and ends in the same question, but the code is not in it.
		b := []byte(recall.Decode(a.prompt[1:]))
		prompt := recall.Encode(strings.Replace(string(b), code, "..............", 1))
		ta := l.begin(d, prompt, tokens(len(code)))
		lie(ta)
		_, o := ta.c.end()
		return ta.c.text(), o.Verdict
	}
	placeholder := func(ta *tale) {
		ta.page(0)
		ta.close(ta.manifest())
	}
	refused := func(ta *tale) {
		ta.page(0)
		m := ta.manifest()
		m.Verdict = verdict.TooLong(verdict.Prefill, len(ta.c.prompt), 0, false, 100, "the KV pool of prefill p1")
		ta.close(m)
	}
	text, v := run(t, 0, placeholder)
	if !v.OK() || !strings.Contains(text, code[:8]) {
		t.Errorf("without guards: %v, the reply is %q", v, text)
	}
	for _, c := range []struct {
		on   guard.Guard
		lie  func(*tale)
		want verdict.Code
	}{
		{guard.Count, placeholder, verdict.CountMismatch},
		{guard.Echo, placeholder, verdict.EchoMismatch},
		{guard.Verdict, refused, verdict.ContextLength},
		{guard.MAC, placeholder, verdict.RootMismatch}, // its root is of pages that did not land
		{guard.Zero, placeholder, verdict.OK},          // nonsense, but nobody's
	} {
		text, v := run(t, c.on, c.lie)
		if v.Code != c.want || strings.Contains(text, code[:4]) {
			t.Errorf("with %s alone: %v, the reply is %q", c.on, v, text)
		}
	}
}
