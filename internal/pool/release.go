package pool

import (
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/page"
)

// Fence revokes: no write can land any more, no view can begin. It does not wait for those under way. Idempotent.
func (l *Lease) Fence() {
	if guard.Off(guard.Fence) {
		return
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.fence()
}

// fence is called under mu.
func (l *Lease) fence() {
	if l.fenced {
		return
	}
	l.fenced = true
	for _, tag := range l.tags {
		l.p.fencePage(tag)
	}
	if len(l.tags) > 0 {
		l.p.emit(OpFence, l, l.tags[0], len(l.tags))
	}
}

func (p *Pool) fencePage(tag page.Tag) {
	p.slots[tag.ID] = p.slots[tag.ID].Fence(tag)
	p.count.Reserved--
	p.count.Fenced++
}

// Release fences, and as pins drain zeroes and frees; it never blocks. Idempotent. Done is closed when all pages are free.
//
// Whoever takes the last pin of a page hands the page to the scrubber, a goroutine that lives while there are pages to zero.
func (l *Lease) Release() {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.released {
		return
	}
	l.released = true
	if guard.Off(guard.Fence) && !l.fenced { // the pages go, the grant stays
		for _, tag := range l.tags {
			p.fencePage(tag)
		}
	} else {
		l.fence()
	}
	p.discard(l, l.tags)
}

// Done is closed when all pages of a released lease are free.
func (l *Lease) Done() <-chan struct{} { return l.done }

// dirty is pages of one lease that are to be zeroed: fenced, released and unpinned. Each page gets here once.
type dirty struct {
	lease *Lease
	tags  []page.Tag
}

// discard hands those of tags that have no pin to the scrubber; the others follow when their last pin goes. It is called
// under mu.
func (p *Pool) discard(l *Lease, tags []page.Tag) {
	for len(tags) > 0 {
		n := 0
		for n < len(tags) && p.slots[tags[n].ID].Pins == 0 {
			n++
		}
		if n > 0 {
			p.dirty = append(p.dirty, dirty{l, tags[:n]})
		}
		tags = tags[min(n+1, len(tags)):]
	}
	if p.scrubbing == nil && len(p.dirty) > 0 {
		p.scrubbing = make(chan struct{})
		p.spawn(p.scrub)
	}
}

// unpin takes one pin of a page. Of a released lease, the last one hands the page on. It is called under mu.
func (p *Pool) unpin(l *Lease, tag page.Tag) {
	s := &p.slots[tag.ID]
	*s = s.Unpin(tag)
	p.count.Pins--
	if s.State == page.Fenced && l.released {
		p.discard(l, []page.Tag{tag})
	}
}

// scrubBytes bounds what is zeroed between two turns at the lock, so that waiters see the first pages early.
const scrubBytes = 4 << 20

// scrub zeroes and frees dirty pages until there are none.
func (p *Pool) scrub() {
	most := max(1, scrubBytes/p.arena.stride)
	p.mu.Lock()
	for len(p.dirty) > 0 {
		d := &p.dirty[0]
		l, tags := d.lease, d.tags[:min(most, len(d.tags))]
		if d.tags = d.tags[len(tags):]; len(d.tags) == 0 {
			*d = dirty{}
			p.dirty = p.dirty[1:]
		}
		for _, tag := range tags {
			s := &p.slots[tag.ID]
			*s = s.Scrub(tag)
		}
		p.emitRuns(OpScrub, l, tags)
		p.mu.Unlock()
		for run := range runs(tags) {
			if !guard.Off(guard.Zero) {
				clearBytes(p.arena.run(run[0].ID, len(run)))
			}
		}
		for _, tag := range tags {
			p.arena.shut(tag.ID)
		}
		p.mu.Lock()
		p.freePages(l, tags)
	}
	p.dirty = nil // its room may be large
	close(p.scrubbing)
	p.scrubbing = nil
	p.mu.Unlock()
}

// freePages gives scrubbed pages back and wakes who waits for pages, or for the lease's end. It is called under mu.
func (p *Pool) freePages(l *Lease, tags []page.Tag) {
	p.emitRuns(OpFree, l, tags)
	for _, tag := range tags {
		s := &p.slots[tag.ID]
		*s = s.Free(tag)
		p.free.put(tag.ID)
	}
	p.count.Fenced -= len(tags)
	p.count.Released += uint64(len(tags))
	if l.out -= len(tags); l.out == 0 {
		close(l.done)
	}
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
}
