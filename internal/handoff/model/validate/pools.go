package validate

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// lease is one leg's pages.
type lease struct {
	m    model.Lease[uint32]
	of   *life
	boot uint64

	mayFence, maySeal, maySteps, mayRelease bool   // what the machine above asked for
	landing, landed                         bool   // the copy of the page in staging: under way; ended well
	taken                                   uint32 // ordinal of the page that the sender took last
	copied                                  bool   // it was read since
	steps                                   []step // under way
}

// step is the pages that one step reads, and of them those that it may write.
type step struct{ pages, writes uint32 }

// asked notes what a machine's step lets its pool do.
func (l *lease) asked(asks model.Asks) {
	l.mayFence = l.mayFence || asks.Has(model.AskFence)
	l.mayRelease = l.mayRelease || asks.Has(model.AskRelease)
	l.maySeal = l.maySeal || asks.Has(model.AskSeal)
	l.maySteps = l.maySteps || asks.Has(model.AskStart)
}

// slot is one page.
type slot struct {
	gen     uint64
	of      *lease
	ordinal uint32
	pins    uint16 // copies and readings of this page alone
	state   slotState
	knows   bool // gen is right, and not a guess of a sampled trace
}

type slotState uint8

const (
	unseen slotState = iota
	free
	handed
	landing
	written
	scrubbing
)

// arena is a pool's pages, in blocks, so that a page with a high number costs no more than one with a low one.
type arena struct {
	blocks map[uint32]*[blockSize]slot
	last   uint32
	block  *[blockSize]slot
}

const (
	blockSize = 1024
	mostPages = 1 << 22 // that a validator keeps, in all pools
)

func (v *Validator) arena(boot uint64) *arena {
	a := v.pools[boot]
	if a == nil {
		a = &arena{blocks: map[uint32]*[blockSize]slot{}}
		v.pools[boot] = a
	}
	return a
}

// at returns a page's slot; nil: too many.
func (a *arena) at(id uint32) *slot {
	if k := id / blockSize; a.block == nil || a.last != k {
		b := a.blocks[k]
		if b == nil {
			if len(a.blocks)*blockSize >= mostPages {
				return nil
			}
			b = new([blockSize]slot)
			a.blocks[k] = b
		}
		a.block, a.last = b, k
	}
	return &a.block[id%blockSize]
}

// pool walks a transition of a pool.
func (v *Validator) pool(e *trace.Event) string {
	l := v.find(e.Attempt)
	var le *lease
	switch {
	case l != nil && l.d.open && l.d.boot == e.Boot:
		le = &l.d.lease
	case l != nil && l.p.open && l.p.boot == e.Boot:
		le = &l.p.lease
	default:
		return "no machine of this attempt was opened there"
	}
	switch {
	case e.B == 0 || e.B > mostPages || uint64(e.A)+uint64(e.B) > 1<<32:
		return "no pool has such pages"
	case e.State == 0 && e.Step != trace.LandEnd, e.State > 1, e.Code != 0:
		return "only a copy can end badly"
	case e.C != 0 && e.Step != trace.ViewBegin && e.Step != trace.ViewEnd:
		return "only a step writes"
	}
	a := v.arena(e.Boot)
	if e.Step == trace.Reserve {
		return v.reserve(a, le, e)
	}
	s := a.at(e.A)
	if s == nil || s.of != le || s.state == free {
		return "the page is not this attempt's"
	}
	if !s.knows && v.sampled {
		s.gen, s.knows = e.Digest, true
	}
	if s.gen != e.Digest {
		return fmt.Sprintf("the page is at generation %d", s.gen)
	}
	next, err := le.m.Do(v.on, model.Op(e.Step), e.B, e.C, e.State == 1)
	if err != nil {
		return err.Error()
	}
	why := v.page(a, le, s, e)
	le.m = next
	return why
}

// reserve hands pages over, each under its next generation.
func (v *Validator) reserve(a *arena, le *lease, e *trace.Event) string {
	next, err := le.m.Do(v.on, model.OpReserve, e.B, 0, true)
	if err != nil {
		return err.Error()
	}
	for i := range e.B {
		s := a.at(e.A + i)
		if s == nil {
			return fmt.Sprintf("more than %d pages in one trace", mostPages)
		}
		gen := s.gen + 1
		switch {
		case s.state != unseen && s.state != free:
			return fmt.Sprintf("page %d is attempt %s's", e.A+i, s.of.of.id)
		case v.sampled && i == 0 && e.Digest > s.gen:
			gen = e.Digest
		case i == 0 && e.Digest != gen:
			return fmt.Sprintf("the page's next generation is %d", gen)
		}
		*s = slot{gen: gen, of: le, ordinal: le.m.Pages + i, state: handed, knows: i == 0 || !v.sampled}
	}
	le.m = next
	v.counts.Pages += uint64(e.B)
	return ""
}

