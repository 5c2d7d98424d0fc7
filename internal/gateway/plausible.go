package gateway

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/verdict"
)

// floors are how fast each pair was ever seen to compute a prompt, per token: a reply that comes much faster than that was not
// computed from its prompt. One-sided: slow says nothing.
//
// A floor is learned only from attempts that had prefill to themselves: under a load every answer has waited for others, and the first
// that has not would look like a miracle. Tokens that prefill had in its cache are not computed, and do not count.
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

// best is the least time that a pair was seen to take for n tokens; 0 while that is not known.
func (s *floors) best(pair [2]string, n int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.pairs[pair]; f != nil && f.samples >= enough {
		return f.best * time.Duration(n) / 1024
	}
	return 0
}

// learn takes a time as a sample.
func (s *floors) learn(pair [2]string, n int, took time.Duration) {
	per := took * 1024 / time.Duration(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.pairs[pair]
	if f == nil {
		for other := range s.pairs {
			if len(s.pairs) < maxFloorKeys {
				break
			}
			delete(s.pairs, other) // of a pair that may be long gone: it is learned again if it is not
		}
		if s.pairs == nil {
			s.pairs = map[[2]string]*floor{}
		}
		f = &floor{best: per}
		s.pairs[pair] = f
	}
	f.samples++
	f.best = min(f.best, per)
}

// uncached is how many tokens prefill had to compute, 0 where that cannot be said: what it had in its cache is not known.
func uncached(rep web.Report, cold bool) int {
	n := max(rep.DecodePrompt, rep.Prompt)
	switch {
	case rep.Cached >= 0:
		return n - rep.Cached
	case cold:
		return n
	}
	return 0
}

// tooFast reports whether prefill answered faster than it can compute: n tokens, for which it took best, at least, before.
func (s *floors) tooFast(pair [2]string, rep web.Report, cold bool) (n int, best time.Duration, is bool) {
	n = uncached(rep, cold)
	if n < longPrompt || rep.Prefill <= 0 {
		return n, 0, false
	}
	best = s.best(pair, n)
	return n, best, rep.Prefill*fasterByFar < best
}

// implausible is the guard's objection, if it has one.
func (l *guardedLeg) implausible() (objection, bool) {
	mode := l.modes.Of(guardPlausibility)
	if mode == Off || l.pair.Prefill == nil {
		return objection{}, false
	}
	rep := l.run.Report()
	a, b := l.pair.Names()
	n, best, is := l.model.guarded.floor.tooFast([2]string{a, b}, rep, l.pair.Cold)
	if !is {
		return objection{}, false
	}
	return objection{guardPlausibility, mode, fmt.Sprintf("prefill answered %d tokens in %v, at best it took %v before", n, rep.Prefill, best)}, true
}

// doubt judges a reply that is about to leave, once: whether prefill can have computed its prompt. The verdict is zero unless the guard
// enforces. It is no proof against the pair, which may have got a faster machine: the attempt fails, and that is counted.
func (l *guardedLeg) doubt() (v verdict.Verdict) {
	if l.doubted {
		return v
	}
	l.doubted = true
	o, bad := l.implausible()
	if !bad {
		return v
	}
	l.object(o)
	if o.mode == Enforce {
		v = verdict.Of(verdict.EngineFailed, verdict.Prefill, "implausible: %s", o.detail)
		v.Status = http.StatusBadGateway
	}
	return v
}

// learn takes an honest reply as a sample.
func (l *guardedLeg) learn() {
	rep := l.run.Report()
	n := uncached(rep, l.pair.Cold)
	if n < longPrompt || rep.Prefill <= 0 || !l.pair.Alone || l.learned {
		return
	}
	l.learned = true
	a, b := l.pair.Names()
	l.model.guarded.floor.learn([2]string{a, b}, n, rep.Prefill)
}
