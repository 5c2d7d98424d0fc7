package guardmodes

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/gateway"
)

// What was learned in a crowd is the crowd's time, not the engine's: when it has gone, nothing is a miracle.
func TestACrowdTeachesNothing(t *testing.T) {
	r := newRig(t, fake.Options{Engine: fake.VLLMNixl, Prefill: fake.Leg{Pool: 1 << 20}, Decode: fake.Leg{Pool: 1 << 20}, FirstWait: 40 * time.Millisecond}, nil)
	long := strings.Repeat("a prompt that is long enough ", 50)
	for range 3 {
		var wg sync.WaitGroup
		for range 24 {
			wg.Go(func() { r.ask(false, false, long, "") })
		}
		wg.Wait()
	}
	r.Prefill.Hurry(0)
	r.ask(false, false, long, "")
	if n := r.metric("sluice_incidents_total"); n != 0 {
		t.Errorf("%v incidents: %s", n, r.admin("/admin/incidents"))
	}
}

// A prefill that answers a long prompt in no time, after it was seen to need some for each: no byte of the reply leaves where the guard
// enforces, it is counted where it observes, and nothing is said where it is off.
func TestPlausibilityInEachMode(t *testing.T) {
	for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe, gateway.Off} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%v", mode, stream), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, fake.Options{Engine: fake.VLLMNixl, Prefill: fake.Leg{Pool: 1 << 16}, Decode: fake.Leg{Pool: 1 << 16}, FirstWait: 120 * time.Millisecond},
					map[string]gateway.Mode{"plausibility": mode})
				prompt := func(i int) string { return fmt.Sprintf("%d ", i) + strings.Repeat("a prompt that is long enough ", 40) }
				for i := range 32 {
					if a := r.ask(false, stream, prompt(i), ""); a.status != 200 {
						t.Fatalf("%d %s", a.status, a.body)
					}
				}
				r.Prefill.Hurry(0)
				a := r.ask(false, stream, strings.Repeat(prompt(99), 6), "")
				if (mode == gateway.Enforce) != (a.status == 502) || mode == gateway.Enforce && strings.Contains(a.body, "choices") {
					t.Errorf("%d %s", a.status, a.body)
				}
				if mode != gateway.Off && !r.incident("plausibility", mode) {
					t.Error("nobody noticed")
				}
				if n := r.metric("sluice_incidents_total"); mode == gateway.Off && n != 0 {
					t.Errorf("%v incidents", n)
				}
				if n := r.metric("sluice_pairs", `state="resting"`); n != 0 {
					t.Error("the pair rests for what is no proof")
				}
			})
		}
	}
}
