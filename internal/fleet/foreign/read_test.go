package foreign

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
)

// recorded serves pages that released packages gave.
func recorded(t *testing.T, pages map[string]string) *url.URL {
	t.Helper()
	mux := http.NewServeMux()
	for path, file := range pages {
		b, err := os.ReadFile(filepath.Join("..", "..", "check", "testdata", "fixtures", file))
		if err != nil {
			t.Fatal(err)
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if strings.HasSuffix(file, ".json") {
				w.Header().Set("Content-Type", "application/json")
			}
			w.Write(b)
		})
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	u, _ := url.Parse(s.URL)
	return u
}

// The facts of real pairs, and the limits that follow: the pool of SGLang's prefill less its pages of reserve, and the longest prompt that
// its own check takes; vLLM's blocks less the null block.
func TestFactsOfRealWorkers(t *testing.T) {
	sg := func(leg string) map[string]string {
		d := "sglang/bodies/0.5.19/" + leg + "_"
		return map[string]string{"/server_info": d + "server_info.json", "/model_info": d + "model_info.json", "/v1/models": d + "models.json", "/metrics": d + "metrics.txt"}
	}
	f := pinnedFleet(t, Config{Patient: 10 * time.Second, Workers: []Worker{
		{Name: "p", Role: capacity.Prefill, URL: recorded(t, sg("P"))}, {Name: "d", Role: capacity.Decode, URL: recorded(t, sg("D"))},
	}})
	f.ReadAll(t.Context())
	p, d := f.byName["p"], f.byName["d"]
	if p.facts.PoolTokens != 1024 || p.facts.PageSize != 16 || p.facts.Context != 8192 || p.facts.Version != "0.5.19" || p.facts.Connector != "mooncake" || p.facts.Reserved != 32 {
		t.Errorf("%+v", p.facts)
	}
	if d.facts.PoolTokens != 8192 || d.limit.Tokens != 8160 || d.reason != "" {
		t.Errorf("%+v %+v %s", d.facts, d.limit, d.reason)
	}
	w := f.Widest()
	if w.Limit.Tokens != 992 || w.Limit.Setter != "the KV pool of prefill p" || w.Prompt != 992 || p.longest != 1017 {
		t.Errorf("%+v; the longest prompt of prefill's own check is %d", w, p.longest)
	}
	if h := p.Handover(); h.Port != 31998 {
		t.Errorf("%+v", h)
	}
	if p.facts.Boot == "" || p.facts.Boot == d.facts.Boot {
		t.Errorf("two processes are told apart by %q and %q", p.facts.Boot, d.facts.Boot)
	}
	// Roles that are the wrong way round are refused by what the workers say.
	f = pinnedFleet(t, Config{Patient: 10 * time.Second, Workers: []Worker{
		{Name: "p", Role: capacity.Prefill, URL: recorded(t, sg("D"))}, {Name: "d", Role: capacity.Decode, URL: recorded(t, sg("P"))},
	}})
	f.ReadAll(t.Context())
	if f.Ready() || !strings.Contains(f.byName["p"].why(), "it says that it is a decode worker") {
		t.Errorf("%q %q", f.byName["p"].why(), f.byName["d"].why())
	}
	// vLLM says its pool in its metrics, and its context in its models, which were not recorded: it is pinned.
	f = pinnedFleet(t, Config{Engine: VLLMNixl, Patient: 10 * time.Second, Workers: []Worker{
		{Name: "p", Role: capacity.Prefill, Context: 2048, URL: recorded(t, map[string]string{"/metrics": "vllm/metrics/pd.prefill.txt"})},
		{Name: "d", Role: capacity.Decode, Context: 2048, URL: recorded(t, map[string]string{"/metrics": "vllm/metrics/pd.decode.txt"})},
	}})
	f.ReadAll(t.Context())
	n := f.byName["p"]
	t.Logf("%+v %+v", n.facts, n.limit)
	if n.facts.PoolTokens == 0 || n.facts.PageSize == 0 || n.facts.Reserved != n.facts.PageSize || !f.Ready() {
		t.Errorf("%+v %s", n.facts, n.why())
	}
}

// A worker that is down is said to be down: that nothing could be read of it is no fault of its configuration.
func TestAWorkerThatIsDownIsSaidToBeDown(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	at, _ := url.Parse(down.URL)
	down.Close()
	nameless := &url.URL{Scheme: "http", User: url.UserPassword("u", "secret"), Host: "worker.invalid:8000"}
	mute := httptest.NewServer(http.NotFoundHandler())
	defer mute.Close()
	here, _ := url.Parse(mute.URL)
	f := pinnedFleet(t, Config{Patient: 10 * time.Second, Workers: []Worker{
		{Name: "p", Role: capacity.Prefill, URL: at}, {Name: "d", Role: capacity.Decode, URL: at},
		{Name: "n", Role: capacity.Decode, URL: nameless}, {Name: "m", Role: capacity.Decode, URL: here},
	}})
	f.ReadAll(t.Context())
	for name, want := range map[string]string{
		"p": "it cannot be reached: connection refused", "d": "it cannot be reached: connection refused",
		"n": "it cannot be reached: its host name", "m": "its pool or its context cannot be read",
	} {
		if why := f.byName[name].why(); !strings.HasPrefix(why, want) || strings.Contains(why, "secret") {
			t.Errorf("%s: %q, want %q", name, why, want)
		}
	}
	for _, w := range f.Status(t.Context(), false).Workers {
		if w.Name == "d" && (w.Reason != "it cannot be reached: connection refused" || w.State != "connecting") {
			t.Errorf("%+v", w)
		}
	}
}
