package web

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

func docOf(t testing.TB, s string) *jsonedit.Doc {
	t.Helper()
	d, no := jsonedit.Read([]byte(s), nil)
	if no != nil {
		t.Fatalf("%s: %v", s, no)
	}
	return d
}

// What vLLM says of a position, in a chat and in a completion, by text and by id, reads as the same tokens.
func TestTopOfReadsBothShapes(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		n      int
		listed int
		byID   bool
	}{
		"chat":                      {`{"choices":[{"logprobs":{"content":[{"token":"a","logprob":-0.1,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.1,"bytes":[97]},{"token":"b","logprob":-2.5,"bytes":[98]}]}]}}]}`, 2, 1, false},
		"chat, two tokens":          {`{"choices":[{"logprobs":{"content":[{"token":"a","logprob":-0.1,"top_logprobs":[]},{"token":"c","logprob":-1,"top_logprobs":[]}]}}]}`, 1, 2, false},
		"chat, by id":               {`{"choices":[{"logprobs":{"content":[{"token":"token_id:5","logprob":-0.1,"top_logprobs":[{"token":"token_id:5","logprob":-0.1},{"token":"token_id:9","logprob":-3}]}]}}]}`, 2, 1, true},
		"completion":                {`{"choices":[{"logprobs":{"text_offset":[0],"token_logprobs":[-0.1],"tokens":["a"],"top_logprobs":[{"a":-0.1,"b":-2.5,"c":-3}]}}]}`, 3, 1, false},
		"completion, no list":       {`{"choices":[{"logprobs":{"text_offset":[0],"token_logprobs":[null],"tokens":["a"],"top_logprobs":[null]}}]}`, 0, 1, false},
		"half a character":          {`{"choices":[{"logprobs":{"content":[{"token":"�","logprob":-0.1,"top_logprobs":[{"token":"�","logprob":-0.1},{"token":"b","logprob":-2}]}]}}]}`, 1, 1, false},
		"none":                      {`{"choices":[{"logprobs":null}]}`, 0, 0, false},
		"another kind of value":     {`{"choices":[{"logprobs":[1,2]}]}`, 0, 0, false},
		"no choices":                {`{"choices":[]}`, 0, 0, false},
		"a text for a number":       {`{"choices":[{"logprobs":{"content":[{"token":"a","logprob":"-0.1","top_logprobs":{}}]}}]}`, 0, 1, false},
		"more than are compared":    {`{"choices":[{"logprobs":{"tokens":["a"],"token_logprobs":[-1],"top_logprobs":[{"a":-1,"b":-1,"c":-1,"d":-1,"e":-1,"f":-1,"g":-1,"h":-1,"i":-1,"j":-1}]}}]}`, legs.TopMost, 1, false},
		"what cannot be is not NaN": {`{"choices":[{"logprobs":{"tokens":["a"],"token_logprobs":[-9999.0],"top_logprobs":[{"a":-9999.0}]}}]}`, 1, 1, false},
	} {
		top, listed := topOf(first(docOf(t, c.body).Get("choices")))
		if top.N != c.n || listed != c.listed || top.ByID != c.byID {
			t.Errorf("%s: %d tokens of %d positions, by id %v", name, top.N, listed, top.ByID)
		}
	}
}

