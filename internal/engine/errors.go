package engine

import (
	"errors"
	"slices"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
)

// outcome says of chunk i of a batch that ended with err whether it was computed, and the verdict if it was the one at
// fault. A chunk that was neither runs again in the next step, without the one at fault.
func outcome(err error, i int, l verdict.Layer) (computed bool, v verdict.Verdict) {
	if err == nil {
		return true, verdict.Verdict{}
	}
	var bad *llm.ChunkError
	if !errors.As(err, &bad) {
		return false, verdict.Of(verdict.EngineFailed, l, "%v", err)
	}
	if slices.Contains(bad.Chunks, i) {
		return false, verdict.Of(verdict.EngineFailed, l, "%v", bad.Err)
	}
	return errors.Is(bad.Err, llm.ErrNotFinite), verdict.Verdict{}
}

// ofView is the verdict of a lease that could not be viewed, grown or sealed.
func ofView(err error, t admission.Ticket, l verdict.Layer) verdict.Verdict {
	switch {
	case errors.Is(err, pool.ErrFenced):
		if v, ok := t.Verdict().Get(); ok {
			return v
		}
		return verdict.Of(verdict.Internal, l, "the pages were taken back without a verdict")
	case errors.Is(err, pool.ErrTag):
		return verdict.Of(verdict.TagMismatch, l, "%v", err)
	case errors.Is(err, pool.ErrNotZero):
		return verdict.Of(verdict.ZeroViolation, l, "%v", err)
	case errors.Is(err, pool.ErrUnwritten), errors.Is(err, pool.ErrUnsealed):
		return verdict.Of(verdict.CountMismatch, l, "%v", err)
	}
	return verdict.Of(verdict.Internal, l, "%v", err)
}
