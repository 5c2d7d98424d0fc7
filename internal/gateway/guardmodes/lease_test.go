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

// A decode that stands still until prefill's lease is over reads what is another's by then, and says 200: prefill alone counts it. The
// reply does not leave, and is an incident; where the guard only observes, it is counted.
func TestALateReadIsRefused(t *testing.T) {
	const lease, stands = 100 * time.Millisecond, 600 * time.Millisecond
	for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%v", mode, stream), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, fake.Options{Engine: fake.VLLMNixl, Transfer: stands, Lease: lease}, map[string]gateway.Mode{"prefill-handle": mode},
					func(g *gateway.Guarded) { g.Hold.Lease = lease / 2 })
				var wg sync.WaitGroup
				var late reply
				wg.Go(func() { late = r.ask(false, stream, "The word is heron. The word is", "") })
				for r.Decode.Requests.Load() == 0 {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(2 * lease)
				// Prefill gives the pages to the next that comes, while decode still stands.
				wg.Go(func() { r.ask(false, stream, "The sign is MAGPIE. The sign is", "") })
				wg.Wait()
				switch {
				case mode == gateway.Enforce && (late.status != 502 || strings.Contains(late.body, "MAGPIE") || strings.Contains(late.body, "heron")):
					t.Errorf("%d %s", late.status, late.body)
				case mode == gateway.Observe && late.status != 200:
					t.Errorf("%d %s", late.status, late.body)
				}
				if n := r.metric("sluice_incidents_total", `guard="prefill-handle"`, fmt.Sprintf("mode=%q", mode)); n == 0 {
					t.Errorf("nobody noticed:\n%s", r.admin("/metrics"))
				}
				if n := r.metric("sluice_pairs", `state="resting"`); n != 0 {
					t.Error("the pair rests: any client could bring that about")
				}
			})
		}
	}
}

// A decode that is slow, and reads in time, is served; prefill is asked, and that is all.
func TestASlowReadInTimeIsServed(t *testing.T) {
	for _, stream := range []bool{false, true} {
		r := newRig(t, fake.Options{Engine: fake.VLLMNixl, Transfer: 150 * time.Millisecond, Lease: time.Hour}, nil,
			func(g *gateway.Guarded) { g.Hold.Lease = 50 * time.Millisecond })
		if a := r.ask(true, stream, "The word is heron. The word is", ""); a.status != 200 || !strings.Contains(a.text(), "heron") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if n := r.metric("sluice_incidents_total"); n != 0 {
			t.Errorf("%v incidents", n)
		}
		if n := r.Prefill.Requests.Load(); n < 2 {
			t.Errorf("prefill was asked %d times: it was not given the occasion to look", n)
		}
	}
}
