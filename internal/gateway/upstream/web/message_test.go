package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/verdict"
)

// hearMessages runs a decode leg's message through a run, streamed or whole, and returns its events and the bytes that a client would get.
func hearMessages(body string, stream bool) (es []legs.Event, out string) {
	r := &Run{plan: Plan{Messages: true, Stream: stream, ID: "slc-1", Hold: 1 << 30, Whole: 1 << 20}, wake: make(chan struct{}, 1)}
	r.space.L = &r.mu
	if !stream {
		r.hearMessage([]byte(body))
	} else if err := r.readMessage(strings.NewReader(body)); err != nil {
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

// objections are what was said to be wrong.
func objections(es []legs.Event) (whys []string) {
	for _, e := range es {
		switch e := e.(type) {
		case legs.LegBroke:
			whys = append(whys, e.Verdict.Reason)
		case legs.LegLost:
			whys = append(whys, e.Reason)
		}
	}
	return whys
}

// Events as vLLM 0.32.0's and SGLang 0.5.19's own converters (entrypoints/anthropic/serving.py) make them of a chat's stream.
const (
	vStart  = `{"type":"message_start","message":{"id":"chatcmpl-slc-1","type":"message","role":"assistant","content":[],"model":"recall","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":41,"output_tokens":0}}}`
	vBlock  = `{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}`
	vText   = `{"type":"content_block_delta","delta":{"type":"text_delta","text":" Alice"},"index":0}`
	vStop   = `{"type":"content_block_stop","index":0}`
	vDelta  = `{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"input_tokens":41,"output_tokens":2}}`
	vEnd    = `{"type":"message_stop"}`
	vWhole  = `{"id":"chatcmpl-slc-1","type":"message","role":"assistant","content":[{"type":"text","text":" Alice"}],"model":"recall","stop_reason":"max_tokens","usage":{"input_tokens":41,"output_tokens":2}}`
	vFails  = `{"type":"error","error":{"type":"internal_error","message":"2 validation errors for ChatCompletionStreamResponse"}}`
	vTool   = `{"type":"content_block_start","content_block":{"type":"tool_use","id":"call_1","name":"weather","input":{}},"index":0}`
	vArgs   = `{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"city\":\"Oslo\"}"},"index":0}`
	vCalls  = `{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":41,"output_tokens":2}}`
	vThink  = `{"type":"content_block_start","content_block":{"type":"thinking","thinking":""},"index":0}`
	vSigned = `{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"0b6e"},"index":0}`
	vBlock1 = `{"type":"content_block_start","content_block":{"type":"text","text":""},"index":1}`
	vText1  = `{"type":"content_block_delta","delta":{"type":"text_delta","text":"yes"},"index":1}`
	vStop1  = `{"type":"content_block_stop","index":1}`

	sStart  = `{"type":"message_start","message":{"id":"msg_1352e787226a4d38a0dbc8cc121e6791","type":"message","role":"assistant","content":[],"model":"recall","usage":{"input_tokens":41,"output_tokens":0}}}`
	sNone   = `{"type":"message_start","message":{"id":"msg_1352e787226a4d38a0dbc8cc121e6791","type":"message","role":"assistant","content":[],"model":"recall","usage":{"input_tokens":0,"output_tokens":0}}}`
	sBlock  = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	sText   = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" Alice"}}`
	sDelta  = `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}`
	sOld    = `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":41,"output_tokens":2}}`
	sLong   = `{"type":"error","error":{"type":"invalid_request_error","message":"The input (9 tokens) is longer than the model's context length (3 tokens)."}}`
	vCached = `{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":32}}`
)

// typed is a stream of events with their names; one that has no type is as it stands.
func typed(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		var e1 struct{ Type string }
		if json.Unmarshal([]byte(e), &e1) == nil && e1.Type != "" {
			e = "event: " + e1.Type + "\ndata: " + e
		}
		b.WriteString(e + "\n\n")
	}
	return b.String()
}

var good = []string{vStart, vBlock, vText, vStop, vDelta, vEnd}

