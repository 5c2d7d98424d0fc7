package llm

import (
	"errors"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
)

// Any file is refused, or runs: never a panic, and never more memory than the file is large.
func FuzzLoad(f *testing.F) {
	small := shape{dim: 32, layers: 1, heads: 4, kvHeads: 2, headDim: 8, ff: 32, vocab: 16, base: 500, types: map[string]gguf.Type{"": gguf.Q4_0}}
	for _, s := range []shape{small, {dim: 32, layers: 1, heads: 1, kvHeads: 1, headDim: 32, ff: 32, vocab: 8, base: 500, untied: true, freqFactors: true, linear: 2,
		types: map[string]gguf.Type{"": gguf.Q4_1}}} {
		var w gguf.Writer
		s.metadata(&w)
		s.tensors(&w, 1)
		b, err := w.Bytes()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := gguf.Parse(b)
		if err != nil {
			return
		}
		guess, err := EstimateBytes(file)
		if err != nil {
			if !errors.Is(err, ErrRefused) {
				t.Fatalf("an error of another family: %v", err)
			}
			return
		}
		if guess > 20*int64(len(b)) { // a panel is 16 rows, a vector of halves doubles
			t.Fatalf("%d bytes of a file of %d", guess, len(b))
		}
		m, err := Load(file)
		if err != nil {
			t.Fatalf("estimated, but not loaded: %v", err)
		}
		r := NewRunner(m, RunnerOptions{Threads: 1, MaxRows: 2})
		defer r.Close()
		c := Chunk{Tokens: []int32{0, int32(m.cfg.Vocab - 1)}, KV: newMemory(m, 16, 2), Logits: make([]float32, m.cfg.Vocab)}
		if err := r.Forward([]Chunk{c}); err != nil && !errors.Is(err, ErrNotFinite) {
			t.Fatal(err)
		}
	})
}
