package llm

import (
	"fmt"
	"math"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
)

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// sequence is one of several that share batches.
type sequence struct {
	tokens []int32
	kv     *memory
	pos    int
	logits [][]float32 // after the prompt, and after each token that follows
}

// together prefills all sequences in chunks of one batch and then decodes them in batches, four tokens each.
func together(t *testing.T, r *CPU, seqs []*sequence, chunk int) {
	t.Helper()
	for {
		var batch []Chunk
		rows := 0
		for _, s := range seqs {
			n := min(chunk, len(s.tokens)-s.pos, r.MaxRows()-rows)
			if n == 0 {
				continue
			}
			c := Chunk{Tokens: s.tokens[s.pos : s.pos+n], Pos: s.pos, KV: s.kv}
			if s.pos += n; s.pos == len(s.tokens) {
				c.Logits = make([]float32, r.m.cfg.Vocab)
				s.logits = append(s.logits, c.Logits)
			}
			batch, rows = append(batch, c), rows+n
		}
		if batch == nil {
			return
		}
		if err := r.Forward(batch); err != nil {
			t.Fatal(err)
		}
		for _, s := range seqs {
			if n := len(s.logits); n > 0 && n < 5 && s.pos == len(s.tokens) {
				s.tokens = append(s.tokens, argmax(s.logits[n-1]))
			}
		}
	}
}

// The bits of the logits do not depend on chunk size, page size, batch or threads, on either path.
func TestOneNumericPath(t *testing.T) {
	s := shape{dim: 64, layers: 2, heads: 2, kvHeads: 1, headDim: 16, ff: 64, vocab: 96, base: 500, untied: true,
		types: map[string]gguf.Type{"": gguf.Q4_1, "attn_v": gguf.F16, "ffn_up": gguf.Q8_0, "attn_output": gguf.Q4_0, "output": gguf.F32}}
	m := load(t, s.file(t, 3))
	lengths := []int{530, 5, 64, 17, 129, 1, 63, 33}
	was := kernel.Path()
	defer kernel.SetPath(was)
	paths, chunks := kernel.Paths(), []int{512, 64, 7, 1}
	switch {
	case raced:
		paths, chunks = paths[:1], []int{512, 7}
	case testing.Short():
		chunks = []int{512, 64}
	}
	for _, path := range paths {
		if err := kernel.SetPath(path); err != nil {
			t.Fatal(err)
		}
		want := make([][][]float32, len(lengths))
		checked := 0
		for _, threads := range []int{1, 2, 3} {
			r := newRunner(t, m, RunnerOptions{Threads: threads, MaxRows: 1024})
			r.alone, r.grain = 0, 1 // every item goes to whoever is free
			for _, chunk := range chunks {
				for _, pageTokens := range []int{16, 64} {
					for _, batch := range []int{1, 8} {
						name := fmt.Sprintf("%s, %d threads, chunk %d, page %d, batch %d", path, threads, chunk, pageTokens, batch)
						var seqs []*sequence
						for i := range batch {
							seqs = append(seqs, &sequence{tokens: randomTokens(lengths[i], s.vocab, uint64(i)), kv: newMemory(m, pageTokens, lengths[i]+8)})
						}
						together(t, r, seqs, chunk)
						for i, q := range seqs {
							if len(q.logits) != 5 {
								t.Fatalf("%s: %d logits", name, len(q.logits))
							}
							if want[i] == nil {
								want[i] = q.logits
							}
							for j := range q.logits {
								checked++
								if !sameBits(q.logits[j], want[i][j]) {
									t.Fatalf("%s: sequence %d: logits after %d more tokens differ", name, i, j)
								}
							}
						}
					}
				}
			}
		}
		t.Logf("%s: %d logits equal in every bit", path, checked)
	}
}

// A step in the middle of a reply allocates nothing.
func TestDecodeAllocatesNothing(t *testing.T) {
	m := load(t, tiny.file(t, 1))
	r := newRunner(t, m, RunnerOptions{Threads: 2, MaxRows: 64})
	r.alone = 0
	kv := newMemory(m, 16, 256)
	logits := prefill(t, r, kv, randomTokens(64, tiny.vocab, 1), 0, 64)
	tokens := []int32{argmax(logits)}
	batch := []Chunk{{Tokens: tokens, Pos: 64, KV: kv, Logits: logits}}
	step := func() {
		if err := r.Forward(batch); err != nil {
			t.Fatal(err)
		}
		batch[0].Pos++
	}
	step()
	if n := testing.AllocsPerRun(20, step); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
}
