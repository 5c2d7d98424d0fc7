package jsonedit

import "bytes"

// Form is a body that was read, with places at which others of the same form differ: the chunks of a stream are all alike but for a text
// and a count. What has the form is the same JSON as the body that was read, but for the values in those places; it needs no reading of
// its own.
type Form struct {
	pieces [][]byte // what stands before each place, and behind the last one
	places []Place
}

// Place is a value of a body, by its offsets.
type Place struct {
	From, To int
	Text     bool // a string; else a count: digits alone
}

// Form is the form of the body, with these places, in order. They must be strings and counts of it. It keeps copies.
func (d *Doc) Form(places ...Place) Form {
	f := Form{places: places}
	at := 0
	for _, p := range places {
		f.pieces = append(f.pieces, bytes.Clone(d.body[at:p.From]))
		at = p.To
	}
	f.pieces = append(f.pieces, bytes.Clone(d.body[at:]))
	return f
}

// IsZero reports whether there is no form.
func (f *Form) IsZero() bool { return len(f.pieces) == 0 }

// Match reports whether a body has the form, and where its places are: at is as long as the form has places. It accepts nothing that
// Read refuses.
func (f *Form) Match(body []byte, at []Place) bool {
	i := 0
	for k, p := range f.places {
		piece := f.pieces[k]
		if len(body)-i < len(piece) || !bytes.Equal(body[i:i+len(piece)], piece) {
			return false
		}
		i += len(piece)
		at[k] = Place{From: i, Text: p.Text}
		if p.Text {
			if i == len(body) || body[i] != '"' {
				return false
			}
			s := scanner{body: body}
			i = s.text(i + 1)
		} else {
			from := i
			if i = digits(body, i); i == from || i > from+18 || body[from] == '0' && i > from+1 {
				return false
			}
		}
		if i < 0 {
			return false
		}
		at[k].To = i
	}
	return bytes.Equal(body[i:], f.pieces[len(f.places)])
}

// At is the offset of a top-level member's value in the body, -1 if there is none.
func (d *Doc) At(name string) int {
	for i := range d.members {
		if d.members[i].name == name {
			return int(d.members[i].value)
		}
	}
	return -1
}
