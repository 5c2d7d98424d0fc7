package gateway

// memory holds one body. A large one lies outside the Go heap, where that is possible: it grows without a copy, and is gone when it is
// dropped, while on the heap each large body would leave another beside it until a collection. What still pointed into a dropped body
// would fault, and could not read another request's text.
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
		var b []byte
		if b, err = mapped(n); err == nil {
			copy(b, m.b)
			m.b, m.mapped = b, true
		}
	}
	if err == nil {
		m.b = m.b[:length]
	}
	return err
}

// drop gives the memory back. The body must not be used any more.
func (m *memory) drop() {
	if m.mapped {
		unmap(m.b[:cap(m.b)])
	}
	*m = memory{}
}
