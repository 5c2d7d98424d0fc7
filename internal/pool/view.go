package pool

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/page"
)

// View is one step's reading of a lease. The zero View is ready; a View is reused from step to step, by one goroutine at a
// time. It implements llm.KV.
type View struct {
	lease     *Lease // nil between steps
	tags      []page.Tag
	pages     []kernel.Page
	tokens    int
	writeFrom int
	writes    int // pages, the last ones, that may be written
	pinned    bool
	stale     []bool // by ordinal: read without being ours, and so not pinned; nil but in the unsafe build
	strangers int    // pages that are stale
}

// View pins the pages of [0, tokens), checks all their tags once, and yields base addresses for kernels. Positions
// [writeFrom, tokens) may be written: they must lie in pages that are the lease's own (Reserved or Tail), never in sealed
// ones. ErrFenced, ErrTag; ErrUnsealed when a page to be read was landed but not sealed, or holds nothing yet; ErrRange when the
// lease has fewer pages, or the write range meets a page that a peer wrote or a seal closed. On error nothing is pinned.
func (l *Lease) View(v *View, tokens, writeFrom int) error {
	if v.lease != nil {
		panic(fmt.Sprintf("pool: a view of attempt %s was begun before the one of %s was done", l.owner, v.lease.owner))
	}
	p := l.p
	if tokens <= 0 || writeFrom < 0 || writeFrom > tokens {
		return fmt.Errorf("%w: a view of %d tokens, written from %d", ErrRange, tokens, writeFrom)
	}
	n, firstWritten := p.geometry.Pages(tokens), writeFrom/p.pageTokens
	if writeFrom == tokens {
		firstWritten = n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.fenced {
		return ErrFenced
	}
	if n > len(l.tags) {
		return fmt.Errorf("%w: %d tokens need %d pages of %d", ErrRange, tokens, n, len(l.tags))
	}
	v.tags, v.pages, v.pinned = l.tags[:n:n], l.bases[:n:n], !guard.Off(guard.Pin)
	slots := p.slots
	for i := range v.tags {
		tag := &v.tags[i]
		if i < firstWritten && v.pinned && slots[tag.ID].TryPinFinal(tag.Gen) {
			continue
		}
		if err := l.viewOther(v, i, i >= firstWritten); err != nil {
			v.unpin(l, i)
			v.reset()
			return err
		}
	}
	v.markWritten(l, firstWritten)
	if v.pinned {
		p.count.Pins += n - v.strangers
	}
	v.lease, v.tokens, v.writeFrom, v.writes = l, tokens, writeFrom, n-firstWritten
	if p.trace != nil {
		p.trace(Event{Op: OpViewBegin, OK: true, Attempt: l.owner, First: v.tags[0], Count: n, Writes: v.writes})
	}
	return nil
}

// viewOther admits, or refuses, the page at ordinal i when it is not plainly sealed and read. It is called under mu.
func (l *Lease) viewOther(v *View, i int, write bool) error {
	tag := v.tags[i]
	s := &l.p.slots[tag.ID]
	own := s.State == page.Reserved && !l.spent[i]
	switch {
	case !l.holds(tag):
		if !guard.Off(guard.Tag) {
			return fmt.Errorf("%w: ordinal %d is page %d at generation %d, %s; the lease has %s", ErrTag, i, tag.ID, s.Gen, s.State, tag)
		}
		if v.stale == nil {
			v.stale = make([]bool, len(v.tags))
		}
		v.stale[i] = true
		v.strangers++
		return nil
	case write && !own && s.State != page.Tail:
		return fmt.Errorf("%w: ordinal %d may not be written: %s is %s", ErrRange, i, tag, s.State)
	case !write && !(own && s.Written) && !s.State.Final():
		return fmt.Errorf("%w: ordinal %d: %s is %s", ErrUnsealed, i, tag, s.State)
	}
	if v.pinned {
		*s = s.Pin(tag)
	}
	return nil
}

// markWritten says of the pages from ordinal i on that the step writes them. It is called under mu, once all pages are pinned:
// a view that is refused has changed nothing.
func (v *View) markWritten(l *Lease, i int) {
	for ; i < len(v.tags); i++ {
		s := &l.p.slots[v.tags[i].ID]
		switch {
		case guard.Unsafe && v.stale != nil && v.stale[i]:
		case v.pinned:
			*s = s.Write(v.tags[i])
		default:
			s.Written = true
		}
	}
}

// Pages returns the pages of positions [0, tokens) in order. Valid until Done.
func (v *View) Pages() []kernel.Page { return v.pages }

// Slot returns where position pos may be written; it panics unless pos lies in the step's write range.
func (v *View) Slot(pos int) kernel.Slot {
	if v.lease == nil || pos < v.writeFrom || pos >= v.tokens {
		panic(fmt.Sprintf("pool: position %d is not in the view's write range [%d, %d)", pos, v.writeFrom, v.tokens))
	}
	p := v.lease.p
	return kernel.SlotAt(p.arena.base(v.tags[pos/p.pageTokens].ID), pos%p.pageTokens)
}

// PageTokens is the number of slots a page.
func (v *View) PageTokens() int {
	if v.lease == nil {
		return 0
	}
	return v.lease.p.pageTokens
}

// Done unpins. Done of a view that was not begun does nothing.
func (v *View) Done() {
	l := v.lease
	if l == nil {
		return
	}
	l.p.mu.Lock()
	if l.p.trace != nil {
		l.p.trace(Event{Op: OpViewEnd, OK: true, Attempt: l.owner, First: v.tags[0], Count: len(v.tags), Writes: v.writes})
	}
	if v.pinned {
		l.p.count.Pins -= len(v.tags) - v.strangers
		v.unpin(l, len(v.tags))
	}
	l.p.mu.Unlock()
	v.reset()
}

func (v *View) reset() {
	*v = View{}
}

// unpin takes the pins of the first n pages back. Of a released lease, the last ones hand their pages on. It is called under
// mu, and leaves the pool's count of pins alone.
func (v *View) unpin(l *Lease, n int) {
	if !v.pinned {
		return
	}
	if guard.Unsafe && v.stale != nil {
		v.unpinSome(l, n)
		return
	}
	slots, tags := l.p.slots, v.tags[:n]
	for i := range tags {
		if s := &slots[tags[i].ID]; !s.TryUnpin(tags[i].Gen) {
			*s = s.Unpin(tags[i]) // panics
		}
	}
	if l.released {
		l.p.discard(l, v.tags[:n])
	}
}

// unpinSome is unpin of a view that read strangers' pages. Unsafe build only.
func (v *View) unpinSome(l *Lease, n int) {
	for i, tag := range v.tags[:n] {
		if v.stale[i] {
			continue
		}
		s := &l.p.slots[tag.ID]
		*s = s.Unpin(tag)
		if l.released {
			l.p.discard(l, v.tags[i:i+1])
		}
	}
}
