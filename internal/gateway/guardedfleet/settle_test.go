package guardedfleet

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/gateway"
)

// A prefill that takes longer than everybody waits: the client has its error, and decode is not cut before the transfer is over, since
// prefill would then write into pages of the next request.
func TestDecodeIsNotCutBeforeItsTransfer(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{fake.SGLang, fake.VLLMMooncake} {
		r := newFakes(t, 1, fake.Options{Engine: engine}).open(func(c *gateway.Config) { c.Limits.Deadline = 200 * time.Millisecond })
		p := r.pairs[0]
		p.Prefill.Hurry(1200 * time.Millisecond)
		if a := r.complete("recall", prompt, false); a.status != 504 {
			t.Fatalf("%s: %d %s", engine, a.status, a.body)
		}
		r.until("it is over", func() bool {
			w := r.status().Workers
			return w[0].Load == 0 && w[1].Load == 0
		})
		if p.Decode.PromptTokens.Load() == 0 {
			t.Errorf("%s: decode was cut before it had what prefill sent", engine)
		}
		if m := r.admin("/metrics"); !strings.Contains(m, "sluice_unsettled_total 0\n") {
			t.Errorf("%s: an attempt is taken to be under way still", engine)
		}
	}
}
