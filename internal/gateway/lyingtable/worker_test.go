package lyingtable

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// secret is text of another request: no client may ever see a byte of it.
const secret = "FOREIGN-TENANT-SECRET"

// own is the honest reply.
const own = "an honest reply"

// lie of a worker pair, as functions that change an honest answer. Zero fields are honest.
type lie struct {
	prefill func(http.ResponseWriter, map[string]any) bool // true: it answered by itself
	whole   func(map[string]any) any                       // decode's whole body
	chunks  func([]string) []string                        // decode's events, "[DONE]" among them
	cut     bool                                           // decode's connection is cut before the end
	status  int                                            // decode's status
	text    string                                         // decode's text
}

// pair of workers behind one listener each.
type pair struct {
	t        *testing.T
	engine   string
	lie      lie
	tokens   int   // what both say the prompt has
	noUsage  bool  // decode says usage only at the end of a stream
	meets    *pair // whose prefill decode waits for, as a real one waits for its pages; nil: nobody's
	prefill  *httptest.Server
	decode   *httptest.Server
	mu       sync.Mutex
	asked    []request
	requests int
	handles  []map[string]any
}

type request struct {
	leg, path string
	header    http.Header
	body      map[string]any
	raw       string
}

func workers(t *testing.T, engine string) *pair {
	p := &pair{t: t, engine: engine, tokens: 70}
	p.prefill = httptest.NewServer(http.HandlerFunc(p.servePrefill))
	p.decode = httptest.NewServer(http.HandlerFunc(p.serveDecode))
	t.Cleanup(func() {
		p.prefill.CloseClientConnections()
		p.decode.CloseClientConnections()
		p.prefill.Close()
		p.decode.Close()
	})
	return p
}

func (p *pair) note(leg string, r *http.Request) (map[string]any, bool) {
	b, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasPrefix(r.URL.Path, "/v1/") || r.Method != "POST" { // a gateway that observes and goes may leave before prefill was asked
		return nil, false
	}
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		p.t.Errorf("%s got a body that is not JSON: %v", leg, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, request{leg, r.URL.Path, r.Header, m, string(b)})
	return m, true
}

func (p *pair) seen() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]request(nil), p.asked...)
}

// prefillCame waits until prefill was asked for a room; false when the request of decode ends first.
func (p *pair) prefillCame(ctx context.Context, room any) bool {
	for ctx.Err() == nil {
		for _, r := range p.seen() {
			if r.leg == "prefill" && r.body["bootstrap_room"] == room {
				return true
			}
		}
		time.Sleep(time.Millisecond) // polling the other handler's notes
	}
	return false
}

func (p *pair) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = nil
}

func answer(chat bool, id, text, finish string, prompt, completion int) map[string]any {
	c := map[string]any{"index": 0, "finish_reason": finish, "logprobs": nil}
	object := "text_completion"
	if chat {
		object = "chat.completion"
		c["message"] = map[string]any{"role": "assistant", "content": text}
	} else {
		c["text"] = text
	}
	return map[string]any{"id": id, "object": object, "created": 1, "model": "recall", "choices": []any{c},
		"usage": map[string]any{"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}}
}

// tell changes the lie while workers answer: a decode whose prefill refused may still be speaking.
func (p *pair) tell(l lie) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lie = l
}

func (p *pair) told() lie {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lie
}

func (p *pair) servePrefill(w http.ResponseWriter, r *http.Request) {
	body, ok := p.note("prefill", r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	l := p.told()
	if body["stream"] == true {
		p.t.Error("prefill was asked for a stream")
	}
	a := answer(strings.Contains(r.URL.Path, "chat"), "p-"+r.Header.Get("X-Request-Id"), "T", "length", p.tokens, 1)
	if p.engine == "vllm-nixl" {
		a["kv_transfer_params"] = p.handle(r)
	}
	if l.prefill != nil && l.prefill(w, a) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(a)
}

func (p *pair) handle(r *http.Request) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	h := map[string]any{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [][]int{{4, 5, 6}}, "remote_engine_id": "8a911c63",
		"remote_request_id": fmt.Sprintf("chatcmpl-%s-%08x", r.Header.Get("X-Request-Id"), p.requests), "remote_host": "127.0.0.1", "remote_port": 15600,
		"tp_size": 1, "remote_num_tokens": p.tokens, "remote_blocks_expiry_time": nil, "transfer_mode": "pull"}
	p.handles = append(p.handles, h)
	return h
}

func (p *pair) serveDecode(w http.ResponseWriter, r *http.Request) {
	body, ok := p.note("decode", r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	if p.meets != nil && !p.meets.prefillCame(r.Context(), body["bootstrap_room"]) {
		return
	}
	l := p.told()
	chat := strings.Contains(r.URL.Path, "chat")
	text := own
	if l.text != "" {
		text = l.text
	}
	status := l.status
	if status == 0 {
		status = 200
	}
	if body["stream"] != true {
		var a any = answer(chat, "d1", text, "stop", p.tokens, 3)
		if l.whole != nil {
			a = l.whole(a.(map[string]any))
		}
		b, _ := json.Marshal(a)
		if l.cut {
			w.Header().Set("Content-Length", fmt.Sprint(len(b)+10))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(b)
		return
	}
	var events []string
	add := func(a map[string]any, last bool) {
		if !last && p.noUsage {
			delete(a, "usage")
		}
		b, _ := json.Marshal(a)
		events = append(events, string(b))
	}
	chunk := func(part string, finish any) map[string]any {
		a := answer(chat, "d1", part, "x", p.tokens, 3)
		c := a["choices"].([]any)[0].(map[string]any)
		c["finish_reason"] = finish
		if chat {
			a["object"] = "chat.completion.chunk"
			delete(c, "message")
			c["delta"] = map[string]any{"content": part}
		}
		return a
	}
	for _, part := range strings.SplitAfter(text, " ") {
		add(chunk(part, nil), false)
	}
	add(chunk("", "stop"), false)
	u := chunk("", "stop")
	u["choices"] = []any{}
	add(u, true)
	events = append(events, "[DONE]")
	if l.chunks != nil {
		events = l.chunks(events)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(status)
	f := http.NewResponseController(w)
	for i, e := range events {
		if l.cut && i == len(events)-2 {
			f.Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(w, "data: %s\n\n", e)
		f.Flush()
	}
}
