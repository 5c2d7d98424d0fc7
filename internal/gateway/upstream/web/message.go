package web

import (
	"bytes"
	"io"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/sse"
)

// message is what a reply in the dialect of Anthropic's API said so far.
type message struct {
	ours               string // the id that the engine was given for this attempt
	id                 string
	begun, stopped     bool
	reason             legs.Finish
	prompt, completion int   // -1: not said
	next, open         int64 // the least index that a block may begin with, the block under way (-1: none)
	content            bool  // the last event held something that a client would show
}

func (r *Run) newMessage() message {
	return message{ours: r.plan.ID, prompt: -1, completion: -1, open: -1}
}

func word(v jsonedit.Value) string {
	text, _ := v.Text()
	return string(text)
}

// head takes a message, whole or at its start. It returns what is wrong with it, "" if nothing.
func (m *message) head(get func(string) jsonedit.Value) string {
	m.begun, m.id = true, word(get("id"))
	switch {
	case word(get("type")) != "message" || word(get("role")) != "assistant":
		return "is no message of the assistant"
	case m.id == "":
		return "has no id"
	case OfAnother(m.id, m.ours):
		return "is to another attempt's request"
	case word(get("model")) == "":
		return "names no model"
	case get("content").Kind() != jsonedit.Array:
		return "has no content"
	}
	m.usage(get("usage"))
	return ""
}

func (m *message) usage(u jsonedit.Value) {
	input, cached := -1, 0
	u.Each(func(name []byte, v jsonedit.Value) bool {
		n, ok := v.Int()
		if !ok || n < 0 || n > 1<<40 {
			return true
		}
		switch string(name) {
		case "input_tokens":
			input = int(n)
		case "cache_creation_input_tokens", "cache_read_input_tokens":
			cached += int(n)
		case "output_tokens":
			m.completion = int(n)
		}
		return true
	})
	if input >= 0 {
		m.prompt = input + cached
	}
}

// stop takes a stop reason, if there is one.
func (m *message) stop(reason jsonedit.Value) {
	if !reason.Said() {
		return
	}
	m.stopped = true
	switch word(reason) {
	case "end_turn", "stop_sequence", "tool_use", "refusal", "pause_turn":
		m.reason = legs.Stop
	case "max_tokens", "model_context_window_exceeded":
		m.reason = legs.Length
	default:
		m.reason = legs.Other
	}
}

// event takes one event. It returns what is wrong with it, "" if nothing.
func (m *message) event(kind string, doc *jsonedit.Doc) string {
	m.content = false
	if m.begun == (kind == "message_start") {
		if m.begun {
			return "begins a second message"
		}
		if kind == "ping" {
			return ""
		}
		return "comes before the message's start"
	}
	if id := doc.Get("message").Get("id"); m.begun && id.Said() && word(id) != m.id {
		return "has another id than the message"
	}
	index, numbered := doc.Get("index").Int()
	switch kind {
	case "message_start":
		return m.head(doc.Get("message").Get)
	case "content_block_start":
		block := doc.Get("content_block")
		switch {
		case m.stopped:
			return "goes on after its stop reason"
		case !numbered || index < m.next || m.open >= 0:
			return "begins a block out of order"
		case block.Kind() != jsonedit.Object || word(block.Get("type")) == "":
			return "begins a block that is none"
		}
		m.open, m.next = index, index+1
		block.Each(func(name []byte, v jsonedit.Value) bool {
			m.content = m.content || string(name) != "type" && says(v)
			return !m.content
		})
	case "content_block_delta":
		delta := doc.Get("delta")
		switch {
		case m.stopped:
			return "goes on after its stop reason"
		case !numbered || index != m.open:
			return "is to a block that is not open"
		case delta.Kind() != jsonedit.Object || word(delta.Get("type")) == "":
			return "holds a delta that is none"
		}
		delta.Each(func(name []byte, v jsonedit.Value) bool {
			m.content = m.content || string(name) != "type" && says(v)
			return !m.content
		})
	case "content_block_stop":
		if !numbered || index != m.open {
			return "ends a block that is not open"
		}
		m.open = -1
	case "message_delta":
		m.stop(doc.Get("delta").Get("stop_reason"))
		m.usage(doc.Get("usage"))
	case "message_stop":
		if m.open >= 0 {
			return "ends amid a block"
		}
	case "ping":
	default:
		return "is of a type that is not known"
	}
	return ""
}

