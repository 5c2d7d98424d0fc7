package guardedfleet

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
)

// A worker that comes back with another pool is not used on what was known of the one before: its facts are read again first, though
// the next reading was an hour away.
func TestARestartedWorkerIsReadAgain(t *testing.T) {
	for _, engine := range []string{fake.SGLang, fake.VLLMNixl, fake.VLLMMooncake} {
		r := newFakes(t, 1, fake.Options{Engine: engine}).open()
		long := strings.Repeat("My name is Alice. ", 100) // 1,800 tokens
		if a := r.complete("recall", long, false); a.status != 200 {
			t.Fatalf("%s: %d %s", engine, a.status, a.body)
		}
		boots := r.status().Workers[0].Boots
		if err := r.pairs[0].Prefill.Restart(func(c *actor.Config) { c.Pool = 1024 }); err != nil {
			t.Fatal(err)
		}
		if engine == fake.VLLMMooncake {
			// In the moment before the cut connection is noticed decode would be told of the engine that was: it refuses, and the fake
			// calls that a fault of the gateway's.
			r.until("it was read", func() bool { return r.status().Workers[0].Boots > boots })
		}
		r.until("the new limit counts", func() bool {
			a := r.complete("recall", long, false)
			if a.status == 200 {
				t.Fatalf("%s: a prompt of %d tokens was served out of a pool of 1024", engine, len(long))
			}
			return a.status == 400 && strings.Contains(a.body, "context_length_exceeded")
		})
		if n := r.status().Workers[0].Boots; n != boots+1 {
			t.Errorf("%s: %d boots were seen, want %d", engine, n, boots+1)
		}
		if a := r.complete("recall", prompt, false); a.status != 200 {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
	}
}

// While the facts of a worker that came back cannot be read, it gets nothing.
func TestNoFactsNoUse(t *testing.T) {
	for _, hide := range []fake.Facts{{Hang: true}, {Gone: true}, {Garbage: true}} {
		r := newFakes(t, 2, fake.Options{Engine: fake.SGLang})
		r.model.Fleet.Patient = 200 * time.Millisecond
		r.open()
		w := r.pairs[0].Decode
		if err := w.Restart(func(c *actor.Config) { c.Facts = hide }); err != nil {
			t.Fatal(err)
		}
		r.until("it is not used", func() bool { return r.status().Counts["usable"] == 2 })
		before := w.Requests.Load()
		for range 20 {
			if a := r.complete("recall", prompt, false); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		if n := w.Requests.Load() - before; n != 0 {
			t.Errorf("%+v: it got %d requests", hide, n)
		}
		w.SetFacts(fake.Facts{})
		r.until("it is used again", func() bool { return r.status().Counts["usable"] == 4 })
	}
}

// Workers that came back as something that may not be paired are refused, with the reason.
func TestPairsThatDifferAreRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*actor.Config)
		want   string
	}{
		{func(c *actor.Config) { c.PageSize = 64 }, "page size: 16 and 64"},
		{func(c *actor.Config) { c.Version = "0.5.21" }, `version: "0.5.19" and "0.5.21"`},
		{func(c *actor.Config) { c.Facts.Leg = "prefill" }, "it says that it is a prefill worker, and the configuration says decode"},
		{func(c *actor.Config) { c.Model = "another" }, `model: "recall" and "another"`},
	} {
		r := newFakes(t, 1, fake.Options{Engine: fake.SGLang}).open()
		if err := r.pairs[0].Decode.Restart(c.change); err != nil {
			t.Fatal(err)
		}
		r.until("the pair is refused: "+c.want, func() bool { return strings.Contains(r.admin("/admin/fleet"), strings.ReplaceAll(c.want, `"`, `\"`)) })
		before := r.requests()
		if a := r.complete("recall", prompt, false, "X-Request-Timeout", "200ms"); a.status == 200 {
			t.Errorf("%s: %d %s", c.want, a.status, a.body)
		}
		if now := r.requests(); now["p0"] != before["p0"] || now["d0"] != before["d0"] {
			t.Errorf("%s: a pair that may not be was asked", c.want)
		}
	}
}
