package sglang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/fake/shape"
)

// rig is a pair without a gateway: the test sends both legs itself.
type rig struct {
	t               *testing.T
	fleet           *Fleet
	prefill, decode *Worker
	rooms           uint64
}

func newRig(t *testing.T, version string, change func(p, d *actor.Config)) *rig {
	p := actor.Config{Version: version, Leg: actor.Prefill, Pool: 1024, Context: 8192, Patience: 300 * time.Millisecond}
	d := p
	d.Leg, d.Pool = actor.Decode, 8192
	if change != nil {
		change(&p, &d)
	}
	r := &rig{t: t, fleet: NewFleet(actor.NewStage(t)), rooms: 1 << 40}
	var err error
	if r.prefill, err = New(r.fleet, p, ""); err != nil {
		t.Fatal(err)
	}
	if r.decode, err = New(r.fleet, d, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.prefill.Close(); r.decode.Close() })
	return r
}

type reply struct {
	status int
	body   []byte
	err    error
	took   time.Duration
}

func post(url, body string) (r reply) {
	from := time.Now()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	r.status = resp.StatusCode
	r.body, r.err = io.ReadAll(resp.Body)
	r.took = time.Since(from)
	return r
}

// member puts a member at the end of a body.
func member(body, name, value string) string {
	return strings.TrimSuffix(body, "}") + `,"` + name + `":` + value + "}"
}

// meet puts a fresh room into a body.
func (r *rig) meet(body string) string {
	host, port := r.prefill.Bootstrap()
	r.rooms += 0x9e3779b97f4a7c15 >> 20
	return member(member(member(body, "bootstrap_host", `"`+host+`"`), "bootstrap_port", fmt.Sprint(port)), "bootstrap_room", fmt.Sprint(r.rooms))
}

// send sends both legs of a request. Prefill's is not streamed, unless both are.
func (r *rig) send(path, body string) (p, d reply) {
	body = r.meet(body)
	var wg sync.WaitGroup
	wg.Go(func() { p = post(r.prefill.URL()+path, body) })
	wg.Go(func() { d = post(r.decode.URL()+path, body) })
	wg.Wait()
	return p, d
}

type recorded struct {
	Legs map[string]struct {
		Status int
		Body   string
	}
	Prefill, Decode struct {
		Status int
		Body   string
	}
}

func load(t *testing.T, file string) (r recorded) {
	b, err := os.ReadFile("testdata/" + file)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Legs == nil {
		r.Legs = map[string]struct {
			Status int
			Body   string
		}{"prefill": r.Prefill, "decode": r.Decode}
	}
	return r
}

// like compares an answer with a recorded one: the status, and the form of the body or of each event.
func like(t *testing.T, what string, got reply, status int, body string) {
	t.Helper()
	if got.err != nil || got.status != status {
		t.Errorf("%s: status %d (%v), want %d: %s", what, got.status, got.err, status, got.body)
		return
	}
	if !strings.HasPrefix(body, "data:") {
		if body == "" {
			if len(got.body) > 0 {
				t.Errorf("%s: %q, want nothing", what, got.body)
			}
			return
		}
		if d := shape.Differ(got.body, []byte(body)); d != "" {
			t.Errorf("%s: %s\n got %s\nwant %s", what, d, got.body, body)
		}
		return
	}
	// Chunks of text may be fewer or more; every kind of event that was recorded comes, in that order, in that form.
	kinds := func(s string) (out []string) {
		for _, e := range strings.Split(strings.TrimSpace(s), "\n\n") {
			e = strings.TrimPrefix(e, "data: ")
			k := kindOf(e)
			if len(out) == 0 || kindOf(out[len(out)-1]) != k {
				out = append(out, e)
			}
		}
		return out
	}
	g, w := kinds(string(got.body)), kinds(body)
	if len(g) != len(w) {
		t.Errorf("%s: %d kinds of events, want %d:\n got %s\nwant %s", what, len(g), len(w), strings.Join(g, "\n"), strings.Join(w, "\n"))
		return
	}
	for i := range g {
		if w[i] == "[DONE]" || g[i] == "[DONE]" {
			if g[i] != w[i] {
				t.Errorf("%s: event %d is %s, want %s", what, i, g[i], w[i])
			}
		} else if d := shape.Differ([]byte(g[i]), []byte(w[i])); d != "" {
			t.Errorf("%s, event %d: %s\n got %s\nwant %s", what, i, d, g[i], w[i])
		}
	}
}

func kindOf(event string) string {
	switch {
	case event == "[DONE]":
		return event
	case strings.Contains(event, `"role"`):
		return "role"
	case strings.Contains(event, `"choices":[]`):
		return "usage"
	case strings.Contains(event, `"error"`):
		return "error"
	case strings.Contains(event, `"finish_reason":null`):
		return "text"
	}
	return "finish"
}

