package jsonedit

import (
	"bytes"
	"strconv"
)

// Kind of a value, as jsontext names them: the first byte, with '0' for numbers and 'f' for both booleans. 0 is no value.
type Kind byte

const (
	Absent Kind = 0
	Null   Kind = 'n'
	Bool   Kind = 'f'
	Number Kind = '0'
	String Kind = '"'
	Object Kind = '{'
	Array  Kind = '['
)

func (k Kind) String() string {
	switch k {
	case Absent:
		return "nothing"
	case Null:
		return "null"
	case Bool:
		return "a boolean"
	case Number:
		return "a number"
	case String:
		return "a string"
	case Object:
		return "an object"
	}
	return "an array"
}

// Value is a value as it stands in a body that was read. The zero Value is absent. It aliases the body.
type Value struct{ raw []byte }

// Kind of the value.
func (v Value) Kind() Kind {
	if len(v.raw) == 0 {
		return Absent
	}
	switch c := v.raw[0]; c {
	case 'n', '"', '{', '[':
		return Kind(c)
	case 't', 'f':
		return Bool
	}
	return Number
}

// Raw is the value's bytes, nil if it is absent. They must not be changed.
func (v Value) Raw() []byte { return v.raw }

// Said reports whether there is a value other than null.
func (v Value) Said() bool { return len(v.raw) > 0 && v.raw[0] != 'n' }

// Bool returns a boolean; ok is false for every other kind.
func (v Value) Bool() (b, ok bool) {
	if v.Kind() != Bool {
		return false, false
	}
	return v.raw[0] == 't', true
}

// Int returns a number that is spelled as an integer of 64 bits.
func (v Value) Int() (n int64, ok bool) {
	if v.Kind() != Number || len(v.raw) > 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.raw), 10, 64)
	return n, err == nil
}

// Float returns a number that fits 64 bits.
func (v Value) Float() (f float64, ok bool) {
	if v.Kind() != Number || len(v.raw) > 512 {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v.raw), 64)
	return f, err == nil
}

// Text returns a string's text. It aliases the body if it has no escapes.
func (v Value) Text() (text []byte, ok bool) {
	if v.Kind() != String {
		return nil, false
	}
	inside := v.raw[1 : len(v.raw)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return inside, true
	}
	return unquote(make([]byte, 0, len(inside)), inside), true
}

// Unquote is the text of the inside of a JSON string that was read (Prompt.Raw).
func Unquote(inside []byte) string {
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside)
	}
	return string(unquote(make([]byte, 0, len(inside)), inside))
}

// Get returns a member of an object. It scans the object: use it on small ones.
func (v Value) Get(name string) (found Value) {
	v.Each(func(n []byte, m Value) bool {
		if string(n) == name {
			found = m
			return false
		}
		return true
	})
	return found
}

// Each calls f for each member of an object, or with a nil name for each element of an array, until f returns false. The name
// is valid until f returns.
func (v Value) Each(f func(name []byte, m Value) bool) {
	v.EachAt(func(name []byte, m Value, _ int) bool { return f(name, m) })
}

// EachAt is Each with the offset of the member's value in v.Raw(), for who edits inside a member.
func (v Value) EachAt(f func(name []byte, m Value, at int) bool) {
	s := scanner{body: v.raw, bounds: anyBounds, names: &names{seed: seed}}
	step := func(name []byte, at int) int {
		end := s.value(at, 1)
		if !f(name, Value{s.body[at:end:end]}, at) {
			return s.fail(NotJSON, at)
		}
		return end
	}
	switch v.Kind() {
	case Object:
		s.object(0, 0, func(name []byte, _, at int) int { return step(name, at) })
	case Array:
		s.array(0, 0, func(at int) int { return step(nil, at) })
	}
}
