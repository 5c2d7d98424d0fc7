package foreign

import (
	"math/rand/v2"

	"github.com/sluicekv/sluice/internal/capacity"
)

// Near is where a request's beginning may lie in a cache: keys of what it begins with, the longest first, and of its session. Keys are
// made with the scope of its tenant and a secret of this process (gateway/affinity.go): what one tenant sent says nothing about where
// another's request goes. The zero Near is no preference.
type Near struct {
	Session uint64
	Prefix  []uint64
}

// affinity remembers where requests went. Two generations bound it: when the younger is full it becomes the older, and the older is
// forgotten; what is asked for moves to the younger.
type affinity struct{ young, old map[uint64]place }

type place struct{ prefill, decode *Node }

// maxPlaces of one generation.
const maxPlaces = 1 << 15

func (a *affinity) get(key uint64) (place, bool) {
	if p, ok := a.young[key]; ok {
		return p, true
	}
	p, ok := a.old[key]
	return p, ok
}

func (a *affinity) set(key uint64, p place) {
	if a.young == nil {
		a.young = map[uint64]place{}
	}
	if _, ok := a.young[key]; !ok && len(a.young) >= maxPlaces {
		a.old, a.young = a.young, map[uint64]place{}
	}
	a.young[key] = p
}

// cold reports whether nothing is remembered of how a request begins.
func (a *affinity) cold(n Near) bool {
	for _, k := range append(n.Prefix[:len(n.Prefix):len(n.Prefix)], n.Session) {
		if _, warm := a.get(k); warm && k != 0 {
			return false
		}
	}
	return len(n.Prefix) > 0
}

func (a *affinity) put(n Near, p Pair) {
	at := place{p.Prefill, p.Decode}
	if n.Session != 0 {
		a.set(n.Session, at)
	}
	for _, k := range n.Prefix {
		a.set(k, at)
	}
}

// near tries the pair of the session, then the worker that computed the longest beginning.
func (c *chooser) near() (Pair, bool) {
	n := c.need.Near
	if n.Session != 0 {
		if at, ok := c.f.affinity.get(n.Session); ok {
			p, d := at.prefill, at.decode
			if c.fits(d) && (p == nil || c.fits(p) && p.class.differ(d.class) == "") && (p != nil) == c.f.two() && c.free(p, d) {
				return Pair{Prefill: p, Decode: d}, true
			}
		}
	}
	for _, k := range n.Prefix {
		at, ok := c.f.affinity.get(k)
		if !ok {
			continue
		}
		if !c.f.two() {
			if d := at.decode; c.fits(d) && c.light(d, fitting(c.t.decodes, c.need.Tokens)) && c.free(nil, d) {
				return Pair{Decode: d}, true
			}
			continue
		}
		p := at.prefill
		if p == nil || !c.fits(p) || c.t.mates[p.class] == nil {
			continue
		}
		ds := fitting(c.t.mates[p.class].decodes, c.need.Tokens)
		for range tries {
			if len(ds) == 0 {
				break
			}
			if d := c.two(ds); d != nil && c.free(p, d) && c.light(p, c.prefills(d)) {
				return Pair{Prefill: p, Decode: d}, true
			}
		}
	}
	return Pair{}, false
}

// fits reports whether a worker that was remembered may still be chosen.
func (c *chooser) fits(n *Node) bool {
	if n == nil {
		return false
	}
	holds := c.need.Tokens
	if n.Role == capacity.Prefill {
		holds = c.need.prompt()
	}
	return n.heir == nil && n.usable() && n.limit.Tokens >= holds && c.open(n)
}

// light reports whether a worker has not much more in flight than another one: a cache is worth a little, and not a queue.
func (c *chooser) light(n *Node, among []*Node) bool {
	if len(among) < 2 {
		return true
	}
	at := rand.IntN(len(among))
	other := among[at]
	if other == n {
		other = among[(at+1)%len(among)]
	}
	return c.cost(n) <= 2*c.cost(other)+4*float64(c.need.Load)
}
