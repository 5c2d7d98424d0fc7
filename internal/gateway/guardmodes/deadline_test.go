package guardmodes

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/gateway"
)

// A client's deadline, or its proxy's, ends the request with a 504 that says for whom it was waited; what makes no sense is refused where
// the client said it, and left where a proxy did.
func TestDeadlinesOfClients(t *testing.T) {
	r := newRig(t, fake.Options{Engine: fake.VLLMNixl, FirstWait: 20 * time.Second}, nil)
	quick := newRig(t, fake.Options{Engine: fake.VLLMNixl}, nil)
	for _, c := range []struct {
		rig         *rig
		name, value string
		status      int
	}{
		{r, "X-Request-Timeout", "0.2", 504}, {r, "X-Request-Timeout", "200ms", 504}, {r, "X-Envoy-Expected-Rq-Timeout-Ms", "200", 504},
		{quick, "X-Request-Timeout", "soon", 400}, {quick, "X-Request-Timeout", "-1", 400},
		{quick, "X-Envoy-Expected-Rq-Timeout-Ms", "soon", 200}, {quick, "X-Envoy-Expected-Rq-Timeout-Ms", "0", 200},
		{quick, "X-Envoy-Expected-Rq-Timeout-Ms", "99999999999999999999", 200}, {quick, "X-Stainless-Read-Timeout", "0.001", 200},
	} {
		req, _ := http.NewRequest("POST", "http://"+c.rig.g.Addr()+"/v1/completions", strings.NewReader(`{"model":"recall","max_tokens":2,"prompt":"A. A"}`))
		req.Header.Set(c.name, c.value)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || c.status == 504 && !strings.Contains(string(b), "deadline_exceeded") {
			t.Errorf("%s: %s: %d %s", c.name, c.value, resp.StatusCode, b)
		}
	}
}

// Over a worker's budget of tokens a request waits a while, in a queue, and is then told to come again, and when; what is in flight goes on.
func TestBudgetsAnswer429(t *testing.T) {
	t.Parallel()
	r := newRig(t, fake.Options{Engine: fake.VLLMNixl, FirstWait: 6500 * time.Millisecond}, nil, func(g *gateway.Guarded) { g.Fleet.Budget = 100 })
	first := make(chan reply)
	go func() { first <- r.ask(false, false, ours, "") }()
	for r.Prefill.Requests.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	a := r.ask(false, false, ours, "")
	if a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, `"rate_limit_exceeded"`) {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if n := r.Prefill.Requests.Load(); n != 1 {
		t.Errorf("prefill was asked %d times", n)
	}
	if b := <-first; b.status != 200 || !strings.Contains(b.text(), "K7") {
		t.Errorf("the one in flight: %d %s", b.status, b.body)
	}
}