// The chunk of a stream that begins with another token than the first (the engine's parsers kept that one back) is not compared: a
// false alarm otherwise.
func TestOnlyTheFirstTokenIsCompared(t *testing.T) {
	chunk := func(token string, completion int) string {
		return `{"id":"1","choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"token":"` + token + `","logprob":-1,"top_logprobs":[]}]},"finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":` + strconv.Itoa(completion) + `}}`
	}
	for name, c := range map[string]struct {
		chunks []string
		want   int
	}{
		"the first":                 {[]string{chunk("a", 1), chunk("b", 2)}, 1},
		"the first is kept back":    {[]string{chunk("b", 2), chunk("c", 3)}, 0},
		"no count":                  {[]string{`{"id":"1","choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"token":"a","logprob":-1}]}}]}`, chunk("b", 1)}, 0},
		"a chunk without any first": {[]string{`{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null}],"usage":{"prompt_tokens":5,"completion_tokens":0}}`, chunk("a", 1)}, 1},
	} {
		r := &Run{plan: Plan{Stream: true, Hold: 1 << 20, Logprobs: Logprobs{Read: true, Hide: true}}, wake: make(chan struct{}, 1)}
		r.space.L = &r.mu
		var s summary
		for _, data := range c.chunks {
			r.hearChunk(&s, new(alike), []byte(data))
		}
		got := 0
		for _, it := range r.items {
			if _, ok := it.event.(legs.LegTop); ok {
				got++
			}
			if strings.Contains(string(it.bytes), "top_logprobs") {
				t.Errorf("%s: passed on: %s", name, it.bytes)
			}
		}
		if got != c.want {
			t.Errorf("%s: %d positions were heard of, want %d", name, got, c.want)
		}
	}
}

// An engine sends a chunk for each token whose logprobs were asked for, also where its parsers have nothing to show yet. A client that
// did not ask would not have got it.
func TestChunksThatHoldOnlyLogprobsAreLeftOut(t *testing.T) {
	const l = `{"content":[{"token":"<","logprob":-1,"top_logprobs":[]}]}`
	for _, c := range []struct {
		choices, want string
		empty         bool
	}{
		{`[{"index":0,"delta":{},"logprobs":` + l + `,"finish_reason":null,"token_ids":null}]`, "", false},
		{`[{"index":0,"delta":{},"logprobs":` + l + `,"finish_reason":null,"token_ids":[5]}]`, `[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[5]}]`, true},
		{`[{"index":0,"delta":{},"logprobs":` + l + `,"finish_reason":"stop"}]`, `[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]`, false},
		{`[{"index":0,"delta":{"content":"a"},"logprobs":` + l + `,"finish_reason":null}]`, `[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]`, false},
		{`[{"index":0,"delta":{},"logprobs":null,"finish_reason":null}]`, `[{"index":0,"delta":{},"logprobs":null,"finish_reason":null}]`, false},
		{`[ {"logprobs" : ` + l + ` , "text":"logprobs"} ]`, `[ {"logprobs" : null , "text":"logprobs"} ]`, false},
		{`[]`, `[]`, false},
	} {
		p := Plan{Logprobs: Logprobs{Read: true, Hide: true, Empty: c.empty}}
		out, keep := p.hidden(docOf(t, `{"choices":`+c.choices+`}`).Get("choices"))
		if keep != (c.want != "") || keep && string(out) != c.want {
			t.Errorf("%s: kept %v: %s", c.choices, keep, out)
		}
	}
}

// Whatever a worker writes where logprobs should be: nothing breaks, what is left is JSON, and no logprobs are in it.
func FuzzLogprobs(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1],"top_logprobs":[{"a":-1}]},"finish_reason":null}]}`))
	f.Add([]byte(`{"choices":[{"delta":{},"logprobs":{"content":[{"token":"a","logprob":-1,"top_logprobs":[{"token":"b","logprob":-1e400}]}]}}]}`))
	f.Add([]byte(`{"choices":{"logprobs":[[]]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, no := jsonedit.Read(b, nil)
		if no != nil {
			return
		}
		choices := d.Get("choices")
		if choices.Kind() == jsonedit.Absent {
			return
		}
		if top, _ := topOf(first(choices)); top.N > legs.TopMost {
			t.Fatal(top.N)
		}
		if choices.Kind() != jsonedit.Array {
			return
		}
		out, _ := (&Plan{}).hidden(choices)
		if !json.Valid(out) {
			t.Fatalf("%s is not JSON", out)
		}
		if again, _ := (&Plan{}).hidden(docOf(t, `{"choices":`+string(out)+`}`).Get("choices")); string(again) != string(out) {
			t.Fatalf("%s became %s", out, again)
		}
	})
}
