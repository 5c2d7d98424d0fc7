package trace

import "github.com/sluicekv/sluice/internal/attempt"

// Thread is one machine's events. The zero Thread is off. Its owner's lock guards it.
type Thread struct {
	to   Recorder
	last Event // attempt, boot and machine of all; the digest is the chain so far
}

// Begin starts the thread of a machine that has just been made, and records that: Opened, with the prompt's tokens and its pages.
// state and digest are of the machine's first value. r may be nil, or a recorder that does not take the attempt: the thread is off.
func Begin(r Recorder, boot uint64, m Machine, id attempt.ID, tokens, pages uint32, state uint8, digest uint64) Thread {
	if c, ok := r.(Chooser); ok && !c.Takes(id) {
		r = nil
	}
	t := Thread{to: r, last: Event{Attempt: id, Boot: boot, Machine: m}}
	if r != nil {
		t.Record(Args{Step: Opened, A: tokens, B: pages}, state, digest)
	}
	return t
}

// Chooser is a Recorder that takes the events of some attempts only, always all of them.
type Chooser interface {
	Recorder
	Takes(attempt.ID) bool
}

// On reports whether somebody listens.
func (t *Thread) On() bool { return t.to != nil }

// Record records a step: its arguments, and the state and digest of the machine's value after it. Call it if On.
func (t *Thread) Record(a Args, state uint8, digest uint64) {
	t.last.Args, t.last.State = a, state
	t.last.Digest = Chain(t.last.Digest, a, state, digest)
	t.to.Record(t.last)
}

// Chain is the digest of an event: past is that of the machine's event before it (0: none), digest that of the machine's value.
func Chain(past uint64, a Args, state uint8, digest uint64) uint64 {
	h := mix(past, uint64(a.Step)|uint64(a.Code)<<8|uint64(state)<<16|uint64(a.A)<<32)
	h = mix(h, uint64(a.B)|uint64(a.C)<<32)
	return mix(h, digest)
}

// mix is one round of a multiply-and-fold hash (the finalizer of SplitMix64). It tells edits, not adversaries.
func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
