package gateway

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream"
	"github.com/sluicekv/sluice/internal/invariant"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// pick chooses a pair for the request, and waits for one where a moment may bring it. not is the pair of the attempt before.
func (x *walk) pick(not fleet.Pair, again fleet.Again) (pair fleet.Pair, v verdict.Verdict) {
	need := fleet.Need{
		Tokens: len(x.ids) + max(int(x.asked.maxTokens), 1) - 1,
		Load:   len(x.ids) + x.maxTokens(math.MaxInt32),
		Not:    not, Again: again,
	}
	pick := func() verdict.Verdict {
		pair, v = x.model.native.Pick(need)
		return v
	}
	if x.tries > 0 && again == fleet.Never {
		v = pick()
	} else {
		v = x.await(pick)
	}
	return pair, v
}

// try makes one attempt on a pair: admit, run, reconcile. The zero verdict means that the client has its reply; another is what it is
// to be told, unless retry says that a new attempt may be made instead.
func (x *walk) try(ctx context.Context, pair fleet.Pair) (v verdict.Verdict, retry bool) {
	x.tries++
	planning := time.Now()
	prefill, decode := pair.Names()
	plan := x.plan(pair)
	x.rec.Tokens.Planned = plan.PromptTokens
	x.rec.Digest = record.Hash(plan.Digest)
	ticket, v := admission.Admit(plan, pair.Limit)
	if !v.IsZero() {
		pair.Done()
		x.record(v)
		return v, false
	}
	ticket.Verdict().Conflict = invariant.Conflict[verdict.Verdict]("verdict of attempt " + x.rec.Attempt)
	x.rec.Pair = record.Pair{Prefill: prefill, Decode: decode}
	x.rec.Boots[0], x.rec.Boots[1] = plan.Prefill.Boot, plan.Decode.Boot
	x.rec.Times[record.PhasePlan] = time.Since(planning)

	end := newEnding(x, pair)
	run := x.model.engine.Start(upstream.Attempt{Ticket: ticket, IDs: x.ids, Pair: pair, Deadline: x.legsDeadline()}, end.quiet)
	end.run = run
	defer func() {
		if !x.kept { // a panic of ours: the legs must not go on for nobody
			v := verdict.Of(verdict.Internal, verdict.Legs, "the gateway failed on this attempt")
			run.Abort(v)
			end.finish(x, v)
		}
	}()
	l := &leg{walk: x, run: run, machine: x.reconciler(plan), reply: x.newReply()}
	v = l.follow(ctx)
	ticket.Verdict().Set(v)
	if l.eject {
		x.g.metrics.incidents.WithLabelValues(x.asked.model, guardOf(v.Code).String(), "enforce", v.Code.String()).Inc()
		x.model.native.Rest(prefill, decode, v.Code.String()+": "+v.Reason)
	}
	x.rec.Spoke = l.spoke()
	x.rec.Times[record.PhaseHold] = l.held
	end.finish(x, v)
	if v.OK() || x.replied {
		l.finish(v)
		return verdict.Verdict{}, false
	}
	return v, v.Code.About().Retry && x.tries == 1 && ctx.Err() == nil
}

func (x *walk) plan(pair fleet.Pair) admission.Plan {
	p := admission.Plan{
		Attempt: x.attempt, Request: x.request, Scope: x.tenant.Scope, Model: x.model.cfg.Fingerprint,
		PromptTokens: uint32(len(x.ids)), Digest: admission.Digest(x.tenant.Scope, x.ids),
		MaxTokens: uint32(x.maxTokens(max(pair.Limit.Tokens-len(x.ids)+1, 1))), Limit: uint32(pair.Limit.Tokens),
		Sampling: admission.Sampling{Temperature: x.asked.temperature, TopP: x.asked.topP, Seed: x.asked.seed},
		Prefill:  pair.Prefill.Endpoint(), Decode: pair.Decode.Endpoint(), Budget: max(time.Until(x.deadline), time.Millisecond),
	}
	if n := len(x.ids); n > 0 {
		p.LastToken = x.ids[n-1]
	}
	return p
}

