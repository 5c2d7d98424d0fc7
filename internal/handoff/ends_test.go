package handoff

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

// What no event may cause is checked once more where the verdict is set: one verdict, a word that is one, and OK on its one road.
func TestNoRoadEndsTwiceOrWithoutAWord(t *testing.T) {
	over := verdict.Deadline
	for name, c := range map[string]struct {
		end  func()
		says string
	}{
		"decode, twice":          {func() { Decode{State: DecodeFencing, Verdict: over}.end(verdict.PeerLost, verdict.Gate, Self) }, "a second verdict, worker_lost after deadline_exceeded"},
		"decode, no word":        {func() { Decode{State: DecodeServing}.end(verdict.None, verdict.Gate, Self) }, "the verdict none in state serving"},
		"decode, not served":     {func() { Decode{State: DecodeEchoing}.end(verdict.OK, verdict.Gate, Self) }, "the verdict ok in state echoing"},
		"prefill, twice":         {func() { Prefill{State: PrefillFencing, Verdict: over}.end(verdict.PeerLost, verdict.Gate, Self) }, "a second verdict, worker_lost after deadline_exceeded"},
		"prefill, no word":       {func() { Prefill{State: PrefillShipping, Closed: true}.end(verdict.None, verdict.Gate, Self) }, "the verdict none in state shipping"},
		"prefill, not closed":    {func() { Prefill{State: PrefillShipping}.end(verdict.OK, verdict.Gate, Self) }, "the verdict ok in state shipping"},
		"gateway, twice":         {func() { Gateway{State: GatewaySettling, Verdict: over}.end(verdict.PeerLost, verdict.Legs) }, "a second verdict, worker_lost after deadline_exceeded"},
		"gateway, no word":       {func() { Gateway{State: GatewayReleasing}.end(verdict.None, verdict.Legs) }, "the verdict none in state releasing"},
		"gateway, not released":  {func() { Gateway{State: GatewayRunning}.end(verdict.OK, verdict.Legs) }, "the verdict ok in state running"},
		"prefill, a bad no page": {func() { Prefill{State: PrefillReserving}.Step(ReserveEnded{verdict.OK}) }, "ReserveEnded"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if s, ok := recover().(string); !ok || !strings.Contains(s, c.says) {
					t.Errorf("it says %q", s)
				}
			}()
			c.end()
			t.Error("it went on")
		})
	}
	for range effects(Fence{}, ReleaseLease{}).All() {
		break // whoever stops looking is not asked again
	}
}
