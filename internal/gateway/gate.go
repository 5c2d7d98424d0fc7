package gateway

import (
	"sync"
	"sync/atomic"

	"github.com/sluicekv/sluice/internal/verdict"
)

// gate counts requests in flight and can be closed to new ones.
type gate struct {
	mu   sync.Mutex
	n    int
	shut bool
	idle chan struct{} // closed when shut and n is 0
	last chan struct{} // closed when shut
}

// closing is closed when the gate closes.
func (g *gate) closing() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		g.last = make(chan struct{})
		if g.shut {
			close(g.last)
		}
	}
	return g.last
}

// enter counts a request in; false when the gate is closed.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.n++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.shut && g.n == 0 {
		close(g.idle)
	}
}

// close refuses new requests. The channel is closed when those in flight have left.
func (g *gate) close() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.shut, g.idle = true, make(chan struct{})
		if g.last != nil {
			close(g.last)
		}
		if g.n == 0 {
			close(g.idle)
		}
	}
	return g.idle
}

func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

func (g *gate) inFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// budget is bytes that requests may hold together.
type budget struct {
	most int64
	held atomic.Int64
}

// take reserves n bytes; false when they are not there.
func (b *budget) take(n int64) bool {
	if b.held.Add(n) > b.most {
		b.held.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.held.Add(-n) }

func modelOff(name, reason string) verdict.Verdict {
	return verdict.Of(verdict.ModelOff, verdict.PlanLayer, "model %s is switched off: %s", name, reason)
}
