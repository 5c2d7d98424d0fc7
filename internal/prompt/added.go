package prompt

import "unicode/utf8"

// tokenSet finds tokens in text by their names: the leftmost, of those the longest.
type tokenSet struct {
	next  map[uint64]int32 // node<<8 | byte -> node
	id    []int32          // of the token that ends at a node, -1 if none
	first [256]bool
	// names, for what has to look at them one by one
	names []string
}

func newTokenSet() *tokenSet { return &tokenSet{next: map[uint64]int32{}, id: []int32{-1}} }

func (t *tokenSet) add(name string, id int32) {
	if name == "" {
		return
	}
	t.names = append(t.names, name)
	t.first[name[0]] = true
	node := int32(0)
	for i := range len(name) {
		k := uint64(node)<<8 | uint64(name[i])
		n, ok := t.next[k]
		if !ok {
			n = int32(len(t.id))
			t.next[k] = n
			t.id = append(t.id, -1)
		}
		node = n
	}
	t.id[node] = id
}

// match returns the longest token that s begins with, and its length; length 0 if there is none.
func (t *tokenSet) match(s string) (id int32, length int) {
	node := int32(0)
	for i := range len(s) {
		n, ok := t.next[uint64(node)<<8|uint64(s[i])]
		if !ok {
			break
		}
		node = n
		if t.id[node] >= 0 {
			id, length = t.id[node], i+1
		}
	}
	return id, length
}

// find returns where the first token in s is; length 0 if there is none.
func (t *tokenSet) find(s string) (at int, id int32, length int) {
	if len(t.names) == 0 {
		return len(s), 0, 0
	}
	for i := range len(s) {
		if t.first[s[i]] {
			if id, n := t.match(s[i:]); n > 0 {
				return i, id, n
			}
		}
	}
	return len(s), 0, 0
}

// touches reports whether s, standing next to other text, could be a part of one of the tokens: it has one inside, ends with the
// beginning of one, or begins with the end of one.
func (t *tokenSet) touches(s string) bool {
	if _, _, n := t.find(s); n > 0 {
		return true
	}
	for _, name := range t.names {
		for k := 1; k < len(name); k++ {
			if len(s) >= k && (s[len(s)-k:] == name[:k] || s[:k] == name[len(name)-k:]) {
				return true
			}
		}
	}
	return false
}

// added are the tokens that are found by name before any merging.
type added struct {
	all    *tokenSet // in what a template says: control, unknown and user-defined ones
	user   *tokenSet // in plain text: the user-defined ones
	blanks *tokenSet // everywhere, content included: user-defined runs of blanks, which are how some models write indentation
	secret *tokenSet // control and unknown ones: what content must never become
}

func newAdded(v *vocabulary) added {
	a := added{newTokenSet(), newTokenSet(), newTokenSet(), newTokenSet()}
	for i, t := range v.text {
		id := int32(i)
		switch v.kind[i] {
		case kindControl, kindUnknown:
			if utf8.RuneCountInString(t) < 2 {
				continue // it could not be told from content (see marking)
			}
			a.all.add(t, id)
			a.secret.add(t, id)
		case kindUser:
			if run(t, 0, space) == len(t) {
				a.blanks.add(t, id)
				continue
			}
			a.all.add(t, id)
			a.user.add(t, id)
		}
	}
	return a
}
