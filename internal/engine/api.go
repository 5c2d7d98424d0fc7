// Package engine schedules the forward pass: chunked prefill for one leg, batched decode for the other.
//
// Prefill cuts prompts into chunks. A quarter of each step is the oldest prompt's, the rest goes to those with the fewest tokens
// left: a long prompt does not hold up short ones, and no stream of short ones starves it. Decode runs one token of every live sequence a step; sequences join and leave between steps.
// Neither knows sockets, plans or the wire: leases and tickets come in, calls on a sink go out.
package engine

import (
	"errors"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// ErrQueueFull is returned by Submit when the bounded queue is full; nothing was taken.
var ErrQueueFull = errors.New("engine: the queue is full")

// ErrClosed is returned by Submit after Close.
var ErrClosed = errors.New("engine: closed")

// PrefillJob is one prompt to compute into a lease. The engine owns neither: the submitter releases the lease after Done.
type PrefillJob struct {
	Ticket admission.Ticket
	Lease  *pool.Lease
	Tokens []int32
	Key    *mac.Key // of the attempt: a page's MAC is made when it is sealed, while it is in the cache
	// Computed, if not nil, is fed with the tokens whose KV was computed, chunk by chunk: what the manifest's digest is made of. It
	// is the engine's until Done.
	Computed *admission.Digester
	Sink     PrefillSink
}

// PrefillSink hears about a prompt. Its methods are called from the engine's goroutine, in order, and must not block.
type PrefillSink interface {
	// Sealed: the pages with ordinals from, from+1, … are complete and sealed; macs are theirs, the engine's again after the
	// call. Every page of a prompt comes in one of these calls, in order, the tail last; all of them before Done.
	Sealed(from int, macs []mac.Tag)
	// Done is called once, last: with the echo and a zero verdict when all of the prompt is computed, else with the verdict
	// that ended it. computed is the number of tokens whose KV was computed.
	Done(computed int, echo wire.Echo, v verdict.Verdict)
}

// DecodeJob is one sealed prompt to continue. Lease covers the prompt; the engine grows it.
type DecodeJob struct {
	Ticket admission.Ticket // PromptTokens, LastToken, MaxTokens, Sampling come from its plan
	Lease  *pool.Lease
	Sink   DecodeSink
}

// Finish says why generation ended.
type Finish uint8

const (
	FinishNone   Finish = iota
	FinishStop          // the model ended the reply
	FinishLength        // max_tokens
)

// DecodeSink hears about a reply. The same rules as PrefillSink.
type DecodeSink interface {
	// Echo is called once, first: the top logits of the prompt's last position as decode computed them from the pages. A
	// verdict that is not zero ends the job (Done follows with it).
	Echo(own wire.Echo) verdict.Verdict
	// Token hands out one token. False ends the job with FinishStop (the gateway found a stop string).
	Token(id int32) bool
	// Done is called once, last. completion is the number of tokens handed out, the end token not counted.
	Done(completion int, f Finish, v verdict.Verdict)
}
