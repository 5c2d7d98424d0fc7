package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/fake/shape"
)

type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// send1 sends a request with an id, or without one.
func send1(method, url, id, body string) (r reply) { return patient(0, method, url, id, body) }

// patient is send1 for a client that hangs up; 0 never does.
func patient(patience time.Duration, method, url, id, body string) (r reply) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	q, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	q.Header.Set("Content-Type", "application/json")
	if id != "" {
		q.Header.Set("X-Request-Id", id)
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	r.status, r.header = resp.StatusCode, resp.Header
	r.body, r.err = io.ReadAll(resp.Body)
	return r
}

// recorded is a saved answer: status and body.
func recorded(t *testing.T, name string) (int, string, string) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".response")
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(b), "\n\n")
	status, _ := strconv.Atoi(strings.Fields(head)[1])
	typ := ""
	for _, line := range strings.Split(head, "\n") {
		if v, ok := strings.CutPrefix(line, "content-type: "); ok {
			typ = v
		}
	}
	return status, typ, strings.TrimSpace(body)
}

func events(s string) (out []string) {
	for _, e := range strings.Split(strings.TrimSpace(s), "\n\n") {
		out = append(out, strings.TrimPrefix(e, "data: "))
	}
	return out
}

func like(t *testing.T, name string, got reply, free ...string) {
	t.Helper()
	status, typ, body := recorded(t, name)
	if got.err != nil || got.status != status {
		t.Errorf("%s: status %d (%v), want %d: %s", name, got.status, got.err, status, got.body)
		return
	}
	if typ != "" && got.header.Get("Content-Type") != typ {
		t.Errorf("%s: %s, want %s", name, got.header.Get("Content-Type"), typ)
	}
	if !strings.HasPrefix(body, "data:") {
		if body == "" && len(got.body) == 0 {
			return
		}
		if d := shape.Differ(got.body, []byte(body), free...); d != "" {
			t.Errorf("%s: %s\n got %s\nwant %s", name, d, got.body, body)
		}
		return
	}
	g, w := events(string(got.body)), events(body)
	if len(g) != len(w) {
		t.Errorf("%s: %d events, want %d\n got %s\nwant %s", name, len(g), len(w), strings.Join(g, "\n"), strings.Join(w, "\n"))
		return
	}
	for i := range g {
		if w[i] == "[DONE]" || g[i] == "[DONE]" {
			if g[i] != w[i] {
				t.Errorf("%s: event %d is %s", name, i, g[i])
			}
		} else if d := shape.Differ([]byte(g[i]), []byte(w[i]), free...); d != "" {
			t.Errorf("%s, event %d: %s\n got %s\nwant %s", name, i, d, g[i], w[i])
		}
	}
}

