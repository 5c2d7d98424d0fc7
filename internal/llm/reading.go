package llm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
)

// reading goes through a file's head on behalf of a family. It keeps the first refusal and yields zeroes after it. It
// takes no memory for weights: it writes down what is to be loaded where.
type reading struct {
	f      *gguf.File
	arch   string
	err    error
	wishes []wish
	taken  map[string]bool // tensors that are wished for
}

// wish is one tensor to load, into a matrix or a vector.
type wish struct {
	t          gguf.Tensor
	rows, cols int // of a matrix
	mat        **kernel.Mat
	vec        *[]float32
}

var weightTypes = map[gguf.Type]kernel.WeightType{
	gguf.F32: kernel.F32, gguf.F16: kernel.F16, gguf.Q8_0: kernel.Q8_0, gguf.Q4_0: kernel.Q4_0, gguf.Q4_1: kernel.Q4_1,
}

func (r *reading) refuse(format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, a...))
	}
}

// count reads a whole number from lo to hi. A missing key is a refusal if fallback is negative.
func (r *reading) count(key string, fallback, lo, hi int) int {
	n, err := r.f.Uint(key)
	switch {
	case r.err != nil:
		return 0
	case errors.Is(err, gguf.ErrAbsent) && fallback >= 0:
		return fallback
	case err != nil:
		r.refuse("%v", err)
		return 0
	case n < uint64(lo) || n > uint64(hi):
		r.refuse("%s is %d: must be %d to %d", key, n, lo, hi)
		return 0
	}
	return int(n)
}

// number reads a floating-point number that is positive and finite.
func (r *reading) number(key string, fallback float64) float64 {
	x, err := r.f.Float(key)
	switch {
	case r.err != nil:
		return 0
	case errors.Is(err, gguf.ErrAbsent) && fallback > 0:
		return fallback
	case err != nil:
		r.refuse("%v", err)
		return 0
	case !(x > 0) || math.IsInf(x, 0):
		r.refuse("%s is %v: must be positive and finite", key, x)
		return 0
	}
	return x
}

// text reads a string; "" if it is not there.
func (r *reading) text(key string) string {
	s, err := r.f.String(key)
	if err != nil && !errors.Is(err, gguf.ErrAbsent) {
		r.refuse("%v", err)
	}
	return s
}

// tensor finds a tensor and checks its shape; false if it is not there or wrong.
func (r *reading) tensor(name string, dims ...int) (gguf.Tensor, bool) {
	t, ok := r.f.Tensor(name)
	if r.err != nil {
		return t, false
	}
	if !ok {
		r.refuse("the tensor %s is missing", name)
		return t, false
	}
	if len(t.Dims) != len(dims) {
		r.refuse("the tensor %s has dimensions %v, not %v", name, t.Dims, dims)
		return t, false
	}
	for i, d := range dims {
		if t.Dims[i] != uint64(d) {
			r.refuse("the tensor %s has dimensions %v, not %v", name, t.Dims, dims)
			return t, false
		}
	}
	r.taken[name] = true
	return t, true
}

// matrix wishes for a weight of rows outputs by cols inputs.
func (r *reading) matrix(dst **kernel.Mat, name string, rows, cols int) {
	t, ok := r.tensor(name, cols, rows)
	if !ok {
		return
	}
	if _, ok := weightTypes[t.Type]; !ok {
		r.refuse("the tensor %s is stored as %s; F32, F16, Q8_0, Q4_0 and Q4_1 can be run", name, t.Type)
		return
	}
	r.wishes = append(r.wishes, wish{t: t, rows: rows, cols: cols, mat: dst})
}

// vector wishes for n numbers.
func (r *reading) vector(dst *[]float32, name string, n int) {
	t, ok := r.tensor(name, n)
	if !ok {
		return
	}
	if t.Type != gguf.F32 && t.Type != gguf.F16 {
		r.refuse("the tensor %s is stored as %s; vectors must be F32 or F16", name, t.Type)
		return
	}
	r.wishes = append(r.wishes, wish{t: t, cols: n, vec: dst})
}

// settings refuses keys of the architecture that are not in known: what this code does not know may change the numbers.
func (r *reading) settings(known ...string) {
	for _, k := range r.f.Keys() {
		if name, ours := strings.CutPrefix(k, r.arch+"."); ours && !slices.Contains(known, name) {
			r.refuse("the setting %s is not known here, and could change what the model computes", k)
		}
	}
}

// leftovers refuses tensors that nobody wished for: a bias or a router that is left out gives another model's replies.
func (r *reading) leftovers() {
	for _, t := range r.f.Tensors() {
		if !r.taken[t.Name] {
			r.refuse("the tensor %s is not known here, and could change what the model computes", t.Name)
			return
		}
	}
}

// bytes that the wish takes in memory, at most.
func (w *wish) bytes() int64 {
	if w.vec != nil {
		return int64(w.cols) * 4
	}
	rows := (w.rows + kernel.Panel - 1) / kernel.Panel * kernel.Panel // the last panel is filled up
	return int64(w.t.Size) / int64(w.rows) * int64(rows)
}

// load reads the tensor, and returns the memory it takes.
func (w *wish) load(f *gguf.File) (size int, err error) {
	err = f.Read(w.t, func(b []byte) (err error) {
		if w.vec != nil {
			v := make([]float32, w.cols)
			*w.vec, size = v, 4*len(v)
			return gguf.Decode(w.t.Type, b, v)
		}
		m, err := kernel.Pack(weightTypes[w.t.Type], b, w.rows, w.cols)
		if err == nil {
			*w.mat, size = m, m.Bytes()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("llm: the tensor %s: %w", w.t.Name, err)
	}
	return size, nil
}
