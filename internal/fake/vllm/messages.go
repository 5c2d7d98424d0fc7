package vllm

import (
	"fmt"
	"net/http"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// start begins a streamed reply as its endpoint does.
func (c *call) start(o outcome) {
	switch c.q.Endpoint {
	case actor.Chat:
		c.roleChunk(o)
	case actor.Messages:
		o.ids = nil
		c.out.Event(fmt.Appendf(nil, `{"type":"message_start","message":%s}`, c.messageBody(o, "", "null")), false)
		c.out.Event([]byte(`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`), false)
	}
}

// messageBody is a message of Anthropic's API. content and reason are JSON.
func (c *call) messageBody(o outcome, content, reason string) []byte {
	model := c.q.Model
	if c.lie.Is(actor.OtherModel) {
		model += "-other"
	}
	b := fmt.Appendf(nil, `{"id":%s,"type":"message","role":"assistant","content":[%s],"model":%s,"stop_reason":%s,"stop_sequence":%s`,
		quoted(c.id), content, quoted(model), reason, orNull(o.stopped))
	if !c.lie.Is(actor.CountMissing) {
		b = fmt.Appendf(b, `,"usage":{"input_tokens":%s,"output_tokens":%d}`, c.counted(o.prompt, reason != "null"), len(o.ids))
	}
	return append(b, '}')
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
	content := `{"type":"text","text":` + quoted(o.text) + `}`
	if c.lie.Is(actor.Empty) {
		content = ""
	}
	b := c.messageBody(o, content, c.reason(o))
	if c.lie.Is(actor.RefusedAside) {
		b = append(b[:len(b)-1], `,"error":{"type":"internal_error","message":"Internal server error"}}`...)
	}
	c.out.Whole(http.StatusOK, b)
}

// messageText sends a piece of text.
func (c *call) messageText(text string) {
	if text != "" && !c.lie.Is(actor.Empty) {
		c.out.Event(fmt.Appendf(nil, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%s}}`, quoted(text)), false)
	}
}

// messageEnd finishes a stream.
func (c *call) messageEnd(o outcome) {
	if c.lie.Is(actor.Empty) {
		o.ids = nil
	}
	c.out.Event([]byte(`{"type":"content_block_stop","index":0}`), false)
	b := fmt.Appendf(nil, `{"type":"message_delta","delta":{"stop_reason":%s,"stop_sequence":%s}`, c.reason(o), orNull(o.stopped))
	if !c.lie.Is(actor.CountMissing) {
		b = fmt.Appendf(b, `,"usage":{"input_tokens":%s,"output_tokens":%d}`, c.counted(o.prompt, true), len(o.ids))
	}
	c.out.Event(append(b, '}'), true)
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
