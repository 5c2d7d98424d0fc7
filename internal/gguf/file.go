package gguf

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Errors of the getters and of reading. A caller tells them apart with errors.Is.
var (
	ErrAbsent = errors.New("gguf: no such key")
	ErrKind   = errors.New("gguf: value of another kind")
	ErrShrunk = errors.New("gguf: the file became shorter while it was read")
)

// File is a parsed file. Its methods are safe for concurrent use until Close.
type File struct {
	data    []byte // mapped, or the caller's
	mapped  bool
	version uint32
	values  map[string]value
	keys    []string
	tensors []Tensor
	byName  map[string]int

	once        sync.Once
	fingerprint [32]byte
	hashErr     error
}

// Open maps a file and parses its head. Only regular files are opened. Errors about its bytes wrap ErrFormat.
func Open(path string) (*File, error) {
	// Without O_NONBLOCK a named pipe would block here for ever.
	h, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	defer h.Close()
	st, err := h.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("gguf: %w", err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("gguf: %s is not a regular file", path)
	case st.Size() == 0:
		return nil, fmt.Errorf("%w: it is empty", ErrFormat)
	case st.Size() > math.MaxInt:
		return nil, fmt.Errorf("gguf: %s has %d bytes: more than this machine can map", path, st.Size())
	}
	b, err := unix.Mmap(int(h.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("gguf: map %s: %w", path, err)
	}
	var f *File
	err = survive(func() (err error) { f, err = Parse(b); return err })
	if err != nil {
		unix.Munmap(b)
		return nil, err
	}
	f.mapped = true
	return f, nil
}

// Close unmaps the file. Slices from Bytes must not be used any more; getters panic.
func (f *File) Close() error {
	b := f.data
	f.data = nil
	if f.mapped && b != nil {
		if err := unix.Munmap(b); err != nil {
			return fmt.Errorf("gguf: %w", err)
		}
	}
	return nil
}

// survive runs fn, on this goroutine alone, and turns a read beyond the end of a mapped file that someone truncated
// (SIGBUS) into ErrShrunk.
func survive(fn func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			if _, fault := r.(interface{ Addr() uintptr }); !fault {
				panic(r)
			}
			err = ErrShrunk
		}
	}()
	return fn()
}

// Read runs fn with the bytes of a tensor of known type. fn must not keep them, nor hand them to another goroutine: only on this
// one does a file that shrinks meanwhile become ErrShrunk instead of the end of the process.
func (f *File) Read(t Tensor, fn func(b []byte) error) error {
	if !t.Type.Known() {
		return fmt.Errorf("gguf: tensor %q is of an unknown %s", t.Name, t.Type)
	}
	return survive(func() error { return fn(f.data[t.Offset : t.Offset+t.Size]) })
}

// Version of the format.
func (f *File) Version() uint32 { return f.version }

// Size of the file in bytes.
func (f *File) Size() int { return len(f.data) }

// Keys of the metadata, in the file's order.
func (f *File) Keys() []string { return slices.Clone(f.keys) }

// Tensors in the file's order. The caller must not change their Dims.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Tensor returns the tensor of that name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Fingerprint is SHA-256 over a domain string and all bytes of the file: weights, tokenizer, template, rope and all
// else that decides a reply. It is computed once.
func (f *File) Fingerprint() ([32]byte, error) {
	f.once.Do(func() {
		f.hashErr = survive(func() error {
			h := sha256.New()
			h.Write([]byte("sluice gguf v1\x00"))
			h.Write(f.data)
			h.Sum(f.fingerprint[:0])
			return nil
		})
	})
	return f.fingerprint, f.hashErr
}

// Has reports whether the metadata has the key.
func (f *File) Has(key string) bool { _, ok := f.values[key]; return ok }

// Kind of a key's value; for an array, elem is its elements' kind and n their number.
func (f *File) Kind(key string) (k, elem Kind, n int, err error) {
	v, ok := f.values[key]
	if !ok {
		return 0, 0, 0, fmt.Errorf("%w: %s", ErrAbsent, key)
	}
	return v.kind, v.elem, v.n, nil
}

