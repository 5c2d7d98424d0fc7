package guardedfleet

import (
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/gateway"
)

// Names are exact: what an engine would read into one (an adapter behind a colon) selects nothing that the configuration does not name.
func TestNamesAreExact(t *testing.T) {
	for _, engine := range []string{fake.SGLang, fake.VLLMNixl, fake.PlainSGLang} {
		r := newFakes(t, 1, fake.Options{Engine: engine})
		r.open(func(c *gateway.Config) { c.Models[0].Aliases = []string{"tuned"} })
		before := r.requests()
		for _, name := range []string{"recall:tuned", "recall:secret", "recall:", ":tuned", "RECALL", "recall ", " recall", "./recall", "recall\x00", "secret", ""} {
			if a := r.complete(name, prompt, false); a.status != 404 && a.status != 400 {
				t.Errorf("%s: %q: %d %s", engine, name, a.status, a.body)
			}
		}
		for name, n := range r.requests() {
			if n != before[name] {
				t.Errorf("%s: %s was asked", engine, name)
			}
		}
		if a := r.complete("recall", prompt, false); a.status != 200 {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
	}
}

// Several models in one gateway: each has its own workers and its own limit.
func TestSeveralModels(t *testing.T) {
	r := newFakes(t, 1, fake.Options{Engine: fake.SGLang, Prefill: fake.Leg{Pool: 1024}})
	other := newFakes(t, 1, fake.Options{Engine: fake.VLLMNixl, Model: "second"})
	r.open(func(c *gateway.Config) {
		c.Models = append(c.Models, gateway.ModelConfig{Name: "second", Guarded: other.model})
	})
	other.g = r.g
	r.until("the second serves", func() bool { return r.g.Limit("second").Tokens > 0 })
	if a, b := r.g.Limit("recall").Tokens, r.g.Limit("second").Tokens; a != 992 || b != 8160 {
		t.Errorf("limits %d and %d", a, b)
	}
	long := strings.Repeat("My name is Alice. ", 100)
	if a := r.complete("recall", long, false); a.status != 400 || !strings.Contains(a.body, "context_length_exceeded") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := r.complete("second", long, false); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if n := other.requests(); n["p0"] != 1 || n["d0"] != 1 {
		t.Errorf("the second's workers saw %v", n)
	}
	if n := r.requests(); n["p0"] != 0 {
		t.Errorf("the first's workers saw %v", n)
	}
}

// A session stays on its pair; another tenant's session of the same name is another.
func TestSessionsStay(t *testing.T) {
	r := newFakes(t, 6, fake.Options{Engine: fake.Plain})
	r.model.Session = "X-Session-Id"
	r.model.Anywhere = true
	r.open()
	for range 20 {
		if a := r.complete("recall", prompt, false, "X-Session-Id", "conversation-7"); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	busy := 0
	for _, n := range r.requests() {
		if n > 0 {
			busy++
		}
	}
	if busy != 1 {
		t.Errorf("one session was on %d workers: %v", busy, r.requests())
	}
	for range 60 {
		r.complete("recall", prompt, false)
	}
	busy = 0
	for _, n := range r.requests() {
		if n > 0 {
			busy++
		}
	}
	if busy < 4 {
		t.Errorf("requests without a session were on %d workers", busy)
	}
}

// What begins alike goes where it is cached.
func TestPrefixesStay(t *testing.T) {
	r := newFakes(t, 6, fake.Options{Engine: fake.Plain}).open()
	begins := strings.Repeat("You are a helpful assistant. ", 60)
	for i := range 20 {
		if a := r.complete("recall", begins+strings.Repeat("x", i), false); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	busy := 0
	for _, n := range r.requests() {
		if n > 0 {
			busy++
		}
	}
	if busy > 2 { // one may be busy when the next comes
		t.Errorf("one beginning was on %d workers: %v", busy, r.requests())
	}
}
