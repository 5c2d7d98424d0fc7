package gateway

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// Any sequence of well-formed frames from both legs, in which prefill's closing statement is never the plan's: whatever else
// the legs say, nothing of it is served, every request ends, and the gateway's own trace is one that the model allows.
func TestLegsThatSayAnything(t *testing.T) {
	for seed := range uint64(150) {
		var n atomic.Uint64
		d := open(t, func(a *fleettest.Attempt) { anything(rand.New(rand.NewPCG(seed, n.Add(1))), a) }, nil)
		for _, stream := range []bool{false, true} {
			a := d.post("/v1/completions", complete("x", fmt.Sprintf(`,"max_tokens":30,"stop":"er","stream":%v`, stream)), "X-Request-Timeout", "0.3")
			if a.status == 200 || leaks(a.body) {
				t.Errorf("seed %d: %d %s", seed, a.status, a.body)
			}
			d.waitReady()
		}
		d.quiet()
		d.close()
		if t.Failed() {
			return
		}
	}
}

// anything says up to a dozen things, and then ends both legs, so that what is tested does not wait.
func anything(rng *rand.Rand, a *fleettest.Attempt) {
	if rng.IntN(8) > 0 {
		a.Reserved()
		a.WaitPrompt()
	}
	lie := func(o *wire.Outcome) {
		switch rng.IntN(4) {
		case 0:
			o.Digest[5]++
		case 1:
			o.Root[5]++
		case 2:
			o.Computed++
		default:
			o.Verdict = verdict.Of(verdict.Code(2+rng.IntN(int(verdict.Internal)-1)), verdict.Prefill, "no")
		}
	}
	n := 0
	for range rng.IntN(12) {
		leg := decode
		if rng.IntN(6) == 0 {
			leg = prefill
		}
		switch rng.IntN(9) {
		case 0, 1:
			a.Sealed()
		case 2, 3, 4:
			a.Output(n, text("other")...)
			n += 5
		case 5:
			a.Output(rng.IntN(9), text("other")...)
		case 6:
			a.Say(decode, a.Outcome(decode, n))
		case 7:
			if leg == prefill {
				a.Say(prefill, a.Outcome(prefill, 0, lie))
			} else {
				a.Settled(decode)
			}
		case 8:
			a.Say(leg, wire.Abort{Attempt: a.Plan.Attempt, Verdict: verdict.Of(verdict.EngineFailed, verdict.Decode, "no")})
		}
	}
	a.Ends(prefill, a.Outcome(prefill, 0, lie))
	a.Ends(decode, a.Outcome(decode, n))
}