func textOf(n int) string { return strings.Repeat("harbour ", n/8+1)[:n] }

func TestBodiesAreAsRecorded(t *testing.T) {
	gen := func(n, most int, more string) string {
		return fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":%d,"temperature":0}%s}`, textOf(n-1), most, more)
	}
	completion := func(n, most int, more string) string {
		return fmt.Sprintf(`{"model":"recall","prompt":%q,"max_tokens":%d,"temperature":0%s}`, textOf(n-1), most, more)
	}
	chat := func(n, most int, more string) string {
		return fmt.Sprintf(`{"model":"recall","messages":[{"role":"user","content":%q}],"max_tokens":%d,"temperature":0%s}`, textOf(n-2), most, more)
	}
	const usage = `,"stream":true,"stream_options":{"include_usage":true}`
	for _, c := range []struct {
		version, file, path, body string
		quiet                     bool // the request itself is against the rules
	}{
		{"0.5.19", "healthy_generate", "/generate", gen(30, 6, ""), false},
		{"0.5.19", "overlimit_generate", "/generate", gen(1500, 6, ""), false},
		{"0.5.19", "chat_healthy", "/v1/chat/completions", chat(19, 4, ""), false},
		{"0.5.19", "chat_over_context", "/v1/chat/completions", chat(9916, 4, ""), false},
		{"0.5.19", "chat_over_context_stream", "/v1/chat/completions", chat(9916, 4, usage), true},
		{"0.5.19", "chat_over_prefill_pool", "/v1/chat/completions", chat(1456, 4, ""), false},
		{"0.5.19", "completions_over_prefill_pool", "/v1/completions", completion(1500, 4, ""), false},
		{"0.5.19", "generate_over_both_pools", "/generate", gen(8188, 2, ""), false},
		{"0.5.19", "generate_over_both_pools_stream", "/generate", gen(8188, 2, `,"stream":true`), true},
		{"0.5.19", "generate_over_context", "/generate", gen(9000, 2, ""), false},
		{"0.5.19", "generate_over_context_stream", "/generate", gen(9000, 2, `,"stream":true`), true},
		{"0.5.19", "logprob_healthy", "/generate", gen(20, 2, `,"return_logprob":true,"logprob_start_len":0`), false},
		{"0.5.19", "logprob_overlimit", "/generate", gen(1500, 2, `,"return_logprob":true,"logprob_start_len":0`), false},
		{"0.5.19", "total_tokens_over_context", "/generate", gen(900, 8000, ""), false},
		{"leak", "fits_generate", "/generate", gen(901, 64, ""), false},
		{"leak", "fits_completions", "/v1/completions", completion(901, 48, ""), false},
		{"leak", "fits_chat", "/v1/chat/completions", chat(902, 48, ""), false},
		{"leak", "fits_chat-stream", "/v1/chat/completions", chat(902, 48, usage), true},
		{"leak", "over_generate_0", "/generate", gen(1501, 64, ""), false},
		{"leak", "over_completions", "/v1/completions", completion(2201, 48, ""), false},
		{"leak", "over_chat", "/v1/chat/completions", chat(2202, 48, ""), false},
		{"leak", "over_chat-stream", "/v1/chat/completions", chat(2202, 48, usage), true},
		{"0.5.23", "healthy_generate", "/generate", gen(30, 4, ""), false},
		{"0.5.23", "overlimit_generate", "/generate", gen(1500, 4, ""), false},
		{"0.5.23", "chat_over_prefill_pool_stream", "/v1/chat/completions", chat(1456, 4, usage), true},
		{"0.5.23", "chat", "/v1/chat/completions", chat(900, 4, ""), false},
	} {
		t.Run(c.version+"/"+c.file, func(t *testing.T) {
			t.Parallel()
			version := c.version
			if version == "leak" {
				version = "0.5.19"
			}
			r := newRig(t, version, nil)
			if c.quiet {
				r.fleet.Quiet() // both legs streamed, as they were recorded
			}
			// Somebody was here before.
			r.send("/generate", gen(700, 2, ""))
			want := load(t, c.version+"/"+c.file+".json")
			p, d := r.send(c.path, c.body)
			if w, ok := want.Legs["prefill"]; ok {
				like(t, "prefill", p, w.Status, w.Body)
			}
			if w, ok := want.Legs["decode"]; ok {
				like(t, "decode", d, w.Status, w.Body)
			}
		})
	}
}

