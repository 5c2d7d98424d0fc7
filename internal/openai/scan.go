package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicekv/sluice/internal/verdict"
)

// scanner reads one body. It is jsontext.Decoder with offsets into the body, so that values alias our own slice instead of
// the decoder's.
type scanner struct {
	body   []byte
	dec    *jsontext.Decoder
	textAt int // where in body the last text lies
}

func newScanner(body []byte) *scanner {
	// Given a bytes.Buffer the decoder parses in place.
	return &scanner{body: body, dec: jsontext.NewDecoder(bytes.NewBuffer(body))}
}

// raw returns the next value as it stands in the body.
func (s *scanner) raw() ([]byte, *Refusal) {
	v, err := s.dec.ReadValue()
	if err != nil {
		return nil, s.syntax(err)
	}
	end := int(s.dec.InputOffset())
	return s.body[end-len(v) : end], nil
}

// token consumes one token.
func (s *scanner) token() *Refusal {
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	return s.bounded()
}

// bounded limits what the decoder must remember: the open objects, and the names in each.
func (s *scanner) bounded() *Refusal {
	depth := s.dec.StackDepth()
	if depth > maxDepth {
		return &Refusal{Verdict: bad("the body is nested deeper than %d", maxDepth)}
	}
	if k, n := s.dec.StackIndex(depth); k == '{' && n > 2*maxMembers {
		return &Refusal{Verdict: bad("an object has more than %d members", maxMembers)}
	}
	return nil
}

// skip reads over one value.
func (s *scanner) skip() *Refusal {
	for depth := s.dec.StackDepth(); ; {
		if r := s.token(); r != nil {
			return r
		}
		if s.dec.StackDepth() <= depth {
			return nil
		}
	}
}

// object calls member for each member of the next value, which must be an object. name is valid until member reads on.
func (s *scanner) object(member func(name []byte) *Refusal) *Refusal {
	if r := s.want('{'); r != nil {
		return r
	}
	if r := s.token(); r != nil {
		return r
	}
	for s.dec.PeekKind() != '}' {
		quoted, r := s.raw()
		if r != nil {
			return r
		}
		if r := s.bounded(); r != nil {
			return r
		}
		name, r := s.name(quoted)
		if r != nil {
			return r
		}
		if r := member(name); r != nil {
			return r
		}
	}
	return s.close()
}

// array calls element for each element of the next value, which must be an array.
func (s *scanner) array(element func(i int) *Refusal) *Refusal {
	if r := s.want('['); r != nil {
		return r
	}
	if r := s.token(); r != nil {
		return r
	}
	for i := 0; s.dec.PeekKind() != ']'; i++ {
		if r := element(i); r != nil {
			return r
		}
	}
	return s.close()
}

// close consumes a closing delimiter, or reports the error that PeekKind met in its place.
func (s *scanner) close() *Refusal {
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	return nil
}

// want refuses a next value of another kind.
func (s *scanner) want(k jsontext.Kind) *Refusal {
	got := s.dec.PeekKind()
	if got == k {
		return nil
	}
	if got == jsontext.KindInvalid {
		_, err := s.dec.ReadToken()
		return s.syntax(err)
	}
	return s.wrongType(kindName(k), got)
}

func (s *scanner) wrongType(want string, got jsontext.Kind) *Refusal {
	return &Refusal{bad("expected %s but got %s at byte %d", want, kindName(got), s.dec.InputOffset()), s.next()}
}

// name returns the text of a raw name: aliased when it has no escapes. The decoder still looks at names where they lie.
func (s *scanner) name(raw []byte) ([]byte, *Refusal) {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, nil
	}
	out, err := jsontext.AppendUnquote(make([]byte, 0, len(inner)), raw)
	if err != nil {
		return nil, s.syntax(err)
	}
	return out, nil
}

// text reads a string, and resolves its escapes where it lies.
func (s *scanner) text() ([]byte, *Refusal) {
	if r := s.want('"'); r != nil {
		return nil, r
	}
	raw, r := s.raw()
	if r != nil {
		return nil, r
	}
	s.textAt = int(s.dec.InputOffset()) - len(raw) + 1
	return unquote(raw), nil
}

