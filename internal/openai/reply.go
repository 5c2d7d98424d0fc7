package openai

import (
	"strconv"
)

// Finish reasons of a choice.
const (
	FinishStop   = "stop"
	FinishLength = "length"
)

// Reply writes the bodies of one reply, whole or in chunks. All its bodies carry the same id, time and model.
type Reply struct {
	Endpoint    Endpoint
	ID          string // chatcmpl-… or cmpl-…
	Created     int64  // Unix seconds
	Model       string // as the client named it
	Fingerprint string // system_fingerprint: of the weights
	Usage       bool   // chunks say usage: null, and a last one says what was computed
}

// ReplyID makes the id of a reply from an attempt's.
func ReplyID(e Endpoint, attempt string) string {
	if e == Completions {
		return "cmpl-" + attempt
	}
	return "chatcmpl-" + attempt
}

func (r *Reply) head(b []byte, object string) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, r.ID)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, r.Created, 10)
	b = append(b, `,"model":`...)
	b = appendString(b, r.Model)
	b = append(b, `,"system_fingerprint":`...)
	return appendString(b, r.Fingerprint)
}

func appendUsage(b []byte, u Usage) []byte {
	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.PromptTokens), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.CompletionTokens), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.TotalTokens), 10)
	return append(b, '}')
}

// AppendWhole appends the body of a reply that is not streamed.
func (r *Reply) AppendWhole(b []byte, text string, finish string, u Usage) []byte {
	if r.Endpoint == Completions {
		b = r.head(b, "text_completion")
		b = append(b, `,"choices":[{"index":0,"text":`...)
		b = appendString(b, text)
		b = append(b, `,"logprobs":null,"finish_reason":`...)
	} else {
		b = r.head(b, "chat.completion")
		b = append(b, `,"choices":[{"index":0,"message":{"role":"assistant","content":`...)
		b = appendString(b, text)
		b = append(b, `,"refusal":null,"annotations":[]},"logprobs":null,"finish_reason":`...)
	}
	b = appendString(b, finish)
	b = append(b, `}],`...)
	b = appendUsage(b, u)
	return append(b, '}')
}

// AppendRole appends the first chunk of a chat stream: the role and no text. A completion stream has none.
func (r *Reply) AppendRole(b []byte) []byte {
	b = r.head(b, "chat.completion.chunk")
	b = append(b, `,"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]`...)
	return r.tail(b)
}

// AppendText appends a chunk of text.
func (r *Reply) AppendText(b []byte, text string) []byte {
	if r.Endpoint == Completions {
		b = r.head(b, "text_completion")
		b = append(b, `,"choices":[{"index":0,"text":`...)
		b = appendString(b, text)
		b = append(b, `,"logprobs":null,"finish_reason":null}]`...)
	} else {
		b = r.head(b, "chat.completion.chunk")
		b = append(b, `,"choices":[{"index":0,"delta":{"content":`...)
		b = appendString(b, text)
		b = append(b, `},"logprobs":null,"finish_reason":null}]`...)
	}
	return r.tail(b)
}

// AppendFinish appends the chunk that ends the choice.
func (r *Reply) AppendFinish(b []byte, finish string) []byte {
	if r.Endpoint == Completions {
		b = r.head(b, "text_completion")
		b = append(b, `,"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":`...)
	} else {
		b = r.head(b, "chat.completion.chunk")
		b = append(b, `,"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":`...)
	}
	b = appendString(b, finish)
	b = append(b, `}]`...)
	return r.tail(b)
}

// AppendUsage appends the chunk that says what was computed, for clients that asked for it.
func (r *Reply) AppendUsage(b []byte, u Usage) []byte {
	object := "chat.completion.chunk"
	if r.Endpoint == Completions {
		object = "text_completion"
	}
	b = r.head(b, object)
	b = append(b, `,"choices":[],`...)
	b = appendUsage(b, u)
	return append(b, '}')
}

func (r *Reply) tail(b []byte) []byte {
	if r.Usage {
		b = append(b, `,"usage":null`...)
	}
	return append(b, '}')
}

// Model is one entry of GET /v1/models.
type Model struct {
	ID          string
	Created     int64
	MaxModelLen int // tokens of prompt and reply together that fit now
}

// AppendModel appends a model object.
func AppendModel(b []byte, m Model) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, m.ID)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, m.Created, 10)
	b = append(b, `,"owned_by":"sluice","max_model_len":`...)
	b = strconv.AppendInt(b, int64(m.MaxModelLen), 10)
	return append(b, '}')
}

// AppendModels appends the list of models.
func AppendModels(b []byte, ms []Model) []byte {
	b = append(b, `{"object":"list","data":[`...)
	for i, m := range ms {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendModel(b, m)
	}
	return append(b, "]}"...)
}
