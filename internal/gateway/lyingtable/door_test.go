package lyingtable

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gateway"
)

// Prefill refuses with a status: the refusal reaches the client, decode's text does not, and a decode that spoke is an incident.
func TestPrefillsRefusalReachesTheClient(t *testing.T) {
	each(t, func(t *testing.T, engine string, stream, chat bool) {
		for _, c := range []struct {
			status, want int
			code         string
		}{
			{400, 400, "context_length_exceeded"}, {500, 502, "engine_failed"}, {429, 503, "overloaded"}, {302, 502, "engine_failed"},
		} {
			p := workers(t, engine)
			p.lie = lie{text: secret, prefill: sends(c.status, `{"object":"error","message":"Input length (1500 tokens) exceeds the maximum allowed length (1018 tokens)","code":400}`)}
			g := door(t, p, gateway.Enforce, nil)
			a := ask(t, g, chat, stream, "")
			if a.status != c.want || strings.Contains(a.body, secret) || !strings.Contains(a.body, c.code) || strings.Contains(a.body, "1018") {
				t.Errorf("%d: %d %s", c.status, a.status, a.body)
			}
			if engine != nixl && !incidents(t, g, "prefill-verdict", "enforce") {
				t.Errorf("%d: decode spoke behind a refusal, and nobody noticed", c.status)
			}
			if engine == nixl {
				for _, r := range p.seen() {
					if r.leg == "decode" {
						t.Error("decode was asked without a handle")
					}
				}
			}
		}
	})
}