func plain(t *testing.T, change func(*actor.Config)) *Worker {
	t.Helper()
	cfg := actor.Config{Leg: actor.Both, Pool: 32768, PageSize: 128, Context: 8192}
	if change != nil {
		change(&cfg)
	}
	w, err := New(NewFleet(actor.NewStage(t)), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

var messages = regexp.MustCompile(`"message":"(.*?[^\\])"`)

// A plain server says what the released one said: the same form, and where the text depends on nothing else the same text.
func TestPlainBodiesAreAsRecorded(t *testing.T) {
	chat := func(text, more string) string {
		return fmt.Sprintf(`{"model":"recall","messages":[{"role":"user","content":%q}]%s}`, text, more)
	}
	for _, c := range []struct{ name, method, path, body string }{
		{"completion", "POST", "/v1/completions", `{"model":"recall","prompt":"The value of x is 20. The value of y is 30. The value of x is","max_tokens":8,"temperature":0}`},
		{"completion_ids", "POST", "/v1/completions", `{"model":"recall","prompt":[256,97,98,99,100,97,98],"max_tokens":4,"temperature":0,"return_token_ids":true}`},
		{"completion_stream", "POST", "/v1/completions", `{"model":"recall","prompt":"abcdefgh abc","max_tokens":4,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"chat", "POST", "/v1/chat/completions", `{"model":"recall","messages":[{"role":"system","content":"Be short."},{"role":"user","content":"My name is Alice. My name is"}],"max_tokens":7,"temperature":0}`},
		{"chat_stream", "POST", "/v1/chat/completions", chat("My name is Alice. My name is", `,"max_tokens":3,"temperature":0,"stream":true,"stream_options":{"include_usage":true}`)},
		{"chat_stream_nousage", "POST", "/v1/chat/completions", chat("My name is Alice. My name is", `,"max_tokens":2,"temperature":0,"stream":true`)},
		{"err_404", "GET", "/v1/nothing", ""},
		{"err_method", "GET", "/v1/completions", ""},
		{"err_exactly_full_no_room", "POST", "/v1/completions", `{"model":"recall","prompt":"` + strings.Repeat("a", 8191) + `"}`},
		{"err_far_too_long_chars", "POST", "/v1/completions", `{"model":"recall","prompt":"` + strings.Repeat("a b ", 200000) + `","max_tokens":4}`},
		{"err_max_tokens_neg", "POST", "/v1/completions", `{"model":"recall","prompt":"x","max_tokens":-1}`},
		{"err_max_tokens_over", "POST", "/v1/completions", `{"model":"recall","prompt":"x","max_tokens":9000}`},
		{"err_max_tokens_zero", "POST", "/v1/chat/completions", chat("x", `,"max_tokens":0`)},
		{"err_too_long_chat", "POST", "/v1/chat/completions", chat(strings.Repeat("a b ", 2100), `,"max_tokens":4`)},
		{"err_too_long_completion", "POST", "/v1/completions", `{"model":"recall","prompt":"` + strings.Repeat("a b ", 2100) + `","max_tokens":4}`},
		{"err_too_long_ids", "POST", "/v1/completions", `{"model":"recall","prompt":[` + strings.Repeat("97,", 8999) + `97],"max_tokens":4}`},
		{"err_too_long_stream", "POST", "/v1/chat/completions", chat(strings.Repeat("a b ", 2100), `,"stream":true`)},
		{"err_unknown_model", "POST", "/v1/chat/completions", strings.Replace(chat("x", ""), "recall", "nope", 1)},
		{"health", "GET", "/health", ""},
		{"kv_params_without_connector", "POST", "/v1/completions", `{"model":"recall","prompt":"abcabc","max_tokens":2,"temperature":0,"kv_transfer_params":{"do_remote_prefill":true}}`},
		{"models", "GET", "/v1/models", ""},
		{"render_chat", "POST", "/v1/chat/completions/render", chat("x", "")},
		{"tokenize_chat", "POST", "/tokenize", `{"model":"recall","messages":[{"role":"system","content":"Be short."},{"role":"user","content":"My name is Alice. My name is"}]}`},
		{"tokenize_prompt", "POST", "/tokenize", `{"model":"recall","prompt":"abc"}`},
		{"version", "GET", "/version", ""},
	} {
		w := plain(t, nil)
		w.Quiet()
		got := send1(c.method, w.URL()+c.path, "", c.body)
		like(t, c.name, got)
		_, _, want := recorded(t, c.name)
		if g, w := messages.FindString(string(got.body)), messages.FindString(want); g != w && strings.HasPrefix(c.name, "err_") {
			t.Errorf("%s:\n got %s\nwant %s", c.name, g, w)
		}
		if !strings.HasPrefix(c.name, "err_") && text(t, string(got.body)) != text(t, want) {
			t.Errorf("%s: %q, want %q", c.name, text(t, string(got.body)), text(t, want))
		}
		if !strings.HasPrefix(c.name, "err_") && counts(string(got.body)) != counts(want) {
			t.Errorf("%s: %s, want %s", c.name, counts(string(got.body)), counts(want))
		}
	}
}

// text joins the texts of a body or of events.
func text(t *testing.T, body string) (out string) {
	for _, e := range events(body) {
		var r struct {
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(e), &r) == nil {
			for _, c := range r.Choices {
				out += c.Text + c.Message.Content + c.Delta.Content
			}
		}
	}
	return out
}

var usage = regexp.MustCompile(`"(prompt_tokens|completion_tokens|count)":\d+`)

func counts(body string) string { return strings.Join(usage.FindAllString(body, -1), " ") }

// rig is a pair without a gateway: the test carries handles itself.
type rig struct {
	t               *testing.T
	fleet           *Fleet
	prefill, decode *Worker
	n               int
	change          func(string) string
	carried         string
	patience        time.Duration // of Mooncake's decode leg
}

func newRig(t *testing.T, con Connector, change func(p, d *actor.Config, opt *Options)) *rig {
	p := actor.Config{Leg: actor.Prefill, Pool: 4096, PageSize: 32, Context: 4096, Patience: 300 * time.Millisecond}
	d := p
	d.Leg = actor.Decode
	opt := Options{Connector: con, SidePort: 15600}
	if change != nil {
		change(&p, &d, &opt)
	}
	r := &rig{t: t, fleet: NewFleet(actor.NewStage(t))}
	var err error
	if r.prefill, err = New(r.fleet, p, opt); err != nil {
		t.Fatal(err)
	}
	if r.decode, err = New(r.fleet, d, opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.prefill.Close(); r.decode.Close() })
	return r
}

func member(body, name, value string) string {
	return strings.TrimSuffix(body, "}") + `,"` + name + `":` + value + "}"
}

const ask = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func handleOf(r reply) string {
	var b struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	json.Unmarshal(r.body, &b)
	return string(b.KV)
}

// nixl runs both legs of a request whose body has no max_tokens.
func (r *rig) nixl(path, body string, most int) (p, d reply) {
	r.n++
	id := fmt.Sprintf("attempt-%04d", r.n)
	p = send1("POST", r.prefill.URL()+path, id, member(member(body, "max_tokens", "1"), "kv_transfer_params", ask))
	if h := handleOf(p); h != "" && h != "null" {
		d = send1("POST", r.decode.URL()+path, id, member(member(body, "max_tokens", fmt.Sprint(most)), "kv_transfer_params", h))
	}
	return p, d
}

func TestPairBodiesAreAsRecorded(t *testing.T) {
	r := newRig(t, Nixl, func(_, _ *actor.Config, o *Options) { o.Cached = true })
	p, d := r.nixl("/v1/completions", `{"model":"recall","prompt":"The colour of the gate is green. The colour of the door is blue. The number of the house is 4711. The colour of the gate"}`, 12)
	like(t, "pd.completion.prefill", p)
	like(t, "pd.completion.decode", d)
	if got := text(t, string(d.body)); got != " is green. T" {
		t.Errorf("%q", got)
	}
	if h := handleOf(p); !strings.Contains(h, `"remote_request_id":"cmpl-attempt-0001-0-`) || !strings.Contains(h, `"remote_num_tokens":121`) || !strings.Contains(h, `"remote_port":15600`) || strings.Contains(h, "[[0,") {
		t.Error(h)
	}
	chat := `{"model":"recall","messages":[{"role":"system","content":"Answer from the context."},{"role":"user","content":"My name is Alice Cooper."},{"role":"assistant","content":" Alice Cooper."},{"role":"user","content":"Once more, my name is"}]}`
	p, _ = r.nixl("/v1/chat/completions", chat, 16)
	like(t, "pd.chat.prefill", p)
	r.n++
	id := fmt.Sprintf("attempt-%04d", r.n)
	p = send1("POST", r.prefill.URL()+"/v1/chat/completions", id, member(member(chat, "max_tokens", "1"), "kv_transfer_params", ask))
	d = send1("POST", r.decode.URL()+"/v1/chat/completions", id, member(member(member(chat, "max_tokens", "16"), "stream", `true,"stream_options":{"include_usage":true}`), "kv_transfer_params", handleOf(p)))
	like(t, "pd.chat_stream.decode", d)
	if got := text(t, string(d.body)); got != " Alice Cooper." || !bytes.Contains(d.body, []byte(`"finish_reason":"stop"`)) {
		t.Errorf("%q", got)
	}
	if v := r.fleet.Violations(); len(v) > 0 {
		t.Error(v)
	}
	// What goes wrong, and what is asked wrongly.
	r.fleet.Quiet()
	like(t, "pd.load_failure.decode", send1("POST", r.decode.URL()+"/v1/completions", "x1", `{"model":"recall","prompt":"abc","kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"x"}}`))
	like(t, "pd.load_failure_stream.decode", send1("POST", r.decode.URL()+"/v1/completions", "x2", `{"model":"recall","prompt":"abc","stream":true,"kv_transfer_params":{"do_remote_prefill":true}}`))
	leg := `{"model":"recall","prompt":"abcdefgh abc","max_tokens":1,"temperature":0,"stream":true,"kv_transfer_params":` + ask + `}`
	like(t, "pd.prefill_stream", send1("POST", r.prefill.URL()+"/v1/completions", "x3", leg))
	like(t, "pd.prefill_stream_usage", send1("POST", r.prefill.URL()+"/v1/completions", "x4", member(leg, "stream_options", `{"include_usage":true}`)))
}

func TestMetricsAreAsRecorded(t *testing.T) {
	r := newRig(t, Nixl, func(p, _ *actor.Config, o *Options) {
		p.Pool, p.Context, o.Cached = 32768, 8192, true
	})
	want, err := os.ReadFile("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	page := send1("GET", r.prefill.URL()+"/metrics", "", "").body
	if !bytes.Contains(page, bytes.TrimSpace(want)) {
		t.Errorf("want %s in\n%s", want, page)
	}
	if !bytes.Contains(page, []byte("\nprocess_start_time_seconds 1")) {
		t.Error("no start time")
	}
}
