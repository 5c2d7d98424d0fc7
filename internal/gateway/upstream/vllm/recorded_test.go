package vllm_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
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

// leg answers with bodies that a real worker gave, one after the other; the last again and again.
type leg struct {
	*httptest.Server
	mu      sync.Mutex
	answers []string
	asked   []string // bodies
}

func answers(t *testing.T, names ...string) *leg {
	t.Helper()
	l := &leg{}
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join("testdata", n+".response"))
		if err != nil {
			t.Fatal(err)
		}
		l.answers = append(l.answers, string(b))
	}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		l.mu.Lock()
		l.asked = append(l.asked, string(body))
		answer := l.answers[0]
		if len(l.answers) > 1 {
			l.answers = l.answers[1:]
		}
		l.mu.Unlock()
		head, said, _ := strings.Cut(answer, "\n\n")
		status := 0
		for i, line := range strings.Split(head, "\n") {
			if i == 0 {
				status, _ = strconv.Atoi(strings.Fields(line)[1])
			} else if k, v, _ := strings.Cut(line, ": "); k == "content-type" {
				w.Header().Set(k, v)
			}
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, said)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *leg) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

type recorded struct {
	prefill, decode *leg
	g               *gateway.Gateway
}

// before puts a gateway before two legs of which all that matters is pinned.
func before(t *testing.T, prefill, decode *leg, guards map[string]gateway.Mode) recorded {
	t.Helper()
	at := func(l *leg) *url.URL {
		u, err := url.Parse(l.URL)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	g, err := gateway.New(gateway.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Modes: gateway.Modes{Each: guards}, Models: []gateway.ModelConfig{{
		Name: "recall", Guarded: &gateway.Guarded{Fleet: foreign.Config{Engine: foreign.VLLMNixl, Every: time.Hour, Patient: 5 * time.Second, Workers: []foreign.Worker{
			{Role: capacity.Prefill, URL: at(prefill), PoolTokens: 32768, Context: 8192, PageSize: 32},
			{Role: capacity.Decode, URL: at(decode), PoolTokens: 32768, Context: 8192, PageSize: 32},
		}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := g.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return recorded{prefill, decode, g}
}

func (r recorded) post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+r.g.Addr()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func (r recorded) admin(t *testing.T, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + r.g.AdminAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

const (
	completion = `{"model":"recall","prompt":"The colour of the gate is green. The colour of the door is blue. The number of the house is 4711. The colour of the gate","max_tokens":12,"temperature":0}`
	chat       = `{"model":"recall","messages":[{"role":"user","content":"My name is Alice Cooper. My name is"}],"max_tokens":16,"temperature":0,"stream":true}`
)

// What released workers answered, leg by leg, and what the gateway makes of it.
func TestRecordedLegs(t *testing.T) {
	for name, c := range map[string]struct {
		prefill, decode string
		chat, stream    bool
		status          int
		has, not        []string // of the client's body
		decodes         int      // requests that decode got
		guard           string   // that spoke
		modes           map[string]gateway.Mode
	}{
		"a completion":         {prefill: "completion.prefill", decode: "completion.decode", status: 200, has: []string{`"text":" is green. T"`, `"prompt_tokens":121`}, decodes: 1},
		"a streamed chat":      {prefill: "chat.prefill", decode: "chat_stream.decode", chat: true, status: 200, has: []string{`"content":"C"`, `"finish_reason":"stop"`, "data: [DONE]"}, not: []string{`"usage"`}, decodes: 1},
		"usage in every chunk": {prefill: "usage_chat.prefill", decode: "usage_chat.decode", chat: true, status: 200, has: []string{`"content":"e"`, `"finish_reason":"length"`, "data: [DONE]"}, not: []string{`"usage"`, "[]"}, decodes: 1},
		"first tokens of both": {prefill: "first_chat.prefill", decode: "first_chat.decode", chat: true, status: 200, has: []string{`"content":"A"`, "data: [DONE]"}, not: []string{"-89."}, decodes: 1,
			modes: map[string]gateway.Mode{"first-token": gateway.Enforce}},
		"a hybrid model":                   {prefill: "hybrid.prefill", decode: "completion.decode", status: 200, has: []string{" is green. T"}, decodes: 1},
		"another's prompt":                 {prefill: "completion.prefill", decode: "chat_stream.decode", chat: true, status: 502, has: []string{"legs_disagree"}, not: []string{"Cooper", `"content":"C"`}, decodes: 1, guard: "prompt-agree"},
		"a streamed prefill":               {prefill: "prefill_stream_usage", decode: "completion.decode", status: 502, not: []string{"green"}, guard: "prefill-verdict"},
		"decode could not load":            {prefill: "completion.prefill", decode: "load_failure.decode", status: 502, has: []string{"engine_failed"}, not: []string{"Internal server error"}, decodes: 1},
		"decode could not load, streamed":  {prefill: "completion.prefill", decode: "load_failure_stream.decode", stream: true, status: 502, not: []string{"[DONE]", "Internal server error"}, decodes: 1},
		"decode could not load, in a chat": {prefill: "chat.prefill", decode: "load_failure_chat_stream.decode", chat: true, status: 502, not: []string{"[DONE]", "assistant"}, decodes: 1},
		"decode has lost its engine":       {prefill: "completion.prefill", decode: "engine_ended.decode", status: 502, has: []string{"engine_failed"}, not: []string{"EngineCore"}, decodes: 1},
		"prefill has lost its engine":      {prefill: "engine_ended.decode", decode: "completion.decode", status: 502, has: []string{"engine_failed"}, not: []string{"EngineCore", "green"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := before(t, answers(t, c.prefill), answers(t, c.decode), c.modes)
			path, body := "/v1/completions", completion
			if c.chat {
				path, body = "/v1/chat/completions", chat
			}
			if c.stream {
				body = body[:len(body)-1] + `,"stream":true}`
			}
			status, got := r.post(t, path, body)
			if status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			for _, s := range c.has {
				if !strings.Contains(got, s) {
					t.Errorf("%s is missing", s)
				}
			}
			for _, s := range append(c.not, "remote_", "8a911c63") {
				if strings.Contains(got, s) {
					t.Errorf("%s is there", s)
				}
			}
			if n := r.decode.count(); n != c.decodes {
				t.Errorf("decode was asked %d times, want %d", n, c.decodes)
			}
			if c.guard != "" && !strings.Contains(r.admin(t, "/metrics"), `guard="`+c.guard+`"`) {
				t.Errorf("guard %s did not speak:\n%s", c.guard, r.admin(t, "/admin/incidents"))
			}
			if t.Failed() {
				t.Log(got)
			}
		})
	}
}

// A handle is used once, by the attempt that got it, byte for byte as it came; prefill's words that come a second time are not.
func TestAHandleIsUsedOnce(t *testing.T) {
	r := before(t, answers(t, "completion.prefill"), answers(t, "completion.decode"), nil)
	if status, body := r.post(t, "/v1/completions", completion); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := r.post(t, "/v1/completions", completion); status != 502 || strings.Contains(body, "green") || !strings.Contains(body, "used before") {
		t.Errorf("%d %s", status, body)
	}
	if n := r.decode.count(); n != 1 {
		t.Fatalf("decode was asked %d times", n)
	}
	const handle = `"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"8a911c63-5675-42bc-af3c-bcac35e210f7"`
	if got := r.decode.asked[0]; !strings.Contains(got, handle) {
		t.Errorf("decode was given another handle: %s", got)
	}
	for _, asked := range r.prefill.asked {
		if strings.Contains(asked, "8a911c63") {
			t.Errorf("a handle went back to prefill: %s", asked)
		}
	}
}

// A client's handle is nobody's: no leg is asked.
func TestAClientsHandleDoesNotPass(t *testing.T) {
	r := before(t, answers(t, "completion.prefill"), answers(t, "completion.decode"), nil)
	const handle = `{"do_remote_prefill":true,"remote_engine_id":"8a911c63-5675-42bc-af3c-bcac35e210f7","remote_request_id":"cmpl-attempt-0001-0-93b48613"}`
	for _, name := range []string{"kv_transfer_params", "KV_TRANSFER_PARAMS", `kv\u005ftransfer_params`, "ec_transfer_params"} {
		for _, value := range []string{handle, "{}", "[]", `{"do_remote_prefill":true}`} {
			status, body := r.post(t, "/v1/completions", completion[:len(completion)-1]+`,"`+name+`":`+value+`}`)
			if status != 400 || strings.Contains(body, "8a911c63") {
				t.Errorf("%s %s: %d %s", name, value, status, body)
			}
		}
	}
	if n := r.prefill.count() + r.decode.count(); n != 0 {
		t.Errorf("%d legs were asked", n)
	}
}
