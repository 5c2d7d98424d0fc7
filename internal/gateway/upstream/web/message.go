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
	counted            bool  // the last event, or the whole message, had a usage that says something
	next, open         int64 // the index that the next block has, the block under way (-1: none)
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
	if get("error").Said() {
		return "has an error beside its message"
	}
	return m.usage(get("usage"))
}

// whole takes a message that is no stream. It returns what is wrong with it, "" if nothing.
func (m *message) whole(doc *jsonedit.Doc) (why string) {
	if why = m.head(doc.Get); why != "" {
		return why
	}
	doc.Get("content").Each(func(_ []byte, block jsonedit.Value) bool {
		if word(block.Get("type")) == "" {
			why = "has a block that is none"
		}
		return why == ""
	})
	if why != "" {
		return why
	}
	return m.stop(doc.Get("stop_reason"))
}

// usage takes the counts of an event, or of a whole message. A prompt has a token at least: SGLang 0.5.9 to 0.5.13 begin a stream with
// none, before they have counted. Later ones say the prompt at the start alone, vLLM says it again at the end.
// It returns what is wrong with them, "" if nothing.
func (m *message) usage(u jsonedit.Value) (why string) {
	m.counted = false
	if !u.Said() {
		return ""
	}
	if u.Kind() != jsonedit.Object {
		return "has a usage that is no object"
	}
	prompt := 0
	u.Each(func(name []byte, v jsonedit.Value) bool {
		n, ok := v.Int()
		ok = ok && n >= 0 && n <= 1<<40
		switch string(name) {
		case "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens":
			prompt += int(n)
		case "output_tokens":
			if ok {
				m.completion, m.counted = int(n), true
			}
		default:
			return true
		}
		if v.Said() && !ok {
			why = "counts tokens with what is no count"
		}
		return why == ""
	})
	if why == "" && prompt > 0 {
		m.prompt, m.counted = prompt, true
	}
	return why
}

