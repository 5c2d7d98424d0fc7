package kernel

// No assembly yet. An AVX-512 or AMX path is another variable here, another file of kernels beside the AVX2 one, and
// another branch where MatMul and Attend choose; nothing above this package changes.
const (
	avx2     = false
	haveAVX2 = false
)

func setAVX2(bool) {}

func toF16AVX2(dst *uint16, src *float32, n int)   { panic("kernel: no assembly here") }
func fromF16AVX2(dst *float32, src *uint16, n int) { panic("kernel: no assembly here") }
func quantizeAVX2(q *actBlock, x *float32, n int)  { panic("kernel: no assembly here") }
