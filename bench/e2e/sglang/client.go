package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// request of a client.
type request struct {
	method, url string
	body        map[string]any
	key         string
	within      time.Duration
	hangUp      int // close the connection after so many bytes of the answer; 0: never; -1: before any
	after       time.Duration
}

// answer is everything that a client received.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
	err    error
}

// raw is all of it, as bytes: what is nowhere in here was not received.
func (a answer) raw() []byte {
	var b bytes.Buffer
	_ = a.header.Write(&b)
	b.Write(a.body)
	return b.Bytes()
}

var client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 3 * time.Second}}

func send(ctx context.Context, r request) (a answer) {
	if r.within == 0 {
		r.within = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	var body io.Reader
	if r.body != nil {
		b, err := json.Marshal(r.body)
		if err != nil {
			return answer{err: err}
		}
		body = bytes.NewReader(b)
	}
	if r.method == "" {
		r.method = http.MethodPost
	}
	q, err := http.NewRequestWithContext(ctx, r.method, r.url, body)
	if err != nil {
		return answer{err: err}
	}
	q.Header.Set("Content-Type", "application/json")
	if r.key != "" {
		q.Header.Set("Authorization", "Bearer "+r.key)
	}
	if r.hangUp < 0 {
		time.AfterFunc(r.after, cancel)
	}
	began := time.Now()
	resp, err := client.Do(q)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header.Clone()
	if r.hangUp > 0 {
		a.body = make([]byte, r.hangUp)
		n, err := io.ReadFull(resp.Body, a.body)
		a.body, a.took = a.body[:n], time.Since(began)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			a.err = err
		}
		return a
	}
	a.body, a.err = io.ReadAll(resp.Body)
	a.took = time.Since(began)
	for k, v := range resp.Trailer {
		a.header["Trailer-"+k] = v
	}
	return a
}

// api is one of the ways to ask.
type api struct {
	chat, stream bool
}

var apis = []api{{false, false}, {true, false}, {false, true}, {true, true}}

func (a api) String() string {
	s := "completions"
	if a.chat {
		s = "chat"
	}
	if a.stream {
		s += ", stream"
	}
	return s
}

func (a api) path() string {
	if a.chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// ask makes the body of a greedy request for a prompt's continuation.
func (a api) ask(prompt string, most int) map[string]any {
	m := map[string]any{"model": "recall", "max_tokens": most, "temperature": 0}
	if a.chat {
		m["messages"] = []map[string]string{{"role": "user", "content": prompt}}
	} else {
		m["prompt"] = prompt
	}
	if a.stream {
		m["stream"] = true
	}
	return m
}

// pair sends a request to both legs at once, with a room, as the gateway does: prefill's answer is whole, and decode's stream says its
// counts in every chunk. Nobody compares what they say.
func (b *bed) pair(ctx context.Context, a api, prompt string, most int) (out [2]answer) {
	room := rand.Int64N(1 << 62)
	var wg sync.WaitGroup
	for leg := range legs {
		body := api{a.chat, a.stream && leg == 1}.ask(prompt, most)
		body["bootstrap_host"], body["bootstrap_port"], body["bootstrap_room"] = "127.0.0.1", b.bootstrap(), room
		if a.stream && leg == 1 {
			body["stream_options"] = map[string]bool{"include_usage": true, "continuous_usage_stats": true}
		}
		wg.Go(func() { out[leg] = send(ctx, request{url: b.url(leg) + a.path(), body: body}) })
	}
	wg.Wait()
	return out
}

// reply is what a body says, read as a client would.
type reply struct {
	text, finish string
	prompt, made int  // tokens; -1: not said
	done         bool // a stream's end mark
	failed       string
}

func read(body []byte) (r reply) {
	r.prompt, r.made = -1, -1
	for _, part := range parts(body) {
		if string(part) == "[DONE]" {
			r.done = true
			continue
		}
		var c struct {
			Error   json.RawMessage
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
				Finish         string `json:"finish_reason"`
			}
			Usage *struct {
				Prompt int `json:"prompt_tokens"`
				Made   int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(part, &c); err != nil {
			r.failed = "not JSON: " + err.Error()
			continue
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			r.failed = string(c.Error)
		}
		for _, x := range c.Choices {
			r.text += x.Text + x.Message.Content + x.Delta.Content
			if x.Finish != "" {
				r.finish = x.Finish
			}
		}
		if c.Usage != nil {
			r.prompt, r.made = c.Usage.Prompt, c.Usage.Made
		}
	}
	return r
}

// parts of a body: itself, or the data of its events.
func parts(body []byte) (out [][]byte) {
	if !bytes.HasPrefix(bytes.TrimLeft(body, "\r\n"), []byte("data:")) && !bytes.HasPrefix(body, []byte(":")) {
		return [][]byte{body}
	}
	for line := range strings.SplitSeq(string(body), "\n") {
		if d, ok := strings.CutPrefix(line, "data:"); ok {
			out = append(out, []byte(strings.TrimSpace(d)))
		}
	}
	return out
}
