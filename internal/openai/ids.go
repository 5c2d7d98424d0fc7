package openai

import (
	"bytes"
	"math"
)

// IDs is a prompt that is token ids already, as the body has it: each was checked, none is kept yet, so that a list over the limit is
// refused by its length alone. It aliases the body.
type IDs struct {
	inside []byte // between the brackets; nil: none were given
	n      int
}

// Given reports whether the prompt is token ids.
func (d IDs) Given() bool { return d.inside != nil }

// Len is the number of ids.
func (d IDs) Len() int { return d.n }

// Decode returns the ids.
func (d IDs) Decode() []int32 {
	ids := make([]int32, 0, d.n)
	for item := range items(d.inside) {
		id, _ := parseID(item)
		ids = append(ids, id)
	}
	return ids
}

// items of an array of numbers, by the commas.
func items(inside []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for rest := inside; len(rest) > 0; {
			item := rest
			if i := bytes.IndexByte(rest, ','); i >= 0 {
				item, rest = rest[:i], rest[i+1:]
			} else {
				rest = nil
			}
			if !yield(bytes.Trim(item, " \t\r\n")) {
				return
			}
		}
	}
}

func parseID(b []byte) (int32, bool) {
	if len(b) == 0 || len(b) > 10 {
		return 0, false
	}
	n := int64(0)
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return int32(n), n <= math.MaxInt32
}

// readIDs reads token ids without a token of the decoder each: a million of them are common.
func (p *parser) readIDs() *Refusal {
	raw, r := p.raw()
	if r != nil {
		return r
	}
	d := IDs{inside: raw[1 : len(raw)-1]}
	for item := range items(d.inside) {
		if _, ok := parseID(item); !ok {
			return &Refusal{bad("a token id must be an integer from 0 to %d (element %d)", math.MaxInt32, d.n), "prompt"}
		}
		d.n++
	}
	p.req.Prompt.IDs = d
	return nil
}