func TestRefusalsAreAsRecorded(t *testing.T) {
	gen := `{"text":"abcabc","sampling_params":{"max_new_tokens":2}%s}`
	chat := `{"model":"recall","messages":[{"role":"user","content":"hi"}],"max_tokens":2%s}`
	for _, c := range []struct {
		version, file, leg, path, body string
		gone                           bool
	}{
		{"0.5.19", "decode_no_room", "decode", "/generate", fmt.Sprintf(gen, ""), false},
		{"0.5.19", "decode_no_room_chat", "decode", "/v1/chat/completions", fmt.Sprintf(chat, ""), false},
		{"0.5.19", "decode_no_room_stream", "decode", "/generate", fmt.Sprintf(gen, `,"stream":true`), false},
		{"0.5.19", "prefill_no_room_completions", "prefill", "/v1/completions", `{"model":"recall","prompt":"a"}`, false},
		{"0.5.23", "decode_no_room", "decode", "/generate", fmt.Sprintf(gen, ""), false},
		{"0.5.23", "decode_no_room_chat", "decode", "/v1/chat/completions", fmt.Sprintf(chat, ""), false},
		{"0.5.23", "decode_no_room_completions", "decode", "/v1/completions", `{"model":"recall","prompt":"a"}`, false},
		{"0.5.23", "prefill_dead_chat", "decode", "/v1/chat/completions", fmt.Sprintf(chat, ""), true},
		{"0.5.23", "prefill_dead_chat_stream", "decode", "/v1/chat/completions", fmt.Sprintf(chat, `,"stream":true`), true},
		{"0.5.23", "prefill_dead_generate", "decode", "/generate", fmt.Sprintf(gen, ""), true},
		{"0.5.23", "prefill_dead_generate_stream", "decode", "/generate", fmt.Sprintf(gen, `,"stream":true`), true},
	} {
		r := newRig(t, c.version, nil)
		r.fleet.Quiet()
		w := r.decode
		if c.leg == "prefill" {
			w = r.prefill
		}
		body := c.body
		if c.gone {
			body = r.meet(body)
			r.prefill.Kill()
		}
		want := load(t, c.version+"/"+c.file+".json").Legs[c.leg]
		like(t, c.version+"/"+c.file, post(w.URL()+c.path, body), want.Status, want.Body)
	}
	r := newRig(t, "0.5.19", nil)
	like(t, "abort", post(r.decode.URL()+"/abort_request", `{"rid":"nobody"}`), 200, load(t, "0.5.19/abort_unknown.json").Legs["abort"].Body)
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %v", url, resp.StatusCode, err)
	}
	return b
}

func TestFactsAreAsRecorded(t *testing.T) {
	for version, files := range map[string]map[string]string{
		"0.5.19": {"P_server_info": "/server_info", "D_server_info": "/get_server_info", "P_model_info": "/model_info", "D_model_info": "/get_model_info", "D_models": "/v1/models"},
		"0.5.23": {"D_server_info": "/server_info", "D_model_info": "/model_info"},
	} {
		r := newRig(t, version, nil)
		for file, path := range files {
			w := r.decode
			if file[0] == 'P' {
				w = r.prefill
			}
			want, err := os.ReadFile("testdata/" + version + "/" + file + ".json")
			if err != nil {
				t.Fatal(err)
			}
			if d := shape.Differ(get(t, w.URL()+path), want); d != "" {
				t.Errorf("%s/%s: %s", version, file, d)
			}
		}
	}
	r := newRig(t, "0.5.19", nil)
	var info struct {
		Version   string `json:"version"`
		Pool      int    `json:"max_total_num_tokens"`
		Longest   int    `json:"max_req_input_len"`
		Page      int    `json:"page_size"`
		Mode      string `json:"disaggregation_mode"`
		Bootstrap int    `json:"disaggregation_bootstrap_port"`
		States    []struct {
			Memory struct {
				Capacity int `json:"token_capacity"`
			} `json:"memory_usage"`
		} `json:"internal_states"`
	}
	if err := json.Unmarshal(get(t, r.prefill.URL()+"/server_info"), &info); err != nil {
		t.Fatal(err)
	}
	_, port := r.prefill.Bootstrap()
	if info.Version != "0.5.19" || info.Pool != 1024 || info.Longest != 1018 || info.Page != 16 || info.Mode != "prefill" || info.Bootstrap != port ||
		len(info.States) != 1 || info.States[0].Memory.Capacity != 1024 {
		t.Errorf("%+v", info)
	}
	recorded, err := os.ReadFile("testdata/0.5.19/P_metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	page := get(t, r.prefill.URL()+"/metrics")
	for _, line := range strings.Split(strings.TrimSpace(string(recorded)), "\n") {
		name, _, _ := strings.Cut(strings.ReplaceAll(line, "tiny-llama", "recall"), " ")
		if !bytes.Contains(page, []byte(name+" ")) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	if !bytes.Contains(page, []byte(`sglang:max_total_num_tokens{engine_type="prefill",model_name="recall",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1024.0`)) {
		t.Errorf("%s", page)
	}
}
