package openai

import (
	"bytes"
	"math"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Policy says what to do with a field that neither the public API nor the gateway knows.
type Policy uint8

const (
	Strip  Policy = iota // read over it: nothing natively depends on it
	Reject               // refuse the request and name it
)

// Parse reads a body strictly, and uses it up: the Request aliases it, and strings with escapes are resolved where they lie. It must
// not change, or go away, while the Request is in use.
func Parse(e Endpoint, body []byte, unknown Policy) (*Request, *Refusal) {
	s := newScanner(body)
	if k := s.dec.PeekKind(); k != '{' {
		if len(bytes.TrimSpace(body)) == 0 {
			return nil, &Refusal{Verdict: bad("the body is empty")}
		}
		if _, err := s.dec.ReadToken(); err != nil {
			return nil, s.syntax(err)
		}
		return nil, &Refusal{Verdict: bad("the body must be a JSON object, not %s", kindName(k))}
	}
	req := &Request{Endpoint: e}
	p := &parser{scanner: s, req: req, unknown: unknown}
	if r := s.object(p.member); r != nil {
		return nil, r
	}
	if r := s.end(); r != nil {
		return nil, r
	}
	if r := p.complete(); r != nil {
		return nil, r
	}
	return req, nil
}

type parser struct {
	*scanner
	req        *Request
	unknown    Policy
	asked      bool   // stream_options was given
	completion uint32 // max_completion_tokens
	prompted   bool   // messages or prompt was given
}

func (p *parser) member(name []byte) *Refusal {
	f, known := fields[string(name)]
	if !known || !f.on(p.req.Endpoint) {
		if p.unknown == Reject {
			return p.unsupported("this field is not known")
		}
		p.req.Ignored++
		return p.skip()
	}
	switch {
	case f.read != nil:
		// A null is the same as saying nothing, for everything that may be left out.
		if f.optional && p.null() {
			return nil
		}
		return f.read(p)
	case f.neutral != nil:
		return p.neutral(f)
	case f.control:
		if p.null() {
			return nil
		}
		return p.unsupported("the gateway sets this field itself")
	}
	p.req.Ignored++
	return p.skip()
}

// neutral passes a value that changes nothing, and refuses the field otherwise.
func (p *parser) neutral(f field) *Refusal {
	if p.null() {
		return nil
	}
	kind := p.dec.PeekKind()
	if kind == '{' || kind == '[' {
		at := p.dec.InputOffset()
		if r := p.skip(); r != nil {
			return r
		}
		raw := p.body[at:p.dec.InputOffset()]
		raw = raw[bytes.IndexAny(raw, "{["):]
		if len(raw) <= 256 && f.neutral(kind, compact(raw)) {
			return nil
		}
		return p.unsupported("this value would change the reply and is not supported")
	}
	raw, r := p.raw()
	if r != nil {
		return r
	}
	if f.neutral(kind, string(raw[:min(len(raw), 64)])) {
		return nil
	}
	return p.unsupported("this value would change the reply and is not supported")
}

func compact(raw []byte) string {
	v := jsontext.Value(bytes.Clone(raw))
	if v.Compact() != nil {
		return ""
	}
	return string(v)
}

// unsupported refuses the member that is being read. Its name is the client's word: Param carries it, Reason does not unless
// it is one of ours.
func (p *parser) unsupported(why string) *Refusal {
	at := p.here()
	v := verdict.Of(verdict.Unsupported, verdict.Parser, "%s", why)
	if _, ours := fields[at]; ours {
		v.Reason = at + ": " + why
	}
	return &Refusal{v, at}
}

func (p *parser) invalid(format string, args ...any) *Refusal {
	return &Refusal{bad(format, args...), p.here()}
}

// complete checks what only the whole body can tell.
func (p *parser) complete() *Refusal {
	q := p.req
	switch {
	case q.Model == "":
		return &Refusal{bad("model is required"), "model"}
	case !p.prompted:
		return &Refusal{bad("%s is required", q.Endpoint.PromptField()), q.Endpoint.PromptField()}
	case p.asked && !q.Stream:
		return &Refusal{bad("stream_options is only allowed when stream is true"), "stream_options"}
	case p.completion > 0 && q.MaxTokens > 0 && p.completion != q.MaxTokens:
		return &Refusal{bad("max_tokens %d and max_completion_tokens %d differ", q.MaxTokens, p.completion), "max_tokens"}
	case p.completion > 0:
		q.MaxTokens = p.completion
	}
	return nil
}

func (p *parser) readModel() *Refusal {
	b, r := p.text()
	if r != nil {
		return r
	}
	if len(b) == 0 || len(b) > MaxModelName {
		return p.invalid("model must have 1 to %d bytes", MaxModelName)
	}
	p.req.Model = string(b)
	return nil
}

func (p *parser) readStream() (r *Refusal) {
	p.req.Stream, r = p.boolean()
	return r
}

func (p *parser) readStreamOptions() *Refusal {
	p.asked = true
	return p.object(func(name []byte) (r *Refusal) {
		if string(name) != "include_usage" {
			return p.skip()
		}
		if p.null() {
			return nil
		}
		p.req.IncludeUsage, r = p.boolean()
		return r
	})
}

func (p *parser) readStop() *Refusal {
	if p.dec.PeekKind() == '[' {
		return p.array(func(i int) *Refusal {
			if i == MaxStops {
				return p.invalid("at most %d stop strings", MaxStops)
			}
			return p.readStopString()
		})
	}
	return p.readStopString()
}

func (p *parser) readStopString() *Refusal {
	b, r := p.text()
	if r != nil {
		return r
	}
	if len(b) == 0 || len(b) > MaxStopBytes {
		return p.invalid("a stop string must have 1 to %d bytes", MaxStopBytes)
	}
	p.req.Stop = append(p.req.Stop, string(b))
	return nil
}

func (p *parser) readTokens(into *uint32) *Refusal {
	n, r := p.integer()
	if r != nil {
		return r
	}
	if n < 1 {
		return p.invalid("must be at least 1, got %d", n)
	}
	// More than any limit: admission says what the limit is.
	*into = uint32(min(n, math.MaxInt32))
	return nil
}

func (p *parser) readMaxTokens() *Refusal           { return p.readTokens(&p.req.MaxTokens) }
func (p *parser) readMaxCompletionTokens() *Refusal { return p.readTokens(&p.completion) }

func (p *parser) readFraction(into **float32, most float64) *Refusal {
	f, r := p.number()
	if r != nil {
		return r
	}
	if !(f >= 0 && f <= most) {
		return p.invalid("must be from 0 to %g", most)
	}
	v := float32(f)
	*into = &v
	return nil
}

func (p *parser) readTemperature() *Refusal { return p.readFraction(&p.req.Temperature, 2) }
func (p *parser) readTopP() *Refusal        { return p.readFraction(&p.req.TopP, 1) }

func (p *parser) readSeed() *Refusal {
	n, r := p.integer()
	if r != nil {
		return r
	}
	p.req.Seed = &n
	return nil
}

// readPrompt takes a string, token ids, or a list of exactly one of either.
func (p *parser) readPrompt() *Refusal {
	p.prompted = true
	if p.dec.PeekKind() != '[' {
		return p.readPromptText()
	}
	raw, r := p.peekArray()
	if r != nil {
		return r
	}
	switch raw {
	case '0':
		return p.readIDs()
	case ']':
		return p.invalid("the prompt is empty")
	}
	return p.array(func(i int) *Refusal {
		switch {
		case i == 1:
			return &Refusal{verdict.Of(verdict.Unsupported, verdict.Parser, "several prompts in one request are not supported"), "prompt"}
		case p.dec.PeekKind() == '[':
			return p.readIDs()
		}
		return p.readPromptText()
	})
}

func (p *parser) readPromptText() (r *Refusal) {
	p.req.Prompt.Text, r = p.text()
	return r
}

// peekArray returns the kind of the first element of the array that is next, without reading it.
func (p *parser) peekArray() (byte, *Refusal) {
	rest := p.body[p.dec.InputOffset():]
	rest = rest[bytes.IndexByte(rest, '[')+1:]
	rest = bytes.TrimLeft(rest, " \t\r\n")
	if len(rest) == 0 {
		return 0, p.skip()
	}
	if c := rest[0]; c == '-' || c >= '0' && c <= '9' {
		return '0', nil
	}
	return rest[0], nil
}

func (p *parser) readMessages() *Refusal {
	p.prompted = true
	r := p.array(func(i int) *Refusal {
		if i == MaxMessages {
			return p.invalid("at most %d messages", MaxMessages)
		}
		return p.readMessage()
	})
	if r == nil && len(p.req.Messages) == 0 {
		return &Refusal{bad("messages is empty"), "messages"}
	}
	return r
}

func (p *parser) readMessage() *Refusal {
	var m Message
	said := false
	r := p.object(func(name []byte) (r *Refusal) {
		switch string(name) {
		case "role":
			var role []byte
			if role, r = p.text(); r != nil {
				return r
			}
			m.Role, r = p.role(role)
			return r
		case "content":
			if p.null() {
				return nil
			}
			said = true
			m.Content, r = p.readContent()
			return r
		case "tool_calls":
			return p.neutral(field{neutral: isEmptyArray})
		case "function_call", "audio", "tool_call_id":
			return p.neutral(field{neutral: never})
		}
		// name, refusal and annotations say nothing that a template here renders.
		return p.skip()
	})
	switch {
	case r != nil:
		return r
	case m.Role == "":
		return &Refusal{bad("message %d has no role", len(p.req.Messages)), "messages"}
	case !said && m.Role != "assistant":
		return &Refusal{bad("message %d has no content", len(p.req.Messages)), p.here() + ".content"}
	}
	p.req.Messages = append(p.req.Messages, m)
	return nil
}

func (p *parser) role(b []byte) (string, *Refusal) {
	switch string(b) {
	case "system", "developer":
		return "system", nil
	case "user":
		return "user", nil
	case "assistant":
		return "assistant", nil
	case "tool", "function":
		return "", p.unsupported("messages of tools are not supported")
	}
	return "", p.invalid("a role must be system, developer, user or assistant")
}

// readContent takes a string or text parts. Parts are joined by line ends, as the engines do for templates that know strings
// alone.
func (p *parser) readContent() (text []byte, r *Refusal) {
	if p.dec.PeekKind() == '"' {
		return p.text()
	}
	if k := p.dec.PeekKind(); k != '[' && k != jsontext.KindInvalid {
		return nil, p.wrongType("a string or an array of parts", k)
	}
	// In place: a part lies behind the one before it, with more between them than the line end, and the names that the decoder
	// still looks at lie before the first.
	start, end := 0, 0
	r = p.array(func(i int) *Refusal {
		at, part, r := p.readPart()
		switch {
		case r != nil:
			return r
		case i == 0:
			start, end = at, at+len(part)
		default:
			p.body[end] = '\n'
			end += 1 + copy(p.body[end+1:], part)
		}
		return nil
	})
	return p.body[start:end:end], r
}

// readPart reads a text part; at is where in the body its text lies.
func (p *parser) readPart() (at int, text []byte, r *Refusal) {
	typed, said := false, false
	var unsupported *Refusal
	r = p.object(func(name []byte) (r *Refusal) {
		switch string(name) {
		case "type":
			var b []byte
			if b, r = p.text(); r != nil {
				return r
			}
			if typed = true; string(b) != "text" {
				unsupported = p.unsupported("only text parts are supported")
			}
			return nil
		case "text":
			said = true
			text, r = p.text()
			at = p.textAt
			return r
		}
		return p.skip()
	})
	switch {
	case r != nil:
		return 0, nil, r
	case unsupported != nil:
		unsupported.Param = strings.TrimSuffix(unsupported.Param, ".type")
		return 0, nil, unsupported
	case !typed || !said:
		return 0, nil, &Refusal{bad("a content part must have a type and a text"), p.here()}
	}
	return at, text, nil
}
