package prompt

import (
	"fmt"
	"strings"
	"sync"
)

// pair is two neighbouring tokens, left<<32 | right.
type pair uint64

func pairOf(l, r int32) pair { return pair(uint64(uint32(l))<<32 | uint64(uint32(r))) }

// merging is what a pair becomes, and how early: the lower rank first, of equal ranks the leftmost.
type merging struct {
	rank uint32
	id   int32
}

// bpe is byte-level byte-pair encoding: text -> words -> tokens.
type bpe struct {
	v      *vocabulary
	pre    pretokenizer
	merges map[pair]merging
	// words are the tokens that are their own encoding, by text: most words of a text need no merging.
	words   map[string]int32
	longest int // bytes of the longest of words
	// piece bounds the bytes of a word that are merged in one go (see long); a field so that a test can make it small.
	piece int
}

const longWord = 2048

func newBPE(v *vocabulary, merges []string, pre pretokenizer) (*bpe, error) {
	b := &bpe{v: v, pre: pre, merges: make(map[pair]merging, len(merges)), words: make(map[string]int32, len(v.ids)), piece: longWord}
	for rank, m := range merges {
		cut := 0
		if len(m) > 1 {
			cut = strings.IndexByte(m[1:], ' ') + 1 // a piece never begins with a space: the alphabet writes it as U+0120
		}
		if cut == 0 {
			return nil, fmt.Errorf("prompt: merge %d is not two pieces", rank)
		}
		left, right := fromAlphabet(m[:cut]), fromAlphabet(m[cut+1:])
		l, ok1 := v.ids[left]
		r, ok2 := v.ids[right]
		x, ok3 := v.ids[left+right]
		if !ok1 || !ok2 || !ok3 {
			continue // such a merge can never be the last one of a token
		}
		if _, again := b.merges[pairOf(l, r)]; !again {
			b.merges[pairOf(l, r)] = merging{uint32(rank), x}
		}
	}
	s := newScratch()
	for text, id := range v.ids {
		if v.drop(text) != text {
			continue
		}
		if !pre.whole {
			if ids := b.merge(s, text); len(ids) != 1 || ids[0] != id {
				continue
			}
		}
		b.words[text] = id
		b.longest = max(b.longest, len(text))
	}
	return b, nil
}

// encode hands the tokens of a text to out, until out wants no more (false).
func (b *bpe) encode(s string, out *output) bool { return b.split(s, b.pre.stages, out) }

func (b *bpe) split(s string, stages []stage, out *output) bool {
	if len(stages) == 0 {
		return b.word(s, out)
	}
	for len(s) > 0 {
		n := stages[0](s)
		if !b.split(s[:n], stages[1:], out) {
			return false
		}
		s = s[n:]
	}
	return true
}

// drop returns w without the bytes that have no token.
func (v *vocabulary) drop(w string) string {
	for i := range len(w) {
		if v.bytes[w[i]] >= 0 {
			continue
		}
		kept := []byte(w[:i])
		for ; i < len(w); i++ {
			if v.bytes[w[i]] >= 0 {
				kept = append(kept, w[i])
			}
		}
		return string(kept)
	}
	return w
}

