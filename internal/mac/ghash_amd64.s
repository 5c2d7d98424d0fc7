//go:build !race

// GHASH at 512 bits, alone or fused with the copy that lands a page.
//
// Blocks are byte-reversed and multiplied as POLYVAL does (RFC 8452, appendix A), whose reduction is two multiplications.
// Sixteen vectors of four blocks, 1 KiB, are multiplied by H^64 … H^1 and summed before one reduction; the running value
// joins as a seventeenth product, times H^64 in every lane. What is left over at the end, m blocks of which the last
// may be short, goes the same way with H^m … H^1, the short block being loaded under a mask.
//
// Registers, throughout:
//	DI dst   SI src   CX bytes left   BX powers   DX acc   R8 power of the next vector
//	Z15 running value, a partial sum in each lane   Z14 its power
//	Z16 Z17 Z18 low, middle, high parts of the sum of products
//	Z30 byte reversal   Z31 the polynomial's high bits, 0xc2 << 56, in each lane's high half

#include "textflag.h"

DATA reversal<>+0(SB)/8, $0x08090a0b0c0d0e0f
DATA reversal<>+8(SB)/8, $0x0001020304050607
GLOBL reversal<>(SB), RODATA|NOPTR, $16

DATA polynomial<>+0(SB)/8, $0x0000000000000001
DATA polynomial<>+8(SB)/8, $0xc200000000000000
GLOBL polynomial<>(SB), RODATA|NOPTR, $16

#define CONSTANTS \
	VBROADCASTI32X4 reversal<>(SB), Z30   \
	VBROADCASTI32X4 polynomial<>(SB), Z31

// FIRST starts the sums with a*b.
#define FIRST(a, b) \
	VPCLMULQDQ $0x00, a, b, Z16 \
	VPCLMULQDQ $0x11, a, b, Z18 \
	VPCLMULQDQ $0x01, a, b, Z17 \
	VPCLMULQDQ $0x10, a, b, Z20 \
	VPXORQ Z20, Z17, Z17

// NEXT adds a*b to the sums.
#define NEXT(a, b) \
	VPCLMULQDQ $0x00, a, b, Z20 \
	VPCLMULQDQ $0x11, a, b, Z21 \
	VPCLMULQDQ $0x01, a, b, Z22 \
	VPCLMULQDQ $0x10, a, b, Z23 \
	VPXORQ Z20, Z16, Z16 \
	VPXORQ Z21, Z18, Z18 \
	VPTERNLOGQ $0x96, Z22, Z23, Z17

// REDUCE leaves the sums, reduced, in Z15.
#define REDUCE \
	VPSLLDQ $8, Z17, Z20 \
	VPSRLDQ $8, Z17, Z21 \
	VPXORQ Z20, Z16, Z16 \
	VPXORQ Z21, Z18, Z18 \
	VPCLMULQDQ $0x10, Z31, Z16, Z20 \
	VPSHUFD $0x4e, Z16, Z16 \
	VPXORQ Z20, Z16, Z16 \
	VPCLMULQDQ $0x10, Z31, Z16, Z20 \
	VPSHUFD $0x4e, Z16, Z16 \
	VPXORQ Z20, Z16, Z16 \
	VPXORQ Z16, Z18, Z15

// VECTOR takes the vector at off of src through data and power. STORE is what each of the three functions does with it.
#define VECTOR(off, data, power) \
	VMOVDQU64 off(SI), data \
	PREFETCHT0 (off+2048)(SI) \
	STORE(data, off) \
	VPSHUFB Z30, data, data \
	VMOVDQU64 off(BX), power \
	NEXT(data, power)

#define KILOBYTE \
	FIRST(Z15, Z14) \
	VECTOR(0, Z0, Z4) \
	VECTOR(64, Z1, Z5) \
	VECTOR(128, Z2, Z6) \
	VECTOR(192, Z3, Z7) \
	VECTOR(256, Z0, Z4) \
	VECTOR(320, Z1, Z5) \
	VECTOR(384, Z2, Z6) \
	VECTOR(448, Z3, Z7) \
	VECTOR(512, Z0, Z4) \
	VECTOR(576, Z1, Z5) \
	VECTOR(640, Z2, Z6) \
	VECTOR(704, Z3, Z7) \
	VECTOR(768, Z0, Z4) \
	VECTOR(832, Z1, Z5) \
	VECTOR(896, Z2, Z6) \
	VECTOR(960, Z3, Z7) \
	REDUCE

