package llm

import (
	"fmt"
	"math"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
)

// reference is the forward pass as the papers have it, in float64 and with nothing shared with the code it judges but the
// reader: the logits of every position.
func reference(t testing.TB, f *gguf.File, s shape, tokens []int32) [][]float64 {
	t.Helper()
	weights := map[string][]float64{}
	w := func(name string) []float64 {
		if v, ok := weights[name]; ok {
			return v
		}
		x, ok := f.Tensor(name)
		if !ok {
			return nil
		}
		n := 1
		for _, d := range x.Dims {
			n *= int(d)
		}
		v := make([]float32, n)
		if err := f.Read(x, func(b []byte) error { return gguf.Decode(x.Type, b, v) }); err != nil {
			t.Fatal(err)
		}
		d := make([]float64, n)
		for i := range v {
			d[i] = float64(v[i])
		}
		weights[name] = d
		return d
	}
	mul := func(m, x []float64) []float64 {
		y := make([]float64, len(m)/len(x))
		for i := range y {
			for j, v := range x {
				y[i] += m[i*len(x)+j] * v
			}
		}
		return y
	}
	norm := func(g, x []float64) []float64 {
		s := 0.0
		for _, v := range x {
			s += v * v
		}
		y := make([]float64, len(x))
		for i, v := range x {
			y[i] = v / math.Sqrt(s/float64(len(x))+1e-5) * g[i]
		}
		return y
	}
	factors := w("rope_freqs.weight")
	rope := func(x []float64, pos int) {
		for i := 0; i < len(x); i += 2 {
			d := i % s.headDim
			a := float64(pos) * math.Pow(s.base, -float64(d)/float64(s.headDim))
			if s.linear != 0 {
				a /= float64(s.linear)
			}
			if factors != nil {
				a /= factors[d/2]
			}
			x[i], x[i+1] = x[i]*math.Cos(a)-x[i+1]*math.Sin(a), x[i]*math.Sin(a)+x[i+1]*math.Cos(a)
		}
	}
	keys, values := make([][][]float64, s.layers), make([][][]float64, s.layers)
	var out [][]float64
	for pos, id := range tokens {
		x := append([]float64(nil), w("token_embd.weight")[int(id)*s.dim:][:s.dim]...)
		for l := range s.layers {
			n := fmt.Sprintf("blk.%d.", l)
			h := norm(w(n+"attn_norm.weight"), x)
			q, k, v := mul(w(n+"attn_q.weight"), h), mul(w(n+"attn_k.weight"), h), mul(w(n+"attn_v.weight"), h)
			rope(q, pos)
			rope(k, pos)
			keys[l], values[l] = append(keys[l], k), append(values[l], v)
			a := make([]float64, len(q))
			for head := range s.heads {
				at, kvAt := head*s.headDim, head/(s.heads/s.kvHeads)*s.headDim
				sum := 0.0
				for p := range pos + 1 {
					dot := 0.0
					for d := range s.headDim {
						dot += q[at+d] * keys[l][p][kvAt+d]
					}
					e := math.Exp(dot / math.Sqrt(float64(s.headDim)))
					sum += e
					for d := range s.headDim {
						a[at+d] += e * values[l][p][kvAt+d]
					}
				}
				for d := range s.headDim {
					a[at+d] /= sum
				}
			}
			for i, v := range mul(w(n+"attn_output.weight"), a) {
				x[i] += v
			}
			h = norm(w(n+"ffn_norm.weight"), x)
			g, u := mul(w(n+"ffn_gate.weight"), h), mul(w(n+"ffn_up.weight"), h)
			for i := range g {
				g[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
			}
			for i, v := range mul(w(n+"ffn_down.weight"), g) {
				x[i] += v
			}
		}
		o := w("output.weight")
		if o == nil {
			o = w("token_embd.weight")
		}
		out = append(out, mul(o, norm(w("output_norm.weight"), x)))
	}
	return out
}

func cosine(a []float32, b []float64) float64 {
	dot, aa, bb := 0.0, 0.0, 0.0
	for i := range a {
		dot += float64(a[i]) * b[i]
		aa += float64(a[i]) * float64(a[i])
		bb += b[i] * b[i]
	}
	return dot / math.Sqrt(aa*bb)
}

// Every weight type, mixed types, tied and untied, a key length of its own, and both kinds of rope scaling give what the
// formulas give: at every position, prefilled token by token and in chunks.
func TestAgainstFormulas(t *testing.T) {
	all := func(typ gguf.Type) map[string]gguf.Type { return map[string]gguf.Type{"": typ} }
	with := func(change func(*shape)) shape { s := tiny; change(&s); return s }
	for _, c := range []struct {
		name  string
		s     shape
		least float64 // cosine
	}{
		{"F32", with(func(s *shape) { s.types = all(gguf.F32) }), 0.99999},
		{"F16", with(func(s *shape) { s.types = all(gguf.F16) }), 0.99999},
		{"Q8_0", with(func(s *shape) { s.types = all(gguf.Q8_0) }), 0.999},
		{"Q4_0", with(func(s *shape) { s.types = all(gguf.Q4_0) }), 0.999},
		{"Q4_1", with(func(s *shape) { s.types = all(gguf.Q4_1) }), 0.999},
		{"mixed", with(func(s *shape) {
			s.untied = true
			s.types = map[string]gguf.Type{"": gguf.Q4_1, "token_embd": gguf.F16, "output": gguf.Q8_0, "attn_v": gguf.F32, "attn_k": gguf.Q4_0, "ffn_down": gguf.F16}
		}), 0.999},
		{"untied", with(func(s *shape) { s.untied = true }), 0.99999},
		{"key length", with(func(s *shape) { s.headDim = 24 }), 0.99999},
		{"one KV head", with(func(s *shape) { s.kvHeads = 1 }), 0.99999},
		{"no groups, odd widths", with(func(s *shape) { s.kvHeads, s.vocab, s.ff = 4, 77, 90 }), 0.99999},
		{"rope factors", with(func(s *shape) { s.freqFactors = true }), 0.99999},
		{"linear rope", with(func(s *shape) { s.linear = 4 }), 0.99999},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.s.file(t, 5)
			r := newRunner(t, load(t, f), RunnerOptions{Threads: 2, MaxRows: 32})
			tokens := randomTokens(75, c.s.vocab, 9)
			want := reference(t, f, c.s, tokens)
			kv, agree := newMemory(r.m, 16, len(tokens)), 0
			for i := range tokens {
				got := prefill(t, r, kv, tokens[i:i+1], i, 1)
				if cos := cosine(got, want[i]); cos < c.least {
					t.Errorf("position %d: cosine %.6f", i, cos)
				}
				top := make([]float32, len(want[i]))
				for j, v := range want[i] {
					top[j] = float32(v)
				}
				if argmax(got) == argmax(top) {
					agree++
				}
			}
			if agree < len(tokens)*95/100 {
				t.Errorf("the top token agrees at %d of %d positions", agree, len(tokens))
			}
			got := prefill(t, r, newMemory(r.m, 64, len(tokens)), tokens, 0, 32)
			if cos := cosine(got, want[len(want)-1]); cos < c.least {
				t.Errorf("in chunks: cosine %.6f", cos)
			}
		})
	}
}
