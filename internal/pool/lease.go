package pool

import (
	"fmt"
	"slices"
	"sync"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/page"
)

// Lease is an attempt's pages, in ordinal order. Its methods are safe for concurrent use.
//
// A lease is live until Fence or Release; from then on every method but Release, Done, Tags and Len returns ErrFenced.
type Lease struct {
	p       *Pool
	owner   attempt.ID
	done    chan struct{}
	growing sync.Mutex // taken before p.mu: pages get their ordinals in the order they were handed over

	// Guarded by p.mu. tags, bases and spent only ever grow, and what is in tags and bases never changes: a view keeps
	// the slices it saw.
	tags     []page.Tag    // by ordinal
	bases    []kernel.Page // by ordinal
	spent    []bool        // by ordinal: a peer's frame was let in, whatever became of it
	granted  int           // pages that a peer may write: those of Reserve, not those of Grow
	sealed   bool          // the prompt is sealed: nothing may land any more
	fenced   bool
	released bool
	out      int // pages not yet free
}

// Reserve hands out n pages: zeroed, verified zero, each with a new generation. ErrPoolFull changes nothing. ErrTicket:
// the attempt already has its verdict. A page that is not zero is a broken invariant and panics with its tag.
func (p *Pool) Reserve(t admission.Ticket, n int) (*Lease, error) {
	if !t.Valid() {
		return nil, ErrTicket
	}
	l := &Lease{p: p, owner: t.Attempt(), done: make(chan struct{})}
	tags, err := p.take(l, n)
	if err != nil {
		return nil, err
	}
	if err := p.verifyZero(tags); err != nil {
		l.adopt(tags)
		l.Release()
		return nil, err
	}
	l.adopt(tags)
	l.granted = n
	return l, nil
}

// Grow adds n pages for the lease's own writes; no peer can land there. ErrPoolFull changes nothing.
func (l *Lease) Grow(n int) error {
	p := l.p
	l.growing.Lock()
	defer l.growing.Unlock()
	tags, err := p.take(l, n)
	if err != nil {
		return err
	}
	err = p.verifyZero(tags)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case l.fenced || l.released: // while the pages were on their way
		err = ErrFenced
		fallthrough
	case err != nil:
		for _, tag := range tags {
			p.fencePage(tag)
		}
		p.emitRuns(OpFence, l, tags)
		p.discard(l, tags)
		return err
	}
	l.adopt(tags)
	return nil
}

// take moves n pages from Free to Reserved. They are nobody's to see until they are adopted.
func (p *Pool) take(l *Lease, n int) ([]page.Tag, error) {
	if n <= 0 {
		return nil, fmt.Errorf("%w: %d pages", ErrRange, n)
	}
	if n > p.pages {
		return nil, fmt.Errorf("%w: %d wanted, the pool has %d", ErrPoolFull, n, p.pages)
	}
	tags := make([]page.Tag, n)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		panic("pool: used after Close")
	}
	if l.fenced || l.released {
		p.mu.Unlock()
		return nil, ErrFenced
	}
	if free := p.free.len(); free < n {
		p.mu.Unlock()
		return nil, fmt.Errorf("%w: %d wanted, %d of %d free", ErrPoolFull, n, free, p.pages)
	}
	for i := range tags {
		id := p.free.take()
		s := &p.slots[id]
		tags[i] = s.Next(p.boot, id)
		*s = s.Reserve(tags[i], l.owner)
	}
	l.out += n
	p.count.Reserved += n
	p.count.Granted += uint64(n)
	p.emitRuns(OpReserve, l, tags)
	p.mu.Unlock()
	for _, tag := range tags {
		p.arena.open(tag.ID)
	}
	return tags, nil
}

// verifyZero reads the pages that are about to be granted. It runs without the lock: they are Reserved and unseen.
func (p *Pool) verifyZero(tags []page.Tag) error {
	if guard.Off(guard.Zero) {
		return nil
	}
	for run := range runs(tags) {
		if isZero(p.arena.run(run[0].ID, len(run))) {
			continue
		}
		for _, tag := range run {
			b := p.arena.padded(tag.ID)
			if isZero(b) {
				continue
			}
			if guard.Unsafe { // with guards taken out the invariant is broken on purpose
				return fmt.Errorf("%w: %s has %d bytes that are not zero", ErrNotZero, tag, countNonzero(b))
			}
			panic(fmt.Sprintf("pool: page %s is not zero at its grant: %d bytes are not", tag, countNonzero(b)))
		}
	}
	return nil
}

// adopt gives the lease its pages. It is called under mu, or before anyone else has the lease.
func (l *Lease) adopt(tags []page.Tag) {
	l.tags = append(l.tags, tags...)
	for _, tag := range tags {
		l.bases = append(l.bases, kernel.PageAt(l.p.arena.base(tag.ID)))
	}
	l.spent = append(l.spent, make([]bool, len(tags))...)
}

// Tags of the pages, by ordinal: what a grant names.
func (l *Lease) Tags() []page.Tag {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return slices.Clone(l.tags)
}

// Len is the number of pages.
func (l *Lease) Len() int {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return len(l.tags)
}

// Attempt is whose the lease is.
func (l *Lease) Attempt() attempt.ID { return l.owner }

// holds reports whether the page of tag is still this lease's in a state that the lease can use. It is called under mu.
func (l *Lease) holds(tag page.Tag) bool {
	s := &l.p.slots[tag.ID]
	return s.Gen == tag.Gen && (s.State == page.Landing || s.State.Readable())
}
