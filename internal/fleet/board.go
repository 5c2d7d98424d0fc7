package fleet

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/wire"
)

// link state of a worker.
type state uint8

const (
	// Connecting: no link; it is being dialled. Left by up to Up, by down to Refused.
	Connecting state = iota
	// Up: linked, its facts are read. Left by down to Connecting or Refused.
	Up
	// Refused: the worker answered and is not one to use; reason says why. It is dialled again, since it may restart as another.
	Refused
)

func (s state) String() string { return [...]string{"connecting", "up", "refused"}[s] }

// worker on the board.
type worker struct {
	name, addr string
	role       capacity.Role
	state      state
	reason     string // of Connecting and Refused
	boots      int    // how often it came up with another boot
	boot       page.Boot
	hello      wire.Hello
	facts      capacity.Facts
	data       string // host:port of decode's data socket
	draining   bool
	limit      capacity.Limit
	shape      shape
	class      int // of the shape: equal classes, equal shapes
	epoch      int // grows each time it comes up: loads of a link that ended are not given back twice
	load       int // tokens in flight on this link
}

// shape is what the two workers of a pair must have in common.
type shape struct {
	model    [32]byte
	geometry page.Geometry
	pageSize int
	dtype    string
	version  string
	encrypts bool // data links
}

func (w *worker) usable() bool { return w.state == Up && !w.draining && w.limit.Tokens > 0 }

// takes reports whether decode can be reached by prefill and takes a whole page.
func (w *worker) takes() bool {
	return w.data != "" && int64(w.hello.MaxPage) >= int64(w.hello.Geometry.Bytes())
}

type pairKey struct{ prefill, decode string }

type rest struct {
	until  time.Time
	reason string
}

// board is the pure part: who is up, what fits, who rests. Not safe for concurrent use.
type board struct {
	rests   Rests
	byName  map[string]*worker
	prefill []*worker
	decode  []*worker
	ready   [2][]*worker // prefill and decode that are usable, by falling limit
	classes map[shape]int
	resting map[pairKey]rest
	rested  uint64 // pairs, since the beginning
}

func newBoard(r Rests) *board {
	return &board{rests: r, byName: map[string]*worker{}, classes: map[shape]int{}, resting: map[pairKey]rest{}}
}

func (b *board) add(name string, role capacity.Role, addr string) bool {
	if b.byName[name] != nil {
		return false
	}
	w := &worker{name: name, role: role, addr: addr, reason: "not dialled yet"}
	b.byName[name] = w
	if role == capacity.Prefill {
		b.prefill = append(b.prefill, w)
	} else {
		b.decode = append(b.decode, w)
	}
	return true
}

// up takes a worker into use, or notes that its facts changed.
func (b *board) up(name string, h wire.Hello, f capacity.Facts, data string, draining bool) {
	w := b.byName[name]
	if w.state != Up {
		w.epoch++
		if w.boot != h.Boot {
			w.boots++
		}
	}
	w.state, w.reason = Up, ""
	w.boot, w.hello, w.facts, w.data, w.draining = h.Boot, h, f, data, draining
	w.limit = capacity.Node(f)
	w.shape = shape{h.Model, h.Geometry, f.PageSize, f.DType, f.Version, f.EncryptData}
	if _, known := b.classes[w.shape]; !known {
		b.classes[w.shape] = len(b.classes)
	}
	w.class = b.classes[w.shape]
	b.sort()
}

// sort lists the usable workers anew.
func (b *board) sort() {
	for i, all := range [2][]*worker{b.prefill, b.decode} {
		b.ready[i] = b.ready[i][:0]
		for _, w := range all {
			if w.usable() && (i == 0 || w.takes()) {
				b.ready[i] = append(b.ready[i], w)
			}
		}
		slices.SortStableFunc(b.ready[i], func(x, y *worker) int { return y.limit.Tokens - x.limit.Tokens })
	}
}

// down takes a worker out of use.
func (b *board) down(name string, s state, reason string) {
	w := b.byName[name]
	w.state, w.reason, w.load = s, reason, 0
	b.sort()
}

func (b *board) unload(name string, epoch, tokens int) {
	if w := b.byName[name]; w.epoch == epoch && w.state == Up {
		w.load -= tokens
	}
}