func (s *scanner) boolean() (bool, *Refusal) {
	switch k := s.dec.PeekKind(); k {
	case 't', 'f':
		_, r := s.raw()
		return k == 't', r
	case jsontext.KindInvalid:
		_, r := s.raw()
		return false, r
	default:
		return false, s.wrongType("a boolean", k)
	}
}

func (s *scanner) integer() (int64, *Refusal) {
	if r := s.want('0'); r != nil {
		return 0, r
	}
	raw, r := s.raw()
	if r != nil {
		return 0, r
	}
	n, err := strconv.ParseInt(string(raw[:min(len(raw), 32)]), 10, 64)
	if err != nil {
		return 0, &Refusal{bad("expected an integer of at most 64 bits at byte %d", s.dec.InputOffset()), s.here()}
	}
	return n, nil
}

func (s *scanner) number() (float64, *Refusal) {
	if r := s.want('0'); r != nil {
		return 0, r
	}
	raw, r := s.raw()
	if r != nil {
		return 0, r
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return 0, &Refusal{bad("expected a number that fits 64 bits at byte %d", s.dec.InputOffset()), s.here()}
	}
	return f, nil
}

// null consumes a null if that is next.
func (s *scanner) null() bool {
	if s.dec.PeekKind() != 'n' {
		return false
	}
	_, err := s.dec.ReadToken()
	return err == nil
}

// here names the value that was read last: messages[3].content.
func (s *scanner) here() string { return param(s.dec.StackPointer()) }

// next names the value that is read next, whose member name was read already.
func (s *scanner) next() string {
	p := s.dec.StackPointer()
	if k, n := s.dec.StackIndex(s.dec.StackDepth()); k == '[' {
		if n > 0 {
			p = p.Parent()
		}
		p = p.AppendToken(strconv.FormatInt(n, 10))
	}
	return param(p)
}

// end refuses anything after the value.
func (s *scanner) end() *Refusal {
	at := s.dec.InputOffset()
	if _, err := s.dec.ReadToken(); errors.Is(err, io.EOF) {
		return nil
	}
	return &Refusal{Verdict: bad("there is data after the JSON object, at byte %d", at)}
}

// syntax turns the decoder's error into a refusal without its words, which quote the body.
func (s *scanner) syntax(err error) *Refusal {
	var se *jsontext.SyntacticError
	if !errors.As(err, &se) {
		return &Refusal{Verdict: bad("the body is not JSON: it ends early, at byte %d", len(s.body))}
	}
	at := se.ByteOffset
	switch {
	case errors.Is(se.Err, jsontext.ErrDuplicateName):
		return &Refusal{bad("a key appears twice in one object, the second time at byte %d", at), param(se.JSONPointer)}
	case errors.Is(se.Err, io.ErrUnexpectedEOF):
		return &Refusal{Verdict: bad("the body is not JSON: it ends early, at byte %d", at)}
	case at < int64(len(s.body)) && !validRune(s.body[at:]):
		return &Refusal{bad("the body is not valid UTF-8 at byte %d", at), param(se.JSONPointer)}
	}
	return &Refusal{bad("the body is not valid JSON at byte %d", at), param(se.JSONPointer)}
}

func validRune(b []byte) bool {
	r, n := utf8.DecodeRune(b)
	return r != utf8.RuneError || n > 1
}

const maxParam = 128

// param writes a JSON pointer as the SDKs' users know it, bounded.
func param(p jsontext.Pointer) string {
	var b strings.Builder
	for t := range p.Tokens() {
		if _, err := strconv.Atoi(t); err == nil && b.Len() > 0 {
			b.WriteString("[" + t + "]")
		} else {
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(t)
		}
		if b.Len() > maxParam {
			break
		}
	}
	s := b.String()
	if len(s) > maxParam {
		s = strings.ToValidUTF8(s[:maxParam], "")
	}
	return s
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return fmt.Sprintf("%q", byte(k))
}

func bad(format string, args ...any) verdict.Verdict {
	return verdict.Of(verdict.BadRequest, verdict.Parser, format, args...)
}
