package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Writer builds a version 3 file in memory. The first error is kept and returned by Bytes. The zero Writer is ready.
type Writer struct {
	pairs   []byte
	keys    map[string]bool
	tensors []pending
	err     error
}

type pending struct {
	name string
	dims []uint64
	typ  Type
	data []byte
}

func (w *Writer) fail(format string, a ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("gguf: write: "+format, a...)
	}
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func (w *Writer) key(k string, kind Kind) {
	if w.keys == nil {
		w.keys = map[string]bool{}
	}
	if w.keys[k] || k == "" || len(k) > maxKey {
		w.fail("key %q is empty, too long, or there twice", k)
	}
	w.keys[k] = true
	w.pairs = binary.LittleEndian.AppendUint32(appendString(w.pairs, k), uint32(kind))
}

func (w *Writer) array(k string, elem Kind, n int) {
	w.key(k, KindArray)
	w.pairs = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(w.pairs, uint32(elem)), uint64(n))
}

// String, Bool, Uint32 and Float32 add one pair.
func (w *Writer) String(key, v string) {
	w.key(key, KindString)
	w.pairs = appendString(w.pairs, v)
}

func (w *Writer) Bool(key string, v bool) {
	w.key(key, KindBool)
	b := byte(0)
	if v {
		b = 1
	}
	w.pairs = append(w.pairs, b)
}

func (w *Writer) Uint32(key string, v uint32) {
	w.key(key, KindUint32)
	w.pairs = binary.LittleEndian.AppendUint32(w.pairs, v)
}

func (w *Writer) Float32(key string, v float32) {
	w.key(key, KindFloat32)
	w.pairs = binary.LittleEndian.AppendUint32(w.pairs, math.Float32bits(v))
}

// Strings, Int32s and Float32s add one pair whose value is an array.
func (w *Writer) Strings(key string, v []string) {
	w.array(key, KindString, len(v))
	for _, s := range v {
		w.pairs = appendString(w.pairs, s)
	}
}

func (w *Writer) Int32s(key string, v []int32) {
	w.array(key, KindInt32, len(v))
	for _, x := range v {
		w.pairs = binary.LittleEndian.AppendUint32(w.pairs, uint32(x))
	}
}

func (w *Writer) Float32s(key string, v []float32) {
	w.array(key, KindFloat32, len(v))
	for _, x := range v {
		w.pairs = binary.LittleEndian.AppendUint32(w.pairs, math.Float32bits(x))
	}
}

// Tensor adds a tensor of row-major values, dims[0] being the row length, rounded to t: F32, F16, Q8_0, Q4_0 or Q4_1.
func (w *Writer) Tensor(name string, t Type, dims []uint64, v []float32) {
	n, err := product(dims)
	if err != nil || n != uint64(len(v)) {
		w.fail("tensor %q: %d values for dimensions %v", name, len(v), dims)
		return
	}
	b, err := Encode(t, v)
	if err != nil {
		w.fail("tensor %q: %v", name, err)
		return
	}
	w.Raw(name, t, dims, b)
}

// Raw adds a tensor whose bytes are already in the form of t, which need not be known.
func (w *Writer) Raw(name string, t Type, dims []uint64, b []byte) {
	if t.Known() {
		if size, err := t.Size(dims); err != nil || size != uint64(len(b)) {
			w.fail("tensor %q: %d bytes of %s for dimensions %v", name, len(b), t, dims)
		}
	}
	if name == "" || len(name) > maxTensorName || len(dims) == 0 || len(dims) > maxDims {
		w.fail("tensor %q: a name or dimensions %v that cannot be stored", name, dims)
	}
	for _, p := range w.tensors {
		if p.name == name {
			w.fail("tensor %q is there twice", name)
		}
	}
	w.tensors = append(w.tensors, pending{name, append([]uint64(nil), dims...), t, b})
}

// Bytes returns the file.
func (w *Writer) Bytes() ([]byte, error) {
	if w.err != nil {
		return nil, w.err
	}
	le := binary.LittleEndian
	b := le.AppendUint32([]byte(magic), 3)
	b = le.AppendUint64(b, uint64(len(w.tensors)))
	b = le.AppendUint64(b, uint64(len(w.keys)))
	b = append(b, w.pairs...)
	offset := uint64(0)
	for _, p := range w.tensors {
		b = le.AppendUint32(appendString(b, p.name), uint32(len(p.dims)))
		for _, d := range p.dims {
			b = le.AppendUint64(b, d)
		}
		b = le.AppendUint64(le.AppendUint32(b, uint32(p.typ)), offset)
		offset += (uint64(len(p.data)) + defaultAlignment - 1) &^ (defaultAlignment - 1)
	}
	for _, p := range w.tensors {
		b = append(b, make([]byte, -len(b)&(defaultAlignment-1))...)
		b = append(b, p.data...)
	}
	return append(b, make([]byte, -len(b)&(defaultAlignment-1))...), nil
}
