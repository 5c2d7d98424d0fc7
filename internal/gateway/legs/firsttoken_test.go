package legs

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

// logits of a made-up position: how peaked it is differs, as it does with models.
func logits(r *rand.Rand) []float64 {
	l, spread := make([]float64, 500), 1+3*r.Float64()
	for i := range l {
		l[i] = spread * r.NormFloat64()
	}
	return l
}

// says is what a leg says of a position: the token that it drew, and the likeliest, in either engine's fashion.
func says(r *rand.Rand, logits []float64, noise float64, n int) (t Top) {
	type token struct {
		id uint64
		x  float64
	}
	all, sum := make([]token, len(logits)), 0.0
	for i, x := range logits {
		x += noise * r.NormFloat64()
		// The output of the last layer has eight bits: near 16, steps of an eighth.
		x = math.Round(x*8) / 8
		all[i], sum = token{uint64(i), x}, sum+math.Exp(x)
	}
	log := func(k token) float32 { return float32(k.x - math.Log(sum)) }
	drawn, at := r.Float64()*sum, 0
	for ; at < len(all)-1 && drawn > math.Exp(all[at].x); at++ {
		drawn -= math.Exp(all[at].x)
	}
	t.Add(all[at].id, log(all[at]))
	chosen := all[at].id
	slices.SortFunc(all, func(a, b token) int { return int(math.Copysign(1, b.x-a.x)) })
	for _, k := range all[:n] {
		if k.id != chosen && t.N < n {
			t.Add(k.id, log(k))
		}
	}
	return t
}

func apart(a, b Top) bool {
	likely, all, n := Distance(a, b)
	return n > 0 && (likely > DefaultFirstToken || all > tailFactor*DefaultFirstToken)
}

// Two honest machines round differently and draw different tokens: no alarm in any of many positions. Positions of different prompts
// are told apart, mostly: how many depends on how many tokens are listed.
func TestDistanceTellsPromptsApartAndMachinesNot(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 5, TopMost} {
		const trials = 400
		alarms, seen := 0, 0
		for range trials {
			own := logits(r)
			a, b := says(r, own, 0.1, n), says(r, own, 0.1, n)
			if apart(a, b) || apart(b, a) {
				alarms++
			}
			if apart(a, says(r, logits(r), 0.1, n)) {
				seen++
			}
		}
		if alarms > 0 {
			t.Errorf("%d tokens: %d false alarms in %d", n, alarms, trials)
		}
		if seen < trials*7/10 {
			t.Errorf("%d tokens: %d of %d foreign positions were seen", n, seen, trials)
		}
		t.Logf("%d tokens: %d false alarms, %d of %d foreign positions seen", n, alarms, seen, trials)
	}
}

func TestDistanceOfOneToken(t *testing.T) {
	list := func(pairs ...float32) (t Top) {
		for i := 0; i < len(pairs); i += 2 {
			t.Add(uint64(pairs[i]), pairs[i+1])
		}
		return t
	}
	for name, c := range map[string]struct {
		a, b Top
		far  bool
	}{
		"the same token alone":                       {list(1, -0.1), list(1, -0.2), false},
		"the same token, by far less likely":         {list(1, -0.1), list(1, -3), true},
		"a token that the other's list rules out":    {list(1, -0.1, 2, -3, 3, -4), list(9, -0.5), true},
		"a token that the other's list has room for": {list(1, -0.1, 2, -3, 3, -4), list(9, -5), false},
		"nothing that can be compared":               {list(1, -0.1), list(2, -0.1), false},
		"what cannot be, on both":                    {list(1, 0, 2, -9999), list(1, 0, 2, -9999), false},
		"no number":                                  {list(1, float32(math.NaN())), list(1, -5), false},
	} {
		if apart(c.a, c.b) != c.far || apart(c.b, c.a) != c.far {
			likely, all, n := Distance(c.a, c.b)
			t.Errorf("%s: %v %v over %d", name, likely, all, n)
		}
	}
}

// The comparison is of the first byte: what differs is refused while it is held, or noted where the guard only observes.
func TestFirstTokenHolds(t *testing.T) {
	var here, there Top
	here.Add(1, -0.1)
	there.Add(1, -4)
	for _, e := range []Engine{VLLMNixl, VLLMMooncake} {
		for _, c := range []struct {
			decode  Top
			observe Needs
			within  float32
			do      Do
			spoke   bool
		}{
			{there, 0, 0.5, Refuse, true}, {there, Of(FirstToken), 0.5, Release, true}, {here, 0, 0.5, Release, false}, {there, 0, 0, Release, false},
			{Top{}, 0, 0.5, Release, false},
		} {
			m := New(e, true, Expect{FirstToken: c.within}, c.observe)
			var act Action
			story := []Event{
				LegStatus{Prefill, 200}, LegUsage{Prefill, 8, 1}, LegFinish{Prefill, Length}, LegTop{Prefill, here}, LegHandle{Prefill, Handle{State: Ours}},
				LegEnd{Prefill}, LegStatus{Decode, 200}, LegUsage{Decode, 8, 0}, LegBytes{Decode, 0}, LegTop{Decode, c.decode}, LegBytes{Decode, 1},
			}
			if c.decode.N == 0 {
				story = slices.DeleteFunc(story, func(e Event) bool { top, ok := e.(LegTop); return ok && top.Leg == Decode })
			}
			for i, ev := range story {
				if m, act = m.Step(ev); act.Do == Refuse || act.Do == Release {
					if i < len(story)-2 {
						t.Errorf("%v: %v after %T: the first token was not waited for", e, act.Do, ev)
					}
					break
				}
			}
			if act.Do != c.do || m.Spoke().Has(FirstToken) != c.spoke {
				t.Errorf("%v %+v: %v %v, spoke %v", e, c, act.Do, act.Verdict, m.Spoke())
			}
			if act.Do == Refuse && (act.Verdict.Code != verdict.EchoMismatch || !act.Eject) {
				t.Errorf("%v: %v, eject %v", e, act.Verdict, act.Eject)
			}
		}
	}
}
