package main

func vector(a *asm) {
	convert(a)
	norm(a)
	rope(a)
	gate(a)
	at := a.fn("dst[i] += x[i] for n elements, a multiple of 8.", "addAVX2", "dst *float32", "x *float32", "n int")
	a.load(at, "dst DI", "x SI", "n CX")
	a.p("loop:")
	a.ins("VMOVUPS (DI), Y0\n\tVADDPS (SI), Y0, Y0\n\tVMOVUPS Y0, (DI)")
	a.ins("ADDQ $32, DI\n\tADDQ $32, SI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ret()

	at = a.fn("lanes[i%8] += dst[i] = exp(x[i] - top) for n elements, a multiple of 8.", "expSumAVX2",
		"dst *float32", "x *float32", "n int", "lanes *float32", "top float32")
	a.load(at, "dst DI", "x SI", "n CX", "lanes DX")
	a.ins("VBROADCASTSS %s, Y8\n\tVMOVUPS (DX), Y9", at["top"])
	a.p("loop:")
	a.ins("VMOVUPS (SI), Y0\n\tVSUBPS Y8, Y0, Y0")
	exp(a, 0)
	a.ins("VMOVUPS Y0, (DI)\n\tVADDPS Y0, Y9, Y9")
	a.ins("ADDQ $32, DI\n\tADDQ $32, SI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ins("VMOVUPS Y9, (DX)")
	a.ret()

	at = a.fn("The largest of n elements, a multiple of 8.", "maxAVX2", "x *float32", "n int", "->", "top float32")
	a.load(at, "x SI", "n CX")
	a.ins("VMOVUPS (SI), Y0")
	a.p("loop:")
	a.ins("VMAXPS (SI), Y0, Y0\n\tADDQ $32, SI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ins("VEXTRACTF128 $1, Y0, X1\n\tVMAXPS X1, X0, X0\n\tVMOVHLPS X0, X0, X1\n\tVMAXPS X1, X0, X0\n\tVMOVSHDUP X0, X1\n\tVMAXSS X1, X0, X0")
	a.ins("VMOVSS X0, %s", at["top"])
	a.ret()
	expConstants(a)
}

func convert(a *asm) {
	at := a.fn("dst[i] = half(x[i]), to nearest even, for n elements, a multiple of 8.", "toF16AVX2", "dst *uint16", "x *float32", "n int")
	a.load(at, "dst DI", "x SI", "n CX")
	a.p("loop:")
	a.ins("VMOVUPS (SI), Y0\n\tVCVTPS2PH $0, Y0, (DI)\n\tADDQ $32, SI\n\tADDQ $16, DI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ret()
	at = a.fn("dst[i] = float(x[i]) for n elements, a multiple of 8.", "fromF16AVX2", "dst *float32", "x *uint16", "n int")
	a.load(at, "dst DI", "x SI", "n CX")
	a.p("loop:")
	a.ins("VCVTPH2PS (SI), Y0\n\tVMOVUPS Y0, (DI)\n\tADDQ $16, SI\n\tADDQ $32, DI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ret()
}

// norm is in two parts: the sum of squares in sixteen partial sums of doubles, and the scaling.
func norm(a *asm) {
	at := a.fn("lanes[i%16] += float64(x[i]*x[i]) for n elements, a multiple of 16.", "squaresAVX2", "x *float32", "n int", "lanes *float64")
	a.load(at, "x SI", "n CX", "lanes DI")
	for i := range 4 {
		a.ins("VMOVUPD %d(DI), Y%d", 32*i, i)
	}
	a.p("loop:")
	a.ins("VMOVUPS (SI), Y4\n\tVMULPS Y4, Y4, Y4\n\tVMOVUPS 32(SI), Y5\n\tVMULPS Y5, Y5, Y5")
	a.ins("VCVTPS2PD X4, Y6\n\tVADDPD Y6, Y0, Y0\n\tVEXTRACTF128 $1, Y4, X4\n\tVCVTPS2PD X4, Y6\n\tVADDPD Y6, Y1, Y1")
	a.ins("VCVTPS2PD X5, Y6\n\tVADDPD Y6, Y2, Y2\n\tVEXTRACTF128 $1, Y5, X5\n\tVCVTPS2PD X5, Y6\n\tVADDPD Y6, Y3, Y3")
	a.ins("ADDQ $64, SI\n\tSUBQ $16, CX\n\tJNZ loop")
	for i := range 4 {
		a.ins("VMOVUPD Y%d, %d(DI)", i, 32*i)
	}
	a.ret()
	at = a.fn("dst[i] = x[i]*scale*w[i] for n elements, a multiple of 8.", "scaleAVX2", "dst *float32", "x *float32", "w *float32", "n int", "scale float32")
	a.load(at, "dst DI", "x SI", "w DX", "n CX")
	a.ins("VBROADCASTSS %s, Y1", at["scale"])
	a.p("loop:")
	a.ins("VMULPS (SI), Y1, Y0\n\tVMULPS (DX), Y0, Y0\n\tVMOVUPS Y0, (DI)")
	a.ins("ADDQ $32, SI\n\tADDQ $32, DX\n\tADDQ $32, DI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ret()
}

func rope(a *asm) {
	at := a.fn("Rotates pairs of x by (cos, sin) pairs of cs, n elements, a multiple of 8.", "ropeAVX2", "x *float32", "cs *float32", "n int")
	a.load(at, "x DI", "cs SI", "n CX")
	a.p("loop:")
	a.ins("VMOVUPS (DI), Y0\n\tVMOVUPS (SI), Y1\n\tVMOVSLDUP Y1, Y2\n\tVMOVSHDUP Y1, Y3")
	a.ins("VPERMILPS $0xb1, Y0, Y4\n\tVMULPS Y2, Y0, Y0\n\tVMULPS Y3, Y4, Y4\n\tVADDSUBPS Y4, Y0, Y0\n\tVMOVUPS Y0, (DI)")
	a.ins("ADDQ $32, DI\n\tADDQ $32, SI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ret()
}

func gate(a *asm) {
	at := a.fn("dst[i] = gate[i]/(1+exp(-gate[i]))*u[i] for n elements, a multiple of 8.", "siluMulAVX2", "dst *float32", "gate *float32", "u *float32", "n int")
	a.load(at, "dst DI", "gate SI", "u DX", "n CX")
	a.p("loop:")
	a.ins("VMOVUPS (SI), Y1\n\tVXORPS Y0, Y0, Y0\n\tVSUBPS Y1, Y0, Y0")
	exp(a, 0)
	a.ins("VADDPS expOne<>(SB), Y0, Y0\n\tVDIVPS Y0, Y1, Y0\n\tVMULPS (DX), Y0, Y0\n\tVMOVUPS Y0, (DI)")
	a.ins("ADDQ $32, SI\n\tADDQ $32, DX\n\tADDQ $32, DI\n\tSUBQ $8, CX\n\tJNZ loop")
	a.ret()
}
