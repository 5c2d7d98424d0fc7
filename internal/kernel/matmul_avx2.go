package kernel

// Blocks of rows are taken so that their activations stay in the second-level cache while all panels pass, and a panel in the
// first while the rows of the block pass.
const (
	rowBlockBytes = 192 << 10
	callBytes     = 64 << 10 // weights a call: assembly cannot be preempted, and this is a few microseconds
)

func matMulFloat(dst []float32, a *Acts, m *Mat, n0, n1 int, ws *Scratch) {
	k, n, size := m.k, m.n, m.panelBytes()
	perBlock := max(1, rowBlockBytes/(4*k*maxRows)) * maxRows
	for r0 := 0; r0 < a.rows; r0 += perBlock {
		r1 := min(a.rows, r0+perBlock)
		for j := n0; j < n1; {
			full := (n1 - j) / Panel
			panels := 1
			switch {
			case r1-r0 == 1 && full >= 4:
				panels = 4
			case (r1-r0 == 2 || r1-r0 == 3) && full >= 2:
				panels = 2
			}
			w := m.packed[j/Panel*size:][:panels*size]
			for r := r0; r < r1; {
				rows := min(maxRows, r1-r)
				x := a.x[r*k:][:rows*k]
				if full > 0 {
					out := dst[r*n+j:][:(rows-1)*n+panels*Panel]
					dotFloat(m.typ, rows, panels, &out[0], n*4, &x[0], k*4, &w[0], k)
				} else {
					dotFloat(m.typ, rows, 1, &ws.tile[0], Panel*4, &x[0], k*4, &w[0], k)
					for i := range rows {
						copy(dst[(r+i)*n+j:][:n1-j], ws.tile[i*Panel:])
					}
				}
				r += rows
			}
			j += panels * Panel
		}
	}
}

func dotFloat(t WeightType, rows, panels int, dst *float32, dstStride int, x *float32, xStride int, w *byte, k int) {
	type shape struct{ rows, panels int }
	if t == F32 {
		switch (shape{rows, panels}) {
		case shape{1, 4}:
			dotF32x1x4(dst, dstStride, x, xStride, w, k)
		case shape{2, 2}:
			dotF32x2x2(dst, dstStride, x, xStride, w, k)
		case shape{3, 2}:
			dotF32x3x2(dst, dstStride, x, xStride, w, k)
		case shape{1, 1}:
			dotF32x1x1(dst, dstStride, x, xStride, w, k)
		case shape{2, 1}:
			dotF32x2x1(dst, dstStride, x, xStride, w, k)
		case shape{3, 1}:
			dotF32x3x1(dst, dstStride, x, xStride, w, k)
		case shape{4, 1}:
			dotF32x4x1(dst, dstStride, x, xStride, w, k)
		case shape{5, 1}:
			dotF32x5x1(dst, dstStride, x, xStride, w, k)
		case shape{6, 1}:
			dotF32x6x1(dst, dstStride, x, xStride, w, k)
		default:
			panic("kernel: no such kernel")
		}
		return
	}
	switch (shape{rows, panels}) {
	case shape{1, 4}:
		dotF16x1x4(dst, dstStride, x, xStride, w, k)
	case shape{2, 2}:
		dotF16x2x2(dst, dstStride, x, xStride, w, k)
	case shape{3, 2}:
		dotF16x3x2(dst, dstStride, x, xStride, w, k)
	case shape{1, 1}:
		dotF16x1x1(dst, dstStride, x, xStride, w, k)
	case shape{2, 1}:
		dotF16x2x1(dst, dstStride, x, xStride, w, k)
	case shape{3, 1}:
		dotF16x3x1(dst, dstStride, x, xStride, w, k)
	case shape{4, 1}:
		dotF16x4x1(dst, dstStride, x, xStride, w, k)
	case shape{5, 1}:
		dotF16x5x1(dst, dstStride, x, xStride, w, k)
	case shape{6, 1}:
		dotF16x6x1(dst, dstStride, x, xStride, w, k)
	default:
		panic("kernel: no such kernel")
	}
}

// maxQuantRows is the most rows that a kernel for quantised weights takes at a time.
const maxQuantRows = 4

func matMulQuant(dst []float32, a *Acts, m *Mat, n0, n1 int, ws *Scratch) {
	const actBytes = 48
	blocks, n, size := m.k/block, m.n, m.panelBytes()
	perBlock := max(1, rowBlockBytes/(actBytes*blocks*maxQuantRows)) * maxQuantRows
	perCall := max(1, callBytes/size)
	if a.rows > maxQuantRows {
		perCall = max(1, perCall/8) // they pass again for the next rows
	}
	for r0 := 0; r0 < a.rows; r0 += perBlock {
		r1 := min(a.rows, r0+perBlock)
		for j := n0; j < n1; {
			full := (n1 - j) / quantPanel
			panels := max(1, min(full, perCall))
			w := m.packed[j/quantPanel*size:][:panels*size]
			for r := r0; r < r1; {
				rows := min(maxQuantRows, r1-r)
				x := a.q[r*blocks:][:rows*blocks]
				if full > 0 {
					out := dst[r*n+j:][:(rows-1)*n+panels*quantPanel]
					dotQuant(m.typ, rows, &out[0], n*4, &x[0], blocks*actBytes, &w[0], blocks, panels)
				} else {
					dotQuant(m.typ, rows, &ws.tile[0], quantPanel*4, &x[0], blocks*actBytes, &w[0], blocks, 1)
					for i := range rows {
						copy(dst[(r+i)*n+j:][:n1-j], ws.tile[i*quantPanel:])
					}
				}
				r += rows
			}
			j += panels * quantPanel
		}
	}
}

func dotQuant(t WeightType, rows int, dst *float32, dstStride int, x *actBlock, xStride int, w *byte, blocks, panels int) {
	switch t {
	case Q8_0:
		switch rows {
		case 1:
			dotQ8_0x1(dst, dstStride, x, xStride, w, blocks, panels)
		case 2:
			dotQ8_0x2(dst, dstStride, x, xStride, w, blocks, panels)
		case 3:
			dotQ8_0x3(dst, dstStride, x, xStride, w, blocks, panels)
		case 4:
			dotQ8_0x4(dst, dstStride, x, xStride, w, blocks, panels)
		}
	case Q4_0:
		switch rows {
		case 1:
			dotQ4_0x1(dst, dstStride, x, xStride, w, blocks, panels)
		case 2:
			dotQ4_0x2(dst, dstStride, x, xStride, w, blocks, panels)
		case 3:
			dotQ4_0x3(dst, dstStride, x, xStride, w, blocks, panels)
		case 4:
			dotQ4_0x4(dst, dstStride, x, xStride, w, blocks, panels)
		}
	case Q4_1:
		switch rows {
		case 1:
			dotQ4_1x1(dst, dstStride, x, xStride, w, blocks, panels)
		case 2:
			dotQ4_1x2(dst, dstStride, x, xStride, w, blocks, panels)
		case 3:
			dotQ4_1x3(dst, dstStride, x, xStride, w, blocks, panels)
		case 4:
			dotQ4_1x4(dst, dstStride, x, xStride, w, blocks, panels)
		}
	}
}
