package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// Panel is the grain of a product's outputs: cuts n0 and n1 of MatMul are multiples of it, or the last row.
const Panel = 16

// quantPanel is the width of a panel of a quantised matrix, block the run of columns that shares one scale.
const (
	quantPanel = 8
	block      = 32
)

// Mat is a weight matrix, packed once for the kernels. Outputs (the file's rows) lie across lanes:
//
//	F32, F16    [n/16 panels][k][16 outputs]
//	quantised   [n/8 panels][k/32 blocks] of: the quants, as 32-bit groups [group][8 outputs][4 bytes];
//	            then the scales d [8]f16; for Q4_1 then the minima m [8]f16
//
// A group of Q8_0 is 4 consecutive columns, and there are 8. A group of Q4_0 or Q4_1 is 4 bytes of the file: columns
// 4g..4g+3 of the block in the low halves, 16+4g..16+4g+3 in the high ones, and there are 4. The last panel is filled up with zeros.
// A Mat takes the bytes of the file's tensor, plus that filling. It is never written after packing.
type Mat struct {
	typ    WeightType
	n, k   int
	packed []byte
}

// Rows is the number of outputs.
func (m *Mat) Rows() int { return m.n }

// Cols is the number of inputs.
func (m *Mat) Cols() int { return m.k }

// Type of the weights.
func (m *Mat) Type() WeightType { return m.typ }

// Bytes of memory that the packed weights take.
func (m *Mat) Bytes() int { return len(m.packed) }

// Quantized says that MatMul reads quantised activations (see Acts.Quantize), not floats.
func (m *Mat) Quantized() bool { return m.typ >= Q8_0 }

func (t WeightType) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

var typeNames = [...]string{"F32", "F16", "Q8_0", "Q4_0", "Q4_1"}

// blockBytes is the size of one block of 32 columns in a GGUF file (of one column for floats).
// Source: ggml's block_q8_0 {d f16, 32 int8}, block_q4_0 {d f16, 16 bytes}, block_q4_1 {d f16, m f16, 16 bytes}.
func (t WeightType) blockBytes() int { return [...]int{4, 2, 34, 18, 20}[t] }

// PackF32 packs n rows of k floats, row after row as in a GGUF file, little endian.
func PackF32(raw []byte, n, k int) (*Mat, error) { return pack(F32, raw, n, k) }

// PackF16 packs n rows of k halves.
func PackF16(raw []byte, n, k int) (*Mat, error) { return pack(F16, raw, n, k) }

// PackQ8_0 packs n rows of k/32 blocks of 34 bytes.
func PackQ8_0(raw []byte, n, k int) (*Mat, error) { return pack(Q8_0, raw, n, k) }

// PackQ4_0 packs n rows of k/32 blocks of 18 bytes.
func PackQ4_0(raw []byte, n, k int) (*Mat, error) { return pack(Q4_0, raw, n, k) }

// PackQ4_1 packs n rows of k/32 blocks of 20 bytes.
func PackQ4_1(raw []byte, n, k int) (*Mat, error) { return pack(Q4_1, raw, n, k) }

// Pack packs a matrix of the given type. It is an error if raw is not exactly n rows of k weights.
func Pack(t WeightType, raw []byte, n, k int) (*Mat, error) { return pack(t, raw, n, k) }

func pack(t WeightType, raw []byte, n, k int) (*Mat, error) {
	if int(t) >= len(typeNames) {
		return nil, fmt.Errorf("kernel: no weights of %v", t)
	}
	if n <= 0 || k <= 0 || n > math.MaxInt32 || k > math.MaxInt32 {
		return nil, fmt.Errorf("kernel: a matrix of %d x %d", n, k)
	}
	blocks := k
	if t >= Q8_0 {
		if k%block != 0 {
			return nil, fmt.Errorf("kernel: %v rows of %d columns: must be a multiple of %d", t, k, block)
		}
		blocks = k / block
	}
	row := blocks * t.blockBytes() // at most 2^31 * 4
	if len(raw)%row != 0 || len(raw)/row != n {
		return nil, fmt.Errorf("kernel: %d bytes for a %v matrix of %d x %d: want %d rows of %d", len(raw), t, n, k, n, row)
	}
	m := &Mat{typ: t, n: n, k: k}
	width := m.width()
	panels := (n + width - 1) / width
	m.packed = alignedBytes(panels * width * row)
	for p := range panels {
		have := min(width, n-p*width)
		src := raw[p*width*row:][:have*row]
		dst := m.packed[p*width*row:][:width*row]
		switch t {
		case F32:
			packFloats32(dst, src, have, k)
		case F16:
			packFloats16(dst, src, have, k)
		default:
			packBlocks(t, dst, src, have, blocks)
		}
	}
	return m, nil
}

