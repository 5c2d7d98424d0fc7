package follow

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Whatever way a file is replaced, it is noticed; where nothing happens, nothing is said.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	put := func(p, s string) {
		t.Helper()
		if err := os.WriteFile(p, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(path, "one")
	paths := []string{path, other}
	for _, change := range []struct {
		name string
		do   func()
		want bool
	}{
		{"nothing", func() {}, false},
		{"written in place", func() { put(path, "longer") }, true},
		{"only its time", func() { os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)) }, true},
		{"another comes", func() { put(other, "x") }, true},
		{"replaced by one of the same size and time", func() {
			st, _ := os.Stat(path)
			put(path+".new", "LONGER")
			os.Chtimes(path+".new", time.Time{}, st.ModTime())
			os.Rename(path+".new", path)
		}, true},
		{"gone", func() { os.Remove(path) }, true},
		{"still gone", func() {}, false},
	} {
		before := look(paths)
		change.do()
		if got := differ(before, look(paths)); got != change.want {
			t.Errorf("%s: %v", change.name, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said, done := make(chan bool, 1), make(chan bool)
	go func() {
		Files(ctx, time.Millisecond, paths, func() {
			select {
			case said <- true:
			default:
			}
		})
		close(done)
	}()
	for i := range 1000 { // the first look may come after the first change
		put(path, string(make([]byte, i)))
		select {
		case <-said:
			cancel()
		case <-time.After(5 * time.Millisecond):
			continue
		}
		break
	}
	<-done
	if ctx.Err() == nil {
		t.Error("no change was said")
	}
}
