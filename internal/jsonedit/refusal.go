package jsonedit

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Reason says why a body is not taken.
type Reason uint8

const (
	NotJSON     Reason = iota + 1 // bad syntax
	EndsEarly                     // the body stops inside the object
	NotUTF8                       // invalid UTF-8, or an escape that is half a character
	NotObject                     // another kind of value than an object
	Trailing                      // something after the object
	Duplicate                     // a name appears twice in one object
	TooDeep                       // over Bounds.Depth
	TooMany                       // over Bounds.Names
	TooLarge                      // over Bounds.Bytes
	Control                       // a field that belongs to the gateway
	Unsupported                   // a value that would change what the gateway checks
	Unknown                       // a field that nobody knows, and the policy refuses those
	Invalid                       // a wrong type, or a value out of range
)

func (r Reason) String() string {
	return [...]string{"none", "not JSON", "ends early", "not UTF-8", "not an object", "trailing data", "duplicate name", "too deep",
		"too many names", "too large", "control field", "unsupported", "unknown field", "invalid"}[r]
}

// Refusal is a body that was not taken. Path names the field, as users of the API write it (messages[3].content); it may hold
// names that the client chose, bounded, and goes back to that client only. What and the numbers are safe to log.
type Refusal struct {
	Reason Reason
	Path   string
	Offset int    // byte of the body
	What   string // of a field's refusal: why, without the field's value
}

func (r *Refusal) Error() string { return r.Verdict().Reason }

// Verdict is the refusal as every layer hears it. It holds nothing that the client wrote, but names of fields that are ours.
func (r *Refusal) Verdict() verdict.Verdict {
	code, text := verdict.BadRequest, ""
	switch r.Reason {
	case NotJSON:
		text = fmt.Sprintf("the body is not valid JSON at byte %d", r.Offset)
	case EndsEarly:
		text = fmt.Sprintf("the body is not JSON: it ends early, at byte %d", r.Offset)
	case NotUTF8:
		text = fmt.Sprintf("the body is not valid UTF-8 at byte %d", r.Offset)
	case NotObject:
		text = "the body must be a JSON object"
	case Trailing:
		text = fmt.Sprintf("there is data after the JSON object, at byte %d", r.Offset)
	case Duplicate:
		text = fmt.Sprintf("a key appears twice in one object, the second time at byte %d", r.Offset)
	case TooDeep:
		text = "the body is nested deeper than " + r.What
	case TooMany:
		text = "an object of the body has too many members: over " + r.What
	case TooLarge:
		code, text = verdict.BodyTooLarge, "the body is larger than "+r.What
	case Control:
		code, text = verdict.Unsupported, named(r.Path, "the gateway sets this field itself")
	case Unsupported, Unknown:
		code, text = verdict.Unsupported, named(r.Path, r.What)
	case Invalid:
		text = named(r.Path, r.What)
	}
	return verdict.Of(code, verdict.Parser, "%s", text)
}

// named puts a field's path before a text if the name is one of the tables': a client's own word is not for logs.
func named(path, text string) string {
	name := path
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		name = name[i+1:]
	}
	if !known(name) {
		return text
	}
	if top, _, _ := strings.Cut(path, "."); !known(top) {
		return name + ": " + text
	}
	return path + ": " + text
}

const maxPath = 128

// pathOf joins the steps that unwinding collected, innermost first.
func pathOf(steps []string) string {
	var b strings.Builder
	for i := len(steps) - 1; i >= 0; i-- {
		s := steps[i]
		if b.Len() > 0 && !strings.HasPrefix(s, "[") {
			b.WriteByte('.')
		}
		b.WriteString(s)
		if b.Len() > maxPath {
			break
		}
	}
	s := b.String()
	if len(s) > maxPath {
		s = s[:maxPath]
		for len(s) > 0 && !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}
