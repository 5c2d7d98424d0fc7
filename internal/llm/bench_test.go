package llm

import (
	"fmt"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

func recallModel(t testing.TB, cfg recall.Config) *Model {
	t.Helper()
	f, err := gguf.Parse(recall.Build(cfg))
	if err != nil {
		t.Fatal(err)
	}
	return load(t, f)
}

// BenchmarkPrefill is one prompt in chunks of 512.
func BenchmarkPrefill(b *testing.B) {
	run := func(b *testing.B, m *Model, tokens, threads int) {
		r := newRunner(b, m, RunnerOptions{Threads: threads})
		prompt, kv := randomTokens(tokens, min(m.cfg.Vocab, 256), 1), newMemory(m, 64, tokens)
		for b.Loop() {
			prefill(b, r, kv, prompt, 0, 512)
		}
		b.ReportMetric(float64(b.N*tokens)/b.Elapsed().Seconds(), "tokens/s")
	}
	for _, threads := range []int{1, 2} {
		for _, tokens := range []int{512, 8192, 32000} {
			b.Run(fmt.Sprintf("recall/tokens=%d/threads=%d", tokens, threads), func(b *testing.B) {
				run(b, recallModel(b, recall.Config{}), tokens, threads)
			})
		}
		b.Run(fmt.Sprintf("smollm2/tokens=512/threads=%d", threads), func(b *testing.B) {
			m, _ := smolModel(b)
			run(b, m, 512, threads)
		})
	}
}

// BenchmarkDecode is one token of each of some sequences a step, at a depth.
func BenchmarkDecode(b *testing.B) {
	run := func(b *testing.B, m *Model, depth, sequences, threads int) {
		r := newRunner(b, m, RunnerOptions{Threads: threads})
		var batch []Chunk
		for i := range sequences {
			kv := newMemory(m, 64, depth+1)
			prompt := randomTokens(depth, min(m.cfg.Vocab, 256), uint64(i))
			prefill(b, r, kv, prompt, 0, 512)
			batch = append(batch, Chunk{Tokens: prompt[:1], Pos: depth, KV: kv, Logits: make([]float32, m.cfg.Vocab)})
		}
		for b.Loop() {
			if err := r.Forward(batch); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N*sequences)/b.Elapsed().Seconds(), "tokens/s")
	}
	for _, threads := range []int{1, 2} {
		for _, c := range [][2]int{{256, 1}, {256, 8}, {8192, 1}} {
			name := fmt.Sprintf("depth=%d/sequences=%d/threads=%d", c[0], c[1], threads)
			b.Run("recall/"+name, func(b *testing.B) { run(b, recallModel(b, recall.Config{}), c[0], c[1], threads) })
			b.Run("smollm2/"+name, func(b *testing.B) {
				if c[0] > 1000 {
					b.Skip("long to prepare")
				}
				m, _ := smolModel(b)
				run(b, m, c[0], c[1], threads)
			})
		}
	}
}