// stop takes a stop reason, if there is one. It returns what is wrong with it, "" if nothing.
func (m *message) stop(reason jsonedit.Value) string {
	if !reason.Said() {
		return ""
	}
	if m.stopped {
		return "stops a second time"
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
	return ""
}

// event takes one event. It returns what is wrong with it, "" if nothing.
func (m *message) event(kind string, doc *jsonedit.Doc) string {
	m.content, m.counted = false, false
	switch {
	case kind == "ping":
		return ""
	case !m.begun && kind != "message_start":
		return "comes before the message's start"
	case m.begun && kind == "message_start":
		return "begins a second message"
	case m.begun && doc.Get("message").Get("id").Said() && word(doc.Get("message").Get("id")) != m.id:
		return "has another id than the message"
	}
	switch kind {
	case "message_start":
		return m.start(doc.Get("message"))
	case "content_block_start", "content_block_delta", "content_block_stop":
		return m.block(kind, doc)
	case "message_delta":
		if why := m.usage(doc.Get("usage")); why != "" {
			return why
		}
		return m.stop(doc.Get("delta").Get("stop_reason"))
	case "message_stop":
		if m.open >= 0 {
			return "ends amid a block"
		}
		return ""
	}
	return "is of a type that is not known"
}

// namesMemory is wrong with an event of which nothing may leave, whatever only observes.
const namesMemory = "names memory of a worker"

func (m *message) start(v jsonedit.Value) string {
	if why := m.head(v.Get); why != "" {
		return why
	}
	if says(v.Get("content")) || v.Get("stop_reason").Said() {
		return "begins with what a message ends with"
	}
	for _, name := range secrets {
		if v.Get(name).Said() {
			return namesMemory
		}
	}
	return ""
}

// block takes an event of a block: they come one after the other, numbered from 0.
func (m *message) block(kind string, doc *jsonedit.Doc) string {
	index, numbered := doc.Get("index").Int()
	what, why := doc.Get("delta"), "is to a block that is not open"
	right := numbered && index == m.open
	switch kind {
	case "content_block_stop":
		if right {
			m.open, why = -1, ""
		}
		return why
	case "content_block_start":
		what, why = doc.Get("content_block"), "begins a block out of order"
		right = numbered && index == m.next && m.open < 0
	}
	switch {
	case m.stopped:
		return "goes on after its stop reason"
	case !right:
		return why
	case word(what.Get("type")) == "":
		return "holds a block that is none"
	case what.Get("error").Said():
		return "has an error in a block"
	}
	if kind == "content_block_start" {
		m.open, m.next = index, index+1
	}
	what.Each(func(name []byte, v jsonedit.Value) bool {
		m.content = string(name) != "type" && says(v)
		return !m.content
	})
	return ""
}

// sayMessageEnd says how a message finished, and that it is no success if it is empty or was not counted. Of a stream without a block
// SGLang does not say the prompt.
func (r *Run) sayMessageEnd(m *message, whole bool) {
	switch {
	case m.completion < 0, m.prompt < 0 && (whole || m.next > 0):
		r.broke(nil, "decode's message has no usage")
	case m.completion == 0:
		r.broke(nil, "decode calls a message of no tokens a success")
	}
	if m.stopped {
		r.tell(legs.LegFinish{Leg: legs.Decode, Reason: m.reason}, nil)
	}
}

func (r *Run) sayMessageUsage(m *message) {
	if m.counted {
		r.counted(&summary{prompt: m.prompt, completion: m.completion})
		r.tell(legs.LegUsage{Leg: legs.Decode, Prompt: m.prompt, Completion: m.completion}, nil)
	}
}

// hearMessage takes a message that is no stream.
func (r *Run) hearMessage(body []byte) {
	out, content := body, 0
	doc, bad := jsonedit.Read(body, nil)
	if bad == nil {
		out = bare(doc, body)
	}
	if bad != nil {
		r.broke(nil, "decode's answer is not a JSON object (%s)", bad.Reason)
	} else if v, is := errorUnder200(legs.Decode, doc); is {
		r.tell(legs.LegBroke{Leg: legs.Decode, Verdict: v}, nil)
	} else {
		m := r.newMessage()
		content = 1
		if why := m.whole(doc); why != "" {
			r.broke(nil, "decode's answer %s", why)
		} else {
			if r.plan.Stream {
				r.broke(nil, "decode answered a stream with a whole body")
			}
			r.sayMessageUsage(&m)
			r.sayMessageEnd(&m, true)
		}
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
			return r.streamEnds(err, func() { r.sayMessageEnd(&m, false) })
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
		r.broke(namedEvent(e.Type, e.Data), "decode sent an event that is not a JSON object (%s)", bad.Reason)
		return false
	}
	kind := word(doc.Get("type"))
	out := bare(doc, e.Data)
	if v, is := errorUnder200(legs.Decode, doc); is {
		r.tell(legs.LegBroke{Leg: legs.Decode, Verdict: v, Failed: true}, namedEvent(e.Type, out))
		return false
	}
	why := m.event(kind, doc)
	if why == "" && e.Type != "" && e.Type != kind {
		why = "has another name than type"
	}
	if why != "" {
		out = namedEvent(e.Type, out)
		if why == namesMemory {
			out = nil
		}
		r.broke(out, "decode sent an event that %s", why)
		return false
	}
	r.sayMessageUsage(m)
	if kind == "message_delta" && m.reason == legs.Other {
		r.tell(legs.LegFinish{Leg: legs.Decode, Reason: m.reason}, nil) // before the event that would tell a client that this is an end
	}
	out = namedEvent(kind, out)
	if kind == "message_stop" {
		r.sayMessageEnd(m, false)
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

// namedEvent is an event with its name, by which clients of this dialect choose how to read it.
func namedEvent(name string, data []byte) []byte {
	if name == "" {
		return event(data)
	}
	out := make([]byte, 0, len(data)+len(name)+16)
	out = append(append(append(out, "event: "...), name...), '\n')
	return sse.AppendData(out, data)
}

// afterMessage reads what follows the last event, so that the connection can be used again: nothing, or the end mark of the other
// dialect, which earlier vLLM sent too. None of it leaves.
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
