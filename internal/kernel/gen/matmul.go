package main

import "fmt"

func matmul(a *asm) {
	for _, half := range []bool{false, true} {
		for _, s := range []struct{ rows, panels int }{{1, 4}, {2, 2}, {3, 2}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}} {
			dotFloat(a, half, s.rows, s.panels)
		}
	}
	for _, typ := range []string{"Q8_0", "Q4_0", "Q4_1"} {
		for rows := 1; rows <= 4; rows++ {
			dotQuant(a, typ, rows)
		}
	}
	quantize(a)
}

// rowAddr is the address of row r for a base and a stride in registers (stride3 holds three times the stride, base3 the
// base of row 3).
func rowAddr(disp int, r int, base, base3, stride string) string {
	switch r % 3 {
	case 1:
		return fmt.Sprintf("%d(%s)(%s*1)", disp, pick(r, base, base3), stride)
	case 2:
		return fmt.Sprintf("%d(%s)(%s*2)", disp, pick(r, base, base3), stride)
	}
	return fmt.Sprintf("%d(%s)", disp, pick(r, base, base3))
}

func pick(r int, base, base3 string) string {
	if r >= 3 {
		return base3
	}
	return base
}

// dotFloat multiplies some rows by some panels of 16 outputs, column after column.
//
// Registers: Y0.. accumulators [row][panel][2]; Y12 (Y14 with half as many rows) on: weights, then one activation.
func dotFloat(a *asm, half bool, rows, panels int) {
	name, size := "F32", 4
	if half {
		name, size = "F16", 2
	}
	at := a.fn(fmt.Sprintf("dst[r][j] = x[r] . w[j] for %d rows and %d panels of 16 %s outputs; strides in bytes.", rows, panels, name),
		fmt.Sprintf("dot%sx%dx%d", name, rows, panels),
		"dst *float32", "dstStride int", "x *float32", "xStride int", "w *byte", "k int")
	a.load(at, "dst DI", "dstStride R8", "x SI", "xStride R9", "w AX", "k CX")
	accs := rows * panels * 2
	for i := range accs {
		a.ins("VXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	if rows > 3 {
		a.ins("LEAQ (SI)(R9*2), DX\n\tADDQ R9, DX")
	}
	// Panel p starts k*16 weights after the one before.
	bases := []string{"AX", "BX", "R10", "R11"}
	for p := 1; p < panels; p++ {
		if p == 1 {
			a.ins("MOVQ CX, R12\n\tSHLQ $%d, R12", map[int]int{4: 6, 2: 5}[size])
		}
		a.ins("LEAQ (%s)(R12*1), %s", bases[p-1], bases[p])
	}
	a.p("loop:")
	load := func(p, v, reg int) {
		if half {
			a.ins("VCVTPH2PS %d(%s), Y%d", 16*v, bases[p], reg)
		} else {
			a.ins("VMOVUPS %d(%s), Y%d", 32*v, bases[p], reg)
		}
	}
	if rows == 1 {
		a.ins("VBROADCASTSS (SI), Y15")
		for p := range panels {
			for v := range 2 {
				if half {
					load(p, v, 8+(p*2+v)%4)
					a.ins("VFMADD231PS Y%d, Y15, Y%d", 8+(p*2+v)%4, p*2+v)
				} else {
					a.ins("VFMADD231PS %d(%s), Y15, Y%d", 32*v, bases[p], p*2+v)
				}
			}
		}
	} else {
		for p := range panels {
			load(p, 0, 13)
			load(p, 1, 14)
			for r := range rows {
				a.ins("VBROADCASTSS %s, Y15", rowAddr(0, r, "SI", "DX", "R9"))
				a.ins("VFMADD231PS Y13, Y15, Y%d", (r*panels+p)*2)
				a.ins("VFMADD231PS Y14, Y15, Y%d", (r*panels+p)*2+1)
			}
		}
	}
	for p := range panels {
		a.ins("ADDQ $%d, %s", 16*size, bases[p])
	}
	a.ins("ADDQ $4, SI")
	if rows > 3 {
		a.ins("ADDQ $4, DX")
	}
	a.ins("DECQ CX\n\tJNZ loop")
	for r := range rows {
		for i := range panels * 2 {
			a.ins("VMOVUPS Y%d, %d(DI)", r*panels*2+i, 32*i)
		}
		if r < rows-1 {
			a.ins("ADDQ R8, DI")
		}
	}
	a.ret()
}

// dotQuant multiplies some rows of quantised activations by panels of 8 quantised outputs, one after the other.
//
// Outputs lie across lanes: a group of 4 columns is one 32-bit lane of weights, and one 32-bit broadcast of activations.
// VPMADDUBSW takes an unsigned and a signed operand and saturates at 16 bits:
//   - 4 bits: the weights are 0..15, the sum of a block of 32 columns at most 8 * 2*15*128, which 16 bits hold: one widening a block.
//   - Q8_0: |w| is up to 128 (unsigned) and x, given w's sign, -127..127: 2*128*127 just fits, so each group is widened. The
//     absolute value is w's and not x's, so that a weight of -128 is right.
//
// Registers: Y0-3 integer sums, Y4-7 results, Y8-11 operands, Y12 scale, Y13 minimum, Y14 ones, Y15 low halves.
func dotQuant(a *asm, typ string, rows int) {
	at := a.fn(fmt.Sprintf("dst[r][j] = x[r] . w[j] for %d rows and panels of 8 %s outputs, k/32 = blocks; strides in bytes.", rows, typ),
		fmt.Sprintf("dot%sx%d", typ, rows),
		"dst *float32", "dstStride int", "x *actBlock", "xStride int", "w *byte", "blocks int", "panels int")
	a.load(at, "dst DI", "dstStride R8", "x SI", "xStride R9", "w AX", "blocks CX", "panels DX")
	a.ins("VPCMPEQW Y14, Y14, Y14\n\tVPSRLW $15, Y14, Y14")
	if typ != "Q8_0" {
		a.ins("VPCMPEQW Y15, Y15, Y15\n\tVPSRLW $12, Y15, Y15\n\tVPACKUSWB Y15, Y15, Y15")
	}
	a.p("panel:")
	a.ins("MOVQ SI, R11\n\tMOVQ CX, R12")
	if rows > 3 {
		a.ins("LEAQ (SI)(R9*2), R13\n\tADDQ R9, R13")
	}
	for r := range rows {
		a.ins("VXORPS Y%d, Y%d, Y%d", 4+r, 4+r, 4+r)
	}
	a.p("block:")
	x := func(disp, r int) string { return rowAddr(disp, r, "R11", "R13", "R9") }
	scales := 0
	if typ == "Q8_0" {
		scales = 256
		for r := range rows {
			a.ins("VPXOR Y%d, Y%d, Y%d", r, r, r)
		}
		for g := range 8 {
			a.ins("VMOVDQU %d(AX), Y8\n\tVPABSB Y8, Y9", 32*g)
			for r := range rows {
				t := 10 + r%2
				a.ins("VPBROADCASTD %s, Y%d", x(4*g, r), t)
				a.ins("VPSIGNB Y8, Y%d, Y%d", t, t)
				a.ins("VPMADDUBSW Y%d, Y9, Y%d", t, t)
				a.ins("VPMADDWD Y14, Y%d, Y%d", t, t)
				a.ins("VPADDD Y%d, Y%d, Y%d", t, r, r)
			}
		}
	} else {
		scales = 128
		for g := range 4 {
			a.ins("VMOVDQU %d(AX), Y8", 32*g)
			for h := range 2 {
				if h == 0 {
					a.ins("VPAND Y15, Y8, Y9")
				} else {
					a.ins("VPSRLW $4, Y8, Y8\n\tVPAND Y15, Y8, Y9")
				}
				for r := range rows {
					t := 10 + r%2
					a.ins("VPBROADCASTD %s, Y%d", x(16*h+4*g, r), t)
					if g == 0 && h == 0 {
						a.ins("VPMADDUBSW Y%d, Y9, Y%d", t, r)
					} else {
						a.ins("VPMADDUBSW Y%d, Y9, Y%d", t, t)
						a.ins("VPADDW Y%d, Y%d, Y%d", t, r, r)
					}
				}
			}
		}
		for r := range rows {
			a.ins("VPMADDWD Y14, Y%d, Y%d", r, r)
			if typ == "Q4_0" {
				a.ins("VPBROADCASTD %s, Y10\n\tVPADDD Y10, Y%d, Y%d", x(40, r), r, r)
			}
		}
	}
	a.ins("VCVTPH2PS %d(AX), Y12", scales)
	size := scales + 16
	if typ == "Q4_1" {
		a.ins("VCVTPH2PS %d(AX), Y13", scales+16)
		size += 16
	}
	for r := range rows {
		t := 10 + r%2
		a.ins("VCVTDQ2PS Y%d, Y%d", r, r)
		a.ins("VBROADCASTSS %s, Y%d\n\tVMULPS Y12, Y%d, Y%d", x(32, r), t, t, t)
		a.ins("VFMADD231PS Y%d, Y%d, Y%d", t, r, 4+r)
		if typ == "Q4_1" {
			a.ins("VBROADCASTSS %s, Y%d\n\tVFMADD231PS Y%d, Y13, Y%d", x(36, r), t, t, 4+r)
		}
	}
	a.ins("ADDQ $%d, AX\n\tADDQ $48, R11", size)
	if rows > 3 {
		a.ins("ADDQ $48, R13")
	}
	a.ins("DECQ R12\n\tJNZ block")
	a.ins("MOVQ DI, R11")
	for r := range rows {
		a.ins("VMOVUPS Y%d, (R11)", 4+r)
		if r < rows-1 {
			a.ins("ADDQ R8, R11")
		}
	}
	a.ins("ADDQ $32, DI\n\tDECQ DX\n\tJNZ panel")
	a.ret()
}

// quantize turns blocks of 32 floats into activations, as quantizeGo does.
func quantize(a *asm) {
	at := a.fn("q[i] = 32 floats of x quantised, for n blocks.", "quantizeAVX2", "q *actBlock", "x *float32", "n int")
	a.load(at, "q DI", "x SI", "n CX")
	a.ins("VPCMPEQD Y15, Y15, Y15\n\tVPSRLD $1, Y15, Y15") // all but the sign
	a.ins("VBROADCASTSS quant127<>(SB), Y14")
	a.ins("VPBROADCASTD quantLow<>(SB), Y13")
	a.ins("VMOVDQU quantOrder<>(SB), Y12")
	a.p("loop:")
	for i := range 4 {
		a.ins("VMOVUPS %d(SI), Y%d\n\tVANDPS Y%d, Y15, Y%d", 32*i, i, i, 4+i)
	}
	a.ins("VMAXPS Y5, Y4, Y4\n\tVMAXPS Y7, Y6, Y6\n\tVMAXPS Y6, Y4, Y4")
	a.ins("VEXTRACTF128 $1, Y4, X5\n\tVMAXPS X5, X4, X4\n\tVMOVHLPS X4, X4, X5\n\tVMAXPS X5, X4, X4\n\tVMOVSHDUP X4, X5\n\tVMAXSS X5, X4, X4")
	a.ins("VDIVSS X14, X4, X6") // d
	a.ins("VDIVSS X4, X14, X7") // 127 / max, or 0 for a block of zeros
	a.ins("VXORPS X8, X8, X8\n\tVCMPSS $4, X8, X4, X8\n\tVANDPS X8, X7, X7")
	a.ins("VBROADCASTSS X7, Y7")
	for i := range 4 {
		a.ins("VMULPS Y7, Y%d, Y%d\n\tVROUNDPS $8, Y%d, Y%d\n\tVCVTPS2DQ Y%d, Y%d\n\tVPMAXSD Y13, Y%d, Y%d", i, i, i, i, i, i, i, i)
	}
	a.ins("VPADDD Y1, Y0, Y8\n\tVPADDD Y3, Y2, Y9\n\tVPADDD Y9, Y8, Y8")
	a.ins("VEXTRACTI128 $1, Y8, X9\n\tVPADDD X9, X8, X8\n\tVPSHUFD $0x4e, X8, X9\n\tVPADDD X9, X8, X8\n\tVPSHUFD $0xb1, X8, X9\n\tVPADDD X9, X8, X8")
	a.ins("VPACKSSDW Y1, Y0, Y0\n\tVPACKSSDW Y3, Y2, Y2\n\tVPACKSSWB Y2, Y0, Y0\n\tVPERMD Y0, Y12, Y0\n\tVMOVDQU Y0, (DI)")
	a.ins("VCVTDQ2PS X8, X9\n\tVMULSS X9, X6, X9\n\tVUNPCKLPS X9, X6, X6") // d, s
	a.ins("VCVTPS2PH $0, X6, X7\n\tVCVTPH2PS X7, X7")
	a.ins("VSUBPS X7, X7, X9\n\tVXORPS X10, X10, X10\n\tVCMPPS $0, X10, X9, X9") // h-h == 0: finite
	a.ins("VBLENDVPS X9, X7, X6, X6\n\tVMOVLPS X6, 32(DI)")
	a.ins("VPSLLD $3, X8, X8\n\tVPXOR X9, X9, X9\n\tVPSUBD X8, X9, X8\n\tVMOVD X8, 40(DI)")
	a.ins("ADDQ $128, SI\n\tADDQ $48, DI\n\tDECQ CX\n\tJNZ loop")
	a.ret()
	a.p("\nDATA quant127<>+0(SB)/4, $127.0\nGLOBL quant127<>(SB), RODATA|NOPTR, $4")
	a.p("DATA quantLow<>+0(SB)/4, $-127\nGLOBL quantLow<>(SB), RODATA|NOPTR, $4")
	for i, v := range []int{0, 4, 1, 5, 2, 6, 3, 7} {
		a.p("DATA quantOrder<>+%d(SB)/4, $%d", 4*i, v)
	}
	a.p("GLOBL quantOrder<>(SB), RODATA|NOPTR, $32")
}
