package guardedfleet

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
)

// What is tried again, and what never is, by what the workers saw. The fakes fail the test by themselves if a second attempt has
// anything of the first: its room, its handle, its ids.
func TestWhatIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name     string
		lie      fake.Lie
		stream   bool
		only     string // engine
		prefills int64  // attempts on prefill that the request makes
		decodes  int64  // and on decode; -1: at most as many as on prefill
		status   int    // 0: any
	}{
		{name: "prefill is busy", lie: fake.Lie{Kind: actor.Unavailable, Leg: actor.Prefill, Times: 1}, prefills: 2, decodes: -1, status: 200},
		{name: "every prefill is busy", lie: fake.Lie{Kind: actor.Unavailable, Leg: actor.Prefill}, prefills: 2, decodes: -1, status: 503},
		{name: "prefill refuses the prompt", lie: fake.Lie{Kind: actor.Refused, Leg: actor.Prefill, Times: 1}, prefills: 1, decodes: -1, status: 400},
		{name: "prefill fails", lie: fake.Lie{Kind: actor.Failed, Leg: actor.Prefill, Times: 1}, prefills: 1, decodes: -1, status: 502},
		{name: "prefill breaks off", lie: fake.Lie{Kind: actor.Reset, Leg: actor.Prefill, Times: 1}, prefills: 1, decodes: -1, status: 502},
		{name: "the legs disagree", lie: fake.Lie{Kind: actor.CountOne, Leg: actor.Prefill, Times: 1}, prefills: 1, decodes: -1, status: 502},
		{name: "decode is busy and has the handle", only: fake.VLLMNixl, lie: fake.Lie{Kind: actor.Unavailable, Leg: actor.Decode, Times: 1}, prefills: 1, decodes: 1, status: 503},
		{name: "decode breaks off with the handle", only: fake.VLLMNixl, lie: fake.Lie{Kind: actor.Reset, Leg: actor.Decode, Times: 1}, prefills: 1, decodes: 1, status: 502},
		{name: "a stream that began is cut", stream: true, lie: fake.Lie{Kind: actor.CutMidway, Leg: actor.Decode, Times: 1}, prefills: 1, decodes: 1},
	} {
		for _, engine := range []string{fake.SGLang, fake.VLLMNixl, fake.VLLMMooncake} {
			if c.only != "" && c.only != engine {
				continue
			}
			t.Run(c.name+"/"+engine, func(t *testing.T) {
				r := newFakes(t, 2, fake.Options{Engine: engine, TokenWait: 5 * time.Millisecond}).open()
				sum := func(leg string) (n int64) {
					for name, v := range r.requests() {
						if strings.HasPrefix(name, leg) {
							n += v
						}
					}
					return n
				}
				for _, p := range r.pairs {
					l := c.lie
					if l.Times == 1 && l.Leg == actor.Prefill && p != r.pairs[0] {
						continue // the other pair is honest: the request has to come there
					}
					p.Tell(l)
				}
				// A worker is drawn by chance: until the one that lies was.
				for {
					before := [2]int64{sum("p"), sum("d")}
					a := r.complete("recall", prompt, c.stream)
					ps, ds := sum("p")-before[0], sum("d")-before[1]
					lied := a.status != 200 || ps > 1 || c.stream && !strings.Contains(a.body, "[DONE]")
					if !lied {
						continue
					}
					if c.status != 0 && a.status != c.status || ps != c.prefills || c.decodes >= 0 && ds != c.decodes || ds > max(ps, 1) {
						t.Errorf("status %d, want %d; %d attempts on prefill, want %d; %d on decode, want %d: %s", a.status, c.status, ps, c.prefills, ds, c.decodes, a.body)
					}
					if retried := strings.Contains(r.admin("/metrics"), "sluice_retries_total 1"); retried != (c.prefills == 2) {
						t.Errorf("counted as tried again: %v", retried)
					}
					return
				}
			})
		}
	}
}

// A worker that takes no connection got nothing: another pair is tried, with other ids, and the worker is not asked again.
func TestNothingSentIsTriedAgain(t *testing.T) {
	for _, engine := range []string{fake.SGLang, fake.VLLMNixl, fake.Plain} {
		r := newFakes(t, 2, fake.Options{Engine: engine})
		// The second is reached through something that hides what it runs on, and then is gone without a sign.
		front := r.pairs[1].Prefill
		if front == nil {
			front = r.pairs[1].Decode
		}
		at, _ := url.Parse(front.URL())
		proxy := httputil.NewSingleHostReverseProxy(at)
		proxy.ModifyResponse = func(a *http.Response) error { a.Header.Del("Server"); return nil }
		dead := httptest.NewServer(proxy)
		for i, w := range r.model.Fleet.Workers {
			if w.URL.Host == at.Host {
				r.model.Fleet.Workers[i].URL, _ = url.Parse(dead.URL)
				r.model.Fleet.Workers[i].BootstrapHost = at.Hostname()
			}
		}
		r.open()
		dead.Close()
		for n := 0; !strings.Contains(r.admin("/metrics"), "sluice_retries_total 1"); n++ {
			if a := r.complete("recall", prompt, n%2 == 0); a.status != 200 {
				t.Fatalf("%s: %d %s", engine, a.status, a.body)
			}
			if n > 500 {
				t.Fatal("the dead worker is never drawn")
			}
		}
		for range 20 {
			if a := r.complete("recall", prompt, false); a.status != 200 {
				t.Fatalf("%s: %d %s", engine, a.status, a.body)
			}
		}
		if s := r.admin("/metrics"); !strings.Contains(s, "sluice_retries_total 1") {
			t.Errorf("%s: the dead worker was asked again", engine)
		}
	}
}

// Where both legs run at once, a failure of decode waits for prefill's answer, and not for ever: prefill says nothing here.
func TestDecodesFailureWaitsForPrefillForAWhile(t *testing.T) {
	t.Parallel()
	r := newFakes(t, 1, fake.Options{Engine: fake.VLLMMooncake, Patience: 100 * time.Millisecond}).open()
	r.pairs[0].Tell(fake.Lie{Kind: actor.HangHeaders, Leg: actor.Prefill, Times: 1})
	r.pairs[0].Tell(fake.Lie{Kind: actor.Failed, Leg: actor.Decode, Times: 1})
	began := time.Now()
	a := r.complete("recall", prompt, false)
	if a.status != 502 || !strings.Contains(a.body, "engine_failed") || !strings.Contains(a.body, "decode") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the client waited %v", took)
	}
}