func (x *walk) reconciler(p admission.Plan) legs.Machine {
	return legs.New(x.model.engine.Row(), x.asked.stream, legs.Expect{PromptTokens: int(p.PromptTokens), MaxTokens: int(p.MaxTokens), Digest: p.Digest}, 0)
}

// maxTokens is what the request asks for. One that says nothing gets what the endpoint promises, or fewer if no more fit.
func (x *walk) maxTokens(fit int) int {
	if n := x.asked.maxTokens; n > 0 {
		return int(n)
	}
	if x.endpoint == openai.Completions {
		return min(x.g.limits.CompleteTokens, fit)
	}
	return min(x.g.limits.ChatTokens, fit)
}

// legsDeadline is a little before the client's: a worker's own word on what it waited for says more than ours.
func (x *walk) legsDeadline() time.Time {
	return x.deadline.Add(-min(time.Until(x.deadline)/10, time.Second))
}

// leg follows one run: events in, reply out.
type leg struct {
	*walk
	run     upstream.Run
	machine legs.Machine
	reply   *reply
	eject   bool
	heard   legs.Event // the one that ended it
	came    time.Time  // when the first content came
	held    time.Duration
	ids     []int32 // scratch
}

// follow drives the attempt to its verdict. While nothing was released nothing is sent; when it returns, a whole reply is complete
// in l.reply, or a stream is but for its end.
func (l *leg) follow(ctx context.Context) verdict.Verdict {
	for {
		e, err := l.run.Next(ctx)
		if err != nil {
			e = l.interrupted(ctx)
		}
		if v := l.step(e); !v.IsZero() {
			return v
		}
		if err := l.reply.failed(); err != nil {
			if v := l.step(legs.ClientGone{}); !v.IsZero() {
				return v
			}
		}
	}
}

// interrupted says why the wait for the legs ended.
func (l *leg) interrupted(ctx context.Context) legs.Event {
	cause := context.Cause(ctx)
	var w withdrawn
	switch {
	case errors.As(cause, &w):
		return legs.Withdrawn{Verdict: w.verdict}
	case errors.Is(cause, errDeadline):
		return legs.Deadline{}
	}
	return legs.ClientGone{}
}

// step feeds one event to the reconcile machine and does what it says. The verdict is zero while the attempt goes on.
func (l *leg) step(e legs.Event) verdict.Verdict {
	m, act := l.machine.Step(e)
	l.machine = m
	if b, ok := e.(legs.LegBytes); ok && b.Leg == legs.Decode && act.Do != legs.Swallow && act.Do != legs.Refuse {
		if l.came.IsZero() {
			l.came = time.Now()
		}
		l.ids = l.run.Output(l.ids[:0])
		if l.reply.feed(l.ids) {
			l.run.Stop()
		}
	}
	switch act.Do {
	case legs.Hold:
	case legs.Release:
		l.release()
	case legs.Pass:
		l.reply.flush()
	case legs.Complete:
		l.release()
		l.heard = e
		return act.Verdict
	case legs.Refuse:
		l.heard, l.eject = e, act.Eject
		l.run.Abort(act.Verdict)
		return act.Verdict
	}
	return verdict.Verdict{}
}

// release lets a stream begin.
func (l *leg) release() {
	if !l.came.IsZero() && l.held == 0 {
		l.held = max(time.Since(l.came), 1)
		l.g.metrics.hold.Observe(l.held.Seconds())
		l.sent.firstByte = time.Since(l.start)
		l.g.metrics.firstByte.Observe(l.sent.firstByte.Seconds())
	}
	if l.asked.stream {
		l.reply.begin()
	}
}

// finish ends the reply that the client has, or has begun to have.
func (l *leg) finish(v verdict.Verdict) {
	defer l.count(v, 200)
	if !v.OK() {
		l.reply.cut(v)
		return
	}
	prompt, completion := l.machine.Usage()
	l.reply.end(l.machine.Finish(), openai.UsageOf(prompt, completion), v)
}
