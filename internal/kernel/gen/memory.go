package main

func memory(a *asm) {
	at := a.fn("Whether n bytes, a multiple of 128, are zero.", "isZeroAVX2", "p *byte", "n int", "->", "zero bool")
	a.load(at, "p SI", "n CX")
	a.p("loop:")
	a.ins("VMOVDQU (SI), Y0\n\tVPOR 32(SI), Y0, Y0\n\tVMOVDQU 64(SI), Y1\n\tVPOR 96(SI), Y1, Y1\n\tVPOR Y1, Y0, Y0")
	a.ins("VPTEST Y0, Y0\n\tJNZ found\n\tADDQ $128, SI\n\tSUBQ $128, CX\n\tJNZ loop")
	a.ins("MOVB $1, %s", at["zero"])
	a.ret()
	a.p("found:")
	a.ins("MOVB $0, %s", at["zero"])
	a.ret()

	at = a.fn("Zeroes n bytes, a multiple of 64, at a multiple of 32, past the caches.", "clearStreamAVX2", "p *byte", "n int")
	a.load(at, "p DI", "n CX")
	a.ins("VPXOR Y0, Y0, Y0")
	a.p("loop:")
	a.ins("VMOVNTDQ Y0, (DI)\n\tVMOVNTDQ Y0, 32(DI)\n\tADDQ $64, DI\n\tSUBQ $64, CX\n\tJNZ loop")
	a.ins("SFENCE")
	a.ret()
}
