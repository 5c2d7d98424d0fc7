package kernel

import (
	"fmt"
	"unsafe"
)

// Scratch is what one thread needs during a product. The zero value is ready; it is not for two threads at once.
type Scratch struct {
	tile [maxRows * Panel]float32 // the outputs of a last panel that is not full
}

// maxRows is the most rows that a kernel takes at a time.
const maxRows = 6

// MatMul computes dst[r*N+j] = sum over k of x[r][k] * w[j][k], for all rows r of a and for j in [n0, n1), where N is
// m.Rows() and len(dst) is a.Rows()*N. n0 must be a multiple of Panel, n1 too or N: threads share a product by its outputs.
// For a Quantized m, a must have been quantised.
//
// Each element is one chain of operations over k: for floats, fused multiply-adds column by column; for quantised weights
// exact integer sums a block of 32, then block by block one fused multiply-add of the sum (and for Q4_1 one of the minimum).
func MatMul(dst []float32, a *Acts, m *Mat, n0, n1 int, ws *Scratch) {
	rows, n := a.rows, m.n
	switch {
	case a.k != m.k:
		panic(fmt.Sprintf("kernel: %d columns of activations for %d of weights", a.k, m.k))
	case len(dst) != rows*n:
		panic(fmt.Sprintf("kernel: %d outputs for %d rows of %d", len(dst), rows, n))
	case n0 < 0 || n1 < n0 || n1 > n || n0%Panel != 0 || (n1%Panel != 0 && n1 != n):
		panic(fmt.Sprintf("kernel: outputs %d to %d of %d: not whole panels", n0, n1, n))
	case m.Quantized() && a.done.Load() != int64(rows):
		panic(fmt.Sprintf("kernel: a product of %d rows of activations, %d of them quantised", rows, a.done.Load()))
	}
	if rows == 0 || n0 == n1 {
		return
	}
	switch {
	case !avx2:
		matMulGo(dst, a, m, n0, n1)
	case m.Quantized():
		matMulQuant(dst, a, m, n0, n1, ws)
	default:
		matMulFloat(dst, a, m, n0, n1, ws)
	}
}

func matMulGo(dst []float32, a *Acts, m *Mat, n0, n1 int) {
	width, size := m.width(), m.panelBytes()
	for j := n0; j < n1; j += width {
		p := m.packed[j/width*size:][:size]
		for r := range a.rows {
			var acc [Panel]float32
			switch m.typ {
			case F32:
				dotF32Go(&acc, a.x[r*a.k:][:a.k], unsafe.Slice((*[Panel]float32)(unsafe.Pointer(&p[0])), m.k))
			case F16:
				dotF16Go(&acc, a.x[r*a.k:][:a.k], unsafe.Slice((*[Panel]uint16)(unsafe.Pointer(&p[0])), m.k))
			default:
				blocks := m.k / block
				dotQuantGo(&acc, a.q[r*blocks:][:blocks], p, m.typ)
			}
			copy(dst[r*m.n+j:][:min(width, n1-j)], acc[:])
		}
	}
}

// The conversions float32(x*y) below keep a compiler from fusing: the plain path is the same on every machine.

func dotF32Go(acc *[Panel]float32, x []float32, w [][Panel]float32) {
	for k, v := range x {
		row := &w[k]
		for j := range acc {
			acc[j] += float32(v * row[j])
		}
	}
}

func dotF16Go(acc *[Panel]float32, x []float32, w [][Panel]uint16) {
	for k, v := range x {
		row := &w[k]
		for j := range acc {
			acc[j] += float32(v * f16to(row[j]))
		}
	}
}

func dotQuantGo(acc *[Panel]float32, x []actBlock, p []byte, t WeightType) {
	size := t.blockBytes() * quantPanel
	for b := range x {
		xb, w := &x[b], p[b*size:][:size]
		var sum [quantPanel]int32
		half := func(at, j int) float32 {
			return f16to(uint16(w[at+j*2]) | uint16(w[at+j*2+1])<<8)
		}
		if t == Q8_0 {
			for g := range block / 4 {
				x0, x1, x2, x3 := int32(xb.q[g*4]), int32(xb.q[g*4+1]), int32(xb.q[g*4+2]), int32(xb.q[g*4+3])
				for j := range sum {
					q := (*[4]byte)(w[(g*quantPanel+j)*4:])
					sum[j] += x0*int32(int8(q[0])) + x1*int32(int8(q[1])) + x2*int32(int8(q[2])) + x3*int32(int8(q[3]))
				}
			}
			for j := range sum {
				acc[j] += float32(float32(xb.d*half(block*quantPanel, j)) * float32(sum[j]))
			}
			continue
		}
		for g := range block / 8 {
			lo, hi := (*[4]int8)(xb.q[g*4:]), (*[4]int8)(xb.q[16+g*4:])
			for j := range sum {
				q := (*[4]byte)(w[(g*quantPanel+j)*4:])
				for i, v := range q {
					sum[j] += int32(lo[i])*int32(v&15) + int32(hi[i])*int32(v>>4)
				}
			}
		}
		const scales = block / 2 * quantPanel
		for j := range sum {
			if t == Q4_0 {
				sum[j] += xb.sum8
			}
			acc[j] += float32(float32(xb.d*half(scales, j)) * float32(sum[j]))
			if t == Q4_1 {
				acc[j] += float32(xb.s * half(scales+2*quantPanel, j))
			}
		}
	}
}
