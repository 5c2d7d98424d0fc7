//go:build !amd64

package kernel

const (
	avx2     = false
	haveAVX2 = false
)

func setAVX2(bool) {}
