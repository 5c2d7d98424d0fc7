package jsonedit

import (
	"bytes"
	"hash/maphash"
	"strconv"
)

// few is the most names of an object that are compared with one another; an object with more gets a table.
const few = 24

const roundedFew = 32 // few as a power of two: a mask finds a table's slot

// names is the names of the objects that are open, innermost last, for finding one that appears twice. Names are compared as
// text: a spelling with escapes is the same name.
type names struct {
	live    []name
	decoded []byte // names that had escapes
	tables  []table
	seed    maphash.Seed
}

// name is body[start:end], or decoded[start:end].
type name struct {
	start, end uint32
	hash       uint32 // or a glance at the name, in an object with few
	decoded    bool
}

// mark is where an object's names begin.
type mark struct {
	live, decoded, tables int
	table                 bool // of this object, the last of tables
}

// table finds the names of one large object by hash: open addressing, entries are 1 + the index in live, 0 is none.
type table struct {
	slots []uint32
	n     int
}

func (n *names) open() mark {
	return mark{live: len(n.live), decoded: len(n.decoded), tables: len(n.tables)}
}

func (n *names) close(m mark) {
	n.live, n.decoded, n.tables = n.live[:m.live], n.decoded[:m.decoded], n.tables[:m.tables]
}

func (n *names) bytes(body []byte, e name) []byte {
	if e.decoded {
		return n.decoded[e.start:e.end]
	}
	return body[e.start:e.end]
}

// add takes body[start:end] as a name of the object that m opened, and returns it as text. The reason is Duplicate if the object
// has it already.
func (n *names) add(m *mark, body []byte, start, end int, escaped bool) ([]byte, Reason) {
	e := name{start: uint32(start), end: uint32(end)}
	if escaped {
		from := len(n.decoded)
		n.decoded = unquote(n.decoded, body[start:end])
		e = name{start: uint32(from), end: uint32(len(n.decoded)), decoded: true}
	}
	text := n.bytes(body, e)
	own := n.live[m.live:]
	if m.table {
		e.hash = n.hash(text)
		if n.tables[len(n.tables)-1].has(n, body, e, text) {
			return text, Duplicate
		}
	} else {
		// Among few a glance tells most names apart.
		e.hash = uint32(len(text))
		if len(text) > 0 {
			e.hash |= uint32(text[0])<<24 | uint32(text[len(text)/2])<<16
		}
		for _, o := range own {
			if o.hash == e.hash && bytes.Equal(n.bytes(body, o), text) {
				return text, Duplicate
			}
		}
	}
	n.live = append(n.live, e)
	switch {
	case m.table:
		n.tables[len(n.tables)-1].put(n.live, uint32(len(n.live)))
	case len(own)+1 > few:
		m.table = true
		n.tables = append(n.tables[:m.tables], table{})
		t := &n.tables[m.tables]
		for i := m.live; i < len(n.live); i++ {
			n.live[i].hash = n.hash(n.bytes(body, n.live[i]))
		}
		for i := m.live; i < len(n.live); i++ {
			t.put(n.live, uint32(i+1))
		}
	}
	return text, 0
}

func (n *names) hash(text []byte) uint32 {
	h := maphash.Bytes(n.seed, text)
	return uint32(h>>32) ^ uint32(h)
}

func (t *table) has(n *names, body []byte, e name, text []byte) bool {
	mask := uint32(len(t.slots) - 1)
	for i := e.hash & mask; t.slots[i] != 0; i = (i + 1) & mask {
		if o := n.live[t.slots[i]-1]; o.hash == e.hash && bytes.Equal(n.bytes(body, o), text) {
			return true
		}
	}
	return false
}

func (t *table) put(live []name, entry uint32) {
	if 2*(t.n+1) > len(t.slots) {
		old := t.slots
		t.slots, t.n = make([]uint32, max(4*roundedFew, 2*len(old))), 0
		for _, o := range old {
			if o != 0 {
				t.put(live, o)
			}
		}
	}
	mask := uint32(len(t.slots) - 1)
	i := live[entry-1].hash & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = entry
	t.n++
}

// clip is a name for a path.
func clip(name []byte) string { return string(name[:min(len(name), maxPath)]) }

func element(n int) string { return "[" + strconv.Itoa(n) + "]" }
