package pool

import (
	"fmt"
	"sync"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
)

// replay follows a pool's trace with slots of its own: an event that the states do not allow is caught, and what the
// trace leaves out cannot be hidden. Every pool of the tests has one.
type replay struct {
	mu     sync.Mutex // the pool's lock is held by whoever calls event; this one is for end
	slots  []page.Slot
	handed map[attempt.ID][]page.Tag
	views  map[page.Tag]int
	events int
	bad    error
}

func newReplay(pages int) *replay {
	return &replay{slots: make([]page.Slot, pages), handed: map[attempt.ID][]page.Tag{}, views: map[page.Tag]int{}}
}

func (r *replay) event(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if x := recover(); x != nil && r.bad == nil {
			r.bad = fmt.Errorf("event %d, %s of %d pages from %s: %v", r.events, e.Op, e.Count, e.First, x)
		}
	}()
	r.events++
	if r.bad == nil {
		r.apply(e)
	}
}

func (r *replay) apply(e Event) {
	if e.Op == OpReserve {
		tag := e.First
		for i := range e.Count {
			if i > 0 {
				tag = r.slots[tag.ID+1].Next(tag.Boot, tag.ID+1)
			}
			r.slots[tag.ID] = r.slots[tag.ID].Reserve(tag, e.Attempt)
			r.handed[e.Attempt] = append(r.handed[e.Attempt], tag)
		}
		return
	}
	tags := r.handed[e.Attempt]
	for len(tags) > 0 && tags[0] != e.First {
		tags = tags[1:]
	}
	if e.Count < 1 || len(tags) < e.Count {
		panic(fmt.Sprintf("the attempt was handed %d pages from there on", len(tags)))
	}
	for i, tag := range tags[:e.Count] {
		s := &r.slots[tag.ID]
		switch e.Op {
		case OpLandBegin:
			*s = s.Land(tag)
		case OpLandEnd:
			switch {
			case e.OK:
				*s = s.Landed(tag)
			case s.State == page.Landing:
				*s = s.Refused(tag)
			default:
				*s = s.Unpin(tag)
			}
		case OpSeal:
			if i == e.Count-1 {
				*s = s.SealTail(tag)
			} else {
				*s = s.Seal(tag)
			}
		case OpSealOwn:
			*s = s.Seal(tag)
		case OpViewBegin:
			*s = s.Pin(tag)
			if i >= e.Count-e.Writes {
				*s = s.Write(tag)
			}
			if !s.Written {
				panic("a page without content was read")
			}
		case OpViewEnd:
			*s = s.Unpin(tag)
		case OpFence:
			*s = s.Fence(tag)
		case OpScrub:
			*s = s.Scrub(tag)
		case OpFree:
			*s = s.Free(tag)
		default:
			panic("an unknown event")
		}
	}
}

// end says what was wrong, if anything, and that every page is free.
func (r *replay) end() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad != nil {
		return r.bad
	}
	for id, s := range r.slots {
		if s != (page.Slot{Gen: s.Gen}) {
			return fmt.Errorf("after %d events the trace leaves page %d as %+v", r.events, id, s)
		}
	}
	return nil
}
