package prompt

import (
	"errors"
	"fmt"
)

// Errors of the caller's request. None carries text or ids.
var (
	ErrEmpty      = errors.New("prompt: the prompt is empty")
	ErrNoTemplate = errors.New("prompt: the model has no chat template")
	// ErrEntangled: the template decides by a content that spells a control token, so the two cannot be told apart.
	ErrEntangled = errors.New("prompt: a message spells a control token and the chat template decides by that message's text")
)

// TooLong says that a prompt has more tokens than the limit.
type TooLong struct {
	Tokens  int  // counted, or proven to be there
	AtLeast bool // counting stopped early
	Limit   int
}

func (e *TooLong) Error() string {
	about := ""
	if e.AtLeast {
		about = "at least "
	}
	return fmt.Sprintf("prompt: %s%d tokens, limit %d", about, e.Tokens, e.Limit)
}

// InvalidUTF8 names the first byte that is not UTF-8. Message is the index of the message, -1 for a plain text.
type InvalidUTF8 struct{ Message, Offset int }

func (e *InvalidUTF8) Error() string {
	if e.Message < 0 {
		return fmt.Sprintf("prompt: invalid UTF-8 at byte %d", e.Offset)
	}
	return fmt.Sprintf("prompt: invalid UTF-8 at byte %d of message %d", e.Offset, e.Message)
}

// BadRole: a message's role is none of system, user, assistant, tool.
type BadRole struct{ Message int }

func (e *BadRole) Error() string {
	return fmt.Sprintf("prompt: the role of message %d is not one of system, user, assistant, tool", e.Message)
}

// BadID: a token id of the prompt is not in the vocabulary.
type BadID struct{ Index, Vocab int }

func (e *BadID) Error() string {
	return fmt.Sprintf("prompt: id %d of the prompt is not in the vocabulary of %d", e.Index, e.Vocab)
}

// TemplateFailed: the chat template refused or failed. Reason is the template's own literal text or a fixed phrase of this
// package, never text of the request.
type TemplateFailed struct{ Reason string }

func (e *TemplateFailed) Error() string { return "prompt: the chat template failed: " + e.Reason }
