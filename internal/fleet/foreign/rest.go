package foreign

import (
	"fmt"
	"time"
)

// rest of a pair whose legs contradicted each other. A nil rest is over.
type rest struct {
	until   time.Time
	open    int // attempts whose transfer is not provably over
	reason  string
	proof   bool // ejected: it does not serve again by time alone, but by proving itself
	passed  int  // canaries in a row that it answered right
	failed  int  // since it was ejected
	proving bool // a canary is under way
}

func (r *rest) over(now time.Time) bool {
	return r == nil || r.open == 0 && !r.proof && !now.Before(r.until)
}

// Resting reports whether the only thing that keeps a pair from serving is that it rests.
func (f *Fleet) Resting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for key, r := range f.rests {
		if !r.over(now) && f.both(key) {
			return true
		}
	}
	return false
}

// both reports whether the workers of a pair are usable. Under mu.
func (f *Fleet) both(key [2]string) bool {
	d := f.byName[key[1]]
	if d == nil || !d.usable() {
		return false
	}
	if key[0] == "" {
		return !f.two()
	}
	p := f.byName[key[0]]
	return p != nil && p.usable() && p.class.differ(d.class) == ""
}

// Rest takes a pair out of use until over is called, which says that its transfer is provably over. It is also ejected, if no more
// than the configured share of the pairs then is, so that no client can take the fleet down with odd requests: an ejected pair serves
// again when it has proved itself (Due), not before the time of a rest.
func (f *Fleet) Rest(p Pair, reason string) (over func(proven bool)) {
	f.mu.Lock()
	now := time.Now()
	f.rested++
	usable, resting := f.current(now).pairs, 0
	for key, q := range f.rests {
		if key != p.key() && (q.proof || now.Before(q.until)) && f.both(key) {
			resting++
		}
	}
	f.forget(now)
	r := f.rests[p.key()]
	if r == nil {
		r = &rest{}
		f.rests[p.key()] = r
	}
	r.open++
	r.reason = reason
	ejected := resting+1 <= int(f.cfg.Rests.MaxShare*float64(usable))
	if ejected {
		r.until = now.Add(f.cfg.Rests.For << min(r.failed, maxBackoff))
		r.proof = f.cfg.Proofs > 0
		r.passed = 0
	}
	f.change()
	cfg := f.cfg
	f.mu.Unlock()
	prefill, decode := p.Names()
	f.log.Warn("pair rests", "model", cfg.Model, "prefill", prefill, "decode", decode, "ejected", ejected, "for", cfg.Rests.For, "reason", reason)
	return func(proven bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.open--
		if !proven {
			// Nothing says that the transfer is over: the time of a rest stands in for proof, in every case.
			r.until = time.Now().Add(f.cfg.Rests.For)
		}
		f.change()
	}
}

// maxBackoff bounds how often the time of a rest doubles.
const maxBackoff = 4

// maxRests bounds what is remembered of pairs whose workers come and go.
const maxRests = 1 << 16

// forget drops rests that are over. Those of workers that are away stay: who comes back is not absolved. Under mu.
func (f *Fleet) forget(now time.Time) {
	for key, r := range f.rests {
		if r.over(now) || len(f.rests) >= maxRests && r.open == 0 && !f.both(key) {
			delete(f.rests, key)
		}
	}
}

// Due returns an ejected pair that may prove itself now, with a canary's tokens booked on it: Done and Proved must be called. wait is
// when to ask again if there is none; 0: when the fleet changes.
func (f *Fleet) Due(tokens int) (p Pair, wait time.Duration, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for key, r := range f.rests {
		if !r.proof || r.proving || r.open > 0 || !f.both(key) {
			continue
		}
		if left := r.until.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		r.proving = true
		p = f.measured(Pair{Prefill: f.byName[key[0]], Decode: f.byName[key[1]]})
		f.take(&p, tokens, now)
		return p, 0, true
	}
	return Pair{}, wait, false
}

// Proved says how a canary of a pair ended. It returns whether the pair serves again.
func (f *Fleet) Proved(p Pair, good bool, reason string) bool {
	f.mu.Lock()
	r := f.rests[p.key()]
	if r == nil {
		f.mu.Unlock()
		return true
	}
	r.proving = false
	now := time.Now()
	if good {
		r.passed++
	} else {
		r.passed = 0
		r.failed++
		r.reason = reason
		r.until = now.Add(f.cfg.Rests.For << min(r.failed, maxBackoff))
	}
	back := r.passed >= f.cfg.Proofs
	if back {
		r.proof = false
		f.proved++
		for _, n := range []*Node{p.Prefill, p.Decode} {
			if n != nil {
				n.now().since = now
			}
		}
	}
	until, failed, model := r.until, r.failed, f.cfg.Model
	f.change()
	f.mu.Unlock()
	prefill, decode := p.Names()
	switch {
	case back:
		f.log.Warn("pair serves again: it proved itself", "model", model, "prefill", prefill, "decode", decode, "canaries", f.config().Proofs, "failed_before", failed)
	case !good:
		f.log.Warn("pair did not prove itself", "model", model, "prefill", prefill, "decode", decode, "failed", failed, "again_at", until, "reason", reason)
	}
	return back
}

// says tells people why a pair rests.
func (r *rest) says(now time.Time) string {
	s := r.reason
	switch {
	case r.open > 0:
		s += fmt.Sprintf(" (the transfer of %d attempts is not provably over)", r.open)
	case r.proof && r.proving:
		s += " (a canary is under way)"
	case r.proof && !now.Before(r.until):
		s += fmt.Sprintf(" (ejected; %d canaries in a row were right)", r.passed)
	case r.proof:
		s += fmt.Sprintf(" (ejected; canaries failed: %d)", r.failed)
	}
	return s
}
