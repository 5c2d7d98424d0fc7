package engine

import (
	"strconv"
	"strings"
)

// Counters are the values of a metric on a page in Prometheus' text format, by their labels as they are written there, "" without.
func Counters(page []byte, name string) map[string]float64 {
	out := map[string]float64{}
	for line := range strings.Lines(string(page)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		at := strings.LastIndexByte(rest, ' ')
		if v, err := strconv.ParseFloat(rest[at+1:], 64); err == nil {
			out[strings.TrimSpace(rest[:max(at, 0)])] += v
		}
	}
	return out
}

// Total is the sum over all labels.
func Total(counters map[string]float64) (sum float64) {
	for _, v := range counters {
		sum += v
	}
	return sum
}