// What engines say passes byte for byte, and nothing is said about it.
func TestMessagesOfEnginesPass(t *testing.T) {
	for name, c := range map[string]struct {
		events []string
		prompt int
		reason legs.Finish
	}{
		"vLLM":                        {good, 41, legs.Length},
		"vLLM, no text":               {[]string{vStart, vDelta, vEnd}, 41, legs.Length},
		"vLLM, a call":                {[]string{vStart, vTool, vArgs, vStop, vCalls, vEnd}, 41, legs.Stop},
		"vLLM, thoughts":              {[]string{vStart, vThink, vSigned, vStop, vBlock1, vText1, vStop1, vDelta, vEnd}, 41, legs.Length},
		"vLLM, a cached prefix":       {[]string{vStart, vBlock, vText, vStop, vCached, vEnd}, 41, legs.Length},
		"SGLang":                      {[]string{sStart, sBlock, sText, vStop, sDelta, vEnd}, 41, legs.Stop},
		"SGLang, no text":             {[]string{sNone, sDelta, vEnd}, -1, legs.Stop},
		"SGLang 0.5.9":                {[]string{sNone, sBlock, sText, vStop, sOld, vEnd}, 41, legs.Stop},
		"another that shows it lives": {[]string{`{"type":"ping"}`, vStart, `{"type":"ping"}`, vBlock, vText, vStop, vDelta, vEnd}, 41, legs.Length},
	} {
		sent := typed(c.events...)
		for _, more := range []string{"", "data: [DONE]\n\n"} { // which earlier vLLM sent
			es, out := hearMessages(sent+more, true)
			if whys := objections(es); len(whys) > 0 || out != sent {
				t.Errorf("%s: %q\n got %s\nwant %s", name, whys, out, sent)
			}
			var said legs.LegUsage
			var reason legs.Finish
			for _, e := range es {
				switch e := e.(type) {
				case legs.LegUsage:
					said = e
				case legs.LegFinish:
					reason = e.Reason
				}
			}
			if said.Prompt != c.prompt || said.Completion != 2 || reason != c.reason {
				t.Errorf("%s: %+v, %v", name, said, reason)
			}
			if _, ends := es[len(es)-1].(legs.LegEnd); !ends {
				t.Errorf("%s: %v", name, es)
			}
		}
	}
	if es, out := hearMessages(vWhole, false); len(objections(es)) > 0 || out != vWhole {
		t.Errorf("whole: %q %s", objections(es), out)
	}
}

func with(at int, event string) []string {
	events := slices.Clone(good)
	events[at] = event
	return events
}

func before(at int, event string) []string { return slices.Insert(slices.Clone(good), at, event) }
func skipping(at int) []string             { return slices.Delete(slices.Clone(good), at, at+1) }

