package gateway

import (
	"errors"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/verdict"
)

// provenBytes is from how many bytes on a prompt that is surely over the limit is refused without being copied or counted. Below, a
// refusal says the exact number.
const provenBytes = 512 << 10

// encode turns the request's prompt into token ids, once. A prompt over the widest limit of the fleet is refused here, before its ids
// are kept; which pair it fits is admission's question.
func (x *walk) encode(req *openai.Request) verdict.Verdict {
	limit := x.model.fleet.Limit()
	if limit.Tokens == 0 {
		return x.model.fleet.Unready()
	}
	most := limit.Tokens
	if guard.Off(guard.Admission) {
		most = 0
	}
	e := x.model.cfg.Encoder
	if n := atLeast(e, req); most > 0 && n > most {
		return verdict.TooLong(verdict.Admission, n, 0, true, limit.Tokens, limit.Setter)
	}
	var err error
	switch {
	case x.endpoint == openai.Chat:
		// The only copy of the contents: from here on the body is not needed.
		messages := make([]prompt.Message, len(req.Messages))
		for i, m := range req.Messages {
			messages[i] = prompt.Message{Role: m.Role, Content: string(m.Content)}
			req.Messages[i].Content = nil
		}
		x.ids, err = e.Chat(messages, most)
	case req.Prompt.IDs.Given():
		if n := req.Prompt.IDs.Len(); most > 0 && n > most { // before any is kept
			err = &prompt.TooLong{Tokens: n, Limit: most}
			break
		}
		x.ids, err = e.IDs(req.Prompt.IDs.Decode(), most)
	default:
		text := string(req.Prompt.Text)
		req.Prompt.Text = nil
		x.ids, err = e.Text(text, most)
	}
	return encodingVerdict(err, limit)
}

// atLeast is a proven lower bound on the prompt's tokens, for long prompts; else 0.
func atLeast(e *prompt.Encoder, req *openai.Request) (n int) {
	bytes := len(req.Prompt.Text)
	for _, m := range req.Messages {
		bytes += len(m.Content)
	}
	switch {
	case bytes <= provenBytes:
	case req.Endpoint == openai.Completions:
		n = e.AtLeast(req.Prompt.Text)
	case e.KeepsContent():
		for _, m := range req.Messages {
			n += e.AtLeast(m.Content)
		}
	}
	return n
}

// encodingVerdict says what an encoder's error means to the client. Reasons hold numbers and the template's own words.
func encodingVerdict(err error, l capacity.Limit) verdict.Verdict {
	no := func(format string, args ...any) verdict.Verdict {
		return verdict.Of(verdict.Encoding, verdict.Prompt, format, args...)
	}
	var long *prompt.TooLong
	var utf8 *prompt.InvalidUTF8
	var id *prompt.BadID
	var template *prompt.TemplateFailed
	var role *prompt.BadRole
	switch {
	case err == nil:
		return verdict.Verdict{}
	case errors.As(err, &long):
		return verdict.TooLong(verdict.Admission, long.Tokens, 0, long.AtLeast, l.Tokens, l.Setter)
	case errors.Is(err, prompt.ErrEmpty):
		return no("the prompt has no tokens")
	case errors.As(err, &utf8):
		return no("the prompt is not valid UTF-8 at byte %d", utf8.Offset)
	case errors.As(err, &id):
		return no("token id %d of the prompt is not in the vocabulary of %d", id.Index, id.Vocab)
	case errors.As(err, &role):
		return no("the role of message %d has no place in the chat template", role.Message)
	case errors.As(err, &template):
		return no("the chat template failed: %s", template.Reason)
	case errors.Is(err, prompt.ErrNoTemplate):
		return no("the model has no chat template; POST /v1/completions works without one")
	case errors.Is(err, prompt.ErrEntangled):
		return no("a message spells a control token and the chat template decides by that message's text")
	}
	return verdict.Of(verdict.Internal, verdict.Prompt, "the prompt could not be encoded")
}
