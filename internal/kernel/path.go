package kernel

import "fmt"

// Path names the code that runs: "avx2" (assembly) or "go". The two agree within rounding, not in every bit, so that the
// legs of a pair must run the same one: the hello names it.
func Path() string {
	if avx2 {
		return "avx2"
	}
	return "go"
}

// Paths that this machine can run, best first.
func Paths() []string {
	if haveAVX2 {
		return []string{"avx2", "go"}
	}
	return []string{"go"}
}

// SetPath chooses the code that runs, for tests and benchmarks. It must not be called while a kernel runs.
func SetPath(name string) error {
	switch {
	case name == "go":
		setAVX2(false)
	case name == "avx2" && haveAVX2:
		setAVX2(true)
	default:
		return fmt.Errorf("kernel: no path %q on this machine; there are %v", name, Paths())
	}
	return nil
}
