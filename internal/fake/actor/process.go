package actor

import (
	"context"
	"time"
)

// Process is one life of a worker. A call belongs to the process that took it: what it takes of its pages goes back there, though the
// worker may have restarted meanwhile.
type Process struct {
	Pages *Pages
	Down  chan struct{} // closed when the process ends
	boot  time.Time
	nth   int
}

type processKey struct{}

// Process that took a request, or that runs now.
func (w *Worker) Process(ctx context.Context) *Process {
	if p, ok := ctx.Value(processKey{}).(*Process); ok {
		return p
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.process
}

// Ended reports whether the process is no more: who closed its connections then is nobody else.
func (p *Process) Ended() bool {
	select {
	case <-p.Down:
		return true
	default:
		return false
	}
}

// Take allocates pages and waits for them, as an engine's queue does. It is nil when the request or its patience ended.
func (p *Process) Take(ctx context.Context, n int, patience time.Duration) []int {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		ids, freed := p.Pages.Alloc(n)
		if ids != nil || n == 0 {
			return ids
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil
		case <-p.Down:
			return nil
		case <-deadline.C:
			return nil
		}
	}
}
