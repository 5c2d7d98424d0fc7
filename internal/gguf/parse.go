package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrFormat is wrapped by every error about a file's bytes.
var ErrFormat = errors.New("gguf: malformed file")

const (
	magic            = "GGUF"
	defaultAlignment = 32
	maxAlignment     = 1 << 20
	maxDims          = 4
	maxKey           = 1<<16 - 1 // the format's own bound
	maxTensorName    = 256       // ggml's bound is 64; a little more costs nothing
	maxDepth         = 4         // of arrays in arrays

	// What the smallest entry takes in the file: a count that the bytes left cannot hold is refused before it allocates.
	minPair   = 8 + 1 + 4 + 1         // key length, one letter, kind, one byte
	minTensor = 8 + 1 + 4 + 8 + 4 + 8 // name length, one letter, dims, one dim, type, offset
)

// value is one metadata value. Scalars are decoded; strings and arrays stay in the file, at data[at:end].
type value struct {
	kind    Kind
	elem    Kind   // of an array
	n       int    // elements of an array
	bits    uint64 // a scalar's, as stored
	at, end int
}

// Tensor is one entry of the file's table.
type Tensor struct {
	Name   string
	Dims   []uint64 // Dims[0] is the row length (inputs), Dims[1] the number of rows
	Type   Type
	Offset uint64 // from the start of the file
	Size   uint64 // in bytes; 0 if the type is not known
}

// cursor reads from the front of a file. It keeps the first error and yields zeroes after it.
type cursor struct {
	b   []byte
	p   int
	err error
}

func (c *cursor) fail(format string, a ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: at byte %d: %s", ErrFormat, c.p, fmt.Sprintf(format, a...))
	}
}

func (c *cursor) left() uint64 { return uint64(len(c.b) - c.p) }

// take returns the next n bytes, or nil.
func (c *cursor) take(n uint64, what string) []byte {
	if c.err != nil {
		return nil
	}
	if n > c.left() {
		c.fail("%s of %d bytes, %d are left", what, n, c.left())
		return nil
	}
	b := c.b[c.p : c.p+int(n)]
	c.p += int(n)
	return b
}

func (c *cursor) u32(what string) uint32 {
	if b := c.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if b := c.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) str(what string) []byte { return c.take(c.u64(what), what) }

// name reads a string of 1 to limit bytes.
func (c *cursor) name(what string, limit int) string {
	b := c.str(what)
	if c.err == nil && (len(b) == 0 || len(b) > limit) {
		c.fail("%s of %d bytes: must have 1 to %d", what, len(b), limit)
	}
	return string(b)
}

// value reads one value of kind k.
func (c *cursor) value(k Kind, depth int) (v value) {
	v.kind, v.at = k, c.p
	switch {
	case c.err != nil:
	case int(k) >= len(kindBytes):
		c.fail("unknown %s", k)
	case k == KindString:
		c.str("string")
	case k == KindArray:
		c.array(&v, depth)
	default:
		var w [8]byte
		copy(w[:], c.take(uint64(kindBytes[k]), k.String()))
		v.bits = binary.LittleEndian.Uint64(w[:])
		if k == KindBool && v.bits > 1 {
			c.fail("bool of value %d", v.bits)
		}
	}
	v.end = c.p
	return v
}

func (c *cursor) array(v *value, depth int) {
	v.elem = Kind(c.u32("array kind"))
	n := c.u64("array count")
	switch {
	case c.err != nil:
		return
	case depth >= maxDepth:
		c.fail("arrays nested more than %d deep", maxDepth)
		return
	case int(v.elem) >= len(kindBytes):
		c.fail("array of unknown %s", v.elem)
		return
	}
	smallest := uint64(8) // a string's length; an array's kind and count are 12
	if s := kindBytes[v.elem]; s > 0 {
		smallest = uint64(s)
	}
	if n > c.left()/smallest {
		c.fail("array of %d %s, %d bytes are left", n, v.elem, c.left())
		return
	}
	v.n, v.at = int(n), c.p
	if s := kindBytes[v.elem]; s > 0 && v.elem != KindBool {
		c.take(n*uint64(s), "array")
		return
	}
	for range v.n {
		if c.value(v.elem, depth+1); c.err != nil {
			return
		}
	}
}

