// Package upstream is the seam between the gateway and the engines: one adapter per engine translates its wire into events of
// gateway/legs, and knows nothing of policy.
package upstream

import (
	"context"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Attempt is what an engine is asked to run.
type Attempt struct {
	Ticket   admission.Ticket
	IDs      []int32 // of the prompt; not changed while the attempt runs
	Pair     fleet.Pair
	Deadline time.Time // by which the legs must be done
}

// Engine runs attempts on one kind of worker.
type Engine interface {
	// Row is the engine's in the table of what must agree.
	Row() legs.Engine
	// Start begins an attempt and does not wait. What goes wrong comes as an event. quiet is called once, from any goroutine,
	// also before Start returns: nothing of the attempt moves any more, or it was given up on (Report says which).
	Start(a Attempt, quiet func()) Run
}

// Run is an attempt under way. One goroutine calls it; quiet apart, it starts none.
type Run interface {
	// Next returns the next event, and waits for it until ctx is done: then the error is ctx's.
	Next(ctx context.Context) (legs.Event, error)
	// Output moves what LegBytes announced into ids (appended), and forgets it here.
	Output(ids []int32) []int32
	// Stop asks decode to end the reply well: a stop string was found. Its end still comes as events.
	Stop()
	// Abort ends the attempt with a verdict that is a no, at the legs that were asked. It does not wait; quiet tells.
	Abort(v verdict.Verdict)
	// Report is what is known of the attempt so far.
	Report() Report
}

// Report is what the legs said that they did. It is for the record: nothing is decided by it.
type Report struct {
	PrefillComputed, DecodeSealed, Completion uint32 // tokens
	Reserved, Written, Held                   uint32 // pages of decode
	Digest, Root                              [32]byte
	// Durations; 0 when not reached. Reserve: to decode's pages. Prefill: from there to prefill's verdict. Seal: from there to the
	// seal. Decode: from the seal to decode's end. Settle: from the attempt's verdict until both legs were quiet.
	Reserve, Prefill, Seal, Decode, Settle time.Duration
	Settled                                bool // both legs said so, or their links are gone with their boots
}
