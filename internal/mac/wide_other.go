//go:build !amd64 || race

package mac

// The wide path needs AVX-512, and assembly is invisible to the race detector.

const wideRuns = false

type wideKey struct{}

func newWide([32]byte) *wideKey                       { panic("mac: no wide path in this build") }
func (*wideKey) sum([12]byte, []byte) Tag             { panic("mac: no wide path in this build") }
func (*wideKey) sumCopy([12]byte, []byte, []byte) Tag { panic("mac: no wide path in this build") }
