package gateway

import (
	"fmt"
	"sync"
	"time"
)

// floors are how fast each pair was ever seen to compute a prompt, per token: a reply that comes much faster than that was not
// computed from its prompt. One-sided: slow says nothing.
type floors struct {
	mu    sync.Mutex
	pairs map[[2]string]*floor
}

type floor struct {
	samples int
	best    time.Duration // per 1024 tokens
}

const (
	longPrompt   = 1024 // tokens: below, set-up outweighs computing
	enough       = 32   // samples before a floor counts
	fasterByFar  = 8    // times faster than the fastest so far
	maxFloorKeys = 1 << 16
)

// implausible reports whether prefill answered faster than it can compute.
func (l *guardedLeg) implausible() (objection, bool) {
	rep := l.run.Report()
	n := max(rep.DecodePrompt, rep.Prompt)
	if n < longPrompt || rep.Prefill <= 0 || l.pair.Prefill == nil {
		return objection{}, false
	}
	per := rep.Prefill * 1024 / time.Duration(n)
	a, b := l.pair.Names()
	s := &l.model.guarded.floor
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.pairs[[2]string{a, b}]
	if f == nil || f.samples < enough || per*fasterByFar >= f.best {
		return objection{}, false
	}
	return objection{guardPlausibility, l.modes.Of(guardPlausibility), fmt.Sprintf("prefill answered %d tokens in %v, at best it took %v before", n, rep.Prefill, f.best*time.Duration(n)/1024)}, true
}

// learn takes an honest reply as a sample. A cached prefix makes it fast, which only lowers the floor.
func (l *guardedLeg) learn() {
	rep := l.run.Report()
	n := max(rep.DecodePrompt, rep.Prompt)
	if n < longPrompt || rep.Prefill <= 0 || l.pair.Prefill == nil {
		return
	}
	per := rep.Prefill * 1024 / time.Duration(n)
	a, b := l.pair.Names()
	s := &l.model.guarded.floor
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pairs == nil {
		s.pairs = map[[2]string]*floor{}
	}
	f := s.pairs[[2]string{a, b}]
	if f == nil {
		if len(s.pairs) >= maxFloorKeys {
			return
		}
		f = &floor{best: per}
		s.pairs[[2]string{a, b}] = f
	}
	f.samples++
	f.best = min(f.best, per)
}
