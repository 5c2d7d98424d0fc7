package kernel

import "testing"

// forPaths runs a test on every path of this machine.
func forPaths(t *testing.T, f func(t *testing.T)) {
	for _, p := range Paths() {
		t.Run(p, func(t *testing.T) {
			usePath(t, p)
			f(t)
		})
	}
}

func usePath(t testing.TB, name string) {
	old := Path()
	if err := SetPath(name); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { SetPath(old) })
}