// differ says in what the two workers of a pair differ, "" if in nothing that matters.
func differ(p, d *worker) string {
	a, z := p.shape, d.shape
	switch {
	case a.model != z.model:
		return fmt.Sprintf("model: %x and %x", a.model[:4], z.model[:4])
	case a.geometry != z.geometry:
		return fmt.Sprintf("page geometry: %s and %s", a.geometry, z.geometry)
	case a.pageSize != z.pageSize:
		return fmt.Sprintf("page size: %d and %d", a.pageSize, z.pageSize)
	case a.dtype != z.dtype:
		return fmt.Sprintf("KV dtype: %q and %q", a.dtype, z.dtype)
	case a.encrypts != z.encrypts:
		return fmt.Sprintf("--encrypt-data: %v and %v", a.encrypts, z.encrypts)
	case a.version != z.version:
		return fmt.Sprintf("version: %q and %q", a.version, z.version)
	case int64(d.hello.MaxPage) < int64(a.geometry.Bytes()):
		return fmt.Sprintf("page bytes: %d, and decode takes %d", a.geometry.Bytes(), d.hello.MaxPage)
	case d.data == "":
		return "decode names no data socket"
	}
	return ""
}

// pairLimit is capacity.Pair from limits that are computed already.
func pairLimit(p, d *worker) capacity.Limit {
	if d.limit.Tokens < p.limit.Tokens {
		return d.limit
	}
	return p.limit
}

// choice of a pair.
type choice struct {
	prefill, decode *worker
	limit           capacity.Limit
}

func (c choice) load() int { return c.prefill.load + c.decode.load }

// serves reports whether a pair of usable workers may be used now.
func (b *board) serves(p, d *worker, now time.Time) bool {
	if p.class != d.class {
		return false
	}
	if len(b.resting) == 0 {
		return true
	}
	r, resting := b.resting[pairKey{p.name, d.name}]
	return !resting || !now.Before(r.until)
}

// samples is how often two random pairs are looked for before all are.
const samples = 16

// pick chooses a pair for a need. intn is a source of random numbers below n.
func (b *board) pick(n Need, intn func(n int) int, now time.Time) (choice, bool) {
	not := pairKey{n.Not.prefill, n.Not.decode}
	// Those that fit are a prefix of each list.
	fits := func(ws []*worker) []*worker {
		k, _ := slices.BinarySearchFunc(ws, n.Tokens, func(w *worker, need int) int {
			if w.limit.Tokens >= need {
				return -1
			}
			return 1
		})
		return ws[:k]
	}
	ps, ds := fits(b.ready[0]), fits(b.ready[1])
	var best choice
	if len(ps) > 0 && len(ds) > 0 {
		found := 0
		for range samples {
			p, d := ps[intn(len(ps))], ds[intn(len(ds))]
			if !b.serves(p, d, now) || (pairKey{p.name, d.name}) == not {
				continue
			}
			if c := (choice{p, d, pairLimit(p, d)}); found == 0 || c.load() < best.load() {
				best = c
			}
			if found++; found == 2 {
				return best, true
			}
		}
		if found > 0 {
			return best, true
		}
		// Rare: most pairs rest or differ.
		for _, p := range ps {
			for _, d := range ds {
				if b.serves(p, d, now) && (pairKey{p.name, d.name}) != not {
					return choice{p, d, pairLimit(p, d)}, true
				}
			}
		}
	}
	if not != (pairKey{}) {
		// Nothing else fits: a smaller pair would only refuse what this one had admitted.
		for _, p := range ps {
			for _, d := range ds {
				if (pairKey{p.name, d.name}) == not && b.serves(p, d, now) {
					anew := p.epoch != n.Not.epochs[0] || d.epoch != n.Not.epochs[1]
					return choice{p, d, pairLimit(p, d)}, n.Again == Always || n.Again == Anew && anew
				}
			}
		}
		return choice{}, false
	}
	return b.widestPair(now)
}

