// Package follow notices that files are not what they were: keys and certificates that are replaced while a process runs.
//
// It looks, every so often, at each file's size, time and identity. That works on every file system, over the links that Kubernetes
// moves, and costs nothing to speak of; a notification would come sooner, and not everywhere.
package follow

import (
	"context"
	"os"
	"time"
)

// Every is how often files are looked at, where nothing else is asked for.
const Every = 2 * time.Second

// Files calls changed after each look at which one of the files was not what it was at the look before, until ctx ends. A file that is
// gone and one that is back have changed.
func Files(ctx context.Context, every time.Duration, paths []string, changed func()) {
	seen := look(paths)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := look(paths)
		if differ(seen, now) {
			changed()
		}
		seen = now
	}
}

// look at each file; nil is one that is not there.
func look(paths []string) []os.FileInfo {
	out := make([]os.FileInfo, len(paths))
	for i, p := range paths {
		if st, err := os.Stat(p); err == nil {
			out[i] = st
		}
	}
	return out
}

func differ(a, b []os.FileInfo) bool {
	for i := range a {
		switch x, y := a[i], b[i]; {
		case x == nil && y == nil:
		case x == nil || y == nil:
			return true
		case !os.SameFile(x, y) || x.Size() != y.Size() || !x.ModTime().Equal(y.ModTime()):
			return true
		}
	}
	return false
}
