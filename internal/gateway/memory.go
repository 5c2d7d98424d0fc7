package gateway

import "sync/atomic"

// memory holds one body. A large one lies outside the Go heap, where that is possible: it grows without a copy, and is gone when it is
// dropped, while on the heap each large body would leave another beside it until a collection. Its region is wiped then.
type memory struct {
	b      []byte
	mapped bool
}

// grow makes room for n bytes, and keeps what there is.
func (m *memory) grow(n int, onHeap bool) (err error) {
	length := len(m.b)
	switch {
	case m.mapped:
		m.b, err = remap(m.b[:cap(m.b)], n)
	case onHeap || n <= firstRead || !canMap:
		m.b = append(make([]byte, 0, n), m.b...)
	default:
		b := spareRegions.take(n)
		if b == nil {
			b, err = mapped(n)
		}
		if err == nil {
			copy(b, m.b)
			m.b, m.mapped = b, true
		}
	}
	if err == nil {
		m.b = m.b[:length]
	}
	return err
}

// body is a request's body while anything may still read it: the walk, and each attempt until its legs have it. The last that lets go gives
// its memory back, and its bytes to the budget.
type body struct {
	memory memory
	budget *budget
	held   int64
	users  atomic.Int32
}

// hold takes over what was read; the caller is its first user.
func (b *budget) hold(m *memory, held int64) *body {
	x := &body{memory: *m, budget: b, held: held}
	*m = memory{}
	x.users.Store(1)
	return x
}

// use is one user more. Only a user may call it.
func (b *body) use() { b.users.Add(1) }

// letGo is one user less. The caller must not touch the body any more.
func (b *body) letGo() {
	switch n := b.users.Add(-1); {
	case n == 0:
		b.memory.drop()
		b.budget.give(b.held)
	case n < 0:
		panic("gateway: a body was let go more often than it was used")
	}
}

// drop gives the memory back. The body must not be used any more.
func (m *memory) drop() {
	if m.mapped {
		spareRegions.give(m.b, len(m.b))
	}
	*m = memory{}
}
