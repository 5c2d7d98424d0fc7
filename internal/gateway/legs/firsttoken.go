package legs

import (
	"math"

	"github.com/sluicekv/sluice/internal/verdict"
)

// TopMost is how many tokens of a position are compared.
const TopMost = 8

// Top is what a leg says of one position: some tokens and the logarithms of their probabilities. The first is the one that the leg
// chose; the others are the likeliest, so no token beside them can be likelier than the least of them. A comparable value.
type Top struct {
	N       int
	ByID    bool // tokens are named by their ids, not by their text
	Token   [TopMost]uint64
	Logprob [TopMost]float32
}

// Add appends a token; those over TopMost are dropped.
func (t *Top) Add(token uint64, logprob float32) {
	if t.N == TopMost || logprob != logprob {
		return
	}
	t.Token[t.N], t.Logprob[t.N] = token, min(logprob, 0)
	t.N++
}

func (t *Top) of(token uint64) (float32, bool) {
	for i := range t.N {
		if t.Token[i] == token {
			return t.Logprob[i], true
		}
	}
	return 0, false
}

// bound is what the logprob of a token that is not listed is at most. Without a list there is none: then it is 0.
func (t *Top) bound() (most float32) {
	for i := 1; i < t.N; i++ {
		most = min(most, t.Logprob[i])
	}
	return most
}

const (
	// faint is the logprob below which a token's distance says nothing: there the arithmetic of two honest machines differs freely.
	faint = -12
	// farthest clips a distance: engines write -9999 for what cannot be.
	farthest = 10
	// tailFactor is how much more the mean over the listed tokens may differ than the likely ones may: a token of one in a thousand
	// moves more, for the same error of a logit, than it can move a likely one.
	tailFactor = 2
	// DefaultFirstToken is the tolerance in nats.
	DefaultFirstToken = 0.5
)

// Distance is how far two legs' words on one position are apart, in nats: over the likely tokens (each weighs as much as the more
// trusting leg gives it), and the mean over all that are listed. A token that only one leg lists counts by how much likelier it is
// there than the other leg's list allows. Compared is how many tokens said something.
func Distance(a, b Top) (likely, all float64, compared int) {
	var weights, weighted, sum float64
	count := func(x, y, diff float32) {
		d := min(float64(diff), farthest)
		w := math.Exp(float64(max(x, y)))
		weights += w
		weighted += w * d
		if max(x, y) >= faint {
			sum += d
			compared++
		}
	}
	one := func(from, to *Top, both bool) {
		least := to.bound()
		for i := range from.N {
			x := from.Logprob[i]
			y, listed := to.of(from.Token[i])
			switch {
			case listed && both:
				count(x, y, max(x-y, y-x))
			case !listed && x > least:
				count(x, least, x-least)
			}
		}
	}
	one(&a, &b, true)
	one(&b, &a, false)
	if weights > 0 {
		likely = weighted / weights
	}
	if compared > 0 {
		all = sum / float64(compared)
	}
	return likely, all, compared
}

// firstToken compares the legs' words on the token after the prompt. Both computed that position from the prompt's KV: prefill from
// its own, decode from what was handed over.
func (m *Machine) firstToken() answer {
	switch {
	case m.expect.FirstToken <= 0, m.Compared():
		return answer{met: m.apart.IsZero(), verdict: m.apart}
	case m.legs[Prefill].top.N > 0 && m.legs[Decode].top.N > 0: // named by other names: nothing can be compared
		return agreed
	}
	// An engine that does not say it is not waited for longer than for the token: Compared tells.
	return when(m.content > 0 || m.legs[Decode].ended)
}

// compareTops is done once, when both legs have said it.
func (m *Machine) compareTops() {
	most := float64(m.expect.FirstToken)
	if !m.Compared() {
		return
	}
	likely, all, n := Distance(m.legs[Prefill].top, m.legs[Decode].top)
	if n > 0 && (likely > most || all > tailFactor*most) {
		m.apart = verdict.Of(verdict.EchoMismatch, verdict.Legs,
			"the token after the prompt: the legs' logprobs differ by %.2f over the likely tokens and %.2f over %d, at most %.2f and %.2f", likely, all, n, most, tailFactor*most)
	}
}

// Compared reports whether the legs' words on the token after the prompt were compared.
func (m Machine) Compared() bool {
	p, d := &m.legs[Prefill].top, &m.legs[Decode].top
	return m.expect.FirstToken > 0 && p.N > 0 && d.N > 0 && p.ByID == d.ByID
}
