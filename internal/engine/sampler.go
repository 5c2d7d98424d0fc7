package engine

import (
	"cmp"
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/kernel"
)

// sampler chooses tokens. The n-th token of a reply depends on the logits, the seed and n alone: not on the batch, not on
// what other sequences drew.
type sampler struct {
	admission.Sampling
	p []float32 // of the moment, by id; not normalized
	c []candidate
}

func newSampler(s admission.Sampling) sampler { return sampler{Sampling: s} }

// candidate is a token that may be drawn.
type candidate struct {
	p  float32
	id int32
}

// next returns the token for position n of the reply. Temperature 0 takes the largest logit, of equal ones the lowest id.
// Otherwise probabilities are softmax(logits/temperature), cut to the smallest set of the likeliest that sums to TopP
// (nucleus sampling, Holtzman et al. 2020; 0 and 1 cut nothing). Of equally likely tokens the lower id is likelier to stay.
func (s *sampler) next(logits []float32, n int) int32 {
	top := kernel.Max(logits)
	if s.Temperature == 0 {
		return int32(slices.Index(logits, top))
	}
	const never = -100 // exp of it is nothing, and still a number
	s.p = slices.Grow(s.p[:0], len(logits))[:len(logits)]
	for i, v := range logits {
		s.p[i] = max((v-top)/s.Temperature, never)
	}
	mass := kernel.ExpSum(s.p, s.p, 0)
	u := rand.New(rand.NewPCG(s.Seed, uint64(n))).Float64()
	if s.TopP > 0 && s.TopP < 1 {
		s.nucleus(mass * float64(s.TopP))
		mass = 0
		for _, c := range s.c {
			mass += float64(c.p)
		}
		return s.draw(u*mass, func(yield func(float32, int32) bool) {
			for _, c := range s.c {
				if !yield(c.p, c.id) {
					return
				}
			}
		})
	}
	return s.draw(u*mass, func(yield func(float32, int32) bool) {
		for i, p := range s.p {
			if !yield(p, int32(i)) {
				return
			}
		}
	})
}

// draw returns the token in whose stretch u lies, when the tokens' probabilities are laid end to end.
func (s *sampler) draw(u float64, tokens iter.Seq2[float32, int32]) (id int32) {
	for p, i := range tokens {
		if p == 0 {
			continue
		}
		id = i // stays the last one if rounding eats the end
		if u -= float64(p); u < 0 {
			break
		}
	}
	return id
}

// nucleus makes c the likeliest tokens, likeliest first, until they sum to mass. A vocabulary is large and a nucleus small, so only the tokens
// above a threshold are sorted; it falls until they are enough.
func (s *sampler) nucleus(mass float64) {
	for threshold := float32(1) / 64; ; threshold /= 64 {
		if threshold < 1e-12 {
			threshold = 0
		}
		s.c = s.c[:0]
		sum := 0.0
		for i, p := range s.p {
			if p >= threshold {
				s.c = append(s.c, candidate{p, int32(i)})
				sum += float64(p)
			}
		}
		if sum >= mass || threshold == 0 {
			break
		}
	}
	slices.SortFunc(s.c, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.id, b.id)) })
	sum := 0.0
	for i, c := range s.c {
		if sum += float64(c.p); sum >= mass {
			s.c = s.c[:i+1]
			return
		}
	}
}
