package prompt

import (
	"bytes"
	"strings"
)

// AtLeast is a proven lower bound on the tokens of a text, at the cost of one look at each byte: it lets a prompt of megabytes be
// refused before it is copied, decoded or encoded. Blanks at the ends count nothing, so that it holds for a template that trims
// (see KeepsContent).
func (e *Encoder) AtLeast(text []byte) int {
	var counts [256]int
	for _, c := range bytes.TrimSpace(text) {
		counts[c]++
	}
	return e.v.atLeast(&counts)
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
