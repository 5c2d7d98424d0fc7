package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// quantile of x by nearest rank, 0 < q <= 1. x is sorted in place.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	slices.Sort(x)
	return x[int(math.Ceil(q*float64(len(x))))-1]
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Clone(x)
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// spread is what is shown of the ratios of all rounds.
type spread struct {
	low, mid, high float64 // min, median, max
	from, to       float64 // 95 % interval of the median
}

// spreadOf takes the interval from order statistics, so that it assumes nothing of how noise is distributed: the ranks
// n/2 ± 1.96 √n/2 of the sign test.
func spreadOf(x []float64) spread {
	x = slices.Clone(x)
	slices.Sort(x)
	n := len(x)
	if n == 0 {
		return spread{}
	}
	half := 1.96 * math.Sqrt(float64(n)) / 2
	from := max(int(math.Floor(float64(n)/2-half)), 0)
	to := min(int(math.Ceil(float64(n)/2+half)), n-1)
	return spread{x[0], median(x), x[n-1], x[from], x[to]}
}

func percent(r float64) string { return fmt.Sprintf("%+.1f%%", 100*r) }

func (s spread) String() string {
	return fmt.Sprintf("%7s %7s %7s   [%s, %s]", percent(s.low), percent(s.mid), percent(s.high), percent(s.from), percent(s.to))
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }
func microseconds(d time.Duration) float64 { return float64(d) / 1e3 }
