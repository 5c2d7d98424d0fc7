package sglang_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// recorded is what the two legs of the released packages answered: make e2e-sglang keeps it.
type recorded struct {
	Foreign string // text of another tenant in decode's answer
	Prefill leg
	Decode  leg
}

type leg struct {
	Status int
	Body   string
}

// replay is a pair of workers that answers what was recorded.
type replay struct {
	t    *testing.T
	mu   sync.Mutex
	now  recorded
	told chan string // ids that decode was told to give up
	left chan string // ids whose connection to decode was closed
}

func (r *replay) set(x recorded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = x
}

func (r *replay) answer(w http.ResponseWriter, l leg) {
	kind := "application/json"
	if strings.HasPrefix(l.Body, "data:") {
		kind = "text/event-stream; charset=utf-8"
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(l.Status)
	for _, event := range strings.SplitAfter(l.Body, "\n\n") {
		io.WriteString(w, event)
		http.NewResponseController(w).Flush()
	}
}

func (r *replay) ServeHTTP(w http.ResponseWriter, q *http.Request, decode bool) {
	var b struct {
		RID  string
		Room int64 `json:"bootstrap_room"`
	}
	raw, _ := io.ReadAll(q.Body)
	_ = json.Unmarshal(raw, &b)
	r.mu.Lock()
	now := r.now
	r.mu.Unlock()
	switch {
	case q.URL.Path == "/abort_request":
		r.told <- b.RID
	case !strings.HasPrefix(q.URL.Path, "/v1/") || q.Method != http.MethodPost:
		http.NotFound(w, q)
	case b.Room <= 0 || b.RID == "":
		r.t.Errorf("a leg was asked without a room or an id: %s", q.URL.Path)
	case !decode:
		r.answer(w, now.Prefill)
	case strings.Contains(now.Decode.Body, " timed out after "):
		<-q.Context().Done() // it waits for pages until its time is up, which is minutes
		r.left <- b.RID
	default:
		r.answer(w, now.Decode)
	}
}

func openReplay(t *testing.T, mode gateway.Mode) (*replay, *gateway.Gateway) {
	t.Helper()
	return openPool(t, mode, 8192)
}

func openPool(t *testing.T, mode gateway.Mode, prefillPool int) (*replay, *gateway.Gateway) {
	t.Helper()
	r := &replay{t: t, told: make(chan string, 100), left: make(chan string, 100)}
	serve := func(decode bool) *url.URL {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.ServeHTTP(w, q, decode) }))
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		u, _ := url.Parse(s.URL)
		return u
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	g, err := gateway.New(gateway.Config{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Modes: gateway.Modes{All: mode},
		Models: []gateway.ModelConfig{{Name: "recall", Guarded: &gateway.Guarded{Fleet: foreign.Config{Engine: foreign.SGLang, Every: time.Hour, Patient: time.Second, Workers: []foreign.Worker{
			{Role: capacity.Prefill, URL: serve(false), PoolTokens: prefillPool, Context: 8192, PageSize: 16, BootstrapPort: 9102},
			{Role: capacity.Decode, URL: serve(true), PoolTokens: 8192, Context: 8192, PageSize: 16},
		}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return r, g
}

// client asks in the way of a recording and returns what came, and the text in it.
func client(t *testing.T, g *gateway.Gateway, name string) (status int, body, text string) {
	t.Helper()
	path, ask := "/v1/completions", `{"model":"recall","prompt":"whatever","max_tokens":64`
	if strings.Contains(name, "chat") {
		path, ask = "/v1/chat/completions", `{"model":"recall","messages":[{"role":"user","content":"whatever"}],"max_tokens":64`
	}
	if strings.Contains(name, "stream") {
		ask += `,"stream":true`
	}
	resp, err := http.Post("http://"+g.Addr()+path, "application/json", strings.NewReader(ask+"}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), textOf(string(b))
}

// textOf is what a reader of the API sees.
func textOf(body string) (text string) {
	for line := range strings.SplitSeq(body, "\n") {
		var c struct {
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(line), "data:")), &c) != nil {
			continue
		}
		for _, x := range c.Choices {
			text += x.Text + x.Message.Content + x.Delta.Content
		}
	}
	return text
}

func admin(t *testing.T, g *gateway.Gateway, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + g.AdminAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// incident waits for one of a guard.
func incident(t *testing.T, g *gateway.Gateway, guard, mode string) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(admin(t, g, "/metrics"), `guard="`+guard+`",mode="`+mode+`"`) {
			return true
		}
	}
	return false
}

func recordings(t *testing.T, prefix string) map[string]recorded {
	t.Helper()
	files, _ := filepath.Glob("testdata/" + prefix + "*.json")
	if len(files) == 0 {
		t.Fatalf("nothing is recorded of %s", prefix)
	}
	out := map[string]recorded{}
	for _, f := range files {
		var x recorded
		b, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(b, &x)
		}
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".json")] = x
	}
	return out
}

// The incident, as release 0.5.19 gave it: both legs say 200, and decode's text is tenant A's.
func TestRecordedIncidentsAreStopped(t *testing.T) {
	for name, x := range recordings(t, "over") {
		if !strings.Contains(textOf(x.Decode.Body), x.Foreign) || x.Foreign == "" {
			t.Fatalf("%s: the recording does not hold what it should", name)
		}
		r, g := openReplay(t, gateway.Enforce)
		r.set(x)
		status, body, text := client(t, g, name)
		if status != http.StatusBadGateway || !strings.Contains(body, `"legs_disagree"`) || text != "" || strings.Contains(body, "choices") {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if !incident(t, g, "prompt-agree", "enforce") || !strings.Contains(admin(t, g, "/admin/incidents"), "prefill says 1, decode says ") {
			t.Errorf("%s: %s", name, admin(t, g, "/admin/incidents"))
		}
	}
}

// With guards that only observe the same is counted, and the bytes pass: also the proof that this test would see a leak.
func TestRecordedIncidentsAreObserved(t *testing.T) {
	for name, x := range recordings(t, "over") {
		r, g := openReplay(t, gateway.Observe)
		r.set(x)
		status, body, text := client(t, g, name)
		if status != http.StatusOK || text != textOf(x.Decode.Body) || strings.Contains(name, "stream") && !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if !incident(t, g, "prompt-agree", "observe") {
			t.Errorf("%s: %s", name, admin(t, g, "/admin/incidents"))
		}
	}
}

// What fits is served as the engine said it.
func TestRecordedRepliesPass(t *testing.T) {
	for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
		for name, x := range recordings(t, "fits") {
			r, g := openReplay(t, mode)
			r.set(x)
			status, body, text := client(t, g, name)
			if status != http.StatusOK || text == "" || text != textOf(x.Decode.Body) {
				t.Errorf("%s: %d %s", name, status, body)
			}
			if stream := strings.Contains(name, "stream"); stream && (strings.Contains(body, "usage") || !strings.HasSuffix(body, "data: [DONE]\n\n")) || !stream && body != x.Decode.Body {
				t.Errorf("%s: %s", name, body)
			}
			if m := admin(t, g, "/metrics"); strings.Contains(m, "sluice_incidents_total{") {
				t.Errorf("%s: a false alarm: %s", name, admin(t, g, "/admin/incidents"))
			}
		}
	}
}

// The refusal that decode never hears, as release 0.5.20 gave it: the client has its 400, and decode is told.
func TestRecordedRefusalsAreHeard(t *testing.T) {
	for name, x := range recordings(t, "refused") {
		r, g := openReplay(t, gateway.Enforce)
		r.set(x)
		status, body, text := client(t, g, name)
		if status != http.StatusBadRequest || !strings.Contains(body, `"context_length_exceeded"`) || text != "" {
			t.Errorf("%s: %d %s", name, status, body)
		}
		select {
		case id := <-r.told:
			if id == "" {
				t.Errorf("%s: decode was told about no request", name)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: decode was not told", name)
		}
		// Admission was told too large a pool, and that is what the incident says; no guard over the legs objects to a refusal that was heard.
		if !incident(t, g, "admission", "enforce") || strings.Count(admin(t, g, "/metrics"), "\nsluice_incidents_total{") != 1 {
			t.Errorf("%s: %s", name, admin(t, g, "/admin/incidents"))
		}
	}
}

// A prefill that fails while it works may have pages on their way: to end decode's request then would give those pages to the next one
// under the writer's hands. The client has its error; decode is left to end by itself.
func TestAFailureInTheMiddleLeavesDecodeAlone(t *testing.T) {
	for _, name := range []string{"completions", "chat stream"} {
		r, g := openReplay(t, gateway.Enforce)
		r.set(recordings(t, "unscheduled")["unscheduled_completions"])
		if status, body, _ := client(t, g, name); status != http.StatusBadGateway || !strings.Contains(body, `"engine_failed"`) {
			t.Errorf("%s: %d %s", name, status, body)
		}
		select {
		case <-r.told:
			t.Errorf("%s: decode was told to give its pages back", name)
		case <-r.left:
			t.Errorf("%s: decode's connection was closed, which is an abort to the engine", name)
		case <-time.After(time.Second):
		}
	}
}

// Prefill holds no reply: a client that allows a long one is served, though prefill's pool is smaller than both together.
func TestAReplyNeedsNoRoomAtPrefill(t *testing.T) {
	r, g := openPool(t, gateway.Enforce, 1024)
	r.set(recordings(t, "fits_completions")["fits_completions"])
	for _, c := range []struct {
		prompt, most, status int
	}{{100, 4096, 200}, {900, 7000, 200}, {1500, 16, 400}, {900, 7300, 400}} {
		resp, err := http.Post("http://"+g.Addr()+"/v1/completions", "application/json",
			strings.NewReader(fmt.Sprintf(`{"model":"recall","prompt":%q,"max_tokens":%d}`, strings.Repeat("x", c.prompt), c.most)))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("a prompt of %d bytes and a reply of at most %d: %d %s", c.prompt, c.most, resp.StatusCode, b)
		}
	}
}
