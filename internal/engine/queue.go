package engine

import (
	"slices"
	"sync"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/verdict"
)

// inbox is the bounded way into an engine's goroutine. Everything else of an engine belongs to that goroutine alone.
// Lock order: mu is a leaf.
type inbox[J any] struct {
	mu      sync.Mutex
	waiting []J
	cancels map[attempt.ID]verdict.Verdict // asked for since the last take
	held    int                            // waiting, and taken but not ended
	limit   int
	closed  bool
	wake    chan struct{} // capacity 1
}

func newInbox[J any](limit int) *inbox[J] {
	return &inbox[J]{limit: limit, cancels: map[attempt.ID]verdict.Verdict{}, wake: make(chan struct{}, 1)}
}

func (b *inbox[J]) put(j J) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return ErrClosed
	case b.held >= b.limit:
		return ErrQueueFull
	}
	b.held++
	b.waiting = append(b.waiting, j)
	b.poke()
	return nil
}

// cancel asks for the end of an attempt. One that is not here (any more) is nobody's.
func (b *inbox[J]) cancel(id attempt.ID, v verdict.Verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == 0 {
		return
	}
	if _, asked := b.cancels[id]; !asked {
		b.cancels[id] = v
	}
	b.poke()
}

// take moves up to room waiting jobs out, and all cancels.
func (b *inbox[J]) take(room int) (jobs []J, cancels map[attempt.ID]verdict.Verdict, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(max(room, 0), len(b.waiting))
	jobs = b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	if len(b.cancels) > 0 {
		cancels, b.cancels = b.cancels, map[attempt.ID]verdict.Verdict{}
	}
	return jobs, cancels, b.closed
}

// drop takes the waiting jobs out for which end has a verdict, and returns them with it.
func (b *inbox[J]) drop(end func(J) verdict.Verdict) (jobs []J, vs []verdict.Verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(j J) bool {
		v := end(j)
		if v.IsZero() {
			return false
		}
		jobs, vs = append(jobs, j), append(vs, v)
		return true
	})
	return jobs, vs
}

// ended gives n jobs' places back.
func (b *inbox[J]) ended(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
}

func (b *inbox[J]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.poke()
}

// depth is the number of jobs that wait or run.
func (b *inbox[J]) depth() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

func (b *inbox[J]) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
