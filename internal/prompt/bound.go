package prompt

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// AtLeast is a proven lower bound on the tokens of a text, at the cost of one look at each byte: it lets a prompt of megabytes be
// refused before it is copied, decoded or encoded. Blanks at the ends count nothing, so that it holds for a template that trims
// (see KeepsContent).
func (e *Encoder) AtLeast(text []byte) int {
	var b bound
	text = bytes.TrimSpace(text)
	for _, c := range text {
		b.counts[c]++
	}
	return e.v.atLeast(&b.counts)
}

// AtLeastJSON is AtLeast of the text that the inside of a JSON string stands for. Escapes count as what they stand for, or as nothing; so
// does what is not JSON.
func (e *Encoder) AtLeastJSON(inside []byte) int {
	var b bound
	inside = bytes.TrimSpace(inside)
	for i := 0; i < len(inside); i++ {
		if inside[i] >= utf8.RuneSelf {
			if r, n := utf8.DecodeRune(inside[i:]); unicode.IsSpace(r) {
				i += n - 1
				continue
			}
		}
		if inside[i] != '\\' {
			b.add(inside[i])
			continue
		}
		if i++; i == len(inside) {
			break
		}
		switch c := inside[i]; c {
		case '"', '\\', '/':
			b.add(c)
		case 'n':
			b.add('\n')
		case 't':
			b.add('\t')
		case 'r':
			b.add('\r')
		case 'u':
			if i+4 < len(inside) && inside[i+1] == '0' && inside[i+2] == '0' && inside[i+3] < '8' {
				if v, ok := hexPair(inside[i+3], inside[i+4]); ok {
					b.add(v)
				}
			}
			i += 4
		}
	}
	return e.v.atLeast(&b.counts)
}

// bound counts bytes. Blanks are held back until something else follows them; before the first other byte they are dropped.
type bound struct {
	counts [256]int
	held   [256]int
	blanks bool // some are held
	seen   bool
}

func (b *bound) add(c byte) {
	switch c {
	case ' ', '\n', '\t', '\r':
		if b.seen {
			b.held[c]++
			b.blanks = true
		}
		return
	case '\f', '\v':
		return
	}
	b.seen = true
	if b.blanks {
		b.blanks = false
		for _, c := range " \n\t\r" {
			b.counts[c] += b.held[c]
			b.held[c] = 0
		}
	}
	b.counts[c]++
}

func hexPair(a, b byte) (byte, bool) {
	digit := func(c byte) (byte, bool) {
		switch {
		case '0' <= c && c <= '9':
			return c - '0', true
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			return c | 0x20 - 'a' + 10, true
		}
		return 0, false
	}
	x, ok1 := digit(a)
	y, ok2 := digit(b)
	return x<<4 | y, ok1 && ok2
}

// KeepsContent reports whether the chat template emits every message's content: it does nothing with content but emit it, trimmed perhaps, and
// was seen to do so for each role and place of a sample conversation. If so, AtLeast of the contents, added up, is a bound for Chat too.
func (e *Encoder) KeepsContent() bool { return e.chat != nil && e.chat.keeps }

// tryContents finds out what KeepsContent reports.
func (t *template) tryContents() bool {
	if !t.src.emitsOnly {
		return false
	}
	all := []line{{"system", "sample0"}, {"user", "sample1"}, {"assistant", "sample2"}, {"user", "sample3"}, {"assistant", "sample4"}, {"user", "sample5"}}
	kept := func(ls []line) bool {
		s, err := t.render(ls)
		for _, l := range ls {
			if err != nil || strings.Count(s, l.content) != 1 {
				return false
			}
		}
		return true
	}
	return kept(all) && kept(all[1:]) && kept(all[1:2])
}
