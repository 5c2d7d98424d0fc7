// Package pooltrace records a pool's transitions among those of the machines that drive it.
package pooltrace

import (
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/pool"
)

// Of makes the function that pool.Config.Trace takes. Nil when r is nil: nothing is traced. The recorder's lock comes after the pool's.
func Of(r trace.Recorder) func(pool.Event) {
	if r == nil {
		return nil
	}
	chooser, _ := r.(trace.Chooser)
	return func(e pool.Event) {
		if chooser != nil && !chooser.Takes(e.Attempt) {
			return
		}
		t := trace.Event{
			Attempt: e.Attempt, Boot: uint64(e.First.Boot), Machine: trace.Pool, Digest: uint64(e.First.Gen),
			Args: trace.Args{Step: trace.Reserve + trace.Step(e.Op-pool.OpReserve), A: uint32(e.First.ID), B: uint32(e.Count), C: uint32(e.Writes)},
		}
		if e.OK {
			t.State = 1
		}
		r.Record(t)
	}
}
