package foreign

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Pair is the workers of one attempt; Prefill is nil where one leg does all. Done must be called once when the attempt is quiet.
type Pair struct {
	Prefill, Decode *Node
	Limit           capacity.Limit // of what both hold
	Prompt          int            // longest prompt that fits, in tokens
	Sequence        capacity.Limit // of a prompt and its reply: prefill never holds the reply
	Assumed         bool
	Alone           bool // prefill had nothing else of this gateway's to do when it was chosen
	Cold            bool // nothing that begins like it was sent to any worker, as far as is remembered; false where Need.Near does not say how it begins
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

// table is the usable workers, so that a choice among a quarter of a million pairs looks at a handful of workers. It is made again when
// what may serve changes.
type table struct {
	decodes []*Node // those that have a prefill to go with, or work alone; the widest first
	mates   map[class]*mates
	pairs   int // usable, resting or not
	wide    Pair
	until   time.Time // when a rest ends, and wide may be another; zero: none does by itself
}

// mates are the prefill workers that go with the decode workers of a class, and the other way round; the widest first.
type mates struct{ prefills, decodes []*Node }

// current is the table of this moment. Under mu.
func (f *Fleet) current(now time.Time) *table {
	if t := f.table; t != nil && (t.until.IsZero() || now.Before(t.until)) {
		return t
	}
	t := &table{mates: map[class]*mates{}}
	f.table = t
	var prefills, decodes []*Node
	for _, n := range f.workers {
		switch {
		case !n.usable():
		case n.Role == capacity.Prefill:
			prefills = append(prefills, n)
		default:
			decodes = append(decodes, n)
		}
	}
	widestFirst(prefills)
	widestFirst(decodes)
	if f.two() {
		// Workers are many and classes few.
		byClass := func(ns []*Node) (cs []class) {
			seen := map[class]bool{}
			for _, n := range ns {
				if !seen[n.class] {
					seen[n.class] = true
					cs = append(cs, n.class)
				}
			}
			return cs
		}
		pcs, dcs := byClass(prefills), byClass(decodes)
		fill := func(into *[]*Node, from []*Node, a class, prefill bool) {
			goes := map[class]bool{}
			for _, n := range from {
				ok, known := goes[n.class]
				if !known {
					if ok = a.differ(n.class) == ""; !prefill {
						ok = n.class.differ(a) == ""
					}
					goes[n.class] = ok
				}
				if ok {
					*into = append(*into, n)
				}
			}
		}
		for _, c := range dcs {
			fill(&t.mate(c).prefills, prefills, c, false)
		}
		for _, c := range pcs {
			fill(&t.mate(c).decodes, decodes, c, true)
		}
		decodes = slices.DeleteFunc(decodes, func(n *Node) bool { return len(t.mates[n.class].prefills) == 0 })
	}
	t.decodes = decodes
	for _, d := range decodes {
		if f.two() {
			t.pairs += len(t.mates[d.class].prefills)
		} else {
			t.pairs++
		}
	}
	for _, r := range f.rests {
		if r.open == 0 && !r.proof && now.Before(r.until) && (t.until.IsZero() || r.until.Before(t.until)) {
			t.until = r.until
		}
	}
	t.wide = f.widestOf(t, now)
	return t
}

func (t *table) mate(c class) *mates {
	m := t.mates[c]
	if m == nil {
		m = &mates{}
		t.mates[c] = m
	}
	return m
}

func widestFirst(ns []*Node) {
	slices.SortStableFunc(ns, func(a, b *Node) int { return b.limit.Tokens - a.limit.Tokens })
}

// fitting is those that hold a sequence of n tokens.
func fitting(ns []*Node, n int) []*Node {
	return ns[:sort.Search(len(ns), func(i int) bool { return ns[i].limit.Tokens < n })]
}

// widestOf is the pair with the widest limit that may serve now.
func (f *Fleet) widestOf(t *table, now time.Time) (w Pair) {
	for _, d := range t.decodes {
		if d.limit.Tokens <= w.Limit.Tokens {
			break
		}
		if !f.two() {
			if f.rests[[2]string{"", d.Name}].over(now) {
				return f.measured(Pair{Decode: d})
			}
			continue
		}
		for _, p := range t.mates[d.class].prefills {
			if p.limit.Tokens <= w.Limit.Tokens {
				break
			}
			if f.rests[[2]string{p.Name, d.Name}].over(now) {
				w = f.measured(Pair{Prefill: p, Decode: d})
				break
			}
		}
	}
	return w
}

// measured fills the limits of a pair. Under mu.
func (f *Fleet) measured(p Pair) Pair {
	p.Limit = p.Decode.limit
	p.Prompt = p.Decode.longest
	if p.Prefill != nil {
		p.Assumed = p.Decode.assumed
		if p.Prefill.limit.Tokens <= p.Limit.Tokens {
			p.Limit = p.Prefill.limit
		}
		p.Prompt = min(p.Prompt, p.Prefill.longest)
	}
	p.Prompt = min(p.Prompt, p.Limit.Tokens)
	p.Sequence = p.Decode.limit
	// Both legs of SGLang get the client's own bound on the reply, and prefill's front holds the sum against its context.
	if p.Prefill != nil && f.cfg.Engine == SGLang && p.Prefill.facts.Context > 0 && p.Prefill.facts.Context < p.Sequence.Tokens {
		p.Sequence = capacity.Limit{Tokens: p.Prefill.facts.Context, Setter: "the context of prefill " + p.Prefill.Name, Node: p.Prefill.Name}
	}
	return p
}

// Holds reports whether an attempt fits a pair.
func (p Pair) Holds(n Need) bool {
	return p.Sequence.Tokens >= n.Tokens && p.Limit.Tokens >= n.prompt()
}

// Need is what an attempt needs of a pair.
type Need struct {
	Tokens int // prompt and reply, which decode must hold; a pair with a lower limit is chosen only if there is none that fits
	Prompt int // of them the prompt, which prefill must hold; 0: all
	Load   int
	Not    [2]string // the pair of the attempt before
	Near   Near      // where what it begins with may be cached
}

func (n Need) prompt() int {
	if n.Prompt == 0 {
		return n.Tokens
	}
	return n.Prompt
}

// tries is how many workers are drawn before all are looked at.
const tries = 8

// Pick chooses a pair: of those that fit, near what is cached if that costs little, else the one with the fewest tokens in flight, by the
// power of two choices. The verdict is Overloaded when no pair can serve, RateLimited when all that could are at their budget.
func (f *Fleet) Pick(n Need) (Pair, verdict.Verdict) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.current(now)
	c := chooser{f: f, t: t, need: n, now: now}
	p, ok := c.near()
	if !ok {
		p, ok = c.drawn()
	}
	if !ok {
		p, ok = c.searched()
	}
	if !ok && !c.full {
		// Nothing fits: admission then says the limit, the widest there is.
		if w := t.wide; w.Decode != nil && !w.Holds(n) && w.key() != n.Not {
			p, ok = w, true
		}
	}
	switch {
	case ok:
		p = f.measured(p)
		p.Alone, p.Cold = p.Prefill != nil && p.Prefill.holds == 0, f.affinity.cold(n.Near)
		f.take(&p, n.Load, now)
		f.affinity.put(n.Near, p)
		return p, verdict.Verdict{}
	case c.full:
		return Pair{}, verdict.Of(verdict.RateLimited, verdict.PlanLayer, "all workers of model %s have their budget of %d tokens in flight", f.cfg.Model, f.cfg.Budget)
	}
	return Pair{}, f.unready(now)
}

