// Package openai is the API as clients speak it: requests parsed strictly, errors and replies in the shapes that the
// public SDKs expect.
//
// A body is parsed where it lies: what is long aliases it, so a prompt of megabytes is held once. Nothing is
// lenient: a key that appears twice (in any spelling), invalid UTF-8, a wrong type or trailing data is refused, because
// two parsers that read one body differently are how control fields get through. The package knows no socket and no
// engine; what a model can do is decided by the fields table.
package openai

// Endpoint is one of the ways to ask for a completion. Parse reads the first two; Messages is for workers that speak it themselves.
type Endpoint uint8

const (
	Chat        Endpoint = iota // POST /v1/chat/completions
	Completions                 // POST /v1/completions
	Messages                    // POST /v1/messages, of Anthropic's API
	NumEndpoints
)

func (e Endpoint) String() string {
	switch e {
	case Completions:
		return "completions"
	case Messages:
		return "messages"
	}
	return "chat"
}

// PromptField is the name of the field that holds the prompt.
func (e Endpoint) PromptField() string {
	if e == Completions {
		return "prompt"
	}
	return "messages"
}

// Message of a chat. Content aliases the request's body, but where it was joined from parts.
type Message struct {
	Role    string // system, user or assistant; developer reads as system
	Content []byte
}

// Prompt of a completion: text, or token ids if they are given. Both alias the request's body.
type Prompt struct {
	Text []byte
	IDs  IDs
}

// Request is a parsed body of either endpoint. Pointers are nil where the client said nothing (or null).
type Request struct {
	Endpoint     Endpoint
	Model        string
	Messages     []Message
	Prompt       Prompt
	Stream       bool
	IncludeUsage bool     // stream_options.include_usage
	Stop         []string // at most MaxStops
	MaxTokens    uint32   // 0: not said
	Temperature  *float32 // 0 to 2
	TopP         *float32 // 0 to 1
	Seed         *int64
	Ignored      int // fields that were read and change nothing
}

// Bounds on what a request may hold, beside the size of its body.
const (
	MaxStops     = 4
	MaxStopBytes = 1024
	MaxMessages  = 1 << 16
	MaxModelName = 256
	maxMembers   = 1 << 10 // of one object
	maxDepth     = 64
)

// Usage is what was computed for a reply, in tokens.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// UsageOf counts.
func UsageOf(prompt, completion int) Usage {
	return Usage{prompt, completion, prompt + completion}
}
