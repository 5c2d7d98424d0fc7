//go:build unsafe_guards

package legs

import (
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Each of hold and verdict stops a prefill that says no; with both out the reply passes.
func TestGuardsTakenOut(t *testing.T) {
	defer guard.Disable(0)
	run := func(es ...Event) (m Machine, act Action) {
		m = New(Native, true, expect(), 0)
		for _, e := range es {
			if m, act = m.Step(e); act.Do == Refuse {
				return m, act
			}
		}
		return m, act
	}
	no := LegError{Prefill, verdict.TooLong(verdict.Prefill, 9, 0, false, 8, "a pool")}
	decode := []Event{LegStatus{Decode, 200}, LegBytes{Decode, 1}, LegUsage{Decode, 8, 1}, LegFinish{Decode, Stop}, LegEnd{Decode}}
	for _, c := range []struct {
		off  guard.Guard
		es   []Event
		want Do
	}{
		{guard.All &^ guard.Hold, append([]Event{no}, decode...), Refuse},
		{guard.All &^ guard.Verdict, append([]Event{no}, decode...), Refuse},
		{guard.All, append([]Event{no}, decode...), Complete},
		{guard.All, decode, Complete},
		{guard.All &^ guard.Hold, decode, Hold},
		{guard.Hold, decode[:2], Release},
		{guard.All, decode[:1], Hold}, // headers wait for content in any case
	} {
		guard.Disable(c.off)
		if _, act := run(c.es...); act.Do != c.want {
			t.Errorf("with %v out: %v, want %v", c.off, act.Do, c.want)
		}
	}
}
