package worker

import (
	"sync"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// driver is an attempt of either leg, as the links and the worker see it.
type driver interface {
	ident() attempt.ID
	control() *control
	// frame takes a control frame that only this role has; false: it has no place in this role's conversation.
	frame(f wire.Frame) bool
	abort(from handoff.Who, v verdict.Verdict)
	lost(from handoff.Who, detail string)
}

// past is what is remembered of a settled attempt: enough to answer a late frame.
type past struct {
	plan    admission.Plan
	key     *mac.Key
	verdict verdict.Verdict
	lease   *pool.Lease // of decode, in the unsafe build only: where a late write lands when the gate is out
}

// table holds the attempts of a worker: those that live, and the newest of those that are settled. An id is taken once.
type table struct {
	mu      sync.Mutex
	live    map[attempt.ID]driver
	max     int
	settled map[attempt.ID]past
	ring    []attempt.ID // of settled, oldest at next once it is full
	next    int
	idle    chan struct{}   // closed when nothing lives; nil when nobody waits
	count   uint64          // settled since boot
	telling int             // settled, and the gateway is being told
	closed  verdict.Verdict // what a new attempt gets; zero while there is room for one
}

func newTable(live, settled int) *table {
	return &table{live: map[attempt.ID]driver{}, max: live, settled: map[attempt.ID]past{}, ring: make([]attempt.ID, 0, settled)}
}

// add takes a new attempt, or says why not.
func (t *table) add(d driver) verdict.Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := d.ident()
	if !t.closed.IsZero() {
		return t.closed
	}
	if _, ok := t.live[id]; ok {
		return verdict.Of(verdict.PlanRefused, verdict.Open, "attempt %s is under way already", id)
	}
	if _, ok := t.settled[id]; ok {
		return verdict.Of(verdict.PlanRefused, verdict.Open, "attempt %s was made already: an attempt is made once", id)
	}
	if len(t.live) >= t.max {
		return verdict.Of(verdict.Overloaded, verdict.Open, "%d attempts are under way, the most that this worker takes", t.max)
	}
	t.live[id] = d
	return verdict.Verdict{}
}

// shut lets no attempt in any more: each gets v.
func (t *table) shut(v verdict.Verdict) {
	t.mu.Lock()
	t.closed = v
	t.mu.Unlock()
}

// find returns the live attempt, or what is remembered of a settled one.
func (t *table) find(id attempt.ID) (d driver, p past, was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d, ok := t.live[id]; ok {
		return d, past{}, true
	}
	p, was = t.settled[id]
	return nil, p, was
}

// settle moves an attempt from the living to the remembered. Whoever waits for quiet is told by rest, once the gateway has been.
func (t *table) settle(id attempt.ID, p past) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, id)
	t.count++
	t.telling++
	t.remember(id, p)
}

// rest ends the wait for quiet, if nothing lives.
func (t *table) rest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.telling--
	if t.still() && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

func (t *table) still() bool { return len(t.live) == 0 && t.telling == 0 }

func (t *table) remember(id attempt.ID, p past) {
	if len(t.ring) < cap(t.ring) {
		t.ring = append(t.ring, id)
	} else {
		delete(t.settled, t.ring[t.next])
		t.ring[t.next] = id
		t.next = (t.next + 1) % len(t.ring)
	}
	t.settled[id] = p
}

// living returns the live attempts for which keep says so.
func (t *table) living(keep func(driver) bool) (ds []driver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.live {
		if keep(d) {
			ds = append(ds, d)
		}
	}
	return ds
}

// active is the number of live attempts, done of settled ones since boot.
func (t *table) active() (live int, done uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live), t.count
}

// quiet returns a channel that is closed once nothing lives.
func (t *table) quiet() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle == nil {
		t.idle = make(chan struct{})
		if t.still() {
			close(t.idle)
			defer func() { t.idle = nil }()
		}
	}
	return t.idle
}
