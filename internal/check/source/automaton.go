package source

// automaton finds whether any of a set of words is in a text, in one pass and one table look-up a byte (Aho and
// Corasick, CACM 18(6), 1975). It decides which lines are looked at closely.
type automaton struct {
	class [256]uint8 // bytes that no word has share class 0
	width int
	next  []uint16 // state*width + class -> state; state 0 is the start
	final uint16   // states from here on end a word
}

// newAutomaton builds the table. Words must not be empty; the states must fit 16 bits.
func newAutomaton(words []string) *automaton {
	a := &automaton{width: 1}
	for _, w := range words {
		for i := range len(w) {
			if a.class[w[i]] == 0 {
				a.class[w[i]] = uint8(a.width)
				a.width++
			}
		}
	}
	type state struct {
		to   map[uint8]int
		fail int
		end  bool
	}
	ss := []state{{to: map[uint8]int{}}}
	for _, w := range words {
		at := 0
		for i := range len(w) {
			c := a.class[w[i]]
			n, ok := ss[at].to[c]
			if !ok {
				n = len(ss)
				ss[at].to[c] = n
				ss = append(ss, state{to: map[uint8]int{}})
			}
			at = n
		}
		ss[at].end = true
	}
	// Breadth first: the failure of a state is known before its children's.
	full := make([][]int, len(ss))
	order := []int{0}
	for i := 0; i < len(order); i++ {
		s := order[i]
		row := make([]int, a.width)
		for c := range row {
			if n, ok := ss[s].to[uint8(c)]; ok {
				row[c] = n
				if s != 0 {
					ss[n].fail = full[ss[s].fail][c]
				}
				order = append(order, n)
			} else if s != 0 {
				row[c] = full[ss[s].fail][c]
			}
		}
		ss[s].end = ss[s].end || ss[ss[s].fail].end
		full[s] = row
	}
	// States that end a word go last, so that one comparison tells them.
	id := make([]int, len(ss))
	k := 0
	for _, end := range []bool{false, true} {
		if end {
			a.final = uint16(k)
		}
		for s := range ss {
			if ss[s].end == end {
				id[s] = k
				k++
			}
		}
	}
	if k > 1<<16-1 {
		panic("source: the words have too many letters")
	}
	a.next = make([]uint16, len(ss)*a.width)
	for s, row := range full {
		for c, n := range row {
			a.next[id[s]*a.width+c] = uint16(id[n])
		}
	}
	return a
}

// any reports whether b holds one of the words.
func (a *automaton) any(b []byte) bool {
	s := uint16(0)
	for _, c := range b {
		s = a.next[int(s)*a.width+int(a.class[c])]
		if s >= a.final {
			return true
		}
	}
	return false
}
