// Package trace is what the handoff's machines and the pools under them leave behind: one event a transition, in the order in which
// they happened.
//
// A driver records an event inside the critical section that performs the step, so the order of a recorder's events is an order in
// which the steps can have happened; checking a trace is then a walk, not a search. An event holds ids, counts, codes and
// a digest. It holds no content.
//
// A machine's events are chained (see Thread): each digest covers the machine's value and all that was recorded of it before, so
// that no event of it can be taken out, moved or changed without the next one showing it. Package handoff/model/validate replays
// traces; package pooltrace records pools.
//
// A nil Recorder is off: drivers test for nil, and nothing is built. Lock order: a recorder's lock is a leaf.
package trace

import (
	"sync"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Args are what an event says of itself. See the steps for what A, B and C hold.
type Args struct {
	Step    Step
	A, B, C uint32
	Code    verdict.Code
}

// Event is one transition of one machine, or of some of a pool's pages.
type Event struct {
	Attempt attempt.ID
	Boot    uint64 // of the process; 0: a gateway's
	Machine Machine
	Args
	State  uint8  // of the machine, after the step; of a pool, 1 when it went well
	Digest uint64 // of the machine and its past, after the step; of a pool, the first page's generation
}

// Recorder takes events. Record is called under the driver's lock: it must be quick, must not block on a peer and must not call back.
type Recorder interface{ Record(Event) }

// Ring keeps the newest events in a fixed amount of memory. Safe for concurrent use.
type Ring struct {
	mu     sync.Mutex
	events []Event
	next   uint64
}

// NewRing makes a Ring of n events; n is at least 1.
func NewRing(n int) *Ring { return &Ring{events: make([]Event, max(n, 1))} }

// Record implements Recorder.
func (r *Ring) Record(e Event) {
	r.mu.Lock()
	r.events[r.next%uint64(len(r.events))] = e
	r.next++
	r.mu.Unlock()
}

// Events returns a copy of what is kept, oldest first, and how many older ones were overwritten.
func (r *Ring) Events() (kept []Event, dropped uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := uint64(len(r.events))
	if r.next <= n {
		return append([]Event(nil), r.events[:r.next]...), 0
	}
	at := r.next % n
	kept = append(append(make([]Event, 0, n), r.events[at:]...), r.events[:at]...)
	return kept, r.next - n
}

// Tee records to each of its recorders, in order.
type Tee []Recorder

// Record implements Recorder.
func (t Tee) Record(e Event) {
	for _, r := range t {
		r.Record(e)
	}
}
