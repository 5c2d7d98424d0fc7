package pool

import (
	"math/bits"

	"github.com/sluicekv/sluice/internal/page"
)

// freeList is the pages that nobody has. Its owner's lock guards it; take panics when it is empty.
type freeList interface {
	len() int
	take() page.ID
	put(page.ID)
}

func newFreeList(n int, reuseLast bool) freeList {
	if reuseLast {
		s := make(lastFirst, n)
		for i := range s {
			s[i] = page.ID(n - 1 - i)
		}
		return &s
	}
	l := &lowestFirst{words: make([]uint64, (n+63)/64)}
	for id := range n {
		l.put(page.ID(id))
	}
	return l
}

// lowestFirst is a bitmap: the free page with the lowest id goes first, so that a pool that is never full stays small.
type lowestFirst struct {
	words []uint64
	from  int // no word before it has a bit set
	n     int
}

func (l *lowestFirst) len() int { return l.n }

func (l *lowestFirst) take() page.ID {
	for l.words[l.from] == 0 {
		l.from++
	}
	w := &l.words[l.from]
	bit := bits.TrailingZeros64(*w)
	*w &^= 1 << bit
	l.n--
	return page.ID(l.from*64 + bit)
}

func (l *lowestFirst) put(id page.ID) {
	l.words[id/64] |= 1 << (id % 64)
	l.from = min(l.from, int(id/64))
	l.n++
}

// lastFirst is a stack: the page freed last goes first.
type lastFirst []page.ID

func (s *lastFirst) len() int { return len(*s) }

func (s *lastFirst) take() page.ID {
	last := len(*s) - 1
	id := (*s)[last]
	*s = (*s)[:last]
	return id
}

func (s *lastFirst) put(id page.ID) { *s = append(*s, id) }
