package worker

import (
	"fmt"
	"time"

	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/verdict"
)

// A reason names numbers, workers and what was waited for: whoever reads the client's error must learn which layer on which machine
// said no, and of whom. It never holds text or token ids of a request.

func nameOf(x any) string { return fmt.Sprintf("%T", x) }

// waited is a duration for people.
func waited(since time.Time) string {
	d := time.Since(since)
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

func withDetail(s, detail string) string {
	if detail == "" {
		return s
	}
	return s + ": " + detail
}

// explain makes the whole verdict of what the machine decided. before is the machine's value when e came. Called under the lock.
func (a *decodeAttempt) explain(before handoff.Decode, e handoff.Event, x handoff.SetVerdict, why because) verdict.Verdict {
	if why.said.Code == x.Code && !why.said.IsZero() {
		return why.said // the peer's own word, whole
	}
	if x.Code == verdict.OK {
		return verdict.Served(x.Layer)
	}
	me, peer := a.w.cfg.Name, a.plan.Prefill.Name
	say := func(format string, args ...any) verdict.Verdict {
		return verdict.Of(x.Code, x.Layer, "%s", withDetail(fmt.Sprintf(format, args...), why.detail))
	}
	switch e := e.(type) {
	case handoff.DeadlinePassed:
		return say("decode %s waited %s for %s", me, waited(a.stages.since()), a.awaited(before))
	case handoff.PeerLost:
		return say("%s was lost while decode %s waited for %s", a.who(e.From), me, a.awaited(before))
	case handoff.PageArrived:
		return say("page %d of prefill %s came to decode %s without a live grant (state %s, %d of %d landed)",
			e.Ordinal, peer, me, before.State, before.Written, before.Needed)
	case handoff.PageLanded:
		return say("page %d of prefill %s did not land on decode %s (%d of %d had)", e.Ordinal, peer, me, before.Written, before.Needed)
	case handoff.ManifestSeen:
		return say("%s", a.manifestReason(before, e, x.Code))
	case handoff.EndSeen:
		return say("prefill %s ended an attempt in state %s on decode %s", peer, before.State, me)
	case handoff.Attached:
		return say("prefill %s attached in state %s on decode %s", peer, before.State, me)
	case handoff.SealDone:
		return say("decode %s could not seal %d pages", me, before.Needed)
	case handoff.EchoCompared:
		return say("decode %s computed another last position from the pages than prefill %s", me, peer)
	case handoff.AbortAsked:
		return say("%s aborted with %s, which is no reason to abort", a.who(e.From), e.Code)
	}
	return say("decode %s in state %s", me, before.State)
}

func (a *decodeAttempt) manifestReason(d handoff.Decode, e handoff.ManifestSeen, c verdict.Code) string {
	peer := a.plan.Prefill.Name
	switch c {
	case verdict.CountMismatch:
		return fmt.Sprintf("the manifest of prefill %s says %d tokens on %d pages, the plan %d tokens on %d; %d landed on decode %s",
			peer, e.Tokens, e.Pages, d.Planned, d.Needed, d.Written, a.w.cfg.Name)
	case verdict.DigestMismatch:
		return fmt.Sprintf("prefill %s computed %d other token ids than the plan's", peer, e.Tokens)
	case verdict.RootMismatch:
		return fmt.Sprintf("the manifest of prefill %s is of other pages than the %d that landed on decode %s", peer, d.Written, a.w.cfg.Name)
	case verdict.MACMismatch:
		return fmt.Sprintf("the manifest of prefill %s has the wrong MAC", peer)
	}
	return fmt.Sprintf("prefill %s sent a manifest in state %s of decode %s", peer, d.State, a.w.cfg.Name)
}

func (a *decodeAttempt) who(w handoff.Who) string {
	switch w {
	case handoff.PrefillLeg:
		return "prefill " + a.plan.Prefill.Name
	case handoff.GatewayEnd:
		return "the gateway " + a.ctl.name()
	}
	return "decode " + a.w.cfg.Name
}

// awaited says for what decode waited in a state.
func (a *decodeAttempt) awaited(d handoff.Decode) string {
	peer := a.plan.Prefill.Name
	switch d.State {
	case handoff.DecodeWaiting:
		s := a.w.pool.Stats()
		return fmt.Sprintf("%d free pages: %d of %d free", d.Needed, s.Free, s.Total)
	case handoff.DecodeReserved:
		return fmt.Sprintf("prefill %s to attach", peer)
	case handoff.DecodeGranted:
		return fmt.Sprintf("pages of prefill %s: %d of %d landed", peer, d.Written, d.Needed)
	case handoff.DecodeClosing:
		return fmt.Sprintf("the end of prefill %s", peer)
	case handoff.DecodeSealing:
		return "its pool to seal"
	case handoff.DecodeEchoing:
		return "its own last position"
	}
	return fmt.Sprintf("its own tokens: %d of at most %d made", d.Emitted, a.plan.MaxTokens)
}

// explain is decodeAttempt.explain for the other leg.
func (a *prefillAttempt) explain(before handoff.Prefill, e handoff.Event, x handoff.SetVerdict, why because) verdict.Verdict {
	if why.said.Code == x.Code && !why.said.IsZero() {
		return why.said
	}
	if x.Code == verdict.OK {
		return verdict.Served(x.Layer)
	}
	me, peer := a.w.cfg.Name, a.plan.Decode.Name
	say := func(format string, args ...any) verdict.Verdict {
		return verdict.Of(x.Code, x.Layer, "%s", withDetail(fmt.Sprintf(format, args...), why.detail))
	}
	switch e := e.(type) {
	case handoff.DeadlinePassed:
		return say("prefill %s waited %s for %s", me, waited(a.stages.since()), a.awaited(before))
	case handoff.PeerLost:
		if why.unreached {
			return say("prefill %s cannot reach %s", me, a.who(e.From))
		}
		return say("%s was lost while prefill %s waited for %s", a.who(e.From), me, a.awaited(before))
	case handoff.PromptSeen:
		return say("prefill %s got %d token ids at %d where %d of %d had come", me, e.Count, e.Offset, before.Received, before.Planned)
	case handoff.GrantSeen:
		return say("decode %s granted %d pages where prefill %s needs %d", peer, e.Pages, me, before.Needed)
	case handoff.AbortAsked:
		return say("%s aborted with %s, which is no reason to abort", a.who(e.From), e.Code)
	}
	return say("prefill %s in state %s", me, before.State)
}

func (a *prefillAttempt) who(w handoff.Who) string {
	switch w {
	case handoff.DecodeLeg:
		return "decode " + a.plan.Decode.Name
	case handoff.GatewayEnd:
		return "the gateway " + a.ctl.name()
	}
	return "prefill " + a.w.cfg.Name
}

// awaited says for what prefill waited in a state.
func (a *prefillAttempt) awaited(p handoff.Prefill) string {
	grant := ""
	if !p.Granted {
		grant = fmt.Sprintf(", and for the grant of decode %s", a.plan.Decode.Name)
	}
	switch p.State {
	case handoff.PrefillCollecting:
		return fmt.Sprintf("the prompt: %d of %d token ids came", p.Received, p.Planned)
	case handoff.PrefillReserving:
		s := a.w.pool.Stats()
		return fmt.Sprintf("%d free pages: %d of %d free", p.Needed, s.Free, s.Total)
	case handoff.PrefillComputing:
		return fmt.Sprintf("its own engine: %d of %d pages computed, %d sent%s", p.Sealed, p.Needed, p.Sent, grant)
	}
	return fmt.Sprintf("decode %s to take pages: %d of %d sent%s", a.plan.Decode.Name, p.Sent, p.Needed, grant)
}
