package worker

import (
	"errors"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
)

// turnstile lets attempts wait for pages first come, first served: only the one in front asks the pool, so a long prompt is not
// starved by short ones that would fit sooner.
type turnstile struct {
	pool *pool.Pool
	room chan struct{} // one token a place in line
	turn chan struct{} // held by the one in front; the runtime queues the others in order

	mu      sync.Mutex
	waiting int
}

func newTurnstile(p *pool.Pool, places int) *turnstile {
	return &turnstile{pool: p, room: make(chan struct{}, places), turn: make(chan struct{}, 1)}
}

// queued is the number that waits.
func (q *turnstile) queued() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

func (q *turnstile) count(by int) {
	q.mu.Lock()
	q.waiting += by
	q.mu.Unlock()
}

// reserve waits for n pages. It ends with a lease; with the verdict that refuses the attempt; or with neither, when the attempt
// ended meanwhile.
func (q *turnstile) reserve(t admission.Ticket, n int, wait time.Duration) (*pool.Lease, verdict.Verdict) {
	over := t.Verdict().Done()
	none := func() (*pool.Lease, verdict.Verdict) {
		s := q.pool.Stats()
		return nil, verdict.NoPages(verdict.Reserve, n, s.Free, s.Total)
	}
	if n > q.pool.Stats().Total {
		return none() // waiting would not help
	}
	select {
	case q.room <- struct{}{}:
	default:
		return nil, verdict.Of(verdict.Overloaded, verdict.Reserve, "%d attempts wait for pages already", cap(q.room))
	}
	defer func() { <-q.room }()
	q.count(1)
	defer q.count(-1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case q.turn <- struct{}{}:
	case <-over:
		return nil, verdict.Verdict{}
	case <-timer.C:
		return none()
	}
	defer func() { <-q.turn }()
	for {
		freed := q.pool.Freed() // before the try, so that pages that return in between are not missed
		if !t.Valid() {
			return nil, verdict.Verdict{}
		}
		lease, err := q.pool.Reserve(t, n)
		switch {
		case err == nil:
			return lease, verdict.Verdict{}
		case !errors.Is(err, pool.ErrPoolFull):
			if _, ended := t.Verdict().Get(); ended {
				return nil, verdict.Verdict{}
			}
			if errors.Is(err, pool.ErrNotZero) {
				return nil, verdict.Of(verdict.ZeroViolation, verdict.Reserve, "%v", err)
			}
			return nil, verdict.Of(verdict.Internal, verdict.Reserve, "the pool would not lease %d pages: %v", n, err)
		}
		select {
		case <-freed:
		case <-over:
			return nil, verdict.Verdict{}
		case <-timer.C:
			return none()
		}
	}
}