// sayMessageEnd says how a message finished, and that it is no success if it is empty or was not counted.
func (r *Run) sayMessageEnd(m *message) {
	switch {
	case m.prompt < 0 || m.completion < 0:
		r.broke(nil, "decode's message has no usage")
	case m.completion == 0:
		r.broke(nil, "decode calls a message of no tokens a success")
	}
	if m.stopped {
		r.tell(legs.LegFinish{Leg: legs.Decode, Reason: m.reason}, nil)
	}
}

func (r *Run) sayMessageUsage(m *message) {
	r.counted(&summary{prompt: m.prompt, completion: m.completion})
	if m.prompt >= 0 && m.completion >= 0 {
		r.tell(legs.LegUsage{Leg: legs.Decode, Prompt: m.prompt, Completion: m.completion}, nil)
	}
}

// hearMessage takes a message that is no stream.
func (r *Run) hearMessage(body []byte) {
	out, content := body, 0
	doc, bad := jsonedit.Read(body, nil)
	if bad != nil {
		r.broke(nil, "decode's answer is not a JSON object (%s)", bad.Reason)
	} else if v, is := errorUnder200(legs.Decode, doc); is {
		r.tell(legs.LegBroke{Leg: legs.Decode, Verdict: v}, nil)
	} else {
		m := r.newMessage()
		if why := m.head(doc.Get); why != "" {
			r.broke(nil, "decode's answer %s", why)
		}
		if r.plan.Stream {
			r.broke(nil, "decode answered a stream with a whole body")
		}
		m.stop(doc.Get("stop_reason"))
		r.sayMessageUsage(&m)
		r.sayMessageEnd(&m)
		out, content = r.clean(doc, body), 1
	}
	r.tell(legs.LegBytes{Leg: legs.Decode, N: content}, out)
	r.tell(legs.LegEnd{Leg: legs.Decode}, nil)
}

// readMessage takes a streamed message, event by event. The error is of the connection.
func (r *Run) readMessage(body io.Reader) error {
	in := sse.NewReader(body, maxEvent)
	m := r.newMessage()
	for {
		e, err := in.Next()
		if err != nil {
			return r.streamEnds(err, func() { r.sayMessageEnd(&m) })
		}
		if r.hearEvent(&m, e) {
			r.afterMessage(in)
			return nil
		}
	}
}

// hearEvent takes one event, and reports whether it was the last.
func (r *Run) hearEvent(m *message, e sse.Event) (last bool) {
	doc, bad := jsonedit.Read(e.Data, nil)
	if bad != nil {
		r.broke(event(e.Data), "decode sent an event that is not a JSON object (%s)", bad.Reason)
		return false
	}
	kind := word(doc.Get("type"))
	if v, is := errorUnder200(legs.Decode, doc); is {
		r.tell(legs.LegBroke{Leg: legs.Decode, Verdict: v}, event(e.Data))
		return false
	}
	why := m.event(kind, doc)
	if why == "" && e.Type != "" && e.Type != kind {
		why = "has another name than type"
	}
	if why != "" {
		r.broke(event(e.Data), "decode sent an event that %s", why)
		return false
	}
	out := append([]byte("event: "+kind+"\n"), event(r.clean(doc, e.Data))...)
	switch kind {
	case "message_delta":
		r.sayMessageUsage(m)
	case "message_stop":
		r.sayMessageEnd(m)
		r.tell(legs.LegEnd{Leg: legs.Decode}, out)
		return true
	}
	n := 0
	if m.content {
		n = 1
	}
	r.tell(legs.LegBytes{Leg: legs.Decode, N: n}, out)
	return false
}

// afterMessage reads what follows the last event, so that the connection can be used again: nothing, or the end mark of the other
// dialect, which vLLM sends too. None of it leaves.
func (r *Run) afterMessage(in *sse.Reader) {
	said := false
	for range 16 {
		e, err := in.Next()
		if err != nil {
			return
		}
		if !said && !bytes.Equal(e.Data, []byte(sse.Done)) {
			said = true
			r.broke(nil, "decode sent more after its end mark")
		}
	}
}