// scalar returns the value of a key if its kind is one of kinds.
func (f *File) scalar(key, want string, kinds ...Kind) (value, error) {
	v, ok := f.values[key]
	if !ok {
		return v, fmt.Errorf("%w: %s", ErrAbsent, key)
	}
	if !slices.Contains(kinds, v.kind) {
		return v, fmt.Errorf("%w: %s is of kind %s, not %s", ErrKind, key, v.kind, want)
	}
	return v, nil
}

// array returns the value of a key if it is an array of one of elems.
func (f *File) array(key, want string, elems ...Kind) (value, error) {
	v, err := f.scalar(key, "an array of "+want, KindArray)
	if err == nil && !slices.Contains(elems, v.elem) {
		err = fmt.Errorf("%w: %s is an array of %s, not of %s", ErrKind, key, v.elem, want)
	}
	return v, err
}

// Bool returns a truth value.
func (f *File) Bool(key string) (bool, error) {
	v, err := f.scalar(key, "a truth value", KindBool)
	return v.bits == 1 && err == nil, err
}

// Uint returns a whole number of any width, signed or not, that is not negative.
func (f *File) Uint(key string) (uint64, error) {
	v, err := f.scalar(key, "a whole number", KindUint8, KindInt8, KindUint16, KindInt16, KindUint32, KindInt32, KindUint64, KindInt64)
	if err != nil {
		return 0, err
	}
	n := v.bits
	switch v.kind {
	case KindInt8:
		n = uint64(int8(n))
	case KindInt16:
		n = uint64(int16(n))
	case KindInt32:
		n = uint64(int32(n))
	case KindInt64:
	default:
		return n, nil
	}
	if int64(n) < 0 {
		return 0, fmt.Errorf("%w: %s is negative", ErrKind, key)
	}
	return n, nil
}

// Float returns a floating-point number of either width.
func (f *File) Float(key string) (float64, error) {
	v, err := f.scalar(key, "a floating-point number", KindFloat32, KindFloat64)
	switch {
	case err != nil:
		return 0, err
	case v.kind == KindFloat32:
		return float64(math.Float32frombits(uint32(v.bits))), nil
	}
	return math.Float64frombits(v.bits), nil
}

// String returns a string, byte for byte.
func (f *File) String(key string) (string, error) {
	v, err := f.scalar(key, "a string", KindString)
	if err != nil {
		return "", err
	}
	return string(f.data[v.at+8 : v.end]), nil
}

// Strings returns an array of strings, byte for byte.
func (f *File) Strings(key string) ([]string, error) {
	v, err := f.array(key, "strings", KindString)
	if err != nil {
		return nil, err
	}
	s := make([]string, v.n)
	at := v.at
	for i := range s {
		n := int(binary.LittleEndian.Uint64(f.data[at:]))
		s[i] = string(f.data[at+8 : at+8+n])
		at += 8 + n
	}
	return s, nil
}

// Int32s returns an array of 32-bit whole numbers, signed or not (those above 2^31 are an error).
func (f *File) Int32s(key string) ([]int32, error) {
	v, err := f.array(key, "int32", KindInt32, KindUint32)
	if err != nil {
		return nil, err
	}
	s := make([]int32, v.n)
	for i := range s {
		s[i] = int32(binary.LittleEndian.Uint32(f.data[v.at+4*i:]))
		if v.elem == KindUint32 && s[i] < 0 {
			return nil, fmt.Errorf("%w: %s has values over 31 bits", ErrKind, key)
		}
	}
	return s, nil
}

// Float32s returns an array of float32.
func (f *File) Float32s(key string) ([]float32, error) {
	v, err := f.array(key, "float32", KindFloat32)
	if err != nil {
		return nil, err
	}
	s := make([]float32, v.n)
	for i := range s {
		s[i] = math.Float32frombits(binary.LittleEndian.Uint32(f.data[v.at+4*i:]))
	}
	return s, nil
}
