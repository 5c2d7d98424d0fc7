package engine

import (
	"container/heap"
	"math"
	"math/rand/v2"

	"github.com/sluicekv/sluice/internal/admission"
)

// sampler chooses tokens. The n-th token of a reply depends on the logits, the seed and n alone: not on the batch, not on
// what other sequences drew.
type sampler struct {
	admission.Sampling
}

func newSampler(s admission.Sampling) sampler { return sampler{s} }

// next returns the token for position n of the reply. Temperature 0 takes the largest logit, of equal ones the lowest id.
// Otherwise probabilities are softmax(logits/temperature), cut to the smallest set of the likeliest that sums to TopP
// (nucleus sampling, Holtzman et al. 2020; 0 and 1 cut nothing).
func (s sampler) next(logits []float32, n int) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	if s.Temperature == 0 {
		return int32(best)
	}
	top, sum := float64(logits[best]), 0.0
	c := candidates{p: make([]float64, 0, 64)}
	for i, v := range logits {
		p := math.Exp((float64(v) - top) / float64(s.Temperature))
		sum += p
		if p > 1e-12 { // a token this unlikely is not drawn once in the life of a fleet; it still counts in the sum
			c.p, c.id = append(c.p, p), append(c.id, int32(i))
		}
	}
	u := rand.New(rand.NewPCG(s.Seed, uint64(n))).Float64()
	limit := sum
	if s.TopP > 0 && s.TopP < 1 {
		limit = sum * float64(s.TopP)
	}
	// Likeliest first, so that the cut needs no full sort. mass is what the kept tokens sum to: known only once the cut is
	// found, so they are collected first.
	heap.Init(&c)
	var ids []int32
	var ps []float64
	mass := 0.0
	for c.Len() > 0 && (mass < limit || len(ids) == 0) {
		x := heap.Pop(&c).(candidate)
		ids, ps, mass = append(ids, x.id), append(ps, x.p), mass+x.p
	}
	u *= mass
	for i, p := range ps {
		if u < p || i == len(ps)-1 {
			return ids[i]
		}
		u -= p
	}
	return int32(best)
}

type candidate struct {
	p  float64
	id int32
}

// candidates is a heap with the likeliest on top, of equal ones the lowest id.
type candidates struct {
	p  []float64
	id []int32
}

func (c *candidates) Len() int { return len(c.p) }
func (c *candidates) Less(i, j int) bool {
	return c.p[i] > c.p[j] || c.p[i] == c.p[j] && c.id[i] < c.id[j]
}
func (c *candidates) Swap(i, j int) {
	c.p[i], c.p[j] = c.p[j], c.p[i]
	c.id[i], c.id[j] = c.id[j], c.id[i]
}
func (c *candidates) Push(x any) {
	v := x.(candidate)
	c.p, c.id = append(c.p, v.p), append(c.id, v.id)
}
func (c *candidates) Pop() any {
	n := len(c.p) - 1
	v := candidate{c.p[n], c.id[n]}
	c.p, c.id = c.p[:n], c.id[:n]
	return v
}
