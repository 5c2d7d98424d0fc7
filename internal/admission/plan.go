package admission

import (
	"time"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/page"
)

// Scope is the opaque value that separates tenants: pages, salts and digests of one scope mean nothing in another.
type Scope [16]byte

// Endpoint is one leg of a pair, as the gateway knows it.
type Endpoint struct {
	Name string    // of the worker, for messages; at most 64 bytes
	Boot page.Boot // a worker that restarted since refuses the plan
	Data string    // host:port of its data socket (decode)
	Key  [32]byte  // its Ed25519 public key
}

// Sampling of decode. Temperature 0 is greedy.
type Sampling struct {
	Temperature float32
	TopP        float32
	Seed        uint64
}

// Plan is what the gateway decided for an attempt. It is immutable once signed.
type Plan struct {
	Attempt attempt.ID
	Request string // X-Request-Id, for logs and records; at most 128 bytes
	Scope   Scope
	Model   [32]byte // fingerprint of weights, tokenizer, rope and dtype

	PromptTokens uint32
	LastToken    int32    // the prompt's last token id: decode computes that position itself
	Digest       [32]byte // prompt.Digest of the token ids under Scope
	MaxTokens    uint32   // completion tokens at most
	Limit        uint32   // the limit that the gateway admitted it under
	Sampling     Sampling

	Prefill, Decode Endpoint
	Budget          time.Duration // left of the deadline when the plan was made; each worker runs its own timer, so clocks need not agree
	TestTraffic     bool

	// Session and Seq make a plan single use without clocks: Session is the random value that the worker gave in its
	// hello on this very connection, Seq grows by one a plan. A replay has the wrong session or an old number.
	Session [16]byte
	Seq     uint64
}

// Slots is the KV slots that the attempt can need on decode: the prompt and every generated token but the last, which is
// never attended to.
func (p Plan) Slots() int { return int(p.PromptTokens) + int(p.MaxTokens) - 1 }
