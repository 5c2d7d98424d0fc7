package node

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
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
func (r *frames) filter(m wire.Medium, out bool, f wire.Frame) []wire.Frame {
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
		if facts, ok := f.(wire.Facts); ok && rule.Claim > 0 {
			return []wire.Frame{claim(facts, rule.Claim)}
		}
		if early := ahead(rule.Ahead, f); early != nil {
			return []wire.Frame{early, f}
		}
		return slices.Repeat([]wire.Frame{f}, rule.Times)
	}
	r.mu.Unlock()
	return []wire.Frame{f}
}

// ahead makes a frame of a kind for the attempt of f; nil: there is none.
func ahead(kind string, f wire.Frame) wire.Frame {
	var id attempt.ID
	switch f := f.(type) {
	case wire.Reserved:
		id = f.Attempt
	case wire.Outcome:
		id = f.Attempt
	case wire.Attach:
		id = f.Attempt
	}
	switch kind {
	case "settled":
		return wire.Settled{Attempt: id}
	case "sealed":
		return wire.Sealed{Attempt: id, Tokens: 1, Written: 1}
	case "end":
		return wire.End{Attempt: id}
	}
	return nil
}

// claim makes a worker's facts say that so many tokens fit.
func claim(f wire.Facts, tokens int) wire.Facts {
	var facts capacity.Facts
	if err := json.Unmarshal(f.JSON, &facts); err != nil {
		panic("drill: a worker's own facts do not parse: " + err.Error())
	}
	facts.PoolTokens, facts.Context = max(facts.PoolTokens, tokens), max(facts.Context, tokens)
	b, err := json.Marshal(facts)
	if err != nil {
		panic("drill: facts do not marshal: " + err.Error())
	}
	f.JSON = b
	return f
}
