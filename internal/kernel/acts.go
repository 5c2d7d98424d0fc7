package kernel

import (
	"fmt"
	"math"
	"sync/atomic"
)

// Acts are the activations of a product: rows of k floats, and, once quantised, the same in blocks of 32 for the
// quantised weights. One Acts serves every matrix that reads the same activations, on every thread. The zero value is ready.
//
// Quantised as ggml's quantize_row_q8_0 and _q8_1 do on x86: d = max|x|/127, q = x*(127/max|x|) rounded to nearest even,
// d kept as a half, and s = d * sum(q) as a half. Beyond a half's range, where ggml makes an infinity, they stay floats.
type Acts struct {
	rows, k int
	x       []float32
	q       []actBlock   // [rows][k/32]
	done    atomic.Int64 // rows quantised since Set: a product must not read what an earlier one left
}

// actBlock is read by the assembly: 48 bytes, in this order.
type actBlock struct {
	q    [block]int8
	d    float32 // the scale, rounded to a half
	s    float32 // d (not rounded) times the sum of q, rounded to a half: what Q4_1's minimum is multiplied by
	sum8 int32   // -8 times the sum of q: what Q4_0's offset adds
	_    int32
}

// Set takes rows*k floats (kept, not copied; they may not change until the last product is done). For matrices with
// Quantized weights, Quantize must follow before a product, once over each row, by one thread or several.
func (a *Acts) Set(x []float32, rows, k int) {
	if rows < 0 || k <= 0 || rows > math.MaxInt32 || k > math.MaxInt32 || len(x) != rows*k {
		panic(fmt.Sprintf("kernel: %d floats are not %d rows of %d", len(x), rows, k))
	}
	a.x, a.rows, a.k = x, rows, k
	a.done.Store(0)
	a.q = a.q[:0]
	if k%block == 0 {
		if n := rows * (k / block); cap(a.q) < n {
			a.q = make([]actBlock, n)
		} else {
			a.q = a.q[:n]
		}
	}
}

// Rows is the number of rows set.
func (a *Acts) Rows() int { return a.rows }

// Quantize quantises rows r0 to r1 of what was Set. Several threads may do ranges that do not overlap. k must be a multiple of 32.
func (a *Acts) Quantize(r0, r1 int) {
	if r0 < 0 || r1 < r0 || r1 > a.rows || a.k%block != 0 {
		panic(fmt.Sprintf("kernel: quantise rows %d to %d of %d x %d", r0, r1, a.rows, a.k))
	}
	b0, b1 := r0*(a.k/block), r1*(a.k/block)
	if b0 == b1 {
		return
	}
	x, q := a.x[b0*block:b1*block], a.q[b0:b1]
	if avx2 {
		quantizeAVX2(&q[0], &x[0], len(q))
	} else {
		quantizeGo(q, x)
	}
	a.done.Add(int64(r1 - r0))
}

// Quantize sets and quantises all rows on this thread.
func Quantize(x []float32, rows, k int, a *Acts) {
	a.Set(x, rows, k)
	a.Quantize(0, rows)
}

func quantizeGo(q []actBlock, x []float32) {
	for i := range q {
		b, v := &q[i], (*[block]float32)(x[i*block:])
		amax := float32(0)
		for _, f := range v {
			amax = max(amax, float32(math.Abs(float64(f))))
		}
		id := float32(0)
		if amax != 0 {
			id = 127 / amax
		}
		sum := int32(0)
		for j, f := range v {
			n := int32(math.RoundToEven(float64(f * id)))
			n = max(-127, min(127, n)) // an infinity or NaN among x makes garbage, but garbage in range
			b.q[j] = int8(n)
			sum += n
		}
		d := amax / 127
		b.d = asHalf(d)
		b.s = asHalf(d * float32(sum))
		b.sum8 = -8 * sum
	}
}

// asHalf rounds to a half, if one that is finite is near.
func asHalf(f float32) float32 {
	if h := f16to(f16from(f)); h-h == 0 {
		return h
	}
	return f
}