// take books an attempt on a pair. Under mu.
func (f *Fleet) take(p *Pair, load int, now time.Time) {
	p.tokens = load
	for _, n := range []*Node{p.Prefill, p.Decode} {
		if n == nil {
			continue
		}
		*n.load += load
		n.holds++
		n.trial = n.trial || n.failures > 0 && !now.Before(n.shunned)
	}
}

// chooser chooses one pair.
type chooser struct {
	f    *Fleet
	t    *table
	need Need
	now  time.Time
	full bool // a worker was passed over for its budget alone
}

// open reports whether a worker is one to choose: within its budget, and not one that failed just now, or that is being tried after.
func (c *chooser) open(n *Node) bool {
	return c.within(n) && (n.failures == 0 || !n.trial && !c.now.Before(n.shunned))
}

// within reports whether a worker's budget allows the attempt. One alone always may.
func (c *chooser) within(n *Node) bool {
	ok := c.f.cfg.Budget <= 0 || *n.load == 0 || *n.load+c.need.Load <= c.f.cfg.Budget
	c.full = c.full || !ok
	return ok
}

// cost is what is in flight on a worker with the attempt, more for one that came a moment ago: its caches are cold.
func (c *chooser) cost(n *Node) float64 {
	v := float64(*n.load + max(c.need.Load, 1))
	if over := c.f.cfg.SlowStart; over > 0 {
		if age := c.now.Sub(n.since); age < over {
			v /= max(float64(age)/float64(over), 0.1)
		}
	}
	return v
}