// A connection that is cut is an error, and no text of a reply whose count never came leaves.
func TestACutReplyIsAnError(t *testing.T) {
	each(t, func(t *testing.T, engine string, stream, chat bool) {
		p := workers(t, engine)
		p.noUsage = true
		p.lie = lie{cut: true, text: secret}
		a := ask(t, door(t, p, gateway.Enforce, nil), chat, stream, "")
		if a.status != 502 || strings.Contains(a.body, secret) || !strings.Contains(a.body, "worker_lost") {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// What a leg gets: the gateway's control fields, the same prompt, and nothing of the client's that is not allowed.
func TestWhatTheLegsGet(t *testing.T) {
	for _, engine := range engines {
		p := workers(t, engine)
		g := door(t, p, gateway.Enforce, nil)
		rooms := map[string]bool{}
		for range 2 {
			p.forget()
			if a := ask(t, g, true, true, `,"user":"u","x_unknown":1,"temperature":0.50`); a.status != 200 {
				t.Fatalf("%s: %d %s", engine, a.status, a.body)
			}
			legs := map[string]request{}
			for _, r := range p.seen() {
				legs[r.leg] = r
			}
			pre, dec := legs["prefill"], legs["decode"]
			if pre.header.Get("X-Request-Id") == "" || pre.header.Get("X-Request-Id") != dec.header.Get("X-Request-Id") {
				t.Errorf("%s: the legs have no request id in common", engine)
			}
			for _, r := range legs {
				if !strings.Contains(r.raw, `"temperature":0.50`) || !strings.Contains(r.raw, `"messages":[{"role":"user","content":"My name is Alice. My name is"}]`) {
					t.Errorf("%s: the body was rebuilt: %s", engine, r.raw)
				}
				if strings.Contains(r.raw, "x_unknown") {
					t.Errorf("%s: an unknown field passed: %s", engine, r.raw)
				}
			}
			if pre.body["stream"] != false || dec.body["stream"] != true || fmt.Sprint(dec.body["stream_options"]) != "map[continuous_usage_stats:true include_usage:true]" || pre.body["stream_options"] != nil {
				t.Errorf("%s: prefill %s decode %s", engine, pre.raw, dec.raw)
			}
			salt := "cache_salt"
			switch engine {
			case sg:
				salt = "extra_key"
				for _, f := range []string{"bootstrap_room", "bootstrap_host", "bootstrap_port", "rid"} {
					if pre.body[f] == nil || pre.body[f] != dec.body[f] {
						t.Errorf("%s differs: %v %v", f, pre.body[f], dec.body[f])
					}
				}
				if pre.body["bootstrap_host"] != "127.0.0.1" || pre.body["bootstrap_port"] != 9102.0 {
					t.Error(pre.raw)
				}
				rooms[fmt.Sprint(pre.body["bootstrap_room"])] = true
			case nixl:
				k := dec.body["kv_transfer_params"].(map[string]any)
				if pre.body["max_tokens"] != 1.0 || k["do_remote_prefill"] != true || k["remote_host"] != "127.0.0.1" {
					t.Errorf("%s %s", pre.raw, dec.raw)
				}
				rooms[fmt.Sprint(k["remote_request_id"])] = true
			default:
				a, b := pre.body["kv_transfer_params"].(map[string]any), dec.body["kv_transfer_params"].(map[string]any)
				if a["transfer_id"] != b["transfer_id"] || a["do_remote_decode"] != true || b["remote_bootstrap_addr"] != "http://127.0.0.1:9102" || pre.body["ignore_eos"] != true {
					t.Errorf("%s %s", pre.raw, dec.raw)
				}
				rooms[fmt.Sprint(a["transfer_id"])] = true
			}
			if s, _ := pre.body[salt].(string); len(s) != 32 || s != dec.body[salt] {
				t.Errorf("%s: %s is %v and %v", engine, salt, pre.body[salt], dec.body[salt])
			}
		}
		if len(rooms) != 2 {
			t.Errorf("%s: the legs met at the same place twice: %v", engine, rooms)
		}
	}
}

// A client's control fields, in any spelling, never reach a leg; nor does a body that two parsers read differently.
func TestControlFieldsOfAClientAreRefused(t *testing.T) {
	for _, engine := range engines {
		p := workers(t, engine)
		g := door(t, p, gateway.Observe, nil) // always enforced
		for _, extra := range []string{
			`,"bootstrap_room":7`, `,"kv_transfer_params":{"remote_host":"10.9.8.7"}`, `,"transfer_id":"x"`, `,"rid":"x"`, `,"Bootstrap_Host":"2.2.2.2"`,
			`,"bootstrap\u005froom":7`, `,"extra_body":{"bootstrap_room":7}`, `,"max_tokens":1`, `,"n":2`, `,"data_parallel_rank":1`,
		} {
			if a := ask(t, g, true, false, extra); a.status != 400 || !strings.Contains(a.body, `"error"`) {
				t.Errorf("%s %s: %d %s", engine, extra, a.status, a.body)
			}
		}
		if n := len(p.seen()); n != 0 {
			t.Errorf("%s: %d legs were asked", engine, n)
		}
	}
}

// A prompt over the limit is refused before any leg is asked, whichever way its length is known; one that only observes lets it pass.
func TestOverTheLimit(t *testing.T) {
	for _, engine := range engines {
		p := workers(t, engine)
		g := door(t, p, gateway.Enforce, nil)
		ids := strings.TrimSuffix(strings.Repeat("7,", 5000), ",")
		bodies := map[string]string{
			"/v1/completions":      `{"model":"recall","prompt":[` + ids + `]}`,
			"/v1/chat/completions": `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("word ", 9000) + `"}]}`,
		}
		for path, body := range bodies {
			a := post(t, "http://"+g.Addr()+path, body)
			if a.status != 400 || !strings.Contains(a.body, "context_length_exceeded") {
				t.Errorf("%s %s: %d %s", engine, path, a.status, a.body)
			}
		}
		if n := len(p.seen()); n != 0 {
			t.Errorf("%s: %d legs were asked", engine, n)
		}
		o := door(t, p, gateway.Observe, nil)
		if a := post(t, "http://"+o.Addr()+"/v1/completions", bodies["/v1/completions"]); a.status != 200 || !incidents(t, o, "admission", "observe") {
			t.Errorf("%s: observed: %d %s", engine, a.status, a.body)
		}
	}
}

// The engine's own count decides where bytes do not.
func TestTheEngineCounts(t *testing.T) {
	p := workers(t, nixl)
	var count atomic.Int64
	old := p.prefill.Config.Handler
	p.prefill.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" {
			b, _ := io.ReadAll(r.Body)
			if strings.Contains(string(b), "temperature") || !strings.Contains(string(b), "messages") {
				t.Errorf("asked to count %.100s", b)
			}
			fmt.Fprintf(w, `{"tokens":[],"count":%d}`, count.Load())
			return
		}
		old.ServeHTTP(w, r)
	})
	g := door(t, p, gateway.Enforce, nil)
	body := `{"model":"recall","temperature":0,"max_tokens":8,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 2000) + `"}]}`
	for n, want := range map[int64]int{2003: 200, 4000: 200, 4090: 400} {
		count.Store(n)
		if a := post(t, "http://"+g.Addr()+"/v1/chat/completions", body); a.status != want || want == 400 && !strings.Contains(a.body, "4090") {
			t.Errorf("%d tokens: %d %s", n, a.status, a.body)
		}
	}
}

func post(t *testing.T, url, body string) got {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return got{resp.StatusCode, string(b), resp.Header}
}

// No path of a worker is reachable but the API's; usage comes to whom it was asked for; a handle comes to nobody.
func TestWhatClientsGet(t *testing.T) {
	p := workers(t, nixl)
	g := door(t, p, gateway.Enforce, nil)
	for _, path := range []string{"/server_info", "/metrics", "/tokenize", "/flush_cache", "/generate", "/v1/load_lora_adapter", "/health_generate"} {
		resp, err := http.Get("http://" + g.Addr() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	a := ask(t, g, true, true, `,"stream_options":{"include_usage":true}`)
	if n := strings.Count(a.body, `"usage"`); n != 1 || !strings.Contains(a.body, `"choices":[]`) {
		t.Errorf("usage came %d times: %s", n, a.body)
	}
	p.lie = lie{whole: func(a map[string]any) any { a["kv_transfer_params"] = map[string]any{"remote_block_ids": 1}; return a }}
	if a := ask(t, g, true, false, ""); a.status != 200 || strings.Contains(a.body, "remote_block") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := post(t, "http://"+g.AdminAddr()+"/admin/models/recall/off?reason=maintenance", ""); a.status != 200 {
		t.Error(a)
	}
	if a := ask(t, g, true, false, ""); a.status != 503 || !strings.Contains(a.body, "maintenance") {
		t.Errorf("switched off: %d %s", a.status, a.body)
	}
	post(t, "http://"+g.AdminAddr()+"/admin/models/recall/on", "")
	if a := ask(t, g, true, false, ""); a.status != 200 {
		t.Errorf("switched on: %d %s", a.status, a.body)
	}
	if s := admin(t, g, "/admin/fleet"); !strings.Contains(s, `"usable"`) || !strings.Contains(s, "4096") {
		t.Error(s)
	}
}

// A worker of which nothing is known is not used.
func TestAnUnknownWorkerIsNotUsed(t *testing.T) {
	p := workers(t, sg)
	g := door(t, p, gateway.Enforce, func(c *gateway.Config) {
		c.Models[0].Guarded.Fleet.Workers[0].PoolTokens = 0
		c.Limits.PairWait = -1
	})
	if a := ask(t, g, true, false, ""); a.status != 503 || len(p.seen()) != 0 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A worker that cannot be reached costs nothing but another attempt, on another pair.
func TestAnotherPairIsTried(t *testing.T) {
	p, q := workers(t, sg), workers(t, sg)
	p.meets = q
	p.prefill.Close()
	g := door(t, p, gateway.Enforce, func(c *gateway.Config) {
		f := &c.Models[0].Guarded.Fleet
		other := f.Workers[0]
		u := *other.URL
		u.Host = strings.TrimPrefix(q.prefill.URL, "http://")
		other.URL = &u
		f.Workers = append(f.Workers, other)
	})
	// The other pair serves once its facts are read: until then there is none to try.
	for ask(t, g, true, false, "").status != 200 {
		if t.Context().Err() != nil {
			t.Fatal("the other pair never serves")
		}
	}
	before := 0
	for _, r := range q.seen() {
		if r.leg == "prefill" {
			before++
		}
	}
	for range 8 {
		if a := ask(t, g, true, false, ""); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	rooms := map[any]bool{}
	for _, r := range q.seen() {
		if r.leg == "prefill" {
			rooms[r.body["bootstrap_room"]] = true
		}
	}
	if len(rooms) != before+8 {
		t.Errorf("%d rooms for %d attempts", len(rooms), before+8)
	}
}

// A stream that waits long says so and still ends in the truth.
func TestCommitAfter(t *testing.T) {
	p := workers(t, sg)
	p.lie = lie{text: secret, prefill: func(w http.ResponseWriter, a map[string]any) bool {
		time.Sleep(300 * time.Millisecond)
		a["usage"] = map[string]any{"prompt_tokens": 1, "completion_tokens": 1}
		return false
	}}
	g := door(t, p, gateway.Enforce, func(c *gateway.Config) { c.Models[0].Guarded.Hold.CommitAfter = 50 * time.Millisecond })
	a := ask(t, g, true, true, "")
	if a.status != 200 || !strings.HasPrefix(a.body, ": waiting") || strings.Contains(a.body, secret) || strings.Contains(a.body, "[DONE]") || !strings.Contains(a.body, "legs_disagree") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A client that hangs up leaves nothing behind: the legs end and the pair's tokens come back.
func TestClientsThatHangUp(t *testing.T) {
	p := workers(t, sg)
	hold := make(chan struct{})
	p.lie = lie{prefill: func(w http.ResponseWriter, a map[string]any) bool { <-hold; return false }}
	g := door(t, p, gateway.Enforce, nil)
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+g.Addr()+"/v1/completions", strings.NewReader(`{"model":"recall","prompt":"x","stream":true}`))
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
		cancel()
	}
	close(hold)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if s := admin(t, g, "/admin/fleet"); strings.Contains(s, `"inflight": 0`) && strings.Count(s, `"load_tokens": 0`) == 2 {
			break
		} else if time.Now().After(end) {
			t.Fatal(s)
		}
	}
	p.tell(lie{})
	if a := ask(t, g, true, true, ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
