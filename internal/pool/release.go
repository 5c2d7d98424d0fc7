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
// Whoever takes the last pin of a page hands it to the scrubber, a goroutine that lives as long as there are pages to zero.
func (l *Lease) Release() {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.released {
		return
	}
	l.released = true
	if guard.Off(guard.Fence) { // the pages go, the grant stays
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

// dirty is a page to be zeroed.
type dirty struct {
	lease *Lease
	tag   page.Tag
}

// discard hands fenced pages without pins to the scrubber; the others follow when their last pin goes. It is called under mu.
func (p *Pool) discard(l *Lease, tags []page.Tag) {
	for _, tag := range tags {
		if p.slots[tag.ID].Pins == 0 {
			p.dirty = append(p.dirty, dirty{l, tag})
		}
	}
	p.wakeScrubber()
}

// unpin takes one pin of a page. It is called under mu.
func (p *Pool) unpin(l *Lease, tag page.Tag) {
	s := &p.slots[tag.ID]
	*s = s.Unpin(tag)
	p.count.Pins--
	if s.State == page.Fenced {
		p.drained(l, tag)
	}
}

// drained is told, under mu, that a pin of a fenced page went.
func (p *Pool) drained(l *Lease, tag page.Tag) {
	if p.slots[tag.ID].Pins == 0 && l.released {
		p.dirty = append(p.dirty, dirty{l, tag})
		p.wakeScrubber()
	}
}

func (p *Pool) wakeScrubber() {
	if p.scrubbing == nil && len(p.dirty) > 0 {
		p.scrubbing = make(chan struct{})
		go p.scrub()
	}
}

// scrubBatch bounds the pages that are zeroed between two turns at the lock, so that waiters see the first ones early.
const scrubBatch = 64

// scrub zeroes and frees dirty pages until there are none.
func (p *Pool) scrub() {
	var batch [scrubBatch]dirty
	p.mu.Lock()
	for len(p.dirty) > 0 {
		n := copy(batch[:], p.dirty)
		p.dirty = p.dirty[n:]
		for _, d := range batch[:n] {
			s := &p.slots[d.tag.ID]
			*s = s.Scrub(d.tag)
		}
		p.emitDirty(OpScrub, batch[:n])
		p.mu.Unlock()
		for _, d := range batch[:n] {
			if !guard.Off(guard.Zero) {
				clearBytes(p.arena.padded(d.tag.ID))
			}
			p.arena.shut(d.tag.ID)
		}
		p.mu.Lock()
		p.freePages(batch[:n])
	}
	p.dirty = nil // its front still names leases, and its room may be large
	close(p.scrubbing)
	p.scrubbing = nil
	p.mu.Unlock()
}

// freePages gives scrubbed pages back and wakes who waits for pages, or for a lease's end. It is called under mu.
func (p *Pool) freePages(batch []dirty) {
	p.emitDirty(OpFree, batch)
	for i, d := range batch {
		s := &p.slots[d.tag.ID]
		*s = s.Free(d.tag)
		p.free.put(d.tag.ID)
		if d.lease.out--; d.lease.out == 0 {
			close(d.lease.done)
		}
		batch[i] = dirty{}
	}
	p.count.Fenced -= len(batch)
	p.count.Released += uint64(len(batch))
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
}

// emitDirty traces runs of one lease's consecutive pages. It is called under mu.
func (p *Pool) emitDirty(op Op, batch []dirty) {
	if p.trace == nil {
		return
	}
	for len(batch) > 0 {
		n := 1
		for n < len(batch) && batch[n].lease == batch[0].lease && batch[n].tag.ID == batch[n-1].tag.ID+1 {
			n++
		}
		p.emit(op, batch[0].lease, batch[0].tag, n)
		batch = batch[n:]
	}
}