// page says what the model's lease, which counts, cannot: whether this very page may go through the transition. le.m is as before.
func (v *Validator) page(a *arena, le *lease, s *slot, e *trace.Event) string {
	l, decode := le.of, le == &le.of.d.lease
	switch e.Step {
	case trace.LandBegin:
		switch {
		case !decode || l.d.staged != s.ordinal+1:
			return fmt.Sprintf("the machine did not ask to land a page at ordinal %d", s.ordinal)
		case s.ordinal >= le.m.Granted || s.state != handed || s.pins != 0:
			return "the page was written before, or is not granted"
		}
		s.state, s.pins, le.landing = landing, 1, true
	case trace.LandEnd:
		if s.state != landing || s.pins != 1 {
			return "no copy of this page is under way"
		}
		s.state, s.pins, le.landing, le.landed = written, 0, false, e.State == 1
	case trace.Seal:
		if !decode || !le.maySeal || s.ordinal != 0 || e.B != l.d.m.Needed || le.m.Views+le.m.Reads != 0 {
			return "the machine did not ask to seal these pages"
		}
	case trace.SealOwn:
		if decode || s.ordinal != le.m.Final || s.ordinal >= l.p.m.Needed || !l.p.m.Running {
			return fmt.Sprintf("the next page to seal is at ordinal %d", le.m.Final)
		}
	case trace.ViewBegin:
		if !le.maySteps {
			return "the machine gave no engine the pages"
		}
		if e.C > 0 {
			if s.ordinal != 0 || (decode && !l.d.m.Running) || (!decode && !l.p.m.Running) {
				return "a step reads from the first page on, while the engine has the pages"
			}
			le.steps = append(le.steps, step{e.B, e.C})
			break
		}
		if s.ordinal >= le.m.Final {
			return "the page is not sealed"
		}
		s.pins++
	case trace.ViewEnd:
		if e.C > 0 {
			return le.endStep(s, e)
		}
		if s.pins == 0 || e.B != 1 {
			return "no reading of this page is under way"
		}
		s.pins--
		le.copied = le.copied || s.ordinal == le.taken
	case trace.Fence:
		if !le.mayFence || s.ordinal != le.m.Fenced {
			return "the machine did not ask to fence, from this page on"
		}
	case trace.Scrub, trace.Free:
		return v.back(a, le, s.ordinal, e)
	}
	return ""
}

func (l *lease) endStep(s *slot, e *trace.Event) string {
	for i, x := range l.steps {
		if x == (step{e.B, e.C}) && s.ordinal == 0 {
			l.steps[i] = l.steps[len(l.steps)-1]
			l.steps = l.steps[:len(l.steps)-1]
			return ""
		}
	}
	return "no step over these pages is under way"
}

// back walks pages on their way back: each fenced, without a pin, zeroed before it is free.
func (v *Validator) back(a *arena, le *lease, first uint32, e *trace.Event) string {
	if !le.mayRelease {
		return "the machine did not ask to give pages back"
	}
	for i := range e.B {
		s := a.at(e.A + i)
		switch {
		case s == nil || s.of != le || s.ordinal != first+i:
			return fmt.Sprintf("page %d is not the attempt's next", e.A+i)
		case s.ordinal >= le.m.Fenced && v.on.Has(model.GuardFence):
			return fmt.Sprintf("page %d is not fenced", e.A+i)
		case s.pins != 0 && v.on.Has(model.GuardPin):
			return fmt.Sprintf("page %d has %d pins", e.A+i, s.pins)
		}
		for _, x := range le.steps {
			if s.ordinal < x.pages && v.on.Has(model.GuardPin) {
				return fmt.Sprintf("page %d is being read by a step", e.A+i)
			}
		}
		switch {
		case e.Step == trace.Scrub && s.state != scrubbing && s.state != free:
			s.state = scrubbing
		case e.Step == trace.Free && s.state == scrubbing:
			*s = slot{gen: s.gen, state: free, knows: s.knows}
		default:
			return fmt.Sprintf("page %d was zeroed before, or not yet", e.A+i)
		}
	}
	return ""
}
