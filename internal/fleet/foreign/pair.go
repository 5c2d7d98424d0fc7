package foreign

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Pair is the workers of one attempt; Prefill is nil where one leg does all. Done must be called once when the attempt is quiet.
type Pair struct {
	Prefill, Decode *Node
	Limit           capacity.Limit
	Prompt          int // longest prompt that fits, in tokens
	Assumed         bool
	tokens          int
}

// Names of the workers.
func (p Pair) Names() (prefill, decode string) {
	if p.Prefill != nil {
		prefill = p.Prefill.Name
	}
	return prefill, p.Decode.Name
}

func (p Pair) key() [2]string {
	a, b := p.Names()
	return [2]string{a, b}
}

// rest of a pair whose legs contradicted each other.
type rest struct {
	until  time.Time
	open   int // attempts whose transfer is not provably over
	reason string
}

func (r *rest) over(now time.Time) bool { return r.open == 0 && !now.Before(r.until) }

// usable reports whether a worker may be asked. Under mu.
func (n *Node) usable() bool { return n.reason == "" && n.limit.Tokens > 0 }

// differ says in what two workers differ that may not, "" if in nothing known.
func differ(p, d *Node) string {
	a, b := p.facts, d.facts
	switch {
	case a.PageSize > 0 && b.PageSize > 0 && a.PageSize != b.PageSize:
		return fmt.Sprintf("page size: %d and %d", a.PageSize, b.PageSize)
	case a.DType != "" && b.DType != "" && a.DType != b.DType:
		return fmt.Sprintf("KV dtype: %q and %q", a.DType, b.DType)
	case a.Version != "" && b.Version != "" && a.Version != b.Version:
		return fmt.Sprintf("version: %q and %q", a.Version, b.Version)
	case a.Connector != "" && b.Connector != "" && a.Connector != b.Connector:
		return fmt.Sprintf("connector: %q and %q", a.Connector, b.Connector)
	}
	return ""
}

// pairs yields every pair, in the order of the configuration. Under mu.
func (f *Fleet) pairs(yield func(Pair) bool) {
	for _, d := range f.workers {
		switch {
		case !f.two():
			if !yield(Pair{Decode: d}) {
				return
			}
		case d.Role == capacity.Decode:
			for _, p := range f.workers {
				if p.Role == capacity.Prefill && !yield(Pair{Prefill: p, Decode: d}) {
					return
				}
			}
		}
	}
}

// measured fills the limits of a pair. Under mu.
func (f *Fleet) measured(p Pair) Pair {
	p.Limit = p.Decode.limit
	p.Prompt = f.longest(p.Decode)
	if p.Prefill != nil {
		p.Assumed = p.Decode.assumed
		if p.Prefill.limit.Tokens <= p.Limit.Tokens {
			p.Limit = p.Prefill.limit
		}
		p.Prompt = min(p.Prompt, f.longest(p.Prefill))
	}
	p.Prompt = min(p.Prompt, p.Limit.Tokens)
	return p
}

func (f *Fleet) longest(n *Node) int {
	if n.assumed {
		return n.limit.Tokens
	}
	return capacity.LongestPrompt(f.engine, n.facts.PoolTokens, n.facts.Context)
}

// serves reports whether a pair may be used now. Under mu.
func (f *Fleet) serves(p Pair, now time.Time) bool {
	if !p.Decode.usable() || p.Prefill != nil && (!p.Prefill.usable() || differ(p.Prefill, p.Decode) != "") {
		return false
	}
	r := f.rests[p.key()]
	return r == nil || r.over(now)
}

// Need is what an attempt needs of a pair.
type Need struct {
	Tokens int // prompt and reply; a pair with a lower limit is chosen only if there is none that fits
	Load   int
	Not    [2]string // the pair of the attempt before
}

// Pick chooses a pair: of those that fit, the one with the fewest tokens in flight, by the power of two choices. The verdict is
// Overloaded when no pair can serve, RateLimited when all that could are at their budget.
func (f *Fleet) Pick(n Need) (Pair, verdict.Verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	var fit, shunned, small []Pair
	full := false
	for p := range f.pairs {
		if !f.serves(p, now) || n.Not != [2]string{} && p.key() == n.Not {
			continue
		}
		p = f.measured(p)
		switch {
		case f.cfg.Budget > 0 && f.busy(p)+n.Load > f.cfg.Budget && f.busy(p) > 0:
			full = true
		case p.Limit.Tokens < n.Tokens:
			small = append(small, p)
		case now.Before(p.Decode.shunned) || p.Prefill != nil && now.Before(p.Prefill.shunned):
			shunned = append(shunned, p)
		default:
			fit = append(fit, p)
		}
	}
	if len(fit) == 0 {
		fit = shunned
	}
	if len(fit) == 0 && !full {
		// Admission then says the limit, the widest there is.
		for _, p := range small {
			if len(fit) == 0 || p.Limit.Tokens > fit[0].Limit.Tokens {
				fit = []Pair{p}
			}
		}
	}
	if len(fit) == 0 {
		if full {
			return Pair{}, verdict.Of(verdict.RateLimited, verdict.PlanLayer, "all workers of model %s have their budget of %d tokens in flight", f.cfg.Model, f.cfg.Budget)
		}
		return Pair{}, f.unready()
	}
	best := fit[rand.IntN(len(fit))]
	if other := fit[rand.IntN(len(fit))]; f.busy(other) < f.busy(best) {
		best = other
	}
	best.tokens = n.Load
	best.Decode.load += n.Load
	if best.Prefill != nil {
		best.Prefill.load += n.Load
	}
	return best, verdict.Verdict{}
}

