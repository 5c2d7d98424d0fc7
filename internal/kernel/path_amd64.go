package kernel

import "golang.org/x/sys/cpu"

//go:generate go run ./gen

// An AVX-512 or AMX path is another variable here, another file of kernels beside the AVX2 ones, and another branch where
// matmul.go and attend.go choose; nothing above this package changes.
var (
	haveAVX2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C
	avx2     = haveAVX2
)

func setAVX2(on bool) { avx2 = on }
