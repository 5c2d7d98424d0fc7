package vllm

import (
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Pages that nobody comes for are back when their lease ends, whether anything is asked of the worker then or not; so are those of a lie
// that hands out another's, or nothing at all.
func TestALeaseEndsByItself(t *testing.T) {
	for _, kind := range []actor.Kind{"", actor.HandleMissing, actor.HandleForeign, actor.HandleReplayed} {
		r := newRig(t, Nixl, func(_, _ *actor.Config, o *Options) { o.Lease = 50 * time.Millisecond })
		all := r.prefill.Pages().Available()
		for i := range 3 {
			if i == 1 && kind != "" {
				r.prefill.Tell(actor.Lie{Kind: kind, Leg: actor.Prefill})
			}
			send1("POST", r.prefill.URL()+"/v1/completions", "attempt-"+string(rune('a'+i)), member(member(prompt(filler(300)), "max_tokens", "1"), "kv_transfer_params", ask))
		}
		for end := time.Now().Add(20 * time.Second); r.prefill.Pages().Available() != all; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%q: %d of %d pages are back", kind, r.prefill.Pages().Available(), all)
			}
		}
	}
}
