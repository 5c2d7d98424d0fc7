package capacity

import (
	"strings"
	"testing"
)

func TestABudgetIsSharedAfterTheWeights(t *testing.T) {
	b := Budget{Memory: 100 << 20, Weights: 20 << 20, Pools: 2, BytesPerToken: 1024, PageSize: 64}
	if n, err := b.Tokens(); err != nil || n != 40960 {
		t.Fatal(n, err)
	}
	b.Weights = b.Memory
	if _, err := b.Tokens(); err == nil || !strings.Contains(err.Error(), "100.1 MiB is needed") {
		t.Fatal(err)
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"2GiB": 2 << 30, "2G": 2 << 30, "512M": 512 << 20, "1.5GB": 3 << 29, "77": 77, " 4 KiB ": 4096, "0": 0} {
		if n, err := ParseBytes(s); err != nil || n != want {
			t.Errorf("%q: %d %v", s, n, err)
		}
	}
	for _, s := range []string{"", "G", "-1", "NaN", "1e99", "2 apples", "GiB"} {
		if n, err := ParseBytes(s); err == nil {
			t.Errorf("%q: %d", s, n)
		}
	}
}
