package jsonedit

import (
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Edit is changes to a Doc's top-level members. It starts with what the policy removes. Edits of one Doc are independent.
type Edit struct {
	doc     *Doc
	changes []change // one per member; nil until the first change
	inserts []insert
}

type change struct {
	remove bool
	value  []byte // replaces the member's, if not nil
}

type insert struct {
	name  string
	value []byte
}

// Edit begins an edit.
func (d *Doc) Edit() *Edit {
	e := &Edit{doc: d, changes: make([]change, len(d.members))}
	for i, m := range d.members {
		e.changes[i].remove = m.removed
	}
	return e
}

// Delete removes members; those that are not there are not there.
func (e *Edit) Delete(names ...string) *Edit {
	for _, name := range names {
		for i := range e.doc.members {
			if e.doc.members[i].name == name {
				e.changes[i] = change{remove: true}
			}
		}
		for i := range e.inserts {
			if e.inserts[i].name == name {
				e.inserts = append(e.inserts[:i], e.inserts[i+1:]...)
				break
			}
		}
	}
	return e
}

// Keep removes every member but these.
func (e *Edit) Keep(names ...string) *Edit {
	for i := range e.doc.members {
		kept := false
		for _, n := range names {
			kept = kept || e.doc.members[i].name == n
		}
		if !kept {
			e.changes[i] = change{remove: true}
		}
	}
	return e
}

// Set makes name a member with the value, which is JSON text: in the member's place if there is one (also one that the policy
// removed), else before all others. The value is kept, not copied. Set panics on a value that is not JSON, which is the caller's
// own doing: what a peer said has been read before.
func (e *Edit) Set(name string, value []byte) *Edit {
	s := scanner{body: value, bounds: anyBounds, names: &names{seed: seed}}
	if end := s.value(0, 0); end != len(value) {
		panic(fmt.Sprintf("jsonedit: the value of %q is not JSON", name))
	}
	for i := range e.doc.members {
		if e.doc.members[i].name == name {
			e.changes[i] = change{value: value}
			return e
		}
	}
	for i := range e.inserts {
		if e.inserts[i].name == name {
			e.inserts[i].value = value
			return e
		}
	}
	e.inserts = append(e.inserts, insert{name, value})
	return e
}

// SetText, SetInt and SetBool set a value of their kind.
func (e *Edit) SetText(name, text string) *Edit {
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		panic(fmt.Sprintf("jsonedit: the value of %q is not UTF-8", name))
	}
	return e.Set(name, quoted)
}

func (e *Edit) SetInt(name string, n int64) *Edit {
	return e.Set(name, strconv.AppendInt(nil, n, 10))
}

func (e *Edit) SetBool(name string, b bool) *Edit {
	return e.Set(name, strconv.AppendBool(nil, b))
}

// Body is the edited body. It aliases the original one and the values that were set. The Edit may be changed further.
func (e *Edit) Body() Body {
	b := Body{segments: make([][]byte, 0, 2*len(e.inserts)+8)}
	// What begins the object; a comma is wanted before each member that follows another one.
	lead := []byte{'{'}
	for _, in := range e.inserts {
		lead, _ = jsontext.AppendQuote(lead, in.name)
		lead = append(lead, ':')
		if len(in.value) > inline {
			b.add(lead)
			b.add(in.value)
			lead = []byte{','}
			continue
		}
		lead = append(append(lead, in.value...), ',')
	}
	d := e.doc
	open := -1 // where the run of members that stay as they are began
	flush := func(end int) {
		if open >= 0 {
			b.add(lead)
			b.add(d.body[open:end:end])
			lead, open = []byte{','}, -1
		}
	}
	for i, m := range d.members {
		switch c := e.changes[i]; {
		case c.remove:
			if i > 0 {
				flush(int(d.members[i-1].end))
			}
		case c.value != nil:
			if open < 0 {
				open = int(m.key)
			}
			flush(int(m.value))
			b.add(c.value)
		case open < 0:
			open = int(m.key)
		}
	}
	if n := len(d.members); n > 0 {
		flush(int(d.members[n-1].end))
	}
	// Nothing followed: the lead's comma is one too many, its brace is not.
	if lead[len(lead)-1] == ',' {
		lead = lead[:len(lead)-1]
	}
	b.add(append(lead, '}'))
	return b
}

// inline is the longest value that is copied into the piece before it.
const inline = 256

// Body is a body in pieces, to be sent as one. It may be read any number of times, also at once.
type Body struct {
	segments [][]byte
	n        int64
}

func (b *Body) add(p []byte) {
	if len(p) > 0 {
		b.segments = append(b.segments, p)
		b.n += int64(len(p))
	}
}

// Len is the body's length: its Content-Length.
func (b Body) Len() int64 { return b.n }

// Segments are the pieces, in order. They must not be changed.
func (b Body) Segments() [][]byte { return b.segments }

// AppendTo appends the body to dst.
func (b Body) AppendTo(dst []byte) []byte {
	for _, s := range b.segments {
		dst = append(dst, s...)
	}
	return dst
}

// Reader reads a Body. Its Close does nothing, so that it can be a request's body.
type Reader struct {
	rest [][]byte
	at   int
}

// NewReader reads the body from its beginning.
func (b Body) NewReader() *Reader { return &Reader{rest: b.segments} }

func (r *Reader) Read(p []byte) (n int, err error) {
	for n < len(p) && len(r.rest) > 0 {
		k := copy(p[n:], r.rest[0][r.at:])
		n, r.at = n+k, r.at+k
		if r.at == len(r.rest[0]) {
			r.rest, r.at = r.rest[1:], 0
		}
	}
	if n == 0 && len(r.rest) == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo writes what is left, without a buffer between.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	for len(r.rest) > 0 {
		k, err := w.Write(r.rest[0][r.at:])
		n, r.at = n+int64(k), r.at+k
		if err != nil {
			return n, err
		}
		if r.at == len(r.rest[0]) {
			r.rest, r.at = r.rest[1:], 0
		}
	}
	return n, nil
}

// Close does nothing.
func (r *Reader) Close() error { return nil }
