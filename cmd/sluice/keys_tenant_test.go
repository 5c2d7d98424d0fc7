package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The commands make a file that a gateway reads; the key is printed once, and is not in the file.
func TestTenantKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "api-keys")
	do := func(args ...string) (string, error) {
		t.Helper()
		var out bytes.Buffer
		root := rootCommand()
		root.SetArgs(append([]string{"keys", "tenant", "--file", file}, args...))
		root.SetOut(&out)
		root.SetErr(&bytes.Buffer{})
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	key, err := do("add", "alice", "--models", "recall", "--concurrency", "8", "--requests", "600/m", "--tokens", "200000/m", "--expires", "2999-06-30")
	if err != nil || !strings.HasPrefix(key, "sk-sluice-") || len(key) < 50 {
		t.Fatalf("%q %v", key, err)
	}
	if _, err := do("add", "alice-2", "--tenant", "alice"); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(file)
	if strings.Contains(string(b), strings.TrimSpace(key)) || !strings.Contains(string(b), " models=recall concurrency=8 requests=600/m tokens=200000/m expires=2999-06-30\nalice-2 ") {
		t.Errorf("%s", b)
	}
	list, err := do("list")
	if err != nil || !strings.Contains(list, "alice    alice   recall  8            600/m     200000/m  until 2999-07-01") || !strings.Contains(list, "\nalice-2  alice ") {
		t.Errorf("%v\n%s", err, list)
	}
	for want, args := range map[string][]string{
		"has a key alice":   {"add", "alice"},
		"no blanks":         {"add", "a b"},
		"a rate is":         {"add", "bob", "--requests", "9"},
		"has no key carol":  {"remove", "carol"},
		"stands on line 1 ": {"add", "alice-3", "--tenant", "alice", "--models", "big"},
	} {
		if _, err := do(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
	if after, _ := os.ReadFile(file); !bytes.Equal(b, after) {
		t.Errorf("a refused command changed the file:\n%s", after)
	}
	if _, err := do("remove", "alice-2"); err != nil {
		t.Error(err)
	}
}
