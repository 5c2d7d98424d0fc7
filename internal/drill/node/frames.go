package node

import (
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// frames holds the rules for a worker's frames.
type frames struct {
	mu    sync.Mutex
	rules []Rule
	seen  []int
	fired int
}

func (r *frames) set(rules []Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules, r.seen, r.fired = rules, make([]int, len(rules)), 0
}

func (r *frames) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired
}

// filter is a worker.FrameFilter. The first rule that fits decides.
func (r *frames) filter(m wire.Medium, out bool, f wire.Frame) int {
	r.mu.Lock()
	for i, rule := range r.rules {
		if rule.Kind != f.Kind().String() || rule.Data != (m == wire.Data) || rule.Out != out {
			continue
		}
		n := r.seen[i]
		r.seen[i]++
		if n < rule.Skip || rule.Most > 0 && n >= rule.Skip+rule.Most {
			continue
		}
		if i == 0 { // later rules set the scene
			r.fired++
		}
		r.mu.Unlock()
		time.Sleep(time.Duration(rule.Delay) * time.Millisecond) // the fault itself
		return rule.Times
	}
	r.mu.Unlock()
	return 1
}
