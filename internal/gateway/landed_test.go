package gateway

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// What had landed when prefill was lost, or said no, is in the record as decode's pages. What prefill computed is what it said: a link
// that ended said nothing, and a worker's fault costs the tenant nothing.
func TestPagesThatLandedBeforePrefillWasLost(t *testing.T) {
	for name, c := range map[string]struct {
		ends     func(d *door, a *fleettest.Attempt)
		code     verdict.Code
		computed uint32
	}{
		"lost": {func(d *door, _ *fleettest.Attempt) { d.pair.Prefill.Drop() }, verdict.PeerLost, 0},
		"a no with a count": {func(_ *door, a *fleettest.Attempt) {
			a.Ends(prefill, a.Outcome(prefill, 0, func(o *wire.Outcome) {
				o.Verdict, o.Computed, o.Written = verdict.Of(verdict.EngineFailed, verdict.Prefill, "logits are not finite"), 32, 2
			}))
		}, verdict.EngineFailed, 32},
	} {
		t.Run(name, func(t *testing.T) {
			var d *door
			ready := make(chan struct{})
			d = open(t, func(a *fleettest.Attempt) {
				<-ready
				a.Reserved()
				if !a.WaitPrompt() {
					return
				}
				c.ends(d, a)
				a.Ends(decode, wire.Outcome{Attempt: a.Plan.Attempt, Verdict: a.Aborted(decode), Reserved: 3, Written: 2})
			}, nil)
			close(ready)
			d.post("/v1/completions", complete(strings.Repeat("x", 40), ""))
			d.quiet()
			r := d.last()
			if r.Verdict.Code != c.code || r.Pages.Reserved != 3 || r.Pages.Written != 2 {
				t.Errorf("verdict %v, pages %+v", r.Verdict, r.Pages)
			}
			if r.Tokens.PrefillComputed != c.computed || r.Tokens.DecodeSealed != 0 || computed(&r) != int(c.computed) {
				t.Errorf("%+v, of which %d count for the tenant", r.Tokens, computed(&r))
			}
		})
	}
}
