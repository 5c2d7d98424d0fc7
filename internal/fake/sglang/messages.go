package sglang

import (
	"fmt"
	"net/http"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Anthropic's API as SGLang 0.5.16 to 0.5.23 serve it (srt/entrypoints/anthropic/serving.py): ids of its own, that no header changes;
// what is null is left out; a stream says the prompt at its start and the completion at its end; a stop string ends a turn; a failure
// in a stream is an event of type error between a message's start and its end.

// kinds are the errors by status; of a status below 500 the type of the chat's own error is kept.
var kinds = map[int]string{
	http.StatusBadRequest: "invalid_request_error", http.StatusServiceUnavailable: "overloaded_error",
}

func kind(status int) string {
	if k, ok := kinds[status]; ok {
		return k
	}
	return "api_error"
}

// messageError is an error in the dialect of messages. Of what fails inside it says nothing.
func messageError(status int, typ, message string) []byte {
	if status >= http.StatusInternalServerError {
		typ, message = kind(status), "Internal server error"
	}
	return fmt.Appendf(nil, `{"type":"error","error":{"type":%s,"message":%s}}`, quoted(typ), quoted(message))
}

// messageFails ends a stream with an error.
func (c *call) messageFails(status int, message string) {
	c.messageStart(nil)
	c.out.Event(messageError(status, kind(status), message), false)
	c.out.Done()
}

func (c *call) messageUsage(prompt *int, completion int) string {
	switch {
	case c.lie.Is(actor.CountMissing):
		return ""
	case prompt == nil:
		return fmt.Sprintf(`,"usage":{"output_tokens":%d}`, completion)
	case c.lie.Is(actor.CountTwice):
		return fmt.Sprintf(`,"usage":{"input_tokens":%d,"output_tokens":%d},"usage":{"input_tokens":%d,"output_tokens":%d}`, *prompt, completion, *prompt+1, completion)
	}
	return fmt.Sprintf(`,"usage":{"input_tokens":%s,"output_tokens":%d}`, c.counted(*prompt, false), completion)
}

// messageStart begins a stream, with the prompt's count: none yet, where it fails before it has counted.
func (c *call) messageStart(o *outcome) {
	if c.begun {
		return
	}
	c.begun = true
	prompt := 0
	if o != nil {
		prompt = o.prompt
	}
	c.out.Event(fmt.Appendf(nil, `{"type":"message_start","message":{"id":%s,"type":"message","role":"assistant","content":[],"model":%s%s}}`,
		quoted(c.id), quoted(c.model()), c.messageUsage(&prompt, 0)), false)
}

// messageText sends a piece of text.
func (c *call) messageText(o outcome, text string) {
	if text == "" || c.lie.Is(actor.Empty) {
		return
	}
	c.messageStart(&o)
	if !c.spoke {
		c.spoke = true
		c.out.Event(fmt.Appendf(nil, `{"type":"content_block_start","index":%s,"content_block":{"type":"text","text":""}}`, c.index()), false)
	}
	c.out.Event(fmt.Appendf(nil, `{"type":"content_block_delta","index":%s,"delta":{"type":"text_delta","text":%s}}`, c.index(), quoted(text)), false)
}

// stopReason is a member, or nothing.
func (c *call) stopReason(o outcome) string {
	switch {
	case c.lie.Is(actor.FinishMissing):
		return ""
	case c.lie.Is(actor.AbortFinish):
		return `"stop_reason":"abort"`
	case o.finish == "length":
		return `"stop_reason":"max_tokens"`
	}
	return `"stop_reason":"end_turn"`
}

// messageEnd finishes a stream.
func (c *call) messageEnd(o outcome) {
	c.messageStart(nil) // of a reply without text the prompt is not said
	if c.lie.Is(actor.Empty) {
		o.ids = nil
	}
	if c.spoke {
		c.out.Event(fmt.Appendf(nil, `{"type":"content_block_stop","index":%s}`, c.index()), false)
	}
	c.out.Event(fmt.Appendf(nil, `{"type":"message_delta","delta":{%s}%s}`, c.stopReason(o), c.messageUsage(nil, len(o.ids))), true)
}

// message is a whole one.
func (c *call) message(o outcome) []byte {
	content := `{"type":"text","text":` + quoted(o.text) + `}`
	if c.lie.Is(actor.Empty) {
		content = ""
	}
	reason := c.stopReason(o)
	if reason != "" {
		reason = "," + reason
	}
	return fmt.Appendf(nil, `{"id":%s,"type":"message","role":"assistant","content":[%s],"model":%s%s%s}`,
		quoted(c.id), content, quoted(c.model()), reason, c.messageUsage(&o.prompt, len(o.ids)))
}

// countTokens counts a message's prompt.
func (w *Worker) countTokens(rw http.ResponseWriter, r *http.Request) {
	if q := w.counts(rw, r, func(*jsonedit.Doc) actor.Endpoint { return actor.Messages }); q != nil {
		send(rw, fmt.Appendf(nil, `{"input_tokens":%d}`, q.Prompt))
	}
}
