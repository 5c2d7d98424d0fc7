package pooltrace

import (
	"testing"

	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/pool"
)

// TestEveryOpHasItsStep holds the two lists of names to one another.
func TestEveryOpHasItsStep(t *testing.T) {
	for op := pool.OpReserve; op <= pool.OpFree; op++ {
		ring := trace.NewRing(1)
		Of(ring)(pool.Event{Op: op, OK: true})
		got, _ := ring.Events()
		if got[0].Step.String() != op.String() || !got[0].Step.OfPool() || got[0].Machine != trace.Pool || got[0].State != 1 {
			t.Errorf("%s is recorded as %+v", op, got[0])
		}
	}
	if Of(nil) != nil {
		t.Error("a pool traces for nobody")
	}
}
