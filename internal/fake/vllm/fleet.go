package vllm

import (
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Fleet is what the workers of one fleet share: the handles that prefills gave out, and where transfers meet.
type Fleet struct {
	*actor.Stage

	mu       sync.Mutex
	grants   map[string]*grant // by the handle's bytes
	meetings map[string]*meeting
	engines  map[string]*Worker // prefills, by engine id
}

// NewFleet makes an empty fleet.
func NewFleet(s *actor.Stage) *Fleet {
	return &Fleet{Stage: s, grants: map[string]*grant{}, meetings: map[string]*meeting{}, engines: map[string]*Worker{}}
}

// grant is what a prefill keeps for a decode that will come.
type grant struct {
	from    *Worker
	request string // base request id
	owner   actor.Owner
	digest  uint64
	prompt  int
	pages   []int
	memory  *actor.Pages
	issued  time.Time
	lie     *actor.Lie
	used    bool
	freed   bool         // the pages are another's by now
	kept    *actor.Pages // what was in the pages, for lies told later
	// borrowed pages belong to another grant: a lie.
	borrowed bool
}

// issue remembers a handle as it was sent.
func (f *Fleet) issue(raw string, g *grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grants[raw] = g
}

// redeem finds the grant of a handle, and whether it was used before.
func (f *Fleet) redeem(raw string) (g *grant, used bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g = f.grants[raw]; g == nil {
		return nil, false
	}
	used, g.used = g.used, true
	return g, used
}

// expire frees what nobody came for, and what a decode that came does not get done with: nothing here renews a lease.
func (f *Fleet) expire(w *Worker, lease time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.grants {
		if g.from == w && !g.freed && !g.borrowed && g.pages != nil && time.Since(g.issued) > lease {
			g.memory.Free(g.pages)
			g.freed = true
			if !g.used {
				g.pages = nil
			}
			w.expired.Add(1)
		}
	}
}

// late notes a read that comes after the lease: the pages are read all the same, and prefill counts it.
func (f *Fleet) late(g *grant, lease time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.freed || time.Since(g.issued) > lease {
		g.from.tooLate.Add(1)
	}
}

// meeting is where the legs of one Mooncake transfer meet.
type meeting struct {
	mu     sync.Mutex
	came   [2]bool
	digest [2]uint64
	owner  actor.Owner
	sent   chan struct{} // closed when prefill is done
	pages  []int         // of prefill
	memory *actor.Pages
	lie    *actor.Lie
	why    string // nothing was sent
	moving bool
	read   chan struct{} // closed when decode has taken the pages
}

// meet is a leg's arrival.
func (f *Fleet) meet(w *Worker, id string, leg actor.Leg, q *actor.Request) (*meeting, bool) {
	f.mu.Lock()
	m := f.meetings[id]
	if m == nil {
		m = &meeting{sent: make(chan struct{}), read: make(chan struct{})}
		f.meetings[id] = m
	}
	f.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owner == 0 {
		m.owner = f.Arrive()
	}
	if m.came[leg] {
		w.Violate(actor.RuleTransferID, "transfer id %s is used again by %s", id, leg)
		return nil, false
	}
	m.came[leg], m.digest[leg] = true, q.Digest
	if m.came[0] && m.came[1] && m.digest[0] != m.digest[1] {
		w.Violate(actor.RuleLegs, "the legs of transfer %s got different prompts", id)
	}
	return m, true
}

// finish ends prefill's part.
func (m *meeting) finish(pages []int, memory *actor.Pages, lie *actor.Lie, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.sent:
		return
	default:
	}
	m.pages, m.memory, m.lie, m.why = pages, memory, lie, why
	close(m.sent)
}
