package prompt

import "strings"

// AtLeast is a proven lower bound on the tokens of a text, at the cost of one look at each byte: it lets a prompt of megabytes be
// refused before it is copied, decoded or encoded. It says nothing about templates; see KeepsContent.
func (e *Encoder) AtLeast(text []byte) int {
	var counts [256]int
	for _, c := range text {
		counts[c]++
	}
	return e.v.atLeast(&counts)
}

// AtLeastJSON is AtLeast of the text that the inside of a JSON string stands for. Escapes are counted as what they
// stand for; what is not JSON is counted as nothing.
func (e *Encoder) AtLeastJSON(inside []byte) int {
	var counts [256]int
	for i := 0; i < len(inside); i++ {
		if inside[i] != '\\' {
			counts[inside[i]]++
			continue
		}
		i++
		if i == len(inside) {
			break
		}
		switch c := inside[i]; c {
		case '"', '\\', '/':
			counts[c]++
		case 'n':
			counts['\n']++
		case 't':
			counts['\t']++
		case 'r':
			counts['\r']++
		case 'b':
			counts['\b']++
		case 'f':
			counts['\f']++
		case 'u':
			if i+4 >= len(inside) {
				return e.v.atLeast(&counts)
			}
			if inside[i+1] == '0' && inside[i+2] == '0' && inside[i+3] < '8' { // others become bytes that this need not know: they count as nothing
				if v, ok := hexPair(inside[i+3], inside[i+4]); ok {
					counts[v]++
				}
			}
			i += 4
		}
	}
	return e.v.atLeast(&counts)
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
// was seen to do so for each role and place of a sample conversation. If so, AtLeast of the contents, added up, is a bound for Chat too but for
// the blanks at their ends.
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
