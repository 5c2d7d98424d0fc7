//go:build unsafe_guards

package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func guardsOff() guard.Guard { return guard.Disabled() }

// With every guard out the lies of a pair reach the client: the tests that show that they do not are able to fail. Each of the
// gateway's guards alone stops what it can.
func TestGuardsTakenOutOfTheGateway(t *testing.T) {
	defer guard.Disable(0)
	placeholder := told{prefill: func(o *wire.Outcome) { o.Computed = 1 }}.script
	refused := func(a *fleettest.Attempt) {
		a.Reserved()
		if a.WaitPrompt() {
			a.No(prefill, verdict.Of(verdict.EngineFailed, verdict.Prefill, "no"))
			// The legs have a link each. Without the hold nothing orders what comes on them: prefill's no has time to be heard.
			time.Sleep(50 * time.Millisecond)
			a.Sealed()
			a.Output(0, text(secret)...)
			a.Ends(decode, a.Outcome(decode, len(secret)))
		}
	}
	for _, c := range []struct {
		name   string
		script fleettest.Script
		off    guard.Guard
		leaks  bool
		spoke  string
	}{
		{"placeholder, none on", placeholder, guard.All, true, ""},
		{"placeholder, hold on", placeholder, guard.All &^ guard.Hold, false, "hold"},
		{"refused, none on", refused, guard.All, true, ""},
		{"refused, hold on", refused, guard.All &^ guard.Hold, false, "hold"},
		{"refused, verdict on", refused, guard.All &^ guard.Verdict, false, "verdict"},
	} {
		t.Run(c.name, func(t *testing.T) {
			guard.Disable(c.off)
			d := open(t, c.script, nil)
			a := d.post("/v1/completions", complete("x", `,"max_tokens":100`))
			if leaks(a.body) != c.leaks || (a.status == 200) != c.leaks {
				t.Errorf("%d %s", a.status, a.body)
			}
			if got := a.header.Get("X-Sluice-Unsafe"); got != "guards off: "+c.off.String() {
				t.Errorf("header %q", got)
			}
			spoke := ""
			for _, g := range d.last().Spoke {
				spoke += g.Name
			}
			if spoke != c.spoke {
				t.Errorf("spoke %v", d.last().Spoke)
			}
		})
	}
	guard.Disable(guard.Admission)
	d := open(t, fleettest.Honest('x'), nil)
	if a := d.post("/v1/completions", complete(strings.Repeat("x", 5000), "")); a.status != 200 {
		t.Errorf("without admission: %d %s", a.status, a.body)
	}
}

func TestUnsafeBuildsListenOnLoopbackOnly(t *testing.T) {
	keys := fleettest.Keys("p0")
	c := Config{Listen: "0.0.0.0:0", Identity: keys.IDs[fleettest.Gateway], Models: []ModelConfig{{Name: "m", Encoder: encoder()}}}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "loopback only") {
		t.Errorf("got %v", err)
	}
}
