package fake

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Workers can say what is not true of themselves, on every page where a gateway would look.
func TestFactsThatLie(t *testing.T) {
	page := func(w *actor.Worker, path string) (int, string) {
		c := http.Client{Timeout: 50 * time.Millisecond}
		resp, err := c.Get(w.URL() + path)
		if err != nil {
			return 0, ""
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	s := NewPair(t, Options{Engine: SGLang}).Prefill
	v := NewPair(t, Options{Engine: VLLMNixl}).Prefill
	for _, c := range []struct {
		w          *actor.Worker
		facts      Facts
		path, want string
		status     int
	}{
		{s, Facts{Pool: 99999}, "/server_info", `"max_total_num_tokens":99999`, 200},
		{s, Facts{Pool: 99999}, "/server_info", `"token_capacity":99999`, 200},
		{s, Facts{Pool: 99999}, "/metrics", `} 99999.0`, 200},
		{s, Facts{Metrics: 77777}, "/metrics", `} 77777.0`, 200},
		{s, Facts{Metrics: 77777}, "/server_info", `"max_total_num_tokens":8192`, 200},
		{s, Facts{Context: 1 << 20}, "/v1/models", `"max_model_len":1048576`, 200},
		{s, Facts{PageSize: 64}, "/server_info", `"page_size":64`, 200},
		{s, Facts{Version: "0.5.21"}, "/server_info", `"version":"0.5.21"`, 200},
		{s, Facts{Leg: "decode"}, "/server_info", `"disaggregation_mode":"decode"`, 200},
		{s, Facts{Gone: true}, "/server_info", "", 404},
		{s, Facts{Garbage: true}, "/server_info", "\xff\xfe", 200},
		{s, Facts{Hang: true}, "/metrics", "", 0},
		{v, Facts{Pool: 64000}, "/metrics", `num_gpu_blocks="2000"`, 200},
		{v, Facts{Metrics: 32000}, "/metrics", `kv_cache_size_tokens="32000"`, 200},
		{v, Facts{Context: 1 << 20}, "/v1/models", `"max_model_len":1048576`, 200},
		{v, Facts{PageSize: 16}, "/metrics", `block_size="16"`, 200},
		{v, Facts{Version: "0.29.0"}, "/version", `{"version":"0.29.0"}`, 200},
		{v, Facts{Gone: true}, "/v1/models", "", 404},
		{v, Facts{Garbage: true}, "/version", "\xff\xfe", 200},
		{v, Facts{Hang: true}, "/version", "", 0},
	} {
		c.w.SetFacts(c.facts)
		if status, body := page(c.w, c.path); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%+v: %s: %d, and no %q", c.facts, c.path, status, c.want)
		}
	}
}

// A killed worker's connections end at once; the process that follows has other facts and an empty memory.
func TestRestartForgets(t *testing.T) {
	p := NewPair(t, Options{Engine: VLLMNixl, TokenWait: 20 * time.Millisecond})
	p.Quiet()
	n := newNaive(p)
	done := make(chan reply)
	go func() {
		_, d := n.ask(paths[1], bodyOf(paths[1], strings.Repeat(canary, 10)), true, 200)
		done <- d
	}()
	for p.Decode.PromptTokens.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := p.Decode.Restart(func(c *actor.Config) { c.Pool = 1024 }); err != nil {
		t.Fatal(err)
	}
	<-done // cut, or over just before
	p.Tell(Lie{Kind: actor.StalePages, Leg: actor.Decode})
	m := newNaive(p)
	if _, d := m.ask(paths[1], bodyOf(paths[1], "abc abc"), false, 20); d.status != 200 || strings.Contains(textOf(d), "vault") || p.Decode.Config().Pool != 1024 {
		t.Errorf("%d %s", d.status, d.body)
	}
}
