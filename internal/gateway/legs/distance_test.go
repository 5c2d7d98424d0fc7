package legs

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

// formula is Distance's formula, written again over maps: the comment at Distance says it in words.
func formula(a, b map[uint64]float64, leastA, leastB float64) (likely, all float64, n int) {
	var w, ww, sum float64
	see := func(x, y float64) {
		d := min(math.Abs(x-y), 10)
		w += math.Exp(max(x, y))
		ww += math.Exp(max(x, y)) * d
		if max(x, y) >= -12 {
			sum += d
			n++
		}
	}
	for id, x := range a {
		if y, ok := b[id]; ok {
			see(x, y)
		} else if x > leastB {
			see(x, leastB)
		}
	}
	for id, y := range b {
		if _, ok := a[id]; !ok && y > leastA {
			see(y, leastA)
		}
	}
	if n > 0 {
		all = sum / float64(n)
	}
	if w > 0 {
		likely = ww / w
	}
	return likely, all, n
}

func TestDistanceIsItsFormula(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	edge := []float32{0, -12, -11.999, -12.001, -9999, -1, -2}
	for range 20000 {
		var tops [2]Top
		var words [2]map[uint64]float64
		var least [2]float64
		for i := range tops {
			words[i] = map[uint64]float64{}
			for j := range r.IntN(TopMost + 3) {
				id, p := uint64(r.IntN(12)), -float32(r.ExpFloat64()*4)
				if r.IntN(3) == 0 {
					p = edge[r.IntN(len(edge))]
				}
				if _, twice := words[i][id]; twice {
					continue
				}
				n := tops[i].N
				tops[i].Add(id, p)
				if n == TopMost {
					if tops[i].N != TopMost {
						t.Fatalf("%d tokens are kept", tops[i].N)
					}
					continue
				}
				words[i][id] = float64(p)
				if j > 0 && tops[i].N > 1 {
					least[i] = min(least[i], float64(p))
				}
			}
		}
		likely, all, n := Distance(tops[0], tops[1])
		wantLikely, wantAll, wantN := formula(words[0], words[1], least[0], least[1])
		if n != wantN || math.Abs(likely-wantLikely) > 1e-4 || math.Abs(all-wantAll) > 1e-4 {
			t.Fatalf("%+v\n%+v\n%v %v %d, not %v %v %d", tops[0], tops[1], likely, all, n, wantLikely, wantAll, wantN)
		}
	}
	var nothing Top
	nothing.Add(1, float32(math.NaN()))
	nothing.Add(2, 0.5) // more than certain: certain
	if nothing.N != 1 || nothing.Token[0] != 2 || nothing.Logprob[0] != 0 {
		t.Errorf("%+v", nothing)
	}
	if likely, all, n := Distance(Top{}, Top{}); likely != 0 || all != 0 || n != 0 {
		t.Errorf("of nothing: %v %v %d", likely, all, n)
	}
}

// The tolerance is what is still taken: over the likely tokens, and twice as much over all.
func TestTheToleranceOfFirstTokens(t *testing.T) {
	top := func(ps ...float32) (t Top) {
		t.ByID = true
		for i, p := range ps {
			t.Add(uint64(i), p)
		}
		return t
	}
	for _, c := range []struct {
		name    string
		p, d    Top
		compare bool
		differ  bool
	}{
		{"the same", top(-0.5, -1), top(-0.5, -1), true, false},
		{"at the tolerance", top(-0.5), top(-1), true, false},
		{"over it", top(-0.5), top(-1.001), true, true},
		{"all at twice the tolerance", top(0, -5, -5), top(0, -6.5, -6.5), true, false},
		{"all over it", top(0, -5, -5), top(0, -6.502, -6.502), true, true},
		{"too faint to say anything", top(-13), top(-13.4), true, false},
		{"prefill says nothing", Top{ByID: true}, top(-1), false, false},
		{"decode says nothing", top(-1), Top{ByID: true}, false, false},
		{"by other names", top(-1), func() Top { t := top(-9); t.ByID = false; return t }(), false, false},
	} {
		m := New(VLLMNixl, true, Expect{PromptTokens: 8, MaxTokens: 2, FirstToken: 0.5}, 0)
		m.Take(LegTop{Prefill, c.p})
		m.Take(LegTop{Decode, c.d})
		if m.Compared() != c.compare || (m.apart.Code == verdict.EchoMismatch) != c.differ {
			t.Errorf("%s: compared %v, %v", c.name, m.Compared(), m.apart)
		}
		off := New(VLLMNixl, true, Expect{PromptTokens: 8, MaxTokens: 2}, 0)
		off.Take(LegTop{Prefill, c.p})
		off.Take(LegTop{Decode, c.d})
		if off.Compared() || !off.apart.IsZero() {
			t.Errorf("%s: compared, though nobody asked", c.name)
		}
	}
}
