package lyingtable

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// door opens a gateway before a pair, pinned by hand as an operator would.
func door(t *testing.T, p *pair, mode gateway.Mode, change func(*gateway.Config)) *gateway.Gateway {
	t.Helper()
	at := func(s string) *url.URL { u, _ := url.Parse(s); return u }
	ws := []foreign.Worker{
		{Role: capacity.Prefill, URL: at(p.prefill.URL), PoolTokens: 4096, Context: 8192, BootstrapPort: 9102},
		{Role: capacity.Decode, URL: at(p.decode.URL)},
	}
	if p.engine == foreign.Plain {
		ws = []foreign.Worker{{Role: capacity.Both, URL: at(p.decode.URL), PoolTokens: 4096, Context: 8192}}
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	cfg := gateway.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Modes: gateway.Modes{All: mode},
		Models: []gateway.ModelConfig{{Name: "recall", Guarded: &gateway.Guarded{Fleet: foreign.Config{Engine: p.engine, Workers: ws, Every: time.Hour, Patient: time.Second}}}}}
	if change != nil {
		change(&cfg)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

type got struct {
	status int
	body   string
	header http.Header
}

func ask(t *testing.T, g *gateway.Gateway, chat, stream bool, extra string) got {
	t.Helper()
	path, body := "/v1/completions", `{"model":"recall","prompt":"My name is Alice. My name is","max_tokens":8`
	if chat {
		path, body = "/v1/chat/completions", `{"model":"recall","messages":[{"role":"user","content":"My name is Alice. My name is"}],"max_tokens":8`
	}
	if stream {
		body += `,"stream":true`
	}
	resp, err := http.Post("http://"+g.Addr()+path, "application/json", strings.NewReader(body+extra+"}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return got{resp.StatusCode, string(b), resp.Header}
}

func admin(t *testing.T, g *gateway.Gateway, path string) string {
	t.Helper()
	return get(t, "http://"+g.AdminAddr()+path)
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// incidents waits until the gateway counted an incident of a guard, in a mode.
func incidents(t *testing.T, g *gateway.Gateway, guard, mode string) bool {
	t.Helper()
	want := fmt.Sprintf(`guard="%s",mode="%s"`, guard, mode)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for line := range strings.SplitSeq(admin(t, g, "/metrics"), "\n") {
			if strings.HasPrefix(line, "sluice_incidents_total") && strings.Contains(line, strings.Replace(want, `",mode`, `",mode`, 1)) {
				return true
			}
		}
	}
	return false
}

func set(k string, v any) func(http.ResponseWriter, map[string]any) bool {
	return func(_ http.ResponseWriter, a map[string]any) bool { a[k] = v; return false }
}

func sends(status int, body string) func(http.ResponseWriter, map[string]any) bool {
	return func(w http.ResponseWriter, _ map[string]any) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
		return true
	}
}

func without(events []string, part string) (out []string) {
	for _, e := range events {
		if !strings.Contains(e, part) {
			out = append(out, e)
		}
	}
	return out
}

const nixl = "vllm-nixl"

func handleWith(k string, v any) func(http.ResponseWriter, map[string]any) bool {
	return func(_ http.ResponseWriter, a map[string]any) bool {
		if h, ok := a["kv_transfer_params"].(map[string]any); ok {
			h[k] = v
		}
		return false
	}
}

// rows are the lies. Decode streams foreign text at once in all of them.
var rows = []struct {
	name   string
	only   string // engine
	stream int    // 1: streams only, -1: whole replies only
	lie    lie
	status int // of a reply of which nothing had left; 200: the stream had begun honestly
	guard  string
	late   bool // the lie shows after honest bytes may have left
}{
	{name: "prefill computed one token", lie: lie{prefill: func(_ http.ResponseWriter, a map[string]any) bool {
		a["usage"] = map[string]any{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
		if h, ok := a["kv_transfer_params"].(map[string]any); ok {
			h["remote_num_tokens"] = 1
		}
		return false
	}}, status: 502, guard: "prompt-agree"},
	{name: "prefill says no usage", lie: lie{prefill: func(_ http.ResponseWriter, a map[string]any) bool {
		delete(a, "usage")
		if h, ok := a["kv_transfer_params"].(map[string]any); ok {
			delete(h, "remote_num_tokens")
		}
		return false
	}}, status: 502, guard: "prefill-verdict"},
	{name: "prefill refuses in a field", lie: lie{prefill: func(_ http.ResponseWriter, a map[string]any) bool {
		a["choices"].([]any)[0].(map[string]any)["finish_reason"] = "abort"
		return false
	}}, status: 502, guard: "prefill-finish"},
	{name: "prefill answers 200 with an error", lie: lie{prefill: sends(200, `{"error":{"message":"Input length (1500 tokens) exceeds the maximum allowed length (1018 tokens).","code":400}}`)}, status: 400, guard: "prefill-verdict"},
	{name: "prefill answers 200 with a failure", lie: lie{prefill: sends(200, `{"object":"error","message":"boom","type":"InternalServerError","code":500}`)}, status: 502, guard: "prefill-verdict"},
	{name: "prefill answers nothing", lie: lie{prefill: sends(200, ``)}, status: 502, guard: "prefill-verdict"},
	{name: "prefill's handle is missing", only: nixl, lie: lie{prefill: set("kv_transfer_params", nil)}, status: 502, guard: "prefill-handle"},
	{name: "prefill's handle names another host", only: nixl, lie: lie{prefill: handleWith("remote_host", "10.9.8.7")}, status: 502, guard: "prefill-handle"},
	{name: "prefill's handle is another attempt's", only: nixl, lie: lie{prefill: handleWith("remote_request_id", "chatcmpl-slc-00000000000000000000000000000000-1")}, status: 502, guard: "prefill-handle"},
	{name: "prefill's handle is for fewer tokens", only: nixl, lie: lie{prefill: handleWith("remote_num_tokens", 5)}, status: 502, guard: "prefill-handle"},
	{name: "prefill's handle has no blocks", only: nixl, lie: lie{prefill: handleWith("remote_block_ids", []any{})}, status: 502, guard: "prefill-handle"},
	{name: "prefill names another transfer", only: "vllm-mooncake", lie: lie{prefill: set("kv_transfer_params", map[string]any{"transfer_id": "xfer-other"})}, status: 502, guard: "prefill-handle"},
	{name: "decode says no finish reason", stream: -1, lie: lie{whole: func(a map[string]any) any {
		a["choices"].([]any)[0].(map[string]any)["finish_reason"] = nil
		return a
	}}, status: 502, guard: "finish"},
	{name: "decode answers 200 with an error", stream: -1, lie: lie{whole: func(map[string]any) any {
		return map[string]any{"error": map[string]any{"message": secret, "code": 500}}
	}}, status: 502, guard: "wire"},
	{name: "decode answers with no choices", stream: -1, lie: lie{whole: func(a map[string]any) any { a["choices"] = []any{}; return a }}, status: 502, guard: "wire"},
	{name: "decode says another count", stream: -1, lie: lie{whole: func(a map[string]any) any {
		a["usage"] = map[string]any{"prompt_tokens": 71, "completion_tokens": 3}
		return a
	}}, status: 502, guard: "prompt-agree"},
	{name: "decode streams no finish reason", stream: 1, late: true, lie: lie{text: own, chunks: func(es []string) []string { return without(es, `"finish_reason":"stop"`) }}, status: 200, guard: "finish"},
	{name: "decode streams no DONE", stream: 1, late: true, lie: lie{text: own, chunks: func(es []string) []string { return without(es, "[DONE]") }}, status: 200, guard: "wire"},
	{name: "decode streams an error", stream: 1, lie: lie{chunks: func([]string) []string {
		return []string{`{"error":{"message":"` + secret + `","code":500}}`, "[DONE]"}
	}}, status: 502, guard: "answered"},
	{name: "decode changes its id", stream: 1, late: true, lie: lie{text: own, chunks: func(es []string) []string {
		es[1] = strings.Replace(strings.Replace(es[1], "d1", "d2", 1), "honest", secret, 1)
		return es
	}}, status: 200, guard: "wire"},
}

var engines = []string{sg, nixl, "vllm-mooncake"}

const sg = "sglang"

// Every lie, on every engine, streamed and not, chat and completions: no byte of foreign text, the right status, the incident named.
func TestLiesAreCaught(t *testing.T) {
	each(t, func(t *testing.T, engine string, stream, chat bool) {
		p := workers(t, engine)
		g := door(t, p, gateway.Enforce, nil)
		for _, r := range rows {
			if r.only != "" && r.only != engine || r.stream == 1 && !stream || r.stream == -1 && stream {
				continue
			}
			for _, late := range []bool{false, true} { // usage in each chunk, or at the end alone
				p.lie, p.noUsage = r.lie, late
				if p.lie.text == "" {
					p.lie.text = secret
				}
				a := ask(t, g, chat, stream, "")
				if strings.Contains(a.body, secret) {
					t.Errorf("%s: the client got foreign text: %s", r.name, a.body)
				}
				want := r.status
				if r.late && a.status == 502 {
					want = 502 // nothing had left yet
				}
				if a.status != want || strings.Contains(a.body, "[DONE]") || !strings.Contains(a.body, `"error"`) {
					t.Errorf("%s (usage late: %v): status %d, want %d: %s", r.name, late, a.status, want, a.body)
				}
				if !incidents(t, g, r.guard, "enforce") {
					t.Errorf("%s: no incident of %s:\n%s", r.name, r.guard, admin(t, g, "/admin/incidents"))
				}
				if !stream {
					break
				}
			}
		}
	})
}

// The same lies while guards only observe: the bytes pass and the same incidents are counted.
func TestLiesAreObserved(t *testing.T) {
	each(t, func(t *testing.T, engine string, stream, chat bool) {
		p := workers(t, engine)
		g := door(t, p, gateway.Observe, nil)
		for _, r := range rows {
			if r.only != "" && r.only != engine || r.stream == 1 && !stream || r.stream == -1 && stream {
				continue
			}
			p.lie = r.lie
			if p.lie.text == "" {
				p.lie.text = secret
			}
			a := ask(t, g, chat, stream, "")
			text := p.lie.text
			if strings.Contains(r.name, "no choices") || strings.Contains(r.name, "changes its id") {
				text = ""
			}
			if a.status != 200 || !strings.Contains(clean(a.body), text) {
				t.Errorf("%s: %d %s", r.name, a.status, a.body)
			}
			if !incidents(t, g, r.guard, "observe") {
				t.Errorf("%s: no incident of %s:\n%s", r.name, r.guard, admin(t, g, "/admin/incidents"))
			}
		}
	})
}

// clean joins the text of a stream's chunks.
func clean(body string) string {
	if !strings.HasPrefix(body, "data:") && !strings.HasPrefix(body, "event:") {
		return body
	}
	var out strings.Builder
	for line := range strings.SplitSeq(body, "\n") {
		var c struct {
			Error   any
			Delta   struct{ Text string }
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &c) != nil {
			continue
		}
		out.WriteString(c.Delta.Text)
		for _, x := range c.Choices {
			out.WriteString(x.Text + x.Delta.Content)
		}
		if c.Error != nil {
			fmt.Fprint(&out, c.Error)
		}
	}
	return out.String()
}

// Honest workers pass, byte for byte, and nothing is said about them.
func TestHonestWorkersPass(t *testing.T) {
	for _, engine := range append(engines, foreign.Plain) {
		for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
			p := workers(t, engine)
			g := door(t, p, mode, nil)
			for _, stream := range []bool{false, true} {
				for _, chat := range []bool{false, true} {
					for range 3 {
						a := ask(t, g, chat, stream, "")
						if a.status != 200 || !strings.Contains(clean(a.body), own) {
							t.Errorf("%s %v: %d %s", engine, mode, a.status, a.body)
						}
						if stream && (!strings.HasSuffix(a.body, "data: [DONE]\n\n") || engine != foreign.Plain && strings.Contains(a.body, "usage")) {
							t.Errorf("%s: %s", engine, a.body)
						}
					}
				}
			}
			if m := admin(t, g, "/metrics"); strings.Contains(m, "sluice_incidents_total{") {
				t.Errorf("%s: a false alarm: %s", engine, admin(t, g, "/admin/incidents"))
			}
		}
	}
}

func each(t *testing.T, f func(t *testing.T, engine string, stream, chat bool)) {
	for _, engine := range engines {
		for _, stream := range []bool{false, true} {
			for _, chat := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/stream=%v/chat=%v", engine, stream, chat), func(t *testing.T) {
					t.Parallel()
					f(t, engine, stream, chat)
				})
			}
		}
	}
}
