package native

import (
	"testing"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// The handoff machine hears of the ids that each leg computed, and lets nothing go by itself where they are not the plan's. The table of
// the legs compares them once more, and so hides in a whole gateway that the machine was told something else.
func TestTheMachineHearsWhichIDsEachLegComputed(t *testing.T) {
	for name, c := range map[string]struct {
		sealed, computed byte // what is added to the digest's first byte
		state            handoff.GatewayState
		verdict          verdict.Code
	}{
		"the plan's":              {0, 0, handoff.GatewayReleasing, verdict.None},
		"decode sealed others":    {1, 0, handoff.GatewaySettling, verdict.LegsDisagree},
		"prefill computed others": {0, 1, handoff.GatewaySettling, verdict.LegsDisagree},
		"both, and the same":      {1, 1, handoff.GatewaySettling, verdict.LegsDisagree},
	} {
		if c.verdict != verdict.None && guard.Off(guard.Hold) {
			continue
		}
		prefill, decode := &peer{name: "p"}, &peer{name: "d"}
		r := (&Engine{}).start(asked(t), [2]link{prefill, decode}, func() {})
		id, sealed, computed := r.plan.Attempt, r.plan.Digest, r.plan.Digest
		sealed[0] += c.sealed
		computed[0] += c.computed
		decode.sink.Frame(wire.Reserved{Attempt: id, Pages: 1})
		decode.sink.Frame(wire.Sealed{Attempt: id, Tokens: 3, Written: 1, Digest: sealed})
		prefill.sink.Frame(wire.Outcome{Attempt: id, Verdict: verdict.Of(verdict.OK, verdict.Prefill, "served"), Computed: 3, Written: 1, Digest: computed})
		r.mu.Lock()
		m := r.machine
		r.mu.Unlock()
		if m.State != c.state || m.Verdict != c.verdict {
			t.Errorf("%s: %+v", name, m)
		}
	}
}
