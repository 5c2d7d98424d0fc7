package native

import (
	"fmt"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// hear takes a frame of a leg: first told to the reconcile machine as what it says, then a step of the handoff machine.
func (r *Run) hear(l legs.Leg, f wire.Frame) {
	switch f := f.(type) {
	case wire.Reserved:
		if l == legs.Decode {
			r.hearReserved(f)
			return
		}
	case wire.Sealed:
		if l == legs.Decode {
			r.hearSealed(f)
			return
		}
	case wire.Output:
		if l == legs.Decode {
			r.hearOutput(f)
			return
		}
	case wire.Outcome:
		f.Verdict = own(f.Verdict)
		if l == legs.Decode {
			r.hearDecode(f)
		} else {
			r.hearPrefill(f)
		}
		return
	case wire.Settled:
		r.step(l, handoff.LegSettled{Leg: who(l)}, "settled")
		return
	}
	r.step(l, handoff.Violation{Code: verdict.ProtocolViolation}, fmt.Sprintf("a %s is not for it to send", f.Kind()))
}

// own gives a worker's verdict the status of its code in this build: a peer names a code, not what HTTP makes of it.
func own(v verdict.Verdict) verdict.Verdict {
	v.Status = v.Code.About().Status
	return v
}

func (r *Run) hearReserved(f wire.Reserved) {
	r.reserved = time.Now()
	r.report.Reserve = r.reserved.Sub(r.began)
	r.report.Reserved = f.Pages
	r.tell(legs.LegStatus{Leg: legs.Decode, Status: 200})
	r.step(legs.Decode, handoff.ReservedSeen{Pages: f.Pages}, "a second reserved")
}

func (r *Run) hearSealed(f wire.Sealed) {
	r.sealed = time.Now()
	r.report.Seal = 1 // before prefill's verdict came
	if since := r.finished; !since.IsZero() {
		r.report.Seal = r.sealed.Sub(since)
	}
	r.report.DecodeSealed, r.report.Written, r.report.Held = f.Tokens, f.Written, f.Held
	r.report.Root = f.Root
	r.tell(legs.LegHandle{Leg: legs.Decode, Handle: legs.Handle{State: legs.Ours, Pages: f.Written + f.Held, Digest: f.Digest, Root: f.Root}})
	r.tell(legs.LegUsage{Leg: legs.Decode, Prompt: int(f.Tokens), Completion: -1})
	r.step(legs.Decode, handoff.SealedSeen{Tokens: f.Tokens, Written: f.Written, Held: f.Held, DigestOK: f.Digest == r.plan.Digest}, "a seal out of place")
}

func (r *Run) hearOutput(f wire.Output) {
	n := len(f.IDs)
	if int64(r.machine.Output)+int64(n) > int64(r.plan.MaxTokens) {
		r.step(legs.Decode, handoff.Violation{Code: verdict.ProtocolViolation}, fmt.Sprintf("%d tokens, of at most %d", int64(r.machine.Output)+int64(n), r.plan.MaxTokens))
		return
	}
	out := r.step(legs.Decode, handoff.OutputSeen{Index: f.Index, Count: uint32(n)}, fmt.Sprintf("output from %d where %d was next", f.Index, r.machine.Output))
	for x := range out.All() {
		switch x.(type) {
		case handoff.HoldOutput, handoff.PassOutput:
			r.output = append(r.output, f.IDs...)
			r.tell(legs.LegBytes{Leg: legs.Decode, N: n})
		}
	}
}

func (r *Run) hearPrefill(f wire.Outcome) {
	r.finished = time.Now()
	if !r.reserved.IsZero() {
		r.report.Prefill = r.finished.Sub(r.reserved)
	}
	r.report.PrefillComputed = f.Computed
	r.report.Digest = f.Digest
	if f.Verdict.OK() {
		r.tell(legs.LegUsage{Leg: legs.Prefill, Prompt: int(f.Computed), Completion: -1})
		r.tell(legs.LegHandle{Leg: legs.Prefill, Handle: legs.Handle{State: legs.Ours, Pages: f.Written, Digest: f.Digest, Root: f.Root}})
		r.tell(legs.LegEnd{Leg: legs.Prefill})
	} else {
		r.tell(legs.LegError{Leg: legs.Prefill, Verdict: f.Verdict})
	}
	r.hold(f.Verdict)
	r.step(legs.Prefill, handoff.PrefillEnded{Tokens: f.Computed, DigestOK: f.Digest == r.plan.Digest, Code: f.Verdict.Code}, "an outcome out of place")
}

func (r *Run) hearDecode(f wire.Outcome) {
	if !r.sealed.IsZero() {
		r.report.Decode = time.Since(r.sealed)
	}
	r.report.Completion = f.Completion
	r.report.Reserved = max(r.report.Reserved, f.Reserved)
	r.report.Written, r.report.Held = max(r.report.Written, f.Written), max(r.report.Held, f.Held)
	if f.Verdict.OK() {
		finish := legs.NoFinish
		switch f.Finish {
		case wire.FinishStop:
			finish = legs.Stop
		case wire.FinishLength:
			finish = legs.Length
		}
		r.tell(legs.LegUsage{Leg: legs.Decode, Prompt: int(f.Computed), Completion: int(f.Completion)})
		if finish != legs.NoFinish {
			r.tell(legs.LegFinish{Leg: legs.Decode, Reason: finish})
		}
		r.tell(legs.LegEnd{Leg: legs.Decode})
	} else {
		r.tell(legs.LegError{Leg: legs.Decode, Verdict: f.Verdict})
	}
	r.hold(f.Verdict)
	r.step(legs.Decode, handoff.DecodeEnded{Completion: f.Completion, Code: f.Verdict.Code}, "an outcome out of place")
}

// hold keeps a leg's no as the verdict that the other leg is told with.
func (r *Run) hold(v verdict.Verdict) {
	if r.verdict.IsZero() && !v.OK() && !r.machine.Over() {
		r.verdict = v
	}
}
