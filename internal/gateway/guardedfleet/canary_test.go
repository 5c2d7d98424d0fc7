package guardedfleet

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/gateway"
)

var lie = fake.Lie{Kind: actor.CountOne, Leg: actor.Prefill, Stale: true}

// A pair whose legs contradict each other is ejected, and comes back by proving itself: canaries of the gateway's own, n in a row, each
// under every guard; while it lies it stays out, and clients are served by others.
func TestAnEjectedPairProvesItself(t *testing.T) {
	for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
		r := newFakes(t, 2, fake.Options{Engine: fake.SGLang})
		r.model.Fleet.Rests.For = 20 * time.Millisecond
		r.model.Fleet.Rests.MaxShare = 1
		r.model.Fleet.Proofs = 3
		r.open(func(c *gateway.Config) { c.Modes.All = mode })
		r.pairs[0].Tell(lie)
		ejected := func() int { return r.status().Counts["resting"] }
		if mode == gateway.Observe {
			// Nothing is refused while guards observe, and nothing is ejected.
			for range 10 {
				r.complete("recall", prompt, false)
			}
			if n := ejected(); n != 0 {
				t.Errorf("observing, %d pairs rest", n)
			}
			continue
		}
		for ejected() < 2 { // both pairs of the prefill that lies
			if a := r.complete("recall", prompt, false); a.status != 200 && a.status != 502 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		failed := func() int {
			return strings.Count(r.admin("/metrics"), `sluice_canaries_total{model="recall",result="failed"}`)
		}
		// Though guards only observe from now on, canaries are held to all of them.
		if err := r.g.SetModes(gateway.Modes{All: gateway.Observe}); err != nil {
			t.Fatal(err)
		}
		r.until("canaries fail", func() bool { return failed() > 0 })
		if n := ejected(); n != 2 {
			t.Fatalf("%d pairs rest while they lie", n)
		}
		if err := r.g.SetModes(gateway.Modes{All: gateway.Enforce}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if a := r.complete("recall", prompt, true); a.status != 200 || !strings.Contains(a.body, "[DONE]") {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		if n := ejected(); n != 2 {
			t.Fatalf("%d pairs rest while they lie", n)
		}
		r.pairs[0].Honest()
		r.until("the pairs proved themselves", func() bool { return ejected() == 0 })
		if n := r.status().Proved; n != 2 {
			t.Errorf("%d pairs proved themselves", n)
		}
		good, nonces := 0, map[string]bool{}
		for _, rec := range r.records() {
			if !strings.HasPrefix(rec.Request, "canary-") {
				if rec.TestTraffic {
					t.Error("a client's request is called test traffic")
				}
				continue
			}
			if !rec.TestTraffic {
				t.Error("a canary's record does not say that it is test traffic")
			}
			if rec.Verdict.OK() {
				good++
			}
			nonces[rec.Request] = true
		}
		if good < 6 || len(nonces) < good {
			t.Errorf("%d canaries were right, of %d names", good, len(nonces))
		}
	}
}

// One wrong canary among right ones begins the count anew.
func TestCanariesCountInARow(t *testing.T) {
	r := newFakes(t, 2, fake.Options{Engine: fake.VLLMNixl})
	r.model.Fleet.Rests.For = 10 * time.Millisecond
	r.model.Fleet.Rests.MaxShare = 1
	r.model.Fleet.Proofs = 4
	r.open()
	first, later := lie, lie
	first.Times = 1
	later.Every, later.Times = 3, 1 // of what comes after the first: the third canary
	r.pairs[1].Tell(first)
	r.pairs[1].Tell(later)
	for r.status().Rested == 0 {
		r.complete("recall", prompt, false)
	}
	r.until("the pair proved itself", func() bool { return r.status().Proved == 1 })
	canaries := 0
	r.until("all records are there", func() bool {
		canaries = 0
		for _, rec := range r.records() {
			if rec.TestTraffic {
				canaries++
			}
		}
		return canaries >= 7
	})
	if canaries != 7 { // two right, one wrong, four right
		t.Errorf("%d canaries", canaries)
	}
}

// At most the configured share of the pairs is ever ejected, whatever clients and workers do: those over it go on, guarded.
func TestAShareIsEjectedAtMost(t *testing.T) {
	r := newFakes(t, 2, fake.Options{Engine: fake.SGLang})
	r.model.Fleet.Rests.For = time.Hour
	r.model.Fleet.Rests.MaxShare = 0.5
	r.open()
	for _, p := range r.pairs {
		p.Tell(lie)
	}
	for range 40 {
		if a := r.complete("recall", prompt, false); a.status == 200 {
			t.Fatal(a.body)
		}
	}
	r.until("transfers are over", func() bool { return r.status().Counts["resting"] == 2 })
	for _, p := range r.pairs {
		p.Honest()
	}
	for range 5 {
		if a := r.complete("recall", prompt, false); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}
