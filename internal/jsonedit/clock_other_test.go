//go:build !linux

package jsonedit

import "time"

// worked is the time that f takes.
func worked(f func()) time.Duration {
	from := time.Now()
	f()
	return time.Since(from)
}
