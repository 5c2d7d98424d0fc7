package tenant

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeysAreMade(t *testing.T) {
	a, b := NewKey(), NewKey()
	if a == b || !strings.HasPrefix(a, Prefix) || len(a) != len(Prefix)+43 {
		t.Errorf("%s %s", a, b)
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := Add(path, Line("alice", a, "concurrency=2")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(read(t, path), "# a comment without an end"...), 0o640); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o640)
	if err := Add(path, Line("bob", b)); err != nil {
		t.Fatal(err)
	}
	text := string(read(t, path))
	if strings.Contains(text, a) || strings.Contains(text, b) || !strings.Contains(text, "# a comment without an end\nbob ") {
		t.Errorf("%s", text)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o640 {
		t.Errorf("the file's mode is %v", st.Mode())
	}
	d, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{a: "alice", b: "bob"} {
		if x, v := d.Authenticate(bearer(key)); x.ID != want || !v.IsZero() {
			t.Errorf("%v %v", x.ID, v)
		}
	}
	for line, want := range map[string]string{
		Line("alice", NewKey()):               "has a key alice",
		Line("carol", a):                      "the same key as before",
		Line("carol", NewKey(), "burst=1"):    "there is no option",
		Line("carol", NewKey(), "scope=bob"):  "the same scope",
		Line("ca rol", NewKey(), "scope=bob"): "a line is an id",
	} {
		if err := Add(path, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if string(read(t, path)) != text {
			t.Fatal("a refused line changed the file")
		}
	}
	if err := Remove(path, "dave"); err == nil || !strings.Contains(err.Error(), "has no key dave") {
		t.Error(err)
	}
	if err := Remove(path, "alice"); err != nil || strings.Contains(string(read(t, path)), "alice") {
		t.Error(err)
	}
	if err := Remove(path, "bob"); err == nil || !strings.Contains(err.Error(), "no keys") {
		t.Errorf("the last key was removed: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".keys-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