// width of a panel.
func (m *Mat) width() int {
	if m.Quantized() {
		return quantPanel
	}
	return Panel
}

// panelBytes is the size of one packed panel.
func (m *Mat) panelBytes() int {
	if m.Quantized() {
		return m.k / block * quantPanel * m.typ.blockBytes()
	}
	return m.k * Panel * m.typ.blockBytes()
}

// alignedBytes starts on a cache line, so that no load of a panel crosses one.
func alignedBytes(n int) []byte {
	b := make([]byte, n+63)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & 63
	return b[off : off+n : off+n]
}

func packFloats32(dst, src []byte, rows, k int) {
	for r := range rows {
		row := src[r*k*4:][:k*4]
		for c := range k {
			*(*[4]byte)(dst[(c*Panel+r)*4:]) = [4]byte(row[c*4:])
		}
	}
}

func packFloats16(dst, src []byte, rows, k int) {
	for r := range rows {
		row := src[r*k*2:][:k*2]
		for c := range k {
			*(*[2]byte)(dst[(c*Panel+r)*2:]) = [2]byte(row[c*2:])
		}
	}
}

func packBlocks(t WeightType, dst, src []byte, rows, blocks int) {
	size := t.blockBytes()
	heads := 2 // bytes of scale (and minimum) before the quants
	if t == Q4_1 {
		heads = 4
	}
	quants := size - heads
	for r := range rows {
		for b := range blocks {
			from := src[(r*blocks+b)*size:][:size]
			to := dst[b*size*quantPanel:][:size*quantPanel]
			for g := 0; g < quants/4; g++ {
				*(*[4]byte)(to[(g*quantPanel+r)*4:]) = [4]byte(from[heads+g*4:])
			}
			for h := 0; h < heads/2; h++ {
				*(*[2]byte)(to[quants*quantPanel+(h*quantPanel+r)*2:]) = [2]byte(from[h*2:])
			}
		}
	}
}

// Row writes the weights of row i, dequantised: an embedding. dst must have Cols elements.
func (m *Mat) Row(dst []float32, i int) {
	if i < 0 || i >= m.n || len(dst) != m.k {
		panic(fmt.Sprintf("kernel: row %d of %d into %d of %d columns", i, m.n, len(dst), m.k))
	}
	width := m.width()
	panel := m.packed[i/width*m.panelBytes():][:m.panelBytes()]
	r := i % width
	switch m.typ {
	case F32:
		for c := range dst {
			dst[c] = math.Float32frombits(binary.LittleEndian.Uint32(panel[(c*Panel+r)*4:]))
		}
	case F16:
		for c := range dst {
			dst[c] = f16to(binary.LittleEndian.Uint16(panel[(c*Panel+r)*2:]))
		}
	default:
		size := m.typ.blockBytes() * quantPanel
		for b := range m.k / block {
			m.blockRow((*[block]float32)(dst[b*block:]), panel[b*size:][:size], r)
		}
	}
}

// blockRow dequantises one block of output r, as ggml's dequantize_row functions do: product, then sum, each rounded.
func (m *Mat) blockRow(dst *[block]float32, p []byte, r int) {
	half := func(at int) float32 { return f16to(binary.LittleEndian.Uint16(p[at+r*2:])) }
	if m.typ == Q8_0 {
		d := half(block * quantPanel)
		for c := range dst {
			dst[c] = d * float32(int8(p[(c/4*quantPanel+r)*4+c%4]))
		}
		return
	}
	d := half(block / 2 * quantPanel)
	for c := range block / 2 {
		q := p[(c/4*quantPanel+r)*4+c%4]
		lo, hi := float32(q&15), float32(q>>4)
		if m.typ == Q4_0 {
			dst[c], dst[c+16] = d*(lo-8), d*(hi-8)
		} else {
			min := half(block/2*quantPanel + 2*quantPanel)
			dst[c], dst[c+16] = float32(d*lo)+min, float32(d*hi)+min
		}
	}
}
