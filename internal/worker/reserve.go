package worker

import (
	"container/list"
	"errors"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
)

// turnstile lets attempts wait for pages first come, first served: only the one in front asks the pool, so a long prompt is not
// starved by short ones that would fit sooner. A place in line is taken when the attempt comes, by the link's reader.
type turnstile struct {
	pool *pool.Pool
	max  int

	mu   sync.Mutex
	line list.List // of *turn
}

// turn is one attempt's in the line.
type turn struct {
	q     *turnstile
	at    *list.Element // nil: the line was full
	front chan struct{} // closed when nobody is before it
}

func newTurnstile(p *pool.Pool, places int) *turnstile { return &turnstile{pool: p, max: places} }

// queued is the number in line.
func (q *turnstile) queued() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.line.Len()
}

// join takes a place. Whoever has it must call reserve, once.
func (q *turnstile) join() *turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := &turn{q: q, front: make(chan struct{})}
	if q.line.Len() < q.max {
		p.at = q.line.PushBack(p)
		q.advance()
	}
	return p
}

// advance tells the one in front.
func (q *turnstile) advance() {
	if e := q.line.Front(); e != nil {
		select {
		case <-e.Value.(*turn).front:
		default:
			close(e.Value.(*turn).front)
		}
	}
}

func (p *turn) leave() {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	p.q.line.Remove(p.at)
	p.q.advance()
}

// reserve waits for n pages, and gives the place up. It ends with a lease; with the verdict that refuses the attempt; or with neither,
// when the attempt ended meanwhile.
func (p *turn) reserve(t admission.Ticket, n int, wait time.Duration) (*pool.Lease, verdict.Verdict) {
	if p.at == nil {
		return nil, verdict.Of(verdict.Overloaded, verdict.Reserve, "%d attempts wait for pages already", p.q.max)
	}
	defer p.leave()
	over := t.Verdict().Done()
	none := func() (*pool.Lease, verdict.Verdict) {
		s := p.q.pool.Stats()
		return nil, verdict.NoPages(verdict.Reserve, n, s.Free, s.Total)
	}
	if n > p.q.pool.Stats().Total {
		return none() // waiting would not help
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-p.front:
	case <-over:
		return nil, verdict.Verdict{}
	case <-timer.C:
		return none()
	}
	for {
		freed := p.q.pool.Freed() // before the try, so that pages that return in between are not missed
		lease, err := p.q.pool.Reserve(t, n)
		switch {
		case err == nil:
			return lease, verdict.Verdict{}
		case !errors.Is(err, pool.ErrPoolFull):
			if _, ended := t.Verdict().Get(); ended {
				return nil, verdict.Verdict{}
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
