package worker

import (
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/engine"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/verdict"
)

// prefillEngine computes prompts. Submit and Cancel never block and never call the sink; the sink hears Done once, also after Close.
type prefillEngine interface {
	Submit(engine.PrefillJob) error
	Cancel(attempt.ID, verdict.Verdict)
	Close()
}

// decodeEngine continues sealed prompts, under the same rules.
type decodeEngine interface {
	Submit(engine.DecodeJob) error
	Cancel(attempt.ID, verdict.Verdict)
	Close()
}

const (
	defaultChunk = 512
	decodeBatch  = 128
)

// startEngine makes the engine of the worker's role. An engine that is there already stays (tests).
func (w *Worker) startEngine() {
	m, c := w.cfg.Model, w.cfg
	switch {
	case w.prefills != nil || w.decodes != nil:
	case c.Role == capacity.Prefill:
		run := llm.NewRunner(m, llm.RunnerOptions{Threads: c.Threads, MaxRows: c.Chunk})
		w.prefills = engine.NewPrefill(engine.PrefillConfig{
			Runner: run, Vocab: w.vocab, PageTokens: c.PageTokens, Chunk: c.Chunk, Queue: c.Limits.Attempts,
		})
		w.endRunner = run.Close
	default:
		run := llm.NewRunner(m, llm.RunnerOptions{Threads: c.Threads, MaxRows: decodeBatch})
		w.decodes = engine.NewDecode(engine.DecodeConfig{
			Runner: run, Vocab: w.vocab, EOS: m.Config().EOS, PageTokens: c.PageTokens, MaxBatch: decodeBatch,
			Queue: c.Limits.Attempts, Freed: w.pool.Freed,
		})
		w.endRunner = run.Close
	}
}

func (w *Worker) stopEngine() {
	if w.prefills != nil {
		w.prefills.Close()
	}
	if w.decodes != nil {
		w.decodes.Close()
	}
	if w.endRunner != nil {
		w.endRunner()
	}
}
