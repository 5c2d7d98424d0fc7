package pool

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// SealPrompt turns the landed pages into sealed ones, of which the page that holds position tokens-1 is the tail. It fails
// with ErrUnwritten, and changes nothing, unless every page that tokens need has landed whole. Extra pages (reserved for
// generation) stay Reserved; nothing can land in them any more.
func (l *Lease) SealPrompt(tokens int) error {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.geometry.Pages(tokens)
	switch {
	case l.fenced || l.released:
		return ErrFenced
	case tokens <= 0 || n > l.granted:
		return fmt.Errorf("%w: %d tokens need %d pages of %d", ErrRange, tokens, n, l.granted)
	case l.sealed:
		return fmt.Errorf("%w: the prompt is already sealed", ErrTwice)
	}
	written := 0
	for i, tag := range l.tags[:n] {
		switch s := &p.slots[tag.ID]; {
		case s.State != page.Reserved: // landing, or sealed as an own page
		case s.Pins > 0:
			return fmt.Errorf("%w: %s has %d pins", ErrPinned, tag, s.Pins)
		case guard.Off(guard.Count):
			s.Written = true // taken on trust
			written++
		case s.Written && l.spent[i]:
			written++
		}
	}
	if written < n {
		return fmt.Errorf("%w: %d of the %d pages of %d tokens", ErrUnwritten, written, n, tokens)
	}
	for i, tag := range l.tags[:n] {
		s := &p.slots[tag.ID]
		if i == n-1 {
			*s = s.SealTail(tag)
		} else {
			*s = s.Seal(tag)
		}
	}
	l.sealed = true
	p.emit(OpSeal, l, l.tags[0], n)
	return nil
}

// SealOwn seals a page that the lease's own compute filled (prefill), and makes its MAC while it is in the cache. Call it
// after the Done of the view that wrote the page: ErrPinned otherwise. ErrUnwritten: no view wrote it. The caller makes each
// (key, ordinal) once, as package mac demands.
func (l *Lease) SealOwn(ordinal int, key *mac.Key) (mac.Tag, error) {
	p := l.p
	p.mu.Lock()
	tag, err := l.at(ordinal)
	if err == nil {
		switch s := &p.slots[tag.ID]; {
		case s.State == page.Sealed:
			err = fmt.Errorf("%w: %s is already sealed", ErrTwice, tag)
		case s.Pins > 0:
			err = fmt.Errorf("%w: %s has %d pins", ErrPinned, tag, s.Pins)
		case s.State != page.Reserved || !s.Written || l.spent[ordinal]:
			err = fmt.Errorf("%w: %s at ordinal %d, by this lease's own compute", ErrUnwritten, tag, ordinal)
		default:
			*s = s.Seal(tag)
			p.emit(OpSealOwn, l, tag, 1)
		}
	}
	if err != nil {
		p.mu.Unlock()
		return mac.Tag{}, err
	}
	p.beginRead(l, tag)
	p.mu.Unlock()

	m := key.Sum(mac.Page, uint64(ordinal), p.arena.bytes(tag.ID))

	p.mu.Lock()
	p.endRead(l, tag)
	p.mu.Unlock()
	return m, nil
}

// CopyOut copies a sealed page to staging under a pin, for sending. It returns the bytes of a page; ErrRange when dst is
// smaller, ErrUnsealed when the page is not final.
func (l *Lease) CopyOut(dst []byte, ordinal int) (int, error) {
	p := l.p
	if len(dst) < p.pageBytes {
		return 0, fmt.Errorf("%w: %d bytes for a page of %d", ErrRange, len(dst), p.pageBytes)
	}
	p.mu.Lock()
	tag, err := l.at(ordinal)
	if s := &p.slots[tag.ID]; err == nil && s.State != page.Sealed && s.State != page.Held {
		err = fmt.Errorf("%w: %s is %s", ErrUnsealed, tag, s.State)
	}
	if err != nil {
		p.mu.Unlock()
		return 0, err
	}
	p.beginRead(l, tag)
	p.mu.Unlock()

	if p.midCopy != nil {
		p.midCopy(tag)
	}
	n := copy(dst, p.arena.bytes(tag.ID))

	p.mu.Lock()
	p.endRead(l, tag)
	p.mu.Unlock()
	return n, nil
}

// at returns the tag at ordinal of a live lease whose page is still its own. It is called under mu.
func (l *Lease) at(ordinal int) (page.Tag, error) {
	switch {
	case l.fenced || l.released:
		return page.Tag{}, ErrFenced
	case ordinal < 0 || ordinal >= len(l.tags):
		return page.Tag{}, fmt.Errorf("%w: ordinal %d of %d", ErrRange, ordinal, len(l.tags))
	}
	return l.tags[ordinal], nil
}

// beginRead and endRead pin one page; both are called under mu.
func (p *Pool) beginRead(l *Lease, tag page.Tag) {
	p.emit(OpViewBegin, l, tag, 1)
	if !guard.Off(guard.Pin) {
		p.slots[tag.ID] = p.slots[tag.ID].Pin(tag)
		p.count.Pins++
	}
}

func (p *Pool) endRead(l *Lease, tag page.Tag) {
	p.emit(OpViewEnd, l, tag, 1)
	if !guard.Off(guard.Pin) {
		p.unpin(l, tag)
	}
}