// widestPair is the pair with the largest limit that may be used now.
func (b *board) widestPair(now time.Time) (best choice, ok bool) {
	for _, p := range b.ready[0] {
		if p.limit.Tokens <= best.limit.Tokens {
			break
		}
		for _, d := range b.ready[1] {
			l := pairLimit(p, d)
			if l.Tokens <= best.limit.Tokens {
				break
			}
			if b.serves(p, d, now) {
				best, ok = choice{p, d, l}, true
				break
			}
		}
	}
	return best, ok
}

func (b *board) widest(now time.Time) capacity.Limit {
	c, _ := b.widestPair(now)
	return c.limit
}

// pairs yields every pair, usable or not.
func (b *board) pairs(yield func(p, d *worker) bool) {
	for _, p := range b.prefill {
		for _, d := range b.decode {
			if !yield(p, d) {
				return
			}
		}
	}
}

// rest takes a pair out of use. At most a share of the pairs rests for long, so that no client can take the fleet down; those
// over it, and the last one that could serve, rest briefly.
func (b *board) rest(prefill, decode, reason string, now time.Time) time.Time {
	b.rested++
	key := pairKey{prefill, decode}
	var in [2]map[int]int // usable workers of a class
	for i := range in {
		in[i] = map[int]int{}
		for _, w := range b.ready[i] {
			in[i][w.class]++
		}
	}
	compatible, resting := 0, 0
	for class, n := range in[0] {
		compatible += n * in[1][class]
	}
	for k, r := range b.resting {
		if p, d := b.byName[k.prefill], b.byName[k.decode]; k != key && now.Before(r.until) && p.usable() && d.usable() && p.class == d.class {
			resting++
		}
	}
	serving := compatible - resting - 1
	long := b.rests.For
	if serving <= 0 || resting+1 > max(1, int(b.rests.MaxShare*float64(compatible))) {
		long = b.rests.Last
	}
	until := now.Add(long)
	if r, ok := b.resting[key]; ok && r.until.After(until) {
		until = r.until
	}
	b.resting[key] = rest{until, reason}
	for k, r := range b.resting {
		if !now.Before(r.until) {
			delete(b.resting, k)
		}
	}
	return until
}

// someRest reports whether a pair of usable workers rests.
func (b *board) someRest(now time.Time) bool {
	for k, r := range b.resting {
		if p, d := b.byName[k.prefill], b.byName[k.decode]; now.Before(r.until) && p.usable() && d.usable() && p.class == d.class {
			return true
		}
	}
	return false
}

// why says, for an operator and a client, why no pair can serve: counts and no addresses.
func (b *board) why(now time.Time) string {
	count := func(ws []*worker) (up int) {
		for _, w := range ws {
			if w.usable() {
				up++
			}
		}
		return up
	}
	resting := 0
	for _, r := range b.resting {
		if now.Before(r.until) {
			resting++
		}
	}
	p, d := count(b.prefill), count(b.decode)
	s := fmt.Sprintf("%d of %d prefill and %d of %d decode workers are usable", p, len(b.prefill), d, len(b.decode))
	if differ := p*d - b.compatible(); differ > 0 {
		s += fmt.Sprintf(", %d of %d pairs differ in model, pages or version", differ, p*d)
	}
	if resting > 0 {
		s += fmt.Sprintf(", %d pairs rest", resting)
	}
	return s
}

// compatible counts the pairs of usable workers that may serve, resting or not.
func (b *board) compatible() (n int) {
	prefills := map[int]int{} // of a class
	for _, p := range b.ready[0] {
		prefills[p.class]++
	}
	for _, d := range b.ready[1] {
		n += prefills[d.class]
	}
	return n
}

// alone says in what a usable worker differs from one of the other role, if it differs from all of them; else "".
func (b *board) alone(name string) (why string) {
	w := b.byName[name]
	others := b.decode
	if w.role == capacity.Decode {
		others = b.prefill
	}
	for _, o := range others {
		if !o.usable() {
			continue
		}
		p, d := w, o
		if w.role == capacity.Decode {
			p, d = o, w
		}
		if why = differ(p, d); why == "" {
			return ""
		}
	}
	return why
}

// names of all workers, sorted.
func (b *board) names() []string {
	var ns []string
	for n := range b.byName {
		ns = append(ns, n)
	}
	slices.Sort(ns)
	return ns
}
