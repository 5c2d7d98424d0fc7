package vllm

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Fleet is what the workers of one fleet share: the handles that prefills gave out, and where transfers meet.
type Fleet struct {
	*actor.Stage

	mu       sync.Mutex
	grants   map[[sha256.Size]byte]*grant // by sum
	meetings map[string]*meeting
	engines  map[string]*Worker // prefills, by engine id
}

// NewFleet makes an empty fleet.
func NewFleet(s *actor.Stage) *Fleet {
	return &Fleet{Stage: s, grants: map[[sha256.Size]byte]*grant{}, meetings: map[string]*meeting{}, engines: map[string]*Worker{}}
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
	lease   *time.Timer
	used    bool
	freed   bool // the pages are another's by now
	lapsed  bool // before anybody came
	// borrowed pages belong to another grant: a lie.
	borrowed bool
}

// sum stands for a handle: what was given out is known for as long as the fleet lives.
func sum(raw string) [sha256.Size]byte { return sha256.Sum256([]byte(raw)) }

// issue remembers a handle as it was sent, if it was. The pages are kept for the lease, which nothing here renews.
func (f *Fleet) issue(handle []byte, g *grant, lease time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if handle != nil {
		f.grants[sum(compact(handle))] = g
	}
	if !g.borrowed {
		g.lease = time.AfterFunc(lease, func() { f.expire(g) })
	}
}

// redeem finds the grant of a handle, and whether it was used before.
func (f *Fleet) redeem(raw string) (g *grant, used bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g = f.grants[sum(raw)]; g == nil {
		return nil, false
	}
	used, g.used = g.used, true
	return g, used
}

// expire frees what nobody came for, or what a decode that came does not get done with.
func (f *Fleet) expire(g *grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.freed {
		return
	}
	g.memory.Free(g.pages)
	g.freed, g.lapsed = true, !g.used
	g.from.expired.Add(1)
}

// release frees what a prefill kept, once decode has read it, or will not.
func (f *Fleet) release(g *grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !g.borrowed && !g.freed {
		g.memory.Free(g.pages)
		g.freed = true
		g.lease.Stop()
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