// Parse reads the head of a GGUF file. The File refers to b, which must not change. Errors wrap ErrFormat.
func Parse(b []byte) (*File, error) {
	c := &cursor{b: b}
	if string(c.take(4, "magic")) != magic {
		return nil, fmt.Errorf("%w: it does not begin with %q", ErrFormat, magic)
	}
	version := c.u32("version")
	switch {
	case c.err != nil:
		return nil, c.err
	case version == 2 || version == 3:
	case version&0xffff == 0:
		return nil, fmt.Errorf("%w: it is big endian", ErrFormat)
	default:
		return nil, fmt.Errorf("%w: version %d: 2 and 3 can be read", ErrFormat, version)
	}
	f := &File{data: b, version: version, values: map[string]value{}, byName: map[string]int{}}
	tensors, pairs := c.u64("tensor count"), c.u64("pair count")
	if c.err == nil && pairs > c.left()/minPair {
		c.fail("%d metadata pairs, %d bytes are left", pairs, c.left())
	}
	for ; pairs > 0 && c.err == nil; pairs-- {
		f.pair(c)
	}
	if c.err == nil && tensors > c.left()/minTensor {
		c.fail("%d tensors, %d bytes are left", tensors, c.left())
	}
	for ; tensors > 0 && c.err == nil; tensors-- {
		f.tensor(c)
	}
	if c.err != nil {
		return nil, c.err
	}
	if err := f.place(uint64(c.p)); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) pair(c *cursor) {
	k := c.name("key", maxKey)
	v := c.value(Kind(c.u32("kind")), 0)
	if c.err != nil {
		return
	}
	if _, twice := f.values[k]; twice {
		c.fail("key %q is there twice", k)
		return
	}
	f.values[k] = v
	f.keys = append(f.keys, k)
}

func (f *File) tensor(c *cursor) {
	t := Tensor{Name: c.name("tensor name", maxTensorName)}
	n := c.u32("dimension count")
	if c.err == nil && (n == 0 || n > maxDims) {
		c.fail("tensor %q has %d dimensions: 1 to %d are possible", t.Name, n, maxDims)
	}
	for ; n > 0 && c.err == nil; n-- {
		t.Dims = append(t.Dims, c.u64("dimension"))
	}
	t.Type, t.Offset = Type(c.u32("tensor type")), c.u64("tensor offset")
	if c.err != nil {
		return
	}
	if _, twice := f.byName[t.Name]; twice {
		c.fail("tensor %q is there twice", t.Name)
		return
	}
	var err error
	if t.Type.Known() {
		t.Size, err = t.Type.Size(t.Dims)
	} else {
		_, err = product(t.Dims)
	}
	if err != nil {
		c.fail("tensor %q: %v", t.Name, err)
		return
	}
	f.byName[t.Name] = len(f.tensors)
	f.tensors = append(f.tensors, t)
}

// place turns the tensors' offsets, which count from the end of the head, into offsets in the file, and refuses those
// that are not aligned, leave the file, or share bytes.
func (f *File) place(head uint64) error {
	align := uint64(defaultAlignment)
	if f.Has("general.alignment") {
		a, err := f.Uint("general.alignment")
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFormat, err)
		}
		if a == 0 || a&(a-1) != 0 || a > maxAlignment {
			return fmt.Errorf("%w: alignment %d: must be a power of two up to %d", ErrFormat, a, maxAlignment)
		}
		align = a
	}
	start := (head + align - 1) &^ (align - 1)
	size := uint64(len(f.data))
	for i := range f.tensors {
		t := &f.tensors[i]
		switch {
		case t.Offset%align != 0:
			return fmt.Errorf("%w: tensor %q begins at %d, which is no multiple of %d", ErrFormat, t.Name, t.Offset, align)
		case start > size || t.Offset > size-start || t.Size > size-start-t.Offset:
			return fmt.Errorf("%w: tensor %q ends after the file: offset %d + %d bytes, the file has %d behind its head",
				ErrFormat, t.Name, t.Offset, t.Size, size-min(start, size))
		}
		t.Offset += start
	}
	order := make([]int, len(f.tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := f.tensors[a], f.tensors[b]
		if x.Offset != y.Offset {
			if x.Offset < y.Offset {
				return -1
			}
			return 1
		}
		return a - b
	})
	for i := 1; i < len(order); i++ {
		x, y := f.tensors[order[i-1]], f.tensors[order[i]]
		if x.Offset == y.Offset || x.Offset+x.Size > y.Offset {
			return fmt.Errorf("%w: tensors %q and %q overlap", ErrFormat, x.Name, y.Name)
		}
	}
	return nil
}
