// Package llm is the forward pass of a transformer over views of pages.
//
// It knows the Llama architecture (RMSNorm, rotary embedding, grouped-query attention, SwiGLU); other families get a
// file each. It reads and writes KV only through the KV it is given, and never keeps one.
package llm

import "github.com/sluicekv/sluice/internal/kernel"

// KV is one sequence's pages for one step: pinned, tags checked. pool.View implements it.
type KV interface {
	// Pages returns the pages of positions [0, tokens) in order. Valid until the step is done.
	Pages() []kernel.Page
	// Slot returns where position pos may be written; it panics unless pos lies in the step's write range.
	Slot(pos int) kernel.Slot
	// PageTokens is the number of slots a page.
	PageTokens() int
}

// Chunk is the work of one sequence in one step: Tokens at positions Pos, Pos+1, …; their KV is written, and each
// attends to [0, its own position]. If Logits is not nil it receives the last token's logits (Vocab values).
type Chunk struct {
	Tokens []int32
	Pos    int
	KV     KV
	Logits []float32
}

// Model runs chunks. Implementations are safe for use by one goroutine at a time; a worker that runs both legs makes
// two Runners over the same weights.
type Runner interface {
	// Forward runs all chunks as one batch. The result for a chunk does not depend on which others are in the batch.
	Forward(batch []Chunk) error
}
