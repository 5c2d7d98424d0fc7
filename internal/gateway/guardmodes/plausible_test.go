package guardmodes

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
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