// Whatever breaks the order or the words of a message is said, in words of our own.
func TestMessagesThatBreakTheirWire(t *testing.T) {
	for name, c := range map[string]struct {
		events []string
		want   string
	}{
		"nothing":                       {nil, "stream ended without its end mark"},
		"no start":                      {skipping(0), "comes before the message's start"},
		"a second start":                {before(2, vStart), "begins a second message"},
		"a second start, of another":    {before(5, sStart), "begins a second message"},
		"another attempt's":             {with(0, strings.Replace(vStart, "slc-1", "slc-2", 1)), "is to another attempt's request"},
		"an id that changes":            {before(3, `{"type":"ping2","message":{"id":"other"}}`), "has another id than the message"},
		"a start without an id":         {with(0, strings.Replace(vStart, `"id":"chatcmpl-slc-1",`, "", 1)), "has no id"},
		"a start without a model":       {with(0, strings.Replace(vStart, `"model":"recall",`, "", 1)), "names no model"},
		"a user's":                      {with(0, strings.Replace(vStart, `assistant`, "user", 1)), "is no message of the assistant"},
		"a start with text":             {with(0, strings.Replace(vStart, `[]`, `[{"type":"text","text":"x"}]`, 1)), "begins with what a message ends with"},
		"a start that has stopped":      {with(0, strings.Replace(vStart, `"stop_reason":null`, `"stop_reason":"end_turn"`, 1)), "begins with what a message ends with"},
		"a start without content":       {with(0, strings.Replace(vStart, `[]`, `null`, 1)), "has no content"},
		"a handle":                      {with(0, strings.Replace(vStart, `"usage"`, `"kv_transfer_params":{"remote_host":"h"},"usage"`, 1)), "names memory of a worker"},
		"a block that has not begun":    {skipping(1), "is to a block that is not open"},
		"a block that begins twice":     {before(2, vBlock), "begins a block out of order"},
		"a block with another number":   {with(1, strings.Replace(vBlock, `"index":0`, `"index":1`, 1)), "begins a block out of order"},
		"a block without a number":      {with(1, strings.Replace(vBlock, `,"index":0`, ``, 1)), "begins a block out of order"},
		"a block whose number is text":  {with(1, strings.Replace(vBlock, `"index":0`, `"index":"0"`, 1)), "begins a block out of order"},
		"a block again":                 {slices.Insert(slices.Clone(good), 4, vBlock), "begins a block out of order"},
		"a block without a type":        {with(1, strings.Replace(vBlock, `"type":"text",`, ``, 1)), "holds a block that is none"},
		"text of another block":         {with(2, strings.Replace(vText, `"index":0`, `"index":1`, 1)), "is to a block that is not open"},
		"text that is none":             {with(2, strings.Replace(vText, `"type":"text_delta",`, ``, 1)), "holds a block that is none"},
		"text behind its block":         {before(4, vText), "is to a block that is not open"},
		"a block that ends twice":       {before(4, vStop), "is to a block that is not open"},
		"a block that does not end":     {skipping(3), "ends amid a block"},
		"text behind the stop reason":   {[]string{vStart, vBlock, vText, vDelta, vText, vStop, vEnd}, "goes on after its stop reason"},
		"a block behind it":             {before(5, vBlock1), "goes on after its stop reason"},
		"a second stop reason":          {before(5, vDelta), "stops a second time"},
		"no end":                        {skipping(5), "stream ended without its end mark"},
		"more behind the end":           {append(slices.Clone(good), vText), "sent more after its end mark"},
		"a second message":              {append(slices.Clone(good), good...), "sent more after its end mark"},
		"no counts":                     {[]string{strings.Replace(vStart, `,"usage":{"input_tokens":41,"output_tokens":0}`, "", 1), vBlock, vText, vStop, strings.Replace(vDelta, `,"usage":{"input_tokens":41,"output_tokens":2}`, "", 1), vEnd}, "has no usage"},
		"no count of the prompt":        {[]string{sNone, vBlock, vText, vStop, sDelta, vEnd}, "has no usage"},
		"no tokens":                     {with(4, strings.Replace(vDelta, `"output_tokens":2`, `"output_tokens":0`, 1)), "a message of no tokens"},
		"a count that is text":          {with(4, strings.Replace(vDelta, `"output_tokens":2`, `"output_tokens":"2"`, 1)), "counts tokens with what is no count"},
		"a count below none":            {with(0, strings.Replace(vStart, `"input_tokens":41`, `"input_tokens":-41`, 1)), "counts tokens with what is no count"},
		"a usage that is none":          {with(4, strings.Replace(vDelta, `{"input_tokens":41,"output_tokens":2}`, `[41,2]`, 1)), "has a usage that is no object"},
		"an error in its start":         {with(0, strings.Replace(vStart, `"usage"`, `"error":{"type":"x"},"usage"`, 1)), "has an error beside its message"},
		"an error in a block":           {with(2, strings.Replace(vText, `"text":" Alice"`, `"text":"x","error":"x"`, 1)), "has an error in a block"},
		"a type that nobody knows":      {before(2, `{"type":"content_block_more","index":0}`), "is of a type that is not known"},
		"no type":                       {before(2, `data: {"index":0}`), "is of a type that is not known"},
		"a chunk of the other dialect":  {before(2, `data: `+text), "is of a type that is not known"},
		"the end mark of the other":     {with(5, `data: [DONE]`), "is not a JSON object"},
		"a name that is not the type":   {with(2, "event: message_stop\ndata: "+vText), "has another name than type"},
		"no JSON":                       {with(2, "event: content_block_delta\ndata: {"), "is not a JSON object"},
		"a member twice":                {with(4, strings.Replace(vDelta, `"usage"`, `"usage":{},"usage"`, 1)), "is not a JSON object"},
		"an event without an end":       {[]string{vStart + "\n\nevent: content_block_start\ndata: " + vBlock[:20]}, ""},
		"an error":                      {before(3, vFails), "an error under status 200"},
		"an error at once":              {[]string{vFails}, "an error under status 200"},
		"an error, and the end":         {[]string{sNone, sLong, vEnd}, "refused the prompt for its length"},
		"an error beside what is right": {with(4, strings.Replace(vDelta, `"delta"`, `"error":{"type":"x"},"delta"`, 1)), "an error under status 200"},
	} {
		es, _ := hearMessages(typed(c.events...), true)
		if whys := objections(es); len(whys) == 0 || !strings.Contains(strings.Join(whys, "; "), c.want) {
			t.Errorf("%s: %q, want %q", name, whys, c.want)
		}
	}
}