// REST begins the last, short sum: R8 at H^m, the running value times H^m.
#define REST \
	LEAQ 15(CX), R9 \
	ANDQ $-16, R9 \
	LEAQ 1024(BX), R8 \
	SUBQ R9, R8 \
	VBROADCASTI32X4 (R8), Z14 \
	FIRST(Z15, Z14)

// MASK makes K1 select the CX < 64 bytes that are left.
#define MASK \
	MOVQ $1, R9 \
	SHLQ CX, R9 \
	DECQ R9 \
	KMOVQ R9, K1

// ABSORB is the body of the three functions: SI, DI (unless STORE is nothing), CX, BX and DX hold the arguments.
#define ABSORB \
	CONSTANTS \
	VMOVDQU64 (DX), Z15 \
	VMOVDQU64 1024(BX), Z14 \
	SUBQ $1024, CX \
	JLT rest \
kilobyte: \
	KILOBYTE \
	ADDQ $1024, SI \
	ADVANCE(1024) \
	SUBQ $1024, CX \
	JGE kilobyte \
rest: \
	ADDQ $1024, CX \
	JZ done \
	REST \
vector: \
	CMPQ CX, $64 \
	JLT short \
	VMOVDQU64 (SI), Z0 \
	STORE(Z0, 0) \
	VPSHUFB Z30, Z0, Z0 \
	VMOVDQU64 (R8), Z4 \
	NEXT(Z0, Z4) \
	ADDQ $64, SI \
	ADVANCE(64) \
	ADDQ $64, R8 \
	SUBQ $64, CX \
	JMP vector \
short: \
	TESTQ CX, CX \
	JZ reduce \
	MASK \
	VMOVDQU8.Z (SI), K1, Z0 \
	STOREMASKED(Z0) \
	VPSHUFB Z30, Z0, Z0 \
	VMOVDQU64 (R8), Z4 \
	NEXT(Z0, Z4) \
reduce: \
	REDUCE \
done: \
	VMOVDQU64 Z15, (DX) \
	VZEROUPPER

#define STORE(data, off)
#define STOREMASKED(data)
#define ADVANCE(n)

// func ghash(src *byte, n int, p *powers, acc *lanes)
TEXT ·ghash(SB), NOSPLIT, $0-32
	MOVQ src+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ p+16(FP), BX
	MOVQ acc+24(FP), DX
	ABSORB
	RET

#undef STORE
#undef STOREMASKED
#undef ADVANCE
#define STORE(data, off) VMOVDQU64 data, off(DI)
#define STOREMASKED(data) VMOVDQU8 data, K1, (DI)
#define ADVANCE(n) ADDQ $n, DI

// func ghashCopy(dst, src *byte, n int, p *powers, acc *lanes)
TEXT ·ghashCopy(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ p+24(FP), BX
	MOVQ acc+32(FP), DX
	ABSORB
	RET

#undef STORE
#define STORE(data, off) VMOVNTDQ data, off(DI)

// func ghashStream(dst, src *byte, n int, p *powers, acc *lanes)
TEXT ·ghashStream(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	TESTQ $63, DI
	JNZ unaligned // such stores want whole lines
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ p+24(FP), BX
	MOVQ acc+32(FP), DX
	ABSORB
	SFENCE
	RET

unaligned:
	JMP ·ghashCopy(SB)

// func mulLanes(a, b, product *lanes)
TEXT ·mulLanes(SB), NOSPLIT, $0-24
	MOVQ a+0(FP), AX
	MOVQ b+8(FP), BX
	MOVQ product+16(FP), DX
	CONSTANTS
	VMOVDQU64 (AX), Z0
	VMOVDQU64 (BX), Z1
	FIRST(Z0, Z1)
	REDUCE
	VMOVDQU64 Z15, (DX)
	VZEROUPPER
	RET
