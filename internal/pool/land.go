package pool

import (
	"fmt"
	"slices"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// Land copies one whole page that a peer sent. frame is staging memory; no I/O happens here. Order: ask the gate (lease live, tag
// ours at this ordinal, not yet used), pin, one pass of MAC and copy (state Landing: no view can reach it), compare;
// equal marks it Written, unequal scrubs it and returns ErrMAC; unpin.
//
// A tag lets one frame in, right or wrong: after ErrMAC the same tag is ErrTwice, so that a peer cannot try MACs. If the lease is
// fenced while the copy is under way the copy ends in a fenced page that its end releases, and Land returns ErrFenced.
func (l *Lease) Land(ordinal int, tag page.Tag, frame []byte, key *mac.Key, m mac.Tag) error {
	p := l.p
	if ordinal < 0 || len(frame) != p.pageBytes {
		return fmt.Errorf("%w: a frame of %d bytes at ordinal %d, pages have %d", ErrRange, len(frame), ordinal, p.pageBytes)
	}
	p.mu.Lock()
	if err := l.gate(ordinal, tag); err != nil {
		p.count.Refused++
		p.mu.Unlock()
		return err
	}
	if guard.Off(guard.Gate|guard.Fence) && !l.landable(tag) {
		p.mu.Unlock()
		return p.landAnyway(uint64(ordinal), tag, frame, key, m)
	}
	s := &p.slots[tag.ID]
	*s = s.Land(tag)
	p.count.Pins++
	p.emit(OpLandBegin, l, tag, 1)
	if guard.Off(guard.Pin) {
		s.Pins = 0
		p.count.Pins--
	}
	p.mu.Unlock()

	if p.midCopy != nil {
		p.midCopy(tag)
	}
	dst, good := p.arena.bytes(tag.ID), true
	if guard.Off(guard.MAC) {
		copy(dst, frame)
	} else if !mac.Equal(key.SumCopy(mac.Page, uint64(ordinal), dst, frame), m) {
		good = false
		clearBytes(dst)
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	return l.landed(tag, good)
}

// gate says whether a frame may land: the lease is live, the grant names the tag at this ordinal, and no frame
// used it before. It is called under mu, and spends the tag when it says yes. It asks the lease, which is the grant,
// and not the page: that a live grant's page is its own is the pool's business, and a panic otherwise.
func (l *Lease) gate(ordinal int, tag page.Tag) error {
	if guard.Off(guard.Gate) {
		return l.ungated(tag)
	}
	switch {
	case l.fenced || l.sealed:
		return ErrFenced
	case ordinal >= l.granted || l.tags[ordinal] != tag:
		return fmt.Errorf("%w: %s at ordinal %d", ErrTag, tag, ordinal)
	case l.spent[ordinal] || l.p.slots[tag.ID].Written && l.p.slots[tag.ID].Gen == tag.Gen:
		return fmt.Errorf("%w: %s at ordinal %d", ErrTwice, tag, ordinal)
	}
	l.spent[ordinal] = true
	return nil
}

// landed ends a copy. It is called under mu.
func (l *Lease) landed(tag page.Tag, good bool) (err error) {
	p := l.p
	s := &p.slots[tag.ID]
	if guard.Off(guard.Pin) {
		if s.Gen != tag.Gen || s.State != page.Landing { // handed over in mid-copy: nobody waited for it
			return nil
		}
		s.Pins++
		p.count.Pins++
	}
	if !good {
		err = fmt.Errorf("%w: %s", ErrMAC, tag)
	}
	switch {
	case s.State == page.Fenced:
		p.unpin(l, tag)
		p.count.Refused++
		if err == nil {
			err = ErrFenced
		}
	case good:
		*s = s.Landed(tag)
		p.count.Pins--
		p.count.Landed++
	default:
		*s = s.Refused(tag)
		p.count.Pins--
		p.count.Refused++
	}
	if p.trace != nil {
		p.trace(Event{Op: OpLandEnd, OK: err == nil, Attempt: l.owner, First: tag, Count: 1})
	}
	return err
}

// ungated stands in for the gate that the unsafe build took out: any page of the arena will do.
func (l *Lease) ungated(tag page.Tag) error {
	if int(tag.ID) >= l.p.pages {
		return fmt.Errorf("%w: page %d of %d", ErrRange, tag.ID, l.p.pages)
	}
	if i := slices.Index(l.tags, tag); i >= 0 {
		l.spent[i] = true
	}
	return nil
}

// landable reports whether the page can go through the states of a landing.
func (l *Lease) landable(tag page.Tag) bool {
	s := l.p.slots[tag.ID]
	return s.Gen == tag.Gen && s.Owner == l.owner && s.State == page.Reserved && !s.Written && s.Pins == 0
}

// landAnyway is a write that nothing asked whose page it is, as a one-sided writer's. Unsafe build only.
func (p *Pool) landAnyway(ordinal uint64, tag page.Tag, frame []byte, key *mac.Key, m mac.Tag) error {
	if !guard.Off(guard.MAC) && !mac.Equal(key.Sum(mac.Page, ordinal, frame), m) {
		return fmt.Errorf("%w: %s", ErrMAC, tag)
	}
	if p.midCopy != nil {
		p.midCopy(tag)
	}
	copy(p.arena.bytes(tag.ID), frame)
	return nil
}
