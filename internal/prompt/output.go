package prompt

import "strings"

// output takes the tokens of a prompt: counts them, keeps them if asked to, and wants no more beyond its limit.
type output struct {
	n     int
	limit int // tokens, 0 for none
	keep  bool
	ids   []int32
}

// put takes one token; false once the limit is passed.
func (o *output) put(id int32) bool {
	o.n++
	if o.limit > 0 && o.n > o.limit {
		return false
	}
	if o.keep {
		o.ids = append(o.ids, id)
	}
	return true
}

func (o *output) all(ids []int32) bool {
	o.n += len(ids)
	if o.limit > 0 && o.n > o.limit {
		return false
	}
	if o.keep {
		o.ids = append(o.ids, ids...)
	}
	return true
}

// piece is a part of a prompt as text: what the template said, or content.
type piece struct {
	text    string
	content bool
}

// pieces encodes the pieces of a prompt as if they were one text, in which added tokens are found inside of set's pieces
// only and never across two.
func (e *Encoder) pieces(ps []piece, set *tokenSet, out *output) bool {
	j := joiner{e: e, out: out}
	for _, p := range ps {
		s := p.text
		for !p.content && len(s) > 0 {
			at, id, n := set.find(s)
			if n == 0 {
				break
			}
			if !j.text(s[:at]) || !j.token(id) {
				return false
			}
			s = s[at+n:]
		}
		if !j.text(s) {
			return false
		}
	}
	return j.end()
}

// joiner feeds neighbouring texts to the pre-tokenizer as one text, without copying more than what lies around their borders:
// up to the first place where a word is certain to begin.
type joiner struct {
	e   *Encoder
	out *output
	// What is not encoded yet: first, or all of more once a second text had to be added.
	first string
	more  strings.Builder
}

func (j *joiner) text(s string) bool {
	if j.first != "" || j.more.Len() > 0 {
		cut := firstBoundary(s)
		if cut < 0 {
			j.hold(s)
			return true
		}
		j.hold(s[:cut])
		s = s[cut:]
		if !j.end() {
			return false
		}
	}
	if cut := lastBoundary(s); cut > 0 {
		if !j.e.plain(s[:cut], j.out) {
			return false
		}
		s = s[cut:]
	}
	j.hold(s)
	return true
}

func (j *joiner) hold(s string) {
	switch {
	case j.first == "" && j.more.Len() == 0:
		j.first = s
		return
	case j.more.Len() == 0:
		j.more.WriteString(j.first)
	}
	j.more.WriteString(s)
}

// end encodes what is held: the text ends here.
func (j *joiner) end() bool {
	s := j.first
	if j.more.Len() > 0 {
		s = j.more.String()
	}
	j.first = ""
	j.more = strings.Builder{}
	return j.e.plain(s, j.out)
}

func (j *joiner) token(id int32) bool { return j.end() && j.out.put(id) }

// plain encodes text in which only runs of blanks may be added tokens.
func (e *Encoder) plain(s string, out *output) bool {
	for len(s) > 0 {
		at, id, n := e.added.blanks.find(s)
		if !e.bpe.encode(s[:at], out) {
			return false
		}
		if n > 0 && !out.put(id) {
			return false
		}
		s = s[at+n:]
	}
	return true
}
