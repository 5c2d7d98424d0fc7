// Package worker is a node: one leg's engine, its pool, and its end of the handoff.
//
// It drives the machines of package handoff: it owns the links, the timers and the lease of every attempt, feeds what
// happens to the attempt's machine, and performs what the machine asks for. What may happen, and in which order, is not decided here.
// It holds no policy of the fleet (which pair, which tenant, whether to retry) and no text: it never sees more than token ids.
//
// # Goroutines
//
// One reads each link, and one writes it; each attempt has a few short ones (the wait for pages, the wait for the lease to drain).
// A frame of an attempt is looked up, its attempt's machine takes a step, and that is all that a reader does: it never waits for
// pages, for the engine or for another link.
//
// # Lock order
//
// An attempt's lock is taken first and held for one step, its trace event, and those effects that never block: a verdict set, a
// frame put into an outbox, a lease fenced and released, a timer stopped. So the frames of an attempt leave in the order of its steps.
// Under it come, each a leaf: the table's lock, an outbox's, an out-link's, the pool's, the cell's, the recorder's. What may take
// time (landing, sealing, submitting, waiting, sending a page) is done without any lock, and its result is the next event.
package worker
