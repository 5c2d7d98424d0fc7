package guardmodes

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/gateway"
)

// elsewhere are the guards whose two modes have tests of their own here.
var elsewhere = map[string]string{"admission": "TestAdmissionObserves", "plausibility": "gateway: TestPlausibilityInEachMode",
	// Observed, decode gets no handle at all, which these fakes hold against the gateway: lyingtable has that mode.
	"prefill-handle": "TestAHandleOfAnotherHost, lyingtable: TestLiesAreObserved"}

// Each guard, in each mode, before a pair that breaks what it compares: one that observes reports and passes the bytes, one that enforces
// lets nothing of the reply out. A guard without a row fails.
func TestEachGuardInEachMode(t *testing.T) {
	rows := map[string]struct {
		engine string
		lie    fake.Lie
	}{
		"prefill-verdict": {fake.SGLang, fake.Lie{Kind: actor.CountMissing, Leg: actor.Prefill, Stale: true}},
		"prefill-finish":  {fake.SGLang, fake.Lie{Kind: actor.AbortFinish, Leg: actor.Prefill, Stale: true}},
		"prompt-agree":    {fake.SGLang, fake.Lie{Kind: actor.CountShort, Leg: actor.Prefill, Stale: true}},
		"first-token":     {fake.VLLMNixl, fake.Lie{Kind: actor.StalePages, Leg: actor.Decode}},
		"finish":          {fake.VLLMMooncake, fake.Lie{Kind: actor.FinishMissing, Leg: actor.Decode, Stale: true}},
		"wire":            {fake.VLLMMooncake, fake.Lie{Kind: actor.OtherID, Leg: actor.Decode, Stale: true}},
	}
	for _, guard := range gateway.Guards() {
		row, ok := rows[guard]
		if !ok {
			if elsewhere[guard] == "" {
				t.Errorf("the guard %s has no row: what breaks what it compares?", guard)
			}
			continue
		}
		delete(rows, guard)
		kinds(t, func(t *testing.T, chat, stream bool) {
			for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
				modes := all(gateway.Observe)
				modes[guard] = mode
				r := newRig(t, fake.Options{Engine: row.engine}, modes)
				if a := r.ask(chat, stream, theirs, ""); a.status != 200 || !strings.Contains(a.text(), leaked) {
					t.Fatalf("%s: the first tenant got %d %s", guard, a.status, a.body)
				}
				r.Tell(row.lie)
				a := r.ask(chat, stream, theirs[:40]+strings.Repeat("x", 30)+theirs[:11], "")
				if !r.leaked() {
					t.Fatalf("%s %s: the fake leaked nothing: nothing was tested", guard, mode)
				}
				late := stream && slices.Contains([]string{"finish"}, guard)
				switch {
				case mode == gateway.Observe:
					if a.status != 200 || a.text() == "" || stream && !strings.Contains(a.body, "[DONE]") {
						t.Errorf("%s observes: %d %s", guard, a.status, a.body)
					}
				case late && a.status == 200:
					if strings.Contains(a.body, "[DONE]") || !strings.Contains(a.body, `"error"`) {
						t.Errorf("%s enforces, at the end: %s", guard, a.body)
					}
				case a.status != 502 || strings.Contains(a.body, "choices"):
					t.Errorf("%s enforces: %d %s", guard, a.status, a.body)
				}
				if !r.incident(guard, mode) {
					t.Errorf("%s %s: no incident: %s", guard, mode, r.admin("/admin/incidents"))
				}
			}
		})
	}
	for guard := range rows {
		t.Errorf("there is no guard %s", guard)
	}
}

// A handle that names another host: decode is not asked.
func TestAHandleOfAnotherHost(t *testing.T) {
	r := newRig(t, fake.Options{Engine: fake.VLLMNixl}, all(gateway.Enforce))
	r.Tell(fake.Lie{Kind: actor.HandleHost, Leg: actor.Prefill})
	a := r.ask(false, false, ours, "")
	if a.status != 502 || r.Decode.Requests.Load() != 0 || !r.incident("prefill-handle", gateway.Enforce) {
		t.Errorf("%d %s, decode was asked %d times", a.status, a.body, r.Decode.Requests.Load())
	}
}
