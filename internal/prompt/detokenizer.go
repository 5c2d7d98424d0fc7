package prompt

import "unicode/utf8"

// Detokenizer turns the ids of one reply into text as they come. It is for one reply and one goroutine.
type Detokenizer struct {
	e    *Encoder
	held []byte // the beginning of a character that is not complete yet
}

// Detokenizer returns one for a new reply.
func (e *Encoder) Detokenizer() *Detokenizer { return &Detokenizer{e: e} }

// Add returns the text that id completes: always whole characters, U+FFFD for bytes that can be part of none. Control tokens have
// no text; nor has an id outside the vocabulary.
func (d *Detokenizer) Add(id int32) string {
	if id < 0 || int(id) >= len(d.e.v.text) {
		return ""
	}
	switch d.e.v.kind[id] {
	case kindControl, kindUnknown, kindUnused:
		return ""
	}
	t := d.e.v.text[id]
	if len(d.held) == 0 && utf8.ValidString(t) {
		return t
	}
	d.held = append(d.held, t...)
	var out []byte
	b := d.held
	for len(b) > 0 && utf8.FullRune(b) {
		r, n := utf8.DecodeRune(b)
		out = utf8.AppendRune(out, r)
		b = b[n:]
	}
	d.held = append(d.held[:0], b...)
	return string(out)
}

// Flush returns what is owed when the reply ends: U+FFFD if a character stayed incomplete.
func (d *Detokenizer) Flush() string {
	if len(d.held) == 0 {
		return ""
	}
	d.held = d.held[:0]
	return string(utf8.RuneError)
}