func (f *Fleet) busy(p Pair) int {
	if p.Prefill == nil {
		return p.Decode.load
	}
	return max(p.Prefill.load, p.Decode.load)
}

// Done gives an attempt's tokens back.
func (f *Fleet) Done(p Pair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.Decode.load -= p.tokens
	if p.Prefill != nil {
		p.Prefill.load -= p.tokens
	}
	if f.cfg.Budget > 0 {
		f.change()
	}
}

// Resting reports whether the only thing that keeps a pair from serving is that it rests.
func (f *Fleet) Resting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for p := range f.pairs {
		if r := f.rests[p.key()]; r != nil && !r.over(now) && p.Decode.usable() && (p.Prefill == nil || p.Prefill.usable()) {
			return true
		}
	}
	return false
}

// Rest takes a pair out of use until over is called, which says that its transfer is provably over; and for the time of a rest, if
// no more than the configured share of the pairs rests with it, so that no client can take the fleet down with odd requests.
func (f *Fleet) Rest(p Pair, reason string) (over func(proven bool)) {
	f.mu.Lock()
	now := time.Now()
	f.rested++
	usable, resting := 0, 0
	for q := range f.pairs {
		if q.Decode.usable() && (q.Prefill == nil || q.Prefill.usable()) {
			usable++
			if r := f.rests[q.key()]; r != nil && q.key() != p.key() && now.Before(r.until) {
				resting++
			}
		}
	}
	r := f.rests[p.key()]
	if r == nil {
		r = &rest{}
		f.rests[p.key()] = r
	}
	r.open++
	r.reason = reason
	long := resting+1 <= int(f.cfg.Rests.MaxShare*float64(usable))
	if long {
		r.until = now.Add(f.cfg.Rests.For)
	}
	f.change()
	f.mu.Unlock()
	prefill, decode := p.Names()
	f.cfg.Log.Warn("pair rests", "model", f.cfg.Model, "prefill", prefill, "decode", decode, "until_proven", true, "for", f.cfg.Rests.For, "within_share", long, "reason", reason)
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

// Failed notes that a worker could not be reached or failed by itself; Worked that it answered.
func (f *Fleet) Failed(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.failures++
	n.shunned = time.Now().Add(min(time.Second<<min(n.failures-1, 5), 30*time.Second))
}

// Worked notes that a worker answered.
func (f *Fleet) Worked(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.failures, n.shunned = 0, time.Time{}
}

// Limit is what the fleet can promise now: the widest of its usable pairs. It is zero when none can serve.
func (f *Fleet) Limit() capacity.Limit {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.widest(time.Now()).Limit
}

// Widest is the pair with the widest limit.
func (f *Fleet) Widest() Pair {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.widest(time.Now())
}

func (f *Fleet) widest(now time.Time) (w Pair) {
	for p := range f.pairs {
		if f.serves(p, now) {
			if p = f.measured(p); p.Limit.Tokens > w.Limit.Tokens {
				w = p
			}
		}
	}
	return w
}

// Unready is what a request is told while no pair can serve: counts and no addresses.
func (f *Fleet) Unready() verdict.Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unready()
}

func (f *Fleet) unready() verdict.Verdict {
	count := map[capacity.Role][2]int{}
	resting := 0
	for _, n := range f.workers {
		c := count[n.Role]
		c[1]++
		if n.usable() {
			c[0]++
		}
		count[n.Role] = c
	}
	now := time.Now()
	for _, r := range f.rests {
		if !r.over(now) {
			resting++
		}
	}
	s := ""
	for _, r := range []capacity.Role{capacity.Prefill, capacity.Decode, capacity.Both} {
		if c := count[r]; c[1] > 0 {
			if s != "" {
				s += ", "
			}
			s += fmt.Sprintf("%d of %d %s workers are usable", c[0], c[1], r)
		}
	}
	if resting > 0 {
		s += fmt.Sprintf(", %d pairs rest", resting)
	}
	return verdict.Of(verdict.Overloaded, verdict.PlanLayer, "no pair can serve model %s now: %s", f.cfg.Model, s)
}