func TestWholeMessagesThatBreakTheirWire(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"no type":            {`"type":"message",`, ``, "is no message of the assistant"},
		"no id":              {`"id":"chatcmpl-slc-1",`, ``, "has no id"},
		"another attempt's":  {`slc-1`, `slc-12345`, ""},
		"another's":          {`slc-1`, `slc-2`, "is to another attempt's request"},
		"no content":         {`[{"type":"text","text":" Alice"}]`, `" Alice"`, "has no content"},
		"a block that is no": {`{"type":"text","text":" Alice"}`, `" Alice"`, "has a block that is none"},
		"no counts":          {`,"usage":{"input_tokens":41,"output_tokens":2}`, ``, "has no usage"},
		"no prompt":          {`"input_tokens":41`, `"input_tokens":0`, "has no usage"},
		"a prompt of less":   {`"input_tokens":41`, `"input_tokens":-1`, "counts tokens with what is no count"},
		"no tokens":          {`"output_tokens":2`, `"output_tokens":0`, "a message of no tokens"},
		"an error":           {vWhole, vFails, "an error under status 200"},
		"an error beside":    {`"type":"message"`, `"type":"message","error":{"type":"internal_error"}`, "an error under status 200"},
		"a chat's answer":    {vWhole, `{"id":"chatcmpl-slc-1","object":"chat.completion","model":"recall","choices":[]}`, "is no message of the assistant"},
		"no JSON":            {vWhole, `[]`, "is not a JSON object"},
	} {
		es, _ := hearMessages(strings.Replace(vWhole, c.old, c.new, 1), false)
		if whys := strings.Join(objections(es), "; "); !strings.Contains(whys, c.want) || (whys == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, whys, c.want)
		}
	}
	// No stop reason is not said, so that the need of one speaks.
	es, _ := hearMessages(strings.Replace(vWhole, `"stop_reason":"max_tokens",`, ``, 1), false)
	for _, e := range es {
		if _, is := e.(legs.LegFinish); is {
			t.Errorf("%v", e)
		}
	}
	es, _ = hearMessages(strings.Replace(vWhole, `max_tokens"`, `abort"`, 1), false)
	if !slices.ContainsFunc(es, func(e legs.Event) bool { return e == legs.LegFinish{Leg: legs.Decode, Reason: legs.Other} }) {
		t.Errorf("%v", es)
	}
}

// Both counts of a stream are said, so that a worker that takes one back contradicts itself.
func TestMessagesSayEachCount(t *testing.T) {
	es, _ := hearMessages(typed(with(4, strings.Replace(vDelta, `"input_tokens":41`, `"input_tokens":42`, 1))...), true)
	var said []int
	for _, e := range es {
		if u, is := e.(legs.LegUsage); is {
			said = append(said, u.Prompt)
		}
	}
	if !slices.Equal(said, []int{41, 42}) {
		t.Errorf("%v", said)
	}
}

