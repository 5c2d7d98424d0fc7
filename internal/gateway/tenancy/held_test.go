package tenancy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
)

// gauge is a sample of /metrics.
func (r *rig) gauge(name string) (v float64) {
	r.Helper()
	for line := range strings.Lines(r.operator()) {
		if s, ok := strings.CutPrefix(line, name+" "); ok {
			fmt.Sscan(s, &v)
		}
	}
	return v
}

func (r *rig) until(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatal(what + " does not come")
		}
	}
}

// What is held, and what is in flight, is in the metrics while it lasts; and what a client that hung up left to compute is charged.
func TestWhatIsHeldIsCounted(t *testing.T) {
	const chunk = `data: {"id":"c","object":"text_completion","created":1,"model":"recall","choices":[{"index":0,"text":"word","logprobs":null,"finish_reason":%s}],"usage":{"prompt_tokens":3,"completion_tokens":%d,"total_tokens":9}}` + "\n\n"
	goOn, gone := make(chan bool), make(chan bool)
	leg := func(answer http.HandlerFunc) *url.URL {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if !strings.HasSuffix(q.URL.Path, "completions") {
				http.NotFound(w, q)
				return
			}
			answer(w, q)
		}))
		t.Cleanup(srv.Close)
		at, _ := url.Parse(srv.URL)
		return at
	}
	t.Cleanup(func() { close(gone) }) // before the servers wait for their handlers
	prefill := leg(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-goOn:
		case <-gone:
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"c","object":"text_completion","created":1,"model":"recall","choices":[{"index":0,"text":"w","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`)
	})
	decode := leg(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 10 {
			fmt.Fprintf(w, chunk, "null", i+1)
		}
		fmt.Fprintf(w, chunk, `"stop"`, 11)
		fmt.Fprint(w, `data: {"id":"c","object":"text_completion","created":1,"model":"recall","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":11,"total_tokens":14}}`+"\n\ndata: [DONE]\n\n")
	})
	r := &rig{T: t, up: &wireTap{}, log: &tap{}, access: t.TempDir() + "/access"}
	r.start(&gateway.Guarded{Fleet: foreign.Config{Engine: fake.SGLang, Every: time.Hour, Workers: []foreign.Worker{
		{Name: "p", Role: capacity.Prefill, URL: prefill, PoolTokens: 4096, Context: 4096, BootstrapPort: 1},
		{Name: "d", Role: capacity.Decode, URL: decode, PoolTokens: 4096, Context: 4096}}}})
	done := make(chan string)
	go func() {
		_, got := r.ask(clientKey, "/v1/completions", `{"model":"recall","prompt":"a b","max_tokens":20,"stream":true}`)
		done <- got
	}()
	r.until("something held", func() bool { return r.gauge("sluice_held_bytes") > 500 })
	if n := r.gauge(`sluice_inflight_tokens{model="recall"}`); n < 20 {
		t.Errorf("%v tokens in flight", n)
	}
	goOn <- true // prefill answers, and the legs agree
	if got := <-done; strings.Count(got, "word") != 11 {
		t.Errorf("%s", got)
	}
	r.until("nothing held", func() bool {
		return r.gauge("sluice_held_bytes") == 0 && r.gauge(`sluice_inflight_tokens{model="recall"}`) == 0
	})
	if p, c := r.gauge(`sluice_tenant_tokens_total{kind="prompt",tenant="alice"}`), r.gauge(`sluice_tenant_tokens_total{kind="completion",tenant="alice"}`); p != 3 || c != 11 {
		t.Errorf("%v and %v tokens are the tenant's, want 3 and 11", p, c)
	}
}