func (b *bpe) word(w string, out *output) bool {
	if len(w) <= b.longest {
		if id, ok := b.words[w]; ok {
			return out.put(id)
		}
	}
	if b.v.lacking {
		w = b.v.drop(w)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if len(w) > b.piece {
		return b.long(s, w, out)
	}
	return out.all(b.merge(s, w))
}

// long encodes a word of any length in bounded memory, exactly as one merge of it would.
//
// That rests on a property of byte-pair encoding: tokens t1…tn are the encoding of their text if, and only if, each
// neighbouring pair is the encoding of its own text. (A merge across a border depends only on what stands beside the border, and
// that is decided by merges inside the two tokens, in an order that no third token changes.) So the word is encoded by pieces; of each
// piece's tokens a prefix is kept such that its last token and the first of the next piece are such a pair.
func (b *bpe) long(s *scratch, w string, out *output) bool {
	here := append([]int32(nil), b.merge(s, w[:min(b.piece, len(w))])...)
	var next []int32
	for at, size := 0, b.piece; ; {
		if at+size >= len(w) {
			return out.all(here)
		}
		kept := 0
		bytes := 0
		for k, n := len(here)-1, 0; k > 0 && n < 64 && kept == 0; k, n = k-1-n/4, n+1 {
			bytes = 0
			for _, id := range here[:k] {
				bytes += len(b.v.text[id])
			}
			next = append(next[:0], b.merge(s, w[at+bytes:min(at+bytes+b.piece, len(w))])...)
			if b.neighbours(s, here[k-1], next[0]) {
				kept = k
			}
		}
		if kept == 0 { // no border near the end: look at a larger piece
			size *= 2
			here = append(here[:0], b.merge(s, w[at:min(at+size, len(w))])...)
			continue
		}
		if !out.all(here[:kept]) {
			return false
		}
		at, size = at+bytes, b.piece
		here, next = next, here
	}
}

// neighbours reports whether l, r is the encoding of its own text.
func (b *bpe) neighbours(s *scratch, l, r int32) bool {
	ids := b.merge(s, b.v.text[l]+b.v.text[r])
	return len(ids) == 2 && ids[0] == l && ids[1] == r
}

// scratch is the memory of a merge. It holds token ids of the last word only.
type scratch struct {
	ids        []int32
	next, prev []int32
	heap       []candidate
}

func newScratch() *scratch { return new(scratch) }

var scratches = sync.Pool{New: func() any { return newScratch() }}

// candidate is a pair that may merge: at index at, if the tokens there are still what they were.
type candidate struct {
	rank uint32
	at   int32
	l, r int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// shortWord is up to where looking at all pairs again after each merge is faster than a heap.
const shortWord = 32

// merge encodes one word: while any neighbouring pair can merge, the one of lowest rank does, of equals the leftmost. The result is valid
// until the scratch's next use. O(n log n): an unbroken string must not be a denial of service.
func (b *bpe) merge(s *scratch, w string) []int32 {
	s.ids = s.ids[:0]
	for i := range len(w) {
		s.ids = append(s.ids, b.v.bytes[w[i]])
	}
	if len(s.ids) > shortWord {
		return b.mergeByHeap(s)
	}
	ids := s.ids
	for len(ids) > 1 {
		best, where := merging{}, -1
		for i := range len(ids) - 1 {
			if m, ok := b.merges[pairOf(ids[i], ids[i+1])]; ok && (where < 0 || m.rank < best.rank) {
				best, where = m, i
			}
		}
		if where < 0 {
			break
		}
		ids[where] = best.id
		ids = append(ids[:where+1], ids[where+2:]...)
	}
	return ids
}

// mergeByHeap keeps the candidates in a heap and the tokens in a doubly linked list; a candidate whose tokens have changed since is dropped.
func (b *bpe) mergeByHeap(s *scratch) []int32 {
	n := int32(len(s.ids))
	s.next, s.prev, s.heap = s.next[:0], s.prev[:0], s.heap[:0]
	for i := range n {
		s.next, s.prev = append(s.next, i+1), append(s.prev, i-1)
	}
	ids := s.ids
	consider := func(i int32) {
		if i < 0 || s.next[i] >= n {
			return
		}
		l, r := ids[i], ids[s.next[i]]
		if m, ok := b.merges[pairOf(l, r)]; ok {
			s.push(candidate{m.rank, i, l, r})
		}
	}
	for i := range n - 1 {
		consider(i)
	}
	const gone = -1
	for len(s.heap) > 0 {
		c := s.pop()
		i := c.at
		j := s.next[i]
		if ids[i] != c.l || j >= n || ids[j] != c.r {
			continue
		}
		ids[i] = b.merges[pairOf(c.l, c.r)].id
		ids[j] = gone
		s.next[i] = s.next[j]
		if s.next[j] < n {
			s.prev[s.next[j]] = i
		}
		consider(s.prev[i])
		consider(i)
	}
	out := ids[:0]
	for i := int32(0); i < n; i = s.next[i] {
		out = append(out, ids[i])
	}
	return out
}

func (s *scratch) push(c candidate) {
	s.heap = append(s.heap, c)
	i := len(s.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.before(s.heap[up]) {
			break
		}
		s.heap[i] = s.heap[up]
		i = up
	}
	s.heap[i] = c
}

func (s *scratch) pop() candidate {
	top, last := s.heap[0], s.heap[len(s.heap)-1]
	s.heap = s.heap[:len(s.heap)-1]
	n := len(s.heap)
	if n == 0 {
		return top
	}
	i := 0
	for {
		k := 2*i + 1
		if k >= n {
			break
		}
		if k+1 < n && s.heap[k+1].before(s.heap[k]) {
			k++
		}
		if !s.heap[k].before(last) {
			break
		}
		s.heap[i] = s.heap[k]
		i = k
	}
	s.heap[i] = last
	return top
}
