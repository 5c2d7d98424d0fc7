package capacity

import (
	"strings"
	"testing"
)

// Equal numbers: who is named, and that nobody is refused who fits to the token.
func TestEqualNumbersAreNotShort(t *testing.T) {
	f := func(pool, context, longest int) Facts {
		return Facts{Name: "w", Role: Decode, PoolTokens: pool, Context: context, MaxPrompt: longest, PageSize: 1}
	}
	for _, c := range []struct {
		f      Facts
		tokens int
		setter string
		pool   bool
	}{
		{f(100, 100, 0), 100, "the context of decode w", false},
		{f(99, 100, 0), 99, "the KV pool of decode w", true},
		{f(101, 100, 100), 100, "the context of decode w", false},
		{f(101, 100, 99), 99, "the longest prompt of decode w", false},
		{f(99, 100, 99), 99, "the longest prompt of decode w", false},
		{f(98, 100, 99), 98, "the KV pool of decode w", true},
	} {
		if l := Node(c.f); l.Tokens != c.tokens || l.Setter != c.setter || l.Pool != c.pool || l.Node != "w" {
			t.Errorf("%+v: %+v", c.f, l)
		}
	}
	p, d := f(100, 200, 0), f(100, 200, 0)
	p.Role, p.Name, d.Name = Prefill, "p", "d"
	if l := Pair(p, d); l.Node != "p" {
		t.Errorf("of two equals prefill is named: %+v", l)
	}
	if w := Widest(Limit{Tokens: 7, Node: "first"}, Limit{Tokens: 7, Node: "second"}); w.Node != "first" {
		t.Errorf("of two equals the first is named: %+v", w)
	}
	for name, want := range map[string]string{"": "decode", "decode": "decode", "d0": "decode d0"} {
		if got := (Facts{Role: Decode, Name: name}).who(); got != want {
			t.Errorf("%q is called %q", name, got)
		}
	}
}

func TestStartWithAPoolAsLargeAsTheContext(t *testing.T) {
	f := Facts{Role: Prefill, PoolTokens: 128, Context: 128, PageSize: 64}
	for _, smaller := range []bool{false, true} {
		if got, err := CheckStart(f, smaller); err != nil || got != f {
			t.Errorf("smaller %v: %+v, %v", smaller, got, err)
		}
	}
	f.Context = 129
	if got, err := CheckStart(f, false); err == nil || got != f || !strings.Contains(err.Error(), "holds 128 tokens but the context is 129") {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := CheckStart(f, true); err != nil || got.Context != 128 {
		t.Errorf("%+v, %v", got, err)
	}
	f.PoolTokens = 63
	if _, err := CheckStart(f, true); err == nil {
		t.Error("a pool without one page served a context of 0")
	}
}

func TestABudgetForOnePage(t *testing.T) {
	b := Budget{Memory: 100 << 10, Weights: 36 << 10, Pools: 1, BytesPerToken: 1 << 10, PageSize: 64}
	if n, err := b.Tokens(); err != nil || n != 64 {
		t.Errorf("%d, %v", n, err)
	}
	b.Memory--
	if n, err := b.Tokens(); err == nil || n != 0 || !strings.Contains(err.Error(), "at least 100.0 KiB is needed") {
		t.Errorf("%d, %v", n, err)
	}
	b.Weights = 1 << 20 // more than there is
	if n, err := b.Tokens(); err == nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	b = Budget{Memory: -5 << 40, Weights: 1 << 40, Pools: 1, BytesPerToken: 1, PageSize: 1}
	if n, err := b.Tokens(); err == nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
}

func TestSizesAtTheEdgesOfUnits(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1024.0 KiB", 1 << 20: "1.0 MiB", 1<<30 - 1: "1024.0 MiB", 1 << 30: "1.0 GiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	for s, want := range map[string]int64{"9G": 9 << 30, "9 G": 9 << 30, "0K": 0, "1T": 1 << 40, "1 tib": 1 << 40} {
		if n, err := ParseBytes(s); err != nil || n != want {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"MG", "xK", ":G", "1KM", "1 K M", "1KK", "1BK", "1B", "1IB", "1 G T"} {
		if n, err := ParseBytes(s); err == nil {
			t.Errorf("%q: %d", s, n)
		}
	}
}

// What each engine keeps for itself: shared facts, margins.go.
func TestTheLongestPromptOfEachEngine(t *testing.T) {
	for engine, want := range map[string]int{"sglang": 93, "sglang 0.5.19": 93, "vllm": 99, "vllm-nixl": 99, "vl": 100, "native": 100, "": 100} {
		if got := LongestPrompt(engine, 100, 200); got != want {
			t.Errorf("%s: %d", engine, got)
		}
	}
	if LongestPrompt("sglang", 5, 9) != 0 {
		t.Error("less than nothing")
	}
}