// two draws two workers and returns the one with less in flight; nil if neither is open.
func (c *chooser) two(ns []*Node) *Node {
	a, b := ns[rand.IntN(len(ns))], ns[rand.IntN(len(ns))]
	oa, ob := c.open(a), c.open(b)
	switch {
	case oa && ob && c.cost(b) < c.cost(a), !oa && ob:
		return b
	case oa:
		return a
	}
	return nil
}

// free reports whether a pair may serve, its workers being open.
func (c *chooser) free(p, d *Node) bool {
	key := Pair{Prefill: p, Decode: d}.key()
	return key != c.need.Not && (len(c.f.rests) == 0 || c.f.rests[key].over(c.now))
}

func (c *chooser) prefills(d *Node) []*Node {
	return fitting(c.t.mates[d.class].prefills, c.need.prompt())
}

// drawn draws pairs until one may serve.
func (c *chooser) drawn() (Pair, bool) {
	ds := fitting(c.t.decodes, c.need.Tokens)
	if len(ds) == 0 {
		return Pair{}, false
	}
	for range tries {
		d := c.two(ds)
		if d == nil {
			continue
		}
		if !c.f.two() {
			if c.free(nil, d) {
				return Pair{Decode: d}, true
			}
			continue
		}
		ps := c.prefills(d)
		if len(ps) == 0 {
			continue
		}
		if p := c.two(ps); p != nil && c.free(p, d) {
			return Pair{Prefill: p, Decode: d}, true
		}
	}
	return Pair{}, false
}

// searched looks at all workers, from a random one on: open ones first, then those that failed just now.
func (c *chooser) searched() (Pair, bool) {
	ds := fitting(c.t.decodes, c.need.Tokens)
	for _, may := range []func(*Node) bool{c.open, c.within} {
		good := keep(ds, may)
		mates := map[class][]*Node{}
		for d := range from(good) {
			if !c.f.two() {
				if c.free(nil, d) {
					return Pair{Decode: d}, true
				}
				continue
			}
			ps, ok := mates[d.class]
			if !ok {
				ps = keep(c.prefills(d), may)
				mates[d.class] = ps
			}
			for p := range from(ps) {
				if c.free(p, d) {
					return Pair{Prefill: p, Decode: d}, true
				}
			}
		}
	}
	return Pair{}, false
}

func keep(ns []*Node, may func(*Node) bool) (out []*Node) {
	for _, n := range ns {
		if may(n) {
			out = append(out, n)
		}
	}
	return out
}

// from yields all of ns, beginning anywhere.
func from(ns []*Node) func(func(*Node) bool) {
	return func(yield func(*Node) bool) {
		if len(ns) == 0 {
			return
		}
		at := rand.IntN(len(ns))
		for i := range ns {
			if !yield(ns[(at+i)%len(ns)]) {
				return
			}
		}
	}
}

// Done gives an attempt's tokens back.
func (f *Fleet) Done(p Pair) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := false
	for _, n := range []*Node{p.Prefill, p.Decode} {
		if n != nil {
			*n.load -= p.tokens
			n.holds--
			if n.holds == 0 {
				n.trial = false
			}
			gone = gone || n.gone
		}
	}
	if gone {
		f.left()
	}
	if f.cfg.Budget > 0 {
		f.wake()
	}
}

// Failed notes that a worker could not be reached or failed by itself; Worked that it answered.
func (f *Fleet) Failed(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n = n.now()
	n.failures++
	n.trial = false
	n.shunned = time.Now().Add(min(time.Second<<min(n.failures-1, 5), 30*time.Second))
}

// Worked notes that a worker answered.
func (f *Fleet) Worked(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n = n.now()
	if n.failures >= coldAfter {
		n.since = time.Now()
	}
	n.failures, n.trial, n.shunned = 0, false, time.Time{}
}

// coldAfter is how many failures in a row make a worker start slowly again.
const coldAfter = 3

// Limit is what the fleet can promise now: the widest of its usable pairs. It is zero when none can serve.
func (f *Fleet) Limit() capacity.Limit { return f.Widest().Limit }

// Widest is the pair with the widest limit.
func (f *Fleet) Widest() Pair {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current(time.Now()).wide
}

// Unready is what a request is told while no pair can serve: counts and no addresses.
func (f *Fleet) Unready() verdict.Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unready(time.Now())
}

func (f *Fleet) unready(now time.Time) verdict.Verdict {
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
	if len(f.workers) == 0 {
		s = "no worker is known"
	}
	if resting > 0 {
		s += fmt.Sprintf(", %d pairs rest", resting)
	}
	return verdict.Of(verdict.Overloaded, verdict.PlanLayer, "no pair can serve model %s now: %s", f.cfg.Model, s)
}
