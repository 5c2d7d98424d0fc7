package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gateway/legs"
)

// hear runs a decode leg's stream through a run, and returns its events and the bytes that a client would get.
func hear(stream string, p Plan) (es []legs.Event, out string) {
	p.Stream, p.Hold, p.Whole = true, 1<<30, 1<<20
	r := &Run{plan: p, wake: make(chan struct{}, 1)}
	r.space.L = &r.mu
	if err := r.readStream(strings.NewReader(stream)); err != nil {
		r.loses(legs.Decode, err)
	}
	for {
		e, err := r.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		es = append(es, e)
	}
	return es, string(bytes.Join(r.Take(nil), nil))
}

const (
	role = `{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":7,"completion_tokens":0}}`
	text = `{"id":"a","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}`
	last = `{"id":"a","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}`
)

func events(events ...string) string { return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n" }

func TestUsageIsForThoseWhoAskedForIt(t *testing.T) {
	bare := func(s string) string {
		i := strings.Index(s, `,"usage"`)
		return s[:i] + "}"
	}
	all := events(role, text, last, "[DONE]")
	for _, c := range []struct {
		plan Plan
		want string
	}{
		{Plan{}, events(bare(role), bare(text), "[DONE]")},
		{Plan{Usage: true}, events(bare(role), bare(text), last, "[DONE]")},
		{Plan{Usage: true, Every: true}, all},
	} {
		es, out := hear(all, c.plan)
		if out != c.want {
			t.Errorf("got %s\nwant %s", out, c.want)
		}
		if es[len(es)-1] != (legs.LegEnd{Leg: legs.Decode}) {
			t.Errorf("%v", es)
		}
	}
}

// An engine that says its usage beside the finish alone: the client gets it in a chunk of its own, once, as engines say it.
func TestUsageBesideTheFinishIsNotLost(t *testing.T) {
	const finish = `{"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"kv_transfer_params":{"x":1},"usage":{"prompt_tokens":7,"completion_tokens":1}}`
	const bare = `{"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	const word = `{"id":"a","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}`
	for _, c := range []struct {
		plan     Plan
		in, want []string
	}{
		{Plan{Usage: true}, []string{word, finish, "[DONE]"}, []string{word, bare, last, "[DONE]"}},
		{Plan{Usage: true}, []string{word, finish, last, "[DONE]"}, []string{word, bare, last, "[DONE]"}},
		{Plan{}, []string{word, finish, "[DONE]"}, []string{word, bare, "[DONE]"}},
		{Plan{Usage: true}, []string{role, bare, "[DONE]"}, []string{strings.Split(role, `,"usage"`)[0] + "}", bare, "[DONE]"}},
	} {
		if _, out := hear(events(c.in...), c.plan); out != events(c.want...) {
			t.Errorf("%+v\ngot  %s\nwant %s", c.plan, out, events(c.want...))
		}
	}
	if _, out := hear(events(word, finish, "[DONE]"), Plan{Usage: true, Every: true}); out != events(word, strings.Replace(finish, `"kv_transfer_params":{"x":1},`, "", 1), "[DONE]") {
		t.Errorf("every chunk's: %s", out)
	}
}

// What names memory of a worker never leaves, not even in an answer that something is wrong with, and that guards which observe let pass.
func TestWhatNamesMemoryNeverLeaves(t *testing.T) {
	with := func(s string) string {
		return strings.Replace(s, "{", `{"kv_transfer_params":{"remote_host":"10.0.0.1"},`, 1)
	}
	for name, s := range map[string]string{
		"right": text, "of another id": strings.Replace(text, `"a"`, `"b"`, 1), "an error": `{"error":{"message":"x","code":500}}`, "no choices": `{"id":"a"}`,
	} {
		if _, out := hear(events(role, with(s), last, "[DONE]"), Plan{}); strings.Contains(out, "remote_host") || !strings.Contains(out, "assistant") {
			t.Errorf("%s, streamed: %s", name, out)
		}
		r := &Run{plan: Plan{Hold: 1 << 30}, wake: make(chan struct{}, 1)}
		r.space.L = &r.mu
		r.hearWhole([]byte(with(s)))
		for _, err := r.Next(t.Context()); err == nil; {
			_, err = r.Next(t.Context())
		}
		if out := string(bytes.Join(r.Take(nil), nil)); strings.Contains(out, "remote_host") || len(out) == 0 {
			t.Errorf("%s, whole: %s", name, out)
		}
	}
}

// Whatever an engine sends: no panic, one end or a loss, and nothing after it.
func FuzzStream(f *testing.F) {
	f.Add(events(role, text, last, "[DONE]"))
	f.Add(events(`{"error":{"message":"x","code":400}}`, "[DONE]"))
	f.Add(events(role, `{"id":"b","choices":[{"index":1,"text":"y"}]}`))
	f.Add("data: {\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		es, _ := hear(s, Plan{})
		ends := 0
		for i, e := range es {
			switch e.(type) {
			case legs.LegEnd, legs.LegLost:
				if ends++; i != len(es)-1 {
					t.Fatalf("%T comes before %v", e, es[i+1:])
				}
			}
		}
		if ends != 1 {
			t.Fatalf("%d ends: %v", ends, es)
		}
	})
}
