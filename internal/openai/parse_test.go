package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicekv/sluice/internal/verdict"
)

func ptr[T any](v T) *T { return &v }

func idsOf(inside string) IDs {
	d := IDs{inside: []byte(inside)}
	d.n = len(d.Decode())
	return d
}

func TestParseTakes(t *testing.T) {
	hi := []Message{{Role: "user", Content: []byte("hi")}}
	for name, c := range map[string]struct {
		e    Endpoint
		body string
		want Request
	}{
		"least chat": {Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, Request{Model: "m", Messages: hi}},
		"everything": {Chat, `{"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},"stop":["a","b"],"max_completion_tokens":7,
			"temperature":0.5,"top_p":1,"seed":-3,"user":"u","store":false,"metadata":{"a":"b"},"service_tier":"auto","n":1,"tools":[],"tool_choice":"none",
			"logprobs":false,"top_logprobs":0,"logit_bias":{ },"presence_penalty":0.0,"frequency_penalty":0,"response_format":{ "type" : "text" },
			"modalities":["text"],"parallel_tool_calls":false,"functions":null,"audio":null,"model":"m","messages":[{"role":"user","content":"hi","name":"x"}]}`,
			Request{Model: "m", Messages: hi, Stream: true, IncludeUsage: true, Stop: []string{"a", "b"}, MaxTokens: 7, Temperature: ptr(float32(0.5)),
				TopP: ptr(float32(1)), Seed: ptr(int64(-3)), Ignored: 4}},
		"nulls": {Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":null,"stop":null,"max_tokens":null,"temperature":null,"top_p":null,
			"seed":null,"n":null,"stream_options":null,"tools":null,"bootstrap_room":null}`, Request{Model: "m", Messages: hi}},
		"parts": {Chat, `{"model":"m","messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"text":"b\n","type":"text"}]},{"role":"assistant","content":null}]}`,
			Request{Model: "m", Messages: []Message{{"system", []byte("a\nb\n")}, {Role: "assistant"}}}},
		"escapes":       {Chat, `{"\u006dodel":"m","messages":[{"role":"us\u0065r","content":"h\u0069"}]}`, Request{Model: "m", Messages: hi}},
		"unknown field": {Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"nobody_knows":[{"a":[1]}]}`, Request{Model: "m", Messages: hi, Ignored: 1}},
		"prompt text":   {Completions, `{"model":"m","prompt":"x","best_of":1,"suffix":"","echo":false}`, Request{Endpoint: Completions, Model: "m", Prompt: Prompt{Text: []byte("x")}}},
		"one prompt":    {Completions, `{"model":"m","prompt":["x"]}`, Request{Endpoint: Completions, Model: "m", Prompt: Prompt{Text: []byte("x")}}},
		"ids":           {Completions, `{"model":"m","prompt":[ 1, 2 ,2147483647]}`, Request{Endpoint: Completions, Model: "m", Prompt: Prompt{IDs: idsOf(` 1, 2 ,2147483647`)}}},
		"one of ids":    {Completions, `{"model":"m","prompt":[[0]],"stop":"x"}`, Request{Endpoint: Completions, Model: "m", Prompt: Prompt{IDs: idsOf(`0`)}, Stop: []string{"x"}}},
		"no ids":        {Completions, `{"model":"m","prompt":[[]]}`, Request{Endpoint: Completions, Model: "m", Prompt: Prompt{IDs: idsOf(``)}}},
		"empty prompt":  {Completions, `{"model":"m","prompt":""}`, Request{Endpoint: Completions, Model: "m", Prompt: Prompt{Text: []byte{}}}},
		"huge max":      {Completions, `{"model":"m","prompt":"","max_tokens":9223372036854775807}`, Request{Endpoint: Completions, Model: "m", Prompt: Prompt{Text: []byte{}}, MaxTokens: 1<<31 - 1}},
		"both maxima":   {Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5,"max_completion_tokens":5}`, Request{Model: "m", Messages: hi, MaxTokens: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			got, r := Parse(c.e, []byte(c.body), Strip)
			if r != nil {
				t.Fatalf("refused: %v (%s)", r, r.Param)
			}
			c.want.Endpoint = c.e
			if d := cmp.Diff(&c.want, got, cmp.AllowUnexported(IDs{})); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	chat := func(extra string) string {
		return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + extra + `}`
	}
	message := func(m string) string { return `{"model":"m","messages":[` + m + `]}` }
	const would = ": this value would change the reply and is not supported"
	for _, c := range []struct {
		e            Endpoint
		body         string
		code         verdict.Code
		param, words string
	}{
		{Chat, ``, verdict.BadRequest, "", "the body is empty"},
		{Chat, " \n", verdict.BadRequest, "", "the body is empty"},
		{Chat, `[]`, verdict.BadRequest, "", "the body must be a JSON object, not an array"},
		{Chat, `{`, verdict.BadRequest, "", "the body is not JSON: it ends early, at byte 1"},
		{Chat, `{"model":"m`, verdict.BadRequest, "", "the body is not JSON: it ends early, at byte 11"},
		{Chat, `nope`, verdict.BadRequest, "", "the body is not valid JSON at byte 1"},
		{Chat, chat("") + "x", verdict.BadRequest, "", "there is data after the JSON object, at byte 57"},
		{Chat, chat("") + "{}", verdict.BadRequest, "", "there is data after the JSON object, at byte 57"},
		{Chat, chat(`,"model":"n"`), verdict.BadRequest, "model", "a key appears twice in one object, the second time at byte 57"},
		{Chat, chat(`,"m\u006fdel":"n"`), verdict.BadRequest, "model", "a key appears twice in one object, the second time at byte 57"},
		{Chat, message(`{"role":"user","content":"a","r\u006fle":"b"}`), verdict.BadRequest, "messages[0].role", "a key appears twice in one object, the second time at byte 54"},
		{Chat, chat(`,"metadata":{"a":1,"a":2}`), verdict.BadRequest, "metadata.a", "a key appears twice in one object, the second time at byte 75"},
		{Chat, message("{\"role\":\"user\",\"content\":\"\xff\"}"), verdict.BadRequest, "messages[0].content", "the body is not valid UTF-8 at byte 51"},
		{Chat, chat(",\"x\":\"\xc3\x28\""), verdict.BadRequest, "x", "the body is not valid UTF-8 at byte 62"},
		{Chat, `{"messages":[{"role":"user","content":"hi"}]}`, verdict.BadRequest, "model", "model is required"},
		{Chat, `{"model":"m"}`, verdict.BadRequest, "messages", "messages is required"},
		{Chat, `{"model":"m","prompt":"x"}`, verdict.BadRequest, "messages", "messages is required"},
		{Completions, `{"model":"m"}`, verdict.BadRequest, "prompt", "prompt is required"},
		{Chat, `{"model":7}`, verdict.BadRequest, "model", "expected a string but got a number at byte 8"},
		{Chat, `{"model":""}`, verdict.BadRequest, "model", "model must have 1 to 256 bytes"},
		{Chat, `{"model":"m","messages":[]}`, verdict.BadRequest, "messages", "messages is empty"},
		{Chat, `{"model":"m","messages":"hi"}`, verdict.BadRequest, "messages", "expected an array but got a string at byte 23"},
		{Chat, message(`7`), verdict.BadRequest, "messages[0]", "expected an object but got a number at byte 25"},
		{Chat, message(`{"content":"x"}`), verdict.BadRequest, "messages", "message 0 has no role"},
		{Chat, message(`{"role":"user"}`), verdict.BadRequest, "messages[0].content", "message 0 has no content"},
		{Chat, message(`{"role":"user","content":null}`), verdict.BadRequest, "messages[0].content", "message 0 has no content"},
		{Chat, message(`{"role":"user","content":7}`), verdict.BadRequest, "messages[0].content", "expected a string or an array of parts but got a number at byte 49"},
		{Chat, message(`{"role":"robot","content":""}`), verdict.BadRequest, "messages[0].role", "a role must be system, developer, user or assistant"},
		{Chat, message(`{"role":"tool","content":""}`), verdict.Unsupported, "messages[0].role", "messages of tools are not supported"},
		{Chat, message(`{"role":"assistant","tool_calls":[{}]}`), verdict.Unsupported, "messages[0].tool_calls", would[2:]},
		{Chat, message(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}`), verdict.Unsupported, "messages[0].content[0]", "only text parts are supported"},
		{Chat, message(`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text"}]}`), verdict.BadRequest, "messages[0].content[1]", "a content part must have a type and a text"},
		{Chat, chat(`,"max_tokens":-1`), verdict.BadRequest, "max_tokens", "must be at least 1, got -1"},
		{Chat, chat(`,"max_tokens":0`), verdict.BadRequest, "max_tokens", "must be at least 1, got 0"},
		{Chat, chat(`,"max_tokens":1.5`), verdict.BadRequest, "max_tokens", "expected an integer of at most 64 bits at byte 73"},
		{Chat, chat(`,"max_tokens":99999999999999999999`), verdict.BadRequest, "max_tokens", "expected an integer of at most 64 bits at byte 90"},
		{Chat, chat(`,"max_tokens":"5"`), verdict.BadRequest, "max_tokens", "expected a number but got a string at byte 69"},
		{Chat, chat(`,"max_tokens":5,"max_completion_tokens":6`), verdict.BadRequest, "max_tokens", "max_tokens 5 and max_completion_tokens 6 differ"},
		{Chat, chat(`,"temperature":2.1`), verdict.BadRequest, "temperature", "must be from 0 to 2"},
		{Chat, chat(`,"temperature":-1`), verdict.BadRequest, "temperature", "must be from 0 to 2"},
		{Chat, chat(`,"top_p":1.01`), verdict.BadRequest, "top_p", "must be from 0 to 1"},
		{Chat, chat(`,"top_p":1e999`), verdict.BadRequest, "top_p", "expected a number that fits 64 bits at byte 70"},
		{Chat, chat(`,"seed":"a"`), verdict.BadRequest, "seed", "expected a number but got a string at byte 63"},
		{Chat, chat(`,"stream":1`), verdict.BadRequest, "stream", "expected a boolean but got a number at byte 65"},
		{Chat, chat(`,"stream_options":{"include_usage":true}`), verdict.BadRequest, "stream_options", "stream_options is only allowed when stream is true"},
		{Chat, chat(`,"stream":true,"stream_options":{"include_usage":1}`), verdict.BadRequest, "stream_options.include_usage", "expected a boolean but got a number at byte 104"},
		{Chat, chat(`,"stop":["1","2","3","4","5"]`), verdict.BadRequest, "stop[3]", "at most 4 stop strings"},
		{Chat, chat(`,"stop":""`), verdict.BadRequest, "stop", "a stop string must have 1 to 1024 bytes"},
		{Chat, chat(`,"stop":{}`), verdict.BadRequest, "stop", "expected a string but got an object at byte 63"},
		{Completions, `{"model":"m","prompt":null}`, verdict.BadRequest, "prompt", "expected a string but got null at byte 21"},
		{Completions, `{"model":"m","prompt":[]}`, verdict.BadRequest, "prompt", "the prompt is empty"},
		{Completions, `{"model":"m","prompt":["a","b"]}`, verdict.Unsupported, "prompt", "several prompts in one request are not supported"},
		{Completions, `{"model":"m","prompt":[[1],[2]]}`, verdict.Unsupported, "prompt", "several prompts in one request are not supported"},
		{Completions, `{"model":"m","prompt":[1,-2]}`, verdict.BadRequest, "prompt", "a token id must be an integer from 0 to 2147483647 (element 1)"},
		{Completions, `{"model":"m","prompt":[1,"a"]}`, verdict.BadRequest, "prompt", "a token id must be an integer from 0 to 2147483647 (element 1)"},
		{Completions, `{"model":"m","prompt":[2147483648]}`, verdict.BadRequest, "prompt", "a token id must be an integer from 0 to 2147483647 (element 0)"},
		{Completions, `{"model":"m","prompt":[1`, verdict.BadRequest, "", "the body is not JSON: it ends early, at byte 24"},
		{Completions, `{"model":"m","prompt":[`, verdict.BadRequest, "", "the body is not JSON: it ends early, at byte 23"},
		{Chat, chat(`,"top_k":40`), verdict.Unsupported, "top_k", "top_k" + would},
		{Chat, chat(`,"ignore_eos":true`), verdict.Unsupported, "ignore_eos", "ignore_eos" + would},
		{Completions, `{"model":"m","prompt":"","guided_json":{"type":"object"}}`, verdict.Unsupported, "guided_json", "guided_json" + would},
		{Completions, `{"model":"m","prompt":"","stop_token_ids":[7]}`, verdict.Unsupported, "stop_token_ids", "stop_token_ids" + would},
		{Chat, chat(`,"n":2`), verdict.Unsupported, "n", "n" + would},
		{Completions, `{"model":"m","prompt":"","best_of":3}`, verdict.Unsupported, "best_of", "best_of" + would},
		{Completions, `{"model":"m","prompt":"","logprobs":0}`, verdict.Unsupported, "logprobs", "logprobs" + would},
		{Completions, `{"model":"m","prompt":"","echo":true}`, verdict.Unsupported, "echo", "echo" + would},
		{Completions, `{"model":"m","prompt":"","suffix":"s"}`, verdict.Unsupported, "suffix", "suffix" + would},
		{Chat, chat(`,"tools":[{"type":"function"}]`), verdict.Unsupported, "tools", "tools" + would},
		{Chat, chat(`,"tool_choice":"auto"`), verdict.Unsupported, "tool_choice", "tool_choice" + would},
		{Chat, chat(`,"tool_choice":{"type":"function"}`), verdict.Unsupported, "tool_choice", "tool_choice" + would},
		{Chat, chat(`,"functions":[{}]`), verdict.Unsupported, "functions", "functions" + would},
		{Chat, chat(`,"response_format":{"type":"json_object"}`), verdict.Unsupported, "response_format", "response_format" + would},
		{Chat, chat(`,"logprobs":true`), verdict.Unsupported, "logprobs", "logprobs" + would},
		{Chat, chat(`,"top_logprobs":2`), verdict.Unsupported, "top_logprobs", "top_logprobs" + would},
		{Chat, chat(`,"logit_bias":{"1":2}`), verdict.Unsupported, "logit_bias", "logit_bias" + would},
		{Chat, chat(`,"presence_penalty":0.1`), verdict.Unsupported, "presence_penalty", "presence_penalty" + would},
		{Chat, chat(`,"frequency_penalty":-1`), verdict.Unsupported, "frequency_penalty", "frequency_penalty" + would},
		{Chat, chat(`,"modalities":["text","audio"]`), verdict.Unsupported, "modalities", "modalities" + would},
		{Chat, chat(`,"audio":{"voice":"x"}`), verdict.Unsupported, "audio", "audio" + would},
		{Chat, chat(`,"parallel_tool_calls":true`), verdict.Unsupported, "parallel_tool_calls", "parallel_tool_calls" + would},
		{Chat, chat(`,"bootstrap_room":7`), verdict.Unsupported, "bootstrap_room", "bootstrap_room: the gateway sets this field itself"},
		{Chat, chat(`,"kv_transfer_params":{}`), verdict.Unsupported, "kv_transfer_params", "kv_transfer_params: the gateway sets this field itself"},
		{Chat, chat(`,"x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70)), verdict.BadRequest, "", "the body is nested deeper than 64"},
		{Chat, chat(`,"x":{` + members(1100) + `}`), verdict.BadRequest, "", "an object has more than 1024 members"},
	} {
		t.Run(c.words, func(t *testing.T) {
			got, r := Parse(c.e, []byte(c.body), Strip)
			if r == nil {
				t.Fatalf("%s was taken: %+v", c.body, got)
			}
			want := verdict.Of(c.code, verdict.Parser, "%s", c.words)
			if r.Verdict != want || r.Param != c.param {
				t.Errorf("%s:\n got %v, param %q\nwant %v, param %q", c.body, r.Verdict, r.Param, want, c.param)
			}
		})
	}
}

func members(n int) string {
	var s []string
	for i := range n {
		s = append(s, fmt.Sprintf(`"k%d":0`, i))
	}
	return strings.Join(s, ",")
}

func TestUnknownFieldPolicyReject(t *testing.T) {
	_, r := Parse(Chat, []byte(`{"model":"m","secret words":1}`), Reject)
	if r == nil || r.Param != "secret words" || r.Verdict.Code != verdict.Unsupported {
		t.Fatalf("got %v", r)
	}
	if strings.Contains(r.Verdict.Reason, "secret") {
		t.Errorf("the reason, which is logged, quotes the client: %s", r.Verdict.Reason)
	}
}

// A prompt of megabytes is not copied by parsing it, however it is written.
func TestLargePromptsTakeNoMemoryBesideTheBody(t *testing.T) {
	text := strings.Repeat("x", 4<<20)
	escaped := strings.Repeat(`\"a\u00e9\ud83d\ude00\n`, 1<<18)
	part := `{"type":"text","text":"` + strings.Repeat("y", 1<<20) + `"}`
	for name, c := range map[string]struct {
		e    Endpoint
		body string
		want int // bytes of text, or ids
	}{
		"chat":         {Chat, `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`, 4 << 20},
		"text":         {Completions, `{"model":"m","prompt":"` + text + `"}`, 4 << 20},
		"chat escaped": {Chat, `{"model":"m","messages":[{"role":"user","content":"` + escaped + `"}]}`, 9 << 18},
		"text escaped": {Completions, `{"model":"m","prompt":"` + escaped + `"}`, 9 << 18},
		"parts":        {Chat, `{"model":"m","messages":[{"role":"user","content":[` + part + "," + part + "," + part + `]}]}`, 3<<20 + 2},
		"tiny parts":   {Chat, `{"model":"m","messages":[{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"a"},`, 1<<16) + part + `]}]}`, 1<<20 + 2<<16},
		"ids":          {Completions, `{"model":"m","prompt":[` + strings.Repeat("1,", 1<<20) + `2]}`, 1<<20 + 1},
	} {
		body := []byte(c.body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		req, r := Parse(c.e, body, Strip)
		runtime.ReadMemStats(&after)
		if r != nil {
			t.Fatal(r)
		}
		got := len(req.Prompt.Text) + req.Prompt.IDs.Len()
		for _, m := range req.Messages {
			got += len(m.Content)
		}
		if got != c.want {
			t.Errorf("%s: %d bytes or ids, want %d", name, got, c.want)
		}
		if grew := after.TotalAlloc - before.TotalAlloc; grew > 64<<10 && name != "tiny parts" {
			t.Errorf("%s: parsing %d bytes allocated %d", name, len(body), grew)
		}
		if live := after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc); live > uint64(len(body)) {
			t.Errorf("%s: after parsing %d bytes the heap has %d more", name, len(body), live)
		}
	}
}

// Parts are joined where they lie, and what is refused behind them is still named.
func TestPartsJoinedInPlaceLeaveNamesAlone(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"one\u0041"},{"text":"","type":"text"},{"type":"text","text":"three"}],` +
		`"refusal":1,"tool_call_id":"x"}]}`
	_, r := Parse(Chat, []byte(body), Strip)
	if r == nil || r.Param != "messages[0].tool_call_id" {
		t.Errorf("%v %q", r, r.Param)
	}
	body = strings.Replace(body, `,"tool_call_id":"x"`, "", 1)
	req, r := Parse(Chat, []byte(body), Strip)
	if r != nil || string(req.Messages[0].Content) != "oneA\n\nthree" {
		t.Errorf("%v %q", r, req.Messages)
	}
	body = strings.Replace(body, `"three"`, `"three","x":{"a":1,"a":2}`, 1)
	if _, r = Parse(Chat, []byte(body), Strip); r == nil || r.Param != "messages[0].content[2].x.a" {
		t.Errorf("%v %q", r, r.Param)
	}
}

// Whatever is taken, encoding/json agrees on: same model, same text.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
		`{"model":"m","prompt":[1,2,3],"stop":["a"],"seed":1}`,
		`{"model":"m","prompt":["x"],"logit_bias":{}}`,
		`{"model":"m","prompt":"\"\\\/\b\f\n\r\t\u0041\u00E9\uD83D\ude00."}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\n"},{"text":"b","type":"text"},{"type":"text","text":""}]}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9"}]}],"stream":true,"stream_options":{"include_usage":true}}`,
		"{\"model\":\"\xff\"}", `{"a":{"b":[[[]]]},"a":1}`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, isChat bool) {
		e := Completions
		if isChat {
			e = Chat
		}
		req, r := Parse(e, bytes.Clone(body), Strip)
		if (req == nil) == (r == nil) {
			t.Fatalf("neither or both of request and refusal: %v %v", req, r)
		}
		if r != nil {
			if r.Verdict.Status != 400 || len(r.Param) > maxParam || !json.Valid(AppendError(nil, r.Verdict, r.Param)) {
				t.Fatalf("bad refusal %v %q", r, r.Param)
			}
			return
		}
		var std map[string]json.RawMessage
		if err := json.Unmarshal(body, &std); err != nil {
			t.Fatalf("taken, but not JSON: %v", err)
		}
		var model string
		if err := json.Unmarshal(std["model"], &model); err != nil || model != req.Model {
			t.Fatalf("model %q read as %q (%v)", std["model"], req.Model, err)
		}
		var text string
		if json.Unmarshal(std["prompt"], &text) == nil && e == Completions && text != string(req.Prompt.Text) {
			t.Fatalf("prompt %q read as %q", text, req.Prompt.Text)
		}
		for i, m := range req.Messages {
			if want, ok := contentOf(std["messages"], i); ok && want != string(m.Content) {
				t.Fatalf("message %d of %q read as %q, want %q", i, body, m.Content, want)
			}
		}
	})
}

// contentOf is the content of a message as encoding/json reads it.
func contentOf(messages json.RawMessage, i int) (string, bool) {
	var ms []struct{ Content json.RawMessage }
	if json.Unmarshal(messages, &ms) != nil {
		return "", false
	}
	var text string
	if json.Unmarshal(ms[i].Content, &text) == nil {
		return text, true
	}
	var parts []struct{ Text string }
	if json.Unmarshal(ms[i].Content, &parts) != nil {
		return "", false
	}
	var all []string
	for _, p := range parts {
		all = append(all, p.Text)
	}
	return strings.Join(all, "\n"), true
}
