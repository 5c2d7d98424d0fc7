package source

import (
	"strings"
	"testing"
)

func TestTheAutomatonFindsWhatContainsFinds(t *testing.T) {
	words := []string{"he", "hers", "she", "xyz", "aab"}
	a := newAutomaton(words)
	for _, s := range []string{"", "h", "he", "ushers", "sh", "aaab", "aaaa", "xxyz", "xy z", "her", "shxyzz", "\x00he\xff"} {
		want := false
		for _, w := range words {
			want = want || strings.Contains(s, w)
		}
		if got := a.any([]byte(s)); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

func FuzzAutomaton(f *testing.F) {
	f.Add("ushers", "he", "she", "hers")
	f.Add("aaab", "aab", "ab", "aaa")
	f.Fuzz(func(t *testing.T, s, a, b, c string) {
		if a == "" || b == "" || c == "" || len(a)+len(b)+len(c) > 1000 {
			return
		}
		want := strings.Contains(s, a) || strings.Contains(s, b) || strings.Contains(s, c)
		if got := newAutomaton([]string{a, b, c}).any([]byte(s)); got != want {
			t.Errorf("%q in %q: %v, want %v", []string{a, b, c}, s, got, want)
		}
	})
}
