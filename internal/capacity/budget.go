package capacity

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Budget says how many tokens a pool may hold when no size is given: what is left of a memory budget after the weights.
type Budget struct {
	Memory        int64 // bytes for weights and pools together
	Weights       int64 // bytes
	Pools         int   // that share what is left, equally
	BytesPerToken int
	PageSize      int // tokens
}

// Tokens a pool, whole pages. An error says what the budget would have to be for one page each.
func (b Budget) Tokens() (int, error) {
	left := b.Memory - b.Weights
	page := int64(b.BytesPerToken) * int64(b.PageSize)
	pages := left / int64(b.Pools) / page
	if left <= 0 || pages < 1 {
		return 0, fmt.Errorf("a KV memory budget of %s leaves no page for a pool after %s of weights; at least %s is needed",
			Bytes(b.Memory), Bytes(b.Weights), Bytes(b.Weights+page*int64(b.Pools)))
	}
	return int(min(pages*int64(b.PageSize), math.MaxInt32)), nil
}

// Bytes prints a size in binary units.
func Bytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// units and the power of two that each stands for.
var units = map[string]int{"": 0, "K": 10, "KB": 10, "KIB": 10, "M": 20, "MB": 20, "MIB": 20, "G": 30, "GB": 30, "GIB": 30, "T": 40, "TB": 40, "TIB": 40}

// ParseBytes reads "2GiB", "512M", "1.5G" or a plain number of bytes. G and GB are read as GiB: a cache is sized in them.
func ParseBytes(s string) (int64, error) {
	t := strings.ToUpper(strings.TrimSpace(s))
	number := strings.TrimRight(t, "KMGTIB")
	shift, known := units[t[len(number):]]
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !known || v < 0 || math.IsNaN(v) || v*float64(int64(1)<<shift) > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not a size; write it as 2GiB, 512MiB or a number of bytes", s)
	}
	return int64(v * float64(int64(1)<<shift)), nil
}
