package engine

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
)

func TestGreedyTakesTheLowestOfEquals(t *testing.T) {
	s := newSampler(greedy)
	if id := s.next([]float32{1, 7, 3, 7, 7}, 0); id != 1 {
		t.Errorf("took %d", id)
	}
}

// What is drawn follows softmax(logits/temperature), cut to the nucleus: frequencies over many positions.
func TestSamplerDrawsWhatItShould(t *testing.T) {
	logits := []float32{2, 1, 0, -1, 2, -30, 0.5}
	for _, c := range []admission.Sampling{{Temperature: 1}, {Temperature: 1, TopP: 1}, {Temperature: 0.5, TopP: 0.6}, {Temperature: 2, TopP: 0.9}, {Temperature: 1, TopP: 0.01}} {
		want := make([]float64, len(logits))
		sum := 0.0
		for i, l := range logits {
			want[i] = math.Exp(float64(l) / float64(c.Temperature))
			sum += want[i]
		}
		if c.TopP > 0 && c.TopP < 1 { // by definition: the smallest set of the likeliest that reaches TopP
			order := []int{0, 4, 1, 6, 2, 3, 5}
			mass, cut := 0.0, 0
			for mass < sum*float64(c.TopP) {
				mass += want[order[cut]]
				cut++
			}
			for _, i := range order[cut:] {
				want[i] = 0
			}
			sum = mass
		}
		const draws = 40_000
		counts := make([]float64, len(logits))
		c.Seed = 7
		s := newSampler(c)
		for n := range draws {
			counts[s.next(logits, n)]++
		}
		for i := range want {
			p := want[i] / sum
			if got := counts[i] / draws; math.Abs(got-p) > 5*math.Sqrt(p*(1-p)/draws) {
				t.Errorf("%+v: token %d drawn with %.4f, want %.4f", c, i, got, p)
			}
		}
	}
}

// A draw depends on the logits, the seed and the position alone.
func TestDrawsDoNotDependOnWhatWasDrawn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 5000)
	for i := range logits {
		logits[i] = float32(r.NormFloat64() * 3)
	}
	for _, c := range []admission.Sampling{{Temperature: 1, TopP: 0.95, Seed: 5}, {Temperature: 0.7, Seed: 5}} {
		var in, out []int32
		a := newSampler(c)
		for n := range 50 {
			in = append(in, a.next(logits, n))
		}
		for n := 49; n >= 0; n-- {
			b := newSampler(c)
			out = append(out, b.next(logits, n))
		}
		slices.Reverse(out)
		if !slices.Equal(in, out) {
			t.Errorf("%+v: %v, then %v", c, in, out)
		}
		other := newSampler(admission.Sampling{Temperature: c.Temperature, TopP: c.TopP, Seed: 6})
		same := 0
		for n := range 50 {
			if other.next(logits, n) == in[n] {
				same++
			}
		}
		if same > 25 {
			t.Errorf("another seed draws the same %d times of 50", same)
		}
	}
}

// Extremes are drawn from without an accident: all equal, one far above, temperatures near nothing.
func TestSamplerAtExtremes(t *testing.T) {
	flat, spike := make([]float32, 50_000), make([]float32, 50_000)
	spike[7] = 1e30
	for _, c := range []admission.Sampling{{Temperature: 1, TopP: 0.5}, {Temperature: 1e-30}, {Temperature: 1e-30, TopP: 0.5}, {Temperature: 100, TopP: 1e-30}, {Temperature: 100}} {
		for n := range 20 {
			s := newSampler(c)
			if id := s.next(flat, n); id < 0 || int(id) >= len(flat) || c.TopP == 0.5 && id > 25_000 {
				t.Errorf("%+v: flat: %d", c, id)
			}
			if id := s.next(spike, n); id != 7 {
				t.Errorf("%+v: spike: %d", c, id)
			}
		}
	}
}

func BenchmarkSampler(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 49152)
	for i := range logits {
		logits[i] = float32(r.NormFloat64() * 3)
	}
	for name, c := range map[string]admission.Sampling{"greedy": {}, "temperature": {Temperature: 1}, "nucleus": {Temperature: 1, TopP: 0.9}} {
		b.Run(name, func(b *testing.B) {
			s := newSampler(c)
			for n := range b.N {
				s.next(logits, n)
			}
		})
	}
}
