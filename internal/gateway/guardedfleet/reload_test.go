package guardedfleet

import (
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/gateway"
)

// A handle stays used over a reload: the gateway that takes another configuration is the same gateway.
func TestAHandleStaysUsedOverAReload(t *testing.T) {
	r := newFakes(t, 1, fake.Options{Engine: fake.VLLMNixl}).open()
	if a := r.complete("recall", prompt, false); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	r.model.Hold.Bytes = 4096
	if _, err := r.g.Reload(gateway.Reload{Models: []gateway.ModelConfig{{Name: "recall", Guarded: r.model}}}); err != nil {
		t.Fatal(err)
	}
	r.pairs[0].Tell(fake.Lie{Kind: actor.HandleReplayed, Leg: actor.Prefill, Times: 1})
	before := r.requests()["d0"]
	if a := r.complete("recall", prompt, false); a.status != 502 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if n := r.requests()["d0"] - before; n != 0 {
		t.Error("decode got a handle that was used before the reload")
	}
	if a := r.complete("recall", prompt, false); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
