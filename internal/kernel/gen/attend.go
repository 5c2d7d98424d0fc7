package main

import "fmt"

func attend(a *asm) {
	for rows := 1; rows <= 3; rows++ {
		scores(a, rows)
	}
	softmax(a)
	for rows := 1; rows <= 3; rows++ {
		values(a, rows)
	}
}

// scores multiplies some queries by groups of 16 keys. A lane holds an even or an odd dim of one key; pairs are added at the end.
//
// Registers: Y0.. sums [row][4], Y12-14 a pair of dims of each query, Y15 keys.
func scores(a *asm, rows int) {
	at := a.fn(fmt.Sprintf("s[r][j] = q[r] . key[j] for %d queries and groups of 16 keys at k[0..groups); s has rows of 64.", rows),
		fmt.Sprintf("scoresx%d", rows), "s *float32", "q *float32", "qStride int", "k *unsafe.Pointer", "groups int", "pairs int")
	a.load(at, "s DI", "q SI", "qStride R9", "k BX", "groups DX", "pairs R8")
	a.p("group:")
	a.ins("MOVQ (BX), AX\n\tMOVQ SI, R10\n\tMOVQ R8, CX")
	for i := range rows * 4 {
		a.ins("VXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	a.p("pair:")
	for r := range rows {
		a.ins("VBROADCASTSD %s, Y%d", rowAddr(0, r, "R10", "", "R9"), 12+r)
	}
	for v := range 4 {
		a.ins("VCVTPH2PS %d(AX), Y15", 16*v)
		for r := range rows {
			a.ins("VFMADD231PS Y15, Y%d, Y%d", 12+r, r*4+v)
		}
	}
	a.ins("ADDQ $64, AX\n\tADDQ $8, R10\n\tDECQ CX\n\tJNZ pair")
	for r := range rows {
		for h := range 2 {
			lo, hi := r*4+h*2, r*4+h*2+1
			a.ins("VHADDPS Y%d, Y%d, Y%d\n\tVPERMPD $0xd8, Y%d, Y%d\n\tVMOVUPS Y%d, %d(DI)", hi, lo, lo, lo, lo, lo, r*256+h*32)
		}
	}
	a.ins("ADDQ $8, BX\n\tADDQ $64, DI\n\tDECQ DX\n\tJNZ group")
	a.ret()
}

// softmax does what softmaxGo does, for a whole tile (the caller has set scores beyond the count to -Inf).
//
// Registers: Y0-7 the scores, Y8 the new maximum, Y9 the sum, Y10-13 exponentials.
func softmax(a *asm) {
	at := a.fn("softmaxGo over all 64 scores of s; corr is what earlier sums must be multiplied by.", "softmaxAVX2",
		"s *float32", "row *attnRow", "corr *float32", "->", "ok bool")
	a.load(at, "s SI", "row DI", "corr DX")
	for i := range 8 {
		a.ins("VMOVUPS %d(SI), Y%d", 32*i, i)
	}
	a.ins("VMAXPS Y1, Y0, Y8\n\tVMAXPS Y3, Y2, Y9\n\tVMAXPS Y5, Y4, Y10\n\tVMAXPS Y7, Y6, Y11")
	a.ins("VMAXPS Y9, Y8, Y8\n\tVMAXPS Y11, Y10, Y10\n\tVMAXPS Y10, Y8, Y8")
	a.ins("VEXTRACTF128 $1, Y8, X9\n\tVMAXPS X9, X8, X8\n\tVMOVHLPS X8, X8, X9\n\tVMAXPS X9, X8, X8\n\tVMOVSHDUP X8, X9\n\tVMAXSS X9, X8, X8")
	a.ins("VMOVSS (DI), X15") // the running maximum
	a.ins("VMOVSS skipBelow<>(SB), X9\n\tVSUBSS X9, X15, X9")
	a.ins("VUCOMISS X8, X9\n\tJHI skip") // max - 60 above the tile's best
	a.ins("VMAXSS X8, X15, X8\n\tVMOVSS X8, (DI)\n\tVBROADCASTSS X8, Y8")
	for i := range 8 {
		a.ins("VSUBPS Y8, Y%d, Y%d", i, i)
	}
	a.ins("VSUBPS X8, X15, X15")
	for i := range 8 {
		exp(a, i)
		a.ins("VMOVUPS Y%d, %d(SI)", i, 32*i)
		if i == 0 {
			a.ins("VMOVAPS Y0, Y9")
		} else {
			a.ins("VADDPS Y%d, Y9, Y9", i)
		}
	}
	exp(a, 15)
	a.ins("VMOVSS X15, (DX)")
	sumLanes(a, 9, 10)
	a.ins("VMOVSS 4(DI), X0\n\tVMULSS X15, X0, X0\n\tVADDSS X9, X0, X0\n\tVMOVSS X0, 4(DI)")
	a.ins("MOVB $1, %s", at["ok"])
	a.ret()
	a.p("skip:")
	a.ins("MOVB $0, %s", at["ok"])
	a.ret()
	a.p("\nDATA skipBelow<>+0(SB)/4, $60.0\nGLOBL skipBelow<>(SB), RODATA|NOPTR, $4")
	expConstants(a)
}

// sumLanes leaves the sum of register y's lanes in its lowest, in the order of sumLanes in the Go code.
func sumLanes(a *asm, y, t int) {
	a.ins("VEXTRACTF128 $1, Y%d, X%d\n\tVADDPS X%d, X%d, X%d", y, t, t, y, y)
	a.ins("VMOVHLPS X%d, X%d, X%d\n\tVADDPS X%d, X%d, X%d", y, y, t, t, y, y)
	a.ins("VMOVSHDUP X%d, X%d\n\tVADDSS X%d, X%d, X%d", y, t, t, y, y)
}

// exp replaces register x by its exponential, as expGo does. It destroys Y10-12. Operand order lets a NaN through.
func exp(a *asm, x int) {
	const n, p, q = 10, 11, 12
	c := func(name string) string { return "exp" + name + "<>(SB)" }
	a.ins("VMOVUPS %s, Y%d\n\tVMINPS Y%d, Y%d, Y%d", c("High"), n, x, n, x)
	a.ins("VCMPPS $1, %s, Y%d, Y%d", c("Low"), x, q) // x < low
	a.ins("VMULPS %s, Y%d, Y%d\n\tVROUNDPS $8, Y%d, Y%d", c("Log2E"), x, n, n, n)
	a.ins("VFNMADD231PS %s, Y%d, Y%d\n\tVFNMADD231PS %s, Y%d, Y%d", c("Ln2High"), n, x, c("Ln2Low"), n, x)
	a.ins("VMOVUPS %s, Y%d", c("C0"), p)
	for i := 1; i <= 5; i++ {
		a.ins("VFMADD213PS %s, Y%d, Y%d", c(fmt.Sprintf("C%d", i)), x, p)
	}
	a.ins("VMULPS Y%d, Y%d, Y%d", x, p, p)
	a.ins("VFMADD213PS Y%d, Y%d, Y%d\n\tVADDPS %s, Y%d, Y%d", x, x, p, c("One"), p, p)
	a.ins("VCVTPS2DQ Y%d, Y%d\n\tVPSLLD $23, Y%d, Y%d\n\tVPADDD Y%d, Y%d, Y%d", n, n, n, n, n, p, p)
	a.ins("VANDNPS Y%d, Y%d, Y%d", p, q, x)
}

func expConstants(a *asm) {
	for _, c := range []struct{ name, value string }{
		{"High", "88.3"}, {"Low", "-87.3"}, {"Log2E", "1.44269504088896341"}, {"Ln2High", "0.693359375"}, {"Ln2Low", "-2.12194440e-4"},
		{"C0", "1.9875691500e-4"}, {"C1", "1.3981999507e-3"}, {"C2", "8.3334519073e-3"}, {"C3", "4.1665795894e-2"},
		{"C4", "1.6666665459e-1"}, {"C5", "5.0000001201e-1"}, {"One", "1.0"},
	} {
		a.p("")
		for i := range 8 {
			a.p("DATA exp%s<>+%d(SB)/4, $%s", c.name, 4*i, c.value)
		}
		a.p("GLOBL exp%s<>(SB), RODATA|NOPTR, $32", c.name)
	}
}

// values adds weighted values to some outputs, 32 dims at a time, then 8.
//
// Registers: Y0.. sums [row][dims/8], Y12-14 a weight of each row, Y15 values. AX rows, BX groups of values, CX keys,
// DX dims left, DI the block's place in a row of halves, R8-R10 weights, R12 bytes of a row of values.
func values(a *asm, rows int) {
	at := a.fn(fmt.Sprintf("o[r] = o[r]*corr[r] + sum of p[r][j]*value[j] over count keys, for %d rows; v are groups of 16 values.", rows),
		fmt.Sprintf("valuesx%d", rows), "r *valueRow", "v *unsafe.Pointer", "count int", "dims int")
	a.load(at, "r AX", "v BX", "count CX", "dims DX")
	for r := range rows {
		a.ins("MOVQ %d(AX), R%d", 24*r, 8+r)
	}
	a.ins("MOVQ DX, R12\n\tADDQ R12, R12\n\tXORQ DI, DI")
	for _, n := range []int{4, 1} {
		a.p("dims%d:", n)
		a.ins("CMPQ DX, $%d\n\tJLT done%d", 8*n, n)
		for r := range rows {
			a.ins("MOVQ %d(AX), R11\n\tLEAQ (R11)(DI*2), R11\n\tVBROADCASTSS %d(AX), Y15", 24*r+8, 24*r+16)
			for v := range n {
				a.ins("VMULPS %d(R11), Y15, Y%d", 32*v, r*n+v)
			}
		}
		a.ins("XORQ R13, R13") // key
		a.p("group%d:", n)
		a.ins("MOVQ R13, SI\n\tSHRQ $4, SI\n\tMOVQ (BX)(SI*8), SI\n\tADDQ DI, SI")
		a.ins("LEAQ 16(R13), R11\n\tCMPQ R11, CX\n\tCMOVQGT CX, R11") // end of the group
		a.p("key%d:", n)
		for r := range rows {
			a.ins("VBROADCASTSS (R%d)(R13*4), Y%d", 8+r, 12+r)
		}
		for v := range n {
			a.ins("VCVTPH2PS %d(SI), Y15", 16*v)
			for r := range rows {
				a.ins("VFMADD231PS Y15, Y%d, Y%d", 12+r, r*n+v)
			}
		}
		a.ins("ADDQ R12, SI\n\tINCQ R13\n\tCMPQ R13, R11\n\tJLT key%d", n)
		a.ins("CMPQ R13, CX\n\tJLT group%d", n)
		for r := range rows {
			a.ins("MOVQ %d(AX), R11\n\tLEAQ (R11)(DI*2), R11", 24*r+8)
			for v := range n {
				a.ins("VMOVUPS Y%d, %d(R11)", r*n+v, 32*v)
			}
		}
		a.ins("ADDQ $%d, DI\n\tSUBQ $%d, DX\n\tJMP dims%d", 16*n, 8*n, n)
		a.p("done%d:", n)
	}
	a.ret()
}
