package source

import (
	"strconv"

	"github.com/sluicekv/sluice/internal/check/advisory"
)

func itoa(n int) string { return strconv.Itoa(n) }

// later is the later of two versions; "" is none.
func later(a, b string) string {
	if a == "" || advisory.Compare(a, b) < 0 {
		return b
	}
	return a
}

// earlier is the earlier of two versions; "" is none.
func earlier(a, b string) string {
	if a == "" || advisory.Compare(b, a) < 0 {
		return b
	}
	return a
}
