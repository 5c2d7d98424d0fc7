package actor

import (
	"sync"
)

// Owner is a request, by its number on the stage; 0 is nobody.
type Owner uint32

// Slot of a page: a token, and who wrote it.
type Slot struct {
	Token int32
	Owner Owner
}

// unwritten is what a slot holds that nobody has written. It matches nothing.
var unwritten = Slot{Token: -1}

// Pages is a worker's memory. Freed pages keep what is in them, and the page that was freed last is given out first, so that what a
// stranger would read is the last request's text.
type Pages struct {
	Size int // slots a page

	mu    sync.Mutex
	slots []Slot
	free  []int
	freed chan struct{} // closed when pages come back
}

// NewPages makes n pages of size slots. Page 0 is never given out when null is set (vLLM's null block).
func NewPages(n, size int, null bool) *Pages {
	p := &Pages{Size: size, slots: make([]Slot, n*size), freed: make(chan struct{})}
	for i := range p.slots {
		p.slots[i] = unwritten
	}
	first := 0
	if null {
		first = 1
	}
	for id := n - 1; id >= first; id-- {
		p.free = append(p.free, id)
	}
	return p
}

// Need is the pages that n tokens take.
func (p *Pages) Need(n int) int { return (n + p.Size - 1) / p.Size }

// Alloc takes n pages, or none and a channel that is closed when some come back.
func (p *Pages) Alloc(n int) ([]int, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > len(p.free) {
		return nil, p.freed
	}
	ids := make([]int, n)
	for i := range ids {
		ids[i] = p.free[len(p.free)-1-i]
	}
	p.free = p.free[:len(p.free)-n]
	return ids, nil
}

// Free gives pages back as they are.
func (p *Pages) Free(ids []int) {
	if len(ids) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(ids) - 1; i >= 0; i-- {
		p.free = append(p.free, ids[i])
	}
	close(p.freed)
	p.freed = make(chan struct{})
}

// Available pages.
func (p *Pages) Available() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Write writes tokens, from position 0 on, into the pages.
func (p *Pages) Write(ids []int, tokens []int32, owner Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range tokens {
		p.slots[ids[i/p.Size]*p.Size+i%p.Size] = Slot{t, owner}
	}
}

// Copy copies whole pages from another worker: what a transfer does. It copies as many as both lists have.
func (p *Pages) Copy(to []int, from *Pages, ids []int) {
	page := make([]Slot, from.Size)
	for i := range min(len(to), len(ids)) {
		from.mu.Lock()
		copy(page, from.slots[ids[i]*from.Size:])
		from.mu.Unlock()
		p.mu.Lock()
		copy(p.slots[to[i]*p.Size:(to[i]+1)*p.Size], page)
		p.mu.Unlock()
	}
}

// Keep copies pages into a memory of their own, in which they are numbered from 0.
func (p *Pages) Keep(ids []int) *Pages {
	k := NewPages(len(ids), p.Size, false)
	all := make([]int, len(ids))
	for i := range all {
		all[i] = i
	}
	k.Copy(all, p, ids)
	return k
}

// Read returns n slots of the pages.
func (p *Pages) Read(ids []int, n int) []Slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Slot, n)
	for i := range out {
		out[i] = p.slots[ids[i/p.Size]*p.Size+i%p.Size]
	}
	return out
}
