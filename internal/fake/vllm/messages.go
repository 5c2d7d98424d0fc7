package vllm

import (
	"fmt"
	"net/http"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Anthropic's API as vLLM 0.32.0 serves it (vllm/entrypoints/anthropic/serving.py): members in the order of its models, those that are
// null left out of whole messages; a block begins with its first text; no end mark follows message_stop.

// start begins a streamed reply as its endpoint does.
func (c *call) start(o outcome) {
	switch c.q.Endpoint {
	case actor.Chat:
		c.roleChunk(o)
	case actor.Messages:
		b := fmt.Appendf(nil, `{"type":"message_start","message":{"id":%s,"type":"message","role":"assistant","content":[],"model":%s,"stop_reason":null,"stop_sequence":null`, quoted(c.id), quoted(c.model()))
		o.ids = nil
		c.out.Event(append(c.messageUsage(b, o, false), "}}"...), false)
	}
}

// model is its name as the reply says it.
func (c *call) model() string {
	if c.lie.Is(actor.OtherModel) {
		return c.q.Model + "-other"
	}
	return c.q.Model
}

func (c *call) messageUsage(b []byte, o outcome, last bool) []byte {
	if c.lie.Is(actor.CountMissing) {
		return b
	}
	b = fmt.Appendf(b, `,"usage":{"input_tokens":%s,"output_tokens":%d}`, c.counted(o.prompt, last), len(o.ids))
	if c.lie.Is(actor.CountTwice) {
		b = fmt.Appendf(b, `,"usage":{"input_tokens":%d,"output_tokens":%d}`, o.prompt+1, len(o.ids))
	}
	return b
}

// reason is the stop reason, in JSON.
func (c *call) reason(o outcome) string {
	switch {
	case c.lie.Is(actor.FinishMissing):
		return "null"
	case c.lie.Is(actor.AbortFinish):
		return `"abort"`
	case o.finish == "length":
		return `"max_tokens"`
	case orNull(o.stopped) != "null":
		return `"stop_sequence"`
	}
	return `"end_turn"`
}

// message sends a whole one.
func (c *call) message(o outcome) {
	b := fmt.Appendf(nil, `{"id":%s,"type":"message","role":"assistant","content":[`, quoted(c.id))
	if !c.lie.Is(actor.Empty) {
		b = append(appendText(append(b, `{"type":"text","text":`...), o.text), '}')
	}
	b = append(appendText(append(b, `],"model":`...), c.model()), `,"stop_reason":`...)
	b = append(b, c.reason(o)...)
	if s := orNull(o.stopped); s != "null" {
		b = append(append(b, `,"stop_sequence":`...), s...)
	}
	b = c.messageUsage(b, o, true)
	if c.lie.Is(actor.RefusedAside) {
		b = append(b, `,"error":{"type":"internal_error","message":"Internal server error"}`...)
	}
	c.out.Whole(http.StatusOK, append(b, '}'))
}

// messageText sends a piece of text.
func (c *call) messageText(text string) {
	if text == "" || c.lie.Is(actor.Empty) {
		return
	}
	if !c.spoke {
		c.spoke = true
		c.out.Event(fmt.Appendf(nil, `{"type":"content_block_start","content_block":{"type":"text","text":""},"index":%s}`, c.index()), false)
	}
	c.out.Event(fmt.Appendf(nil, `{"type":"content_block_delta","delta":{"type":"text_delta","text":%s},"index":%s}`, quoted(text), c.index()), false)
}

// messageEnd finishes a stream.
func (c *call) messageEnd(o outcome) {
	if c.lie.Is(actor.Empty) {
		o.ids = nil
	}
	if c.spoke {
		c.out.Event(fmt.Appendf(nil, `{"type":"content_block_stop","index":%s}`, c.index()), false)
	}
	b := fmt.Appendf(nil, `{"type":"message_delta","delta":{"stop_reason":%s,"stop_sequence":%s}`, c.reason(o), orNull(o.stopped))
	c.out.Event(append(c.messageUsage(b, o, true), '}'), true)
	c.free()
	c.out.Done()
}

func messageError(typ, message string) []byte {
	return fmt.Appendf(nil, `{"type":"error","error":{"type":%s,"message":%s}}`, quoted(typ), quoted(message))
}

// errorBody is an error as the endpoint says it.
func (c *call) errorBody(message, typ, param string, code int) []byte {
	if c.out.Named {
		return messageError(typ, message)
	}
	return errorBody(message, typ, param, code)
}

// countTokens counts a message's prompt.
func (w *Worker) countTokens(rw http.ResponseWriter, r *http.Request) {
	q := w.counts(rw, r, func(*jsonedit.Doc) actor.Endpoint { return actor.Messages })
	if q != nil {
		send(rw, http.StatusOK, fmt.Appendf(nil, `{"input_tokens":%d,"context_management":{"original_input_tokens":%d}}`, q.Prompt, q.Prompt))
	}
}