// An error in a stream has a type where other dialects have a code: whose fault it is shows in the verdict.
func TestErrorsOfMessagesKeepTheirKind(t *testing.T) {
	for kind, want := range map[string]verdict.Code{
		"invalid_request_error": verdict.BadRequest, "overloaded_error": verdict.Overloaded, "rate_limit_error": verdict.Overloaded, "timeout_error": verdict.Deadline,
		"api_error": verdict.EngineFailed, "internal_error": verdict.EngineFailed,
	} {
		es, _ := hearMessages(typed(sNone, fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":"s3cret"}}`, kind), vEnd), true)
		found := false
		for _, e := range es {
			if b, is := e.(legs.LegBroke); is && !found {
				found = true
				if b.Verdict.Code != want || !b.Failed || strings.Contains(b.Verdict.Reason, "s3cret") {
					t.Errorf("%s: %+v", kind, b)
				}
			}
		}
		if !found {
			t.Errorf("%s: %v", kind, es)
		}
	}
}

// A stop reason that is no end is said before its event leaves.
func TestAnAbortOfAMessageIsSaidBeforeItLeaves(t *testing.T) {
	es, _ := hearMessages(typed(with(4, strings.Replace(vDelta, "max_tokens", "abort", 1))...), true)
	said, content := -1, 0
	for _, e := range es {
		switch e := e.(type) {
		case legs.LegFinish:
			if said < 0 && e.Reason == legs.Other {
				said = content
			}
		case legs.LegBytes:
			content++
		}
	}
	if said != 4 { // the start, and a block's begin, text and end
		t.Errorf("said after %d events: %v", said, es)
	}
}

// What names memory of a worker never leaves, whole or streamed.
func TestMessagesAreCleaned(t *testing.T) {
	es, out := hearMessages(strings.Replace(vWhole, `"usage"`, `"kv_transfer_params":{"remote_host":"10.0.0.1"},"usage"`, 1), false)
	if out != vWhole || len(objections(es)) > 0 {
		t.Errorf("%s %q", out, objections(es))
	}
	if _, out := hearMessages(strings.Replace(vFails, `"error":`, `"kv_transfer_params":{"remote_host":"10.0.0.1"},"error":`, 1), false); out != vFails {
		t.Errorf("%s", out)
	}
	for _, events := range [][]string{
		with(4, strings.Replace(vDelta, `"usage"`, `"kv_transfer_params":{"remote_host":"10.0.0.1"},"usage"`, 1)),
		with(0, strings.Replace(vStart, `"usage"`, `"kv_transfer_params":{"remote_host":"10.0.0.1"},"usage"`, 1)),
	} {
		if _, out := hearMessages(typed(events...), true); strings.Contains(out, "remote_host") {
			t.Errorf("%s", out)
		}
	}
}

// Whatever a worker sends: no panic, one end or a loss, and nothing after it; and what nothing is said about is a message by the rules
// of its dialect, read by another parser.
func FuzzMessage(f *testing.F) {
	f.Add(typed(good...), true)
	f.Add(typed(vStart, vThink, vSigned, vStop, vBlock1, vText1, vStop1, vDelta, vEnd), true)
	f.Add(typed(sNone, sDelta, vEnd)+"data: [DONE]\n\n", true)
	f.Add(typed(sNone, sLong, vEnd), true)
	f.Add(typed(append(slices.Clone(good), good...)...), true)
	f.Add("data: {\n\n", true)
	f.Add(vWhole, false)
	f.Add(vFails, false)
	f.Fuzz(func(t *testing.T, s string, stream bool) {
		es, out := hearMessages(s, stream)
		ends := 0
		for i, e := range es {
			switch e.(type) {
			case legs.LegEnd, legs.LegLost:
				ends++
			default:
				if _, broke := e.(legs.LegBroke); ends > 0 && !broke {
					t.Fatalf("%T comes after the end: %v", e, es[i:])
				}
			}
		}
		if ends != 1 {
			t.Fatalf("%d ends: %v", ends, es)
		}
		if len(objections(es)) == 0 && stream {
			judgeStream(t, out)
		}
	})
}

// judgeStream holds a stream to the rules, as a client would read it.
func judgeStream(t *testing.T, out string) {
	t.Helper()
	var state struct {
		begun, ended bool
		open         bool
		blocks       int
	}
	for _, e := range strings.Split(strings.TrimSuffix(out, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(e, "\n")
		var v struct {
			Type    string
			Index   int
			Message struct{ ID, Role string }
			Error   any
		}
		data = strings.ReplaceAll(strings.TrimPrefix(data, "data: "), "\ndata: ", "\n")
		if err := json.Unmarshal([]byte(data), &v); err != nil || !ok || name != "event: "+v.Type || v.Error != nil || state.ended {
			t.Fatalf("%q: %v", e, err)
		}
		switch v.Type {
		case "ping":
		case "message_start":
			if state.begun || v.Message.ID == "" || v.Message.Role != "assistant" {
				t.Fatalf("%q", out)
			}
			state.begun = true
		case "content_block_start":
			if !state.begun || state.open || v.Index != state.blocks {
				t.Fatalf("%q", out)
			}
			state.open, state.blocks = true, state.blocks+1
		case "content_block_delta", "content_block_stop":
			if !state.open || v.Index != state.blocks-1 {
				t.Fatalf("%q", out)
			}
			state.open = v.Type == "content_block_delta"
		case "message_delta":
			if !state.begun {
				t.Fatalf("%q", out)
			}
		case "message_stop":
			if state.open || !state.begun {
				t.Fatalf("%q", out)
			}
			state.ended = true
		default:
			t.Fatalf("%q", out)
		}
	}
	if !state.ended {
		t.Fatalf("%q has no end", out)
	}
}
