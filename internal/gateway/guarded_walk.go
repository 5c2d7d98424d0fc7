package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// guardedRequest is what a walk to another engine knows beside what every walk knows. The body is held once, here, until the legs
// have it and no other attempt can need it.
type guardedRequest struct {
	doc     *jsonedit.Doc
	body    *body // that doc is of
	every   bool  // usage in every chunk was asked for
	salt    string
	tokens  int // to plan with
	near    foreign.Near
	fits    int // the prompt was shown to have at most so many tokens, and that fits; 0: not shown
	modes   Modes
	objects []objection // guards that objected before there was an attempt
}

// letGo lets go of the body: no other attempt follows.
func (x *walk) letGo() {
	if q := x.guarded; q != nil && q.body != nil {
		q.body.letGo()
		q.doc, q.body = nil, nil
	}
}

// prepareGuarded reads what the gateway needs to know of the request.
func (x *walk) prepareGuarded(m *model) (verdict.Verdict, string) {
	q := x.guarded
	x.use(m)
	x.asked.model, x.rec.Model = m.name, m.name
	x.rec.Revision = m.fleet.Fingerprint()
	x.asked.stream, _ = q.doc.Get("stream").Bool()
	if o := q.doc.Get("stream_options"); o.Said() {
		x.asked.usage, _ = o.Get("include_usage").Bool()
		q.every, _ = o.Get("continuous_usage_stats").Bool()
		q.every = q.every && x.asked.usage
	}
	for _, name := range lengths[x.endpoint] {
		if n, ok := q.doc.Get(name).Int(); ok && n > 0 && n < 1<<31 {
			x.asked.maxTokens = uint32(n)
			break
		}
	}
	if reason, off := m.isOff(); off {
		return modelOff(m.name, reason), "model"
	}
	q.modes = x.g.guards.modes()
	q.salt = x.salt(q.doc)
	q.near = x.near()
	x.bind()
	if v := x.awaitRested(); !v.IsZero() {
		return v, ""
	}
	if v := x.await(x.ready); !v.IsZero() {
		return v, ""
	}
	var v verdict.Verdict
	q.tokens, v = x.admitGuarded(x.ctx)
	if v.Code == verdict.ContextLength && q.modes.Of(guardAdmission) == Observe {
		q.objects = append(q.objects, objection{guardAdmission, Observe, v.Reason})
		v = verdict.Verdict{}
	}
	x.rec.Times[record.PhaseEncode] = time.Since(x.start)
	return v, openai.Param(v.Code, x.endpoint)
}

// salt parts the caches of scopes; a client may part its own further, inside its scope.
func (x *walk) salt(doc *jsonedit.Doc) string {
	h := hmac.New(sha256.New, x.tenant.Scope[:])
	h.Write([]byte("sluice cache salt v1\x00"))
	if own, ok := doc.Get("cache_salt").Text(); ok {
		h.Write(own)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// runGuarded makes attempts until one has an answer for the client: at most two, the second only where the first failed before
// anything could have been handed over.
func (x *walk) runGuarded() {
	pair, v := x.pickGuarded([2]string{})
	if !v.IsZero() {
		x.refuse(v, openai.Param(v.Code, x.endpoint))
		return
	}
	for {
		v, retry := x.tryGuarded(pair)
		if v.IsZero() {
			return
		}
		if retry {
			var none verdict.Verdict
			a, b := pair.Names()
			if pair, none = x.model.guarded.fleet.Pick(x.needGuarded([2]string{a, b})); none.IsZero() && pair.Holds(x.needGuarded([2]string{})) {
				x.g.metrics.retries.Inc()
				x.begin()
				continue
			} else if none.IsZero() {
				x.model.guarded.fleet.Done(pair)
			}
		}
		x.answer(v)
		return
	}
}

func (x *walk) needGuarded(not [2]string) foreign.Need {
	out := max(int(x.asked.maxTokens), 1)
	return foreign.Need{Tokens: x.guarded.tokens + out - 1, Prompt: x.guarded.tokens, Load: x.guarded.tokens + out, Not: not, Near: x.guarded.near}
}

// restWait is how long a request waits for pairs that rest until their transfer is provably over: mostly that is a moment.
const restWait = 5 * time.Second

// awaitRested waits while all that keeps the model from serving is that its pairs rest.
func (x *walk) awaitRested() verdict.Verdict {
	f := x.model.guarded.fleet
	for until := time.Now().Add(restWait); time.Now().Before(until); {
		changed, resting := f.Changed(), f.Resting()
		if f.Ready() || !resting {
			break
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-x.ctx.Done():
			return x.ended()
		}
	}
	return verdict.Verdict{}
}

func (x *walk) pickGuarded(not [2]string) (foreign.Pair, verdict.Verdict) {
	f := x.model.guarded.fleet
	until := time.Now().Add(restWait)
	for {
		changed, resting := f.Changed(), f.Resting()
		pair, v := f.Pick(x.needGuarded(not))
		if v.IsZero() || v.Code == verdict.Overloaded && !resting || time.Now().After(until) {
			return pair, v
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-x.ctx.Done():
			return pair, x.ended()
		}
	}
}

// tryGuarded makes one attempt. The zero verdict means that the client has its reply.
func (x *walk) tryGuarded(pair foreign.Pair) (v verdict.Verdict, retry bool) {
	x.tries++
	q, gm := x.guarded, x.model.guarded
	prefill, decode := pair.Names()
	x.rec.Pair = record.Pair{Prefill: prefill, Decode: decode}
	observed := q.modes.observed()
	id := attempt.New()
	most := x.choices()
	expect := legs.Expect{UsageAtEnd: gm.cfg.Hold.UsageAtEnd, MaxTokens: most * x.longest()}
	first := 0
	if q.modes.Of(legs.FirstToken.String()) != Off && gm.row.Compares(legs.FirstToken) {
		first, expect.FirstToken = gm.cfg.FirstToken.Top, float32(gm.cfg.FirstToken.Tolerance)
	}
	plan := gm.plan(web.Asked{
		Doc: q.doc, Path: pathOf(x.endpoint), Chat: x.endpoint == openai.Chat, Messages: x.endpoint == openai.Messages, Pair: pair, Model: x.model.served,
		Stream: x.asked.stream, Usage: x.asked.usage, Every: q.every, Salt: q.salt, SaltAs: gm.cfg.SaltAs, ID: web.NewID(id.String()),
		GoOn: observed.Has(legs.PrefillHandle) && observed.Has(legs.PrefillVerdict), First: first, Most: most,
		Hold: gm.cfg.Hold.Bytes, Whole: gm.cfg.Hold.Whole, Lease: gm.cfg.Hold.Lease,
	})
	q.body.use()
	plan.Sent = q.body.letGo
	begun := time.Now()
	run := web.Start(plan, func() {})
	x.g.runs.add(run)
	l := &guardedLeg{
		walk: x, run: run, pair: pair, modes: q.modes, begun: begun, first: first > 0,
		machine: legs.New(gm.row, x.asked.stream, expect, observed),
	}
	for _, o := range q.objects {
		l.object(o)
	}
	q.objects = nil
	defer func() {
		if !x.kept { // a panic of ours: the legs must not go on for nobody
			l.how = web.Swallow
			l.finish(verdict.Of(verdict.Internal, verdict.Legs, "the gateway failed on this attempt"))
		}
	}()
	v = l.follow(x.ctx)
	if v.OK() || x.replied {
		l.close(v)
		l.finish(v)
		return verdict.Verdict{}, false
	}
	rep := run.Report()
	retry = x.tries == 1 && x.ctx.Err() == nil && !run.Spoke() && (rep.Unsent || v.Code == verdict.Overloaded && v.Layer == verdict.Prefill)
	l.finish(v)
	return v, retry
}

// lengths are the fields that say how long a choice may be.
var lengths = [openai.NumEndpoints][]string{
	openai.Chat: {"max_completion_tokens", "max_tokens"}, openai.Completions: {"max_completion_tokens", "max_tokens"}, openai.Messages: {"max_tokens"},
}

// choices is how many the reply may have, 0 if that is not known.
func (x *walk) choices() int {
	if x.endpoint == openai.Messages {
		return 1
	}
	doc := x.guarded.doc
	n, ok := doc.Get("n").Int()
	if !doc.Get("n").Said() {
		n, ok = 1, true
	}
	if p := doc.Prompt(); p.Shape == jsonedit.Texts || p.Shape == jsonedit.IDLists {
		n *= int64(p.N)
	}
	if !ok || n < 1 || n > 1<<20 {
		return 0
	}
	return int(n)
}

// longest is how many tokens a choice may have by what the client asked for, 0 if that is not known.
func (x *walk) longest() (most int) {
	for _, name := range lengths[x.endpoint] {
		if n, ok := x.guarded.doc.Get(name).Int(); ok && n < 1<<31 {
			most = max(most, int(n))
		}
	}
	return most
}

func pathOf(e openai.Endpoint) string {
	switch e {
	case openai.Completions:
		return "/v1/completions"
	case openai.Messages:
		return "/v1/messages"
	}
	return "/v1/chat/completions"
}

// guardedLeg follows one attempt: events in, bytes out.
type guardedLeg struct {
	*walk
	run     *web.Run
	pair    foreign.Pair
	machine legs.Machine
	modes   Modes
	first   bool       // the legs are asked about the first token
	doubted bool       // plausibility was judged
	learned bool       // and learned from
	small   bool       // a leg's pool was smaller than what is known of it
	spoke   legs.Needs // incidents of these are counted
	said    []objection
	how     web.Ending
	eject   bool
	begun   time.Time
	came    time.Time // the first content
	failed  time.Time // decode; prefill's answer is waited for
	held    time.Duration
	out     guardedReply
	chunks  int             // of content, from decode
	last    verdict.Verdict // the last no that was only observed
}

// follow drives the attempt to its verdict.
func (l *guardedLeg) follow(ctx context.Context) verdict.Verdict {
	l.out.start(l)
	for {
		e, err := l.next(ctx)
		switch {
		case errors.Is(err, errCommit):
			l.out.keepAlive()
			if l.out.err == nil {
				continue
			}
			e = legs.ClientGone{}
		case errors.Is(err, errWaited), errors.Is(err, io.EOF) && l.machine.Undecided():
			e = legs.Waited{}
		case errors.Is(err, io.EOF):
			// The legs ended and said nothing that decides: what was overheard does.
			if l.last.IsZero() {
				l.last = verdict.Of(verdict.PeerLost, verdict.Legs, "the legs ended without a reply")
			}
			e = legs.Withdrawn{Verdict: l.last}
		case err != nil:
			e = l.interrupted(ctx)
		}
		if v := l.step(e); !v.IsZero() {
			return v
		}
		if l.out.err != nil {
			if v := l.step(legs.ClientGone{}); !v.IsZero() {
				return v
			}
		}
	}
}

// prefillWait is the longest that a failure of decode waits for prefill's answer, which may be the reason for it.
const prefillWait = 2 * time.Second

// next waits for an event, or for the time at which a stream that is held shows a sign of life, or at which a failure of decode stands.
func (l *guardedLeg) next(ctx context.Context) (legs.Event, error) {
	var after time.Duration
	var over error // what the end of after means; nil: there is none
	if n := l.model.guarded.cfg.Hold.CommitAfter; n > 0 && l.asked.stream && l.machine.State() == legs.Holding {
		after, over = n, errCommit
	}
	if l.machine.Undecided() {
		if l.failed.IsZero() {
			l.failed = time.Now()
		}
		if left := max(prefillWait-time.Since(l.failed), 0); over == nil || left <= after {
			after, over = left, errWaited
		}
	}
	if over == nil {
		return l.run.Next(ctx)
	}
	c, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	e, err := l.run.Next(c)
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
		return nil, over
	}
	return e, err
}

var (
	errCommit = errors.New("the stream has waited for long")
	errWaited = errors.New("prefill's answer was waited for long enough")
)

// interrupted says why the wait for the legs ended.
func (l *guardedLeg) interrupted(ctx context.Context) legs.Event {
	var w withdrawn
	switch cause := context.Cause(ctx); {
	case errors.As(cause, &w):
		return legs.Withdrawn{Verdict: w.verdict}
	case errors.Is(cause, errDeadline):
		return legs.Deadline{Short: l.asked.short}
	}
	return legs.ClientGone{}
}

// step feeds one event to the reconcile machine and does what it says. The verdict is zero while the attempt goes on.
func (l *guardedLeg) step(e legs.Event) verdict.Verdict {
	if b, ok := e.(legs.LegBytes); ok && b.Leg == legs.Decode && b.N > 0 {
		l.chunks += b.N
		if l.came.IsZero() {
			l.came = time.Now()
		}
	}
	act := l.hear(e)
	if act.Do == legs.Release || act.Do == legs.Complete {
		if v := l.doubt(); !v.IsZero() {
			act = legs.Action{Do: legs.Refuse, Verdict: v}
		}
	}
	switch act.Do {
	case legs.Release, legs.Pass:
		l.released()
		// What has come already is judged before anything of it is sent: a lie in the same breath is still a status.
		if l.asked.stream && !l.run.More() {
			l.out.pass(l.run)
		}
	case legs.Complete:
		l.released()
		l.out.pass(l.run)
		l.how = web.Good
		return act.Verdict
	case legs.Refuse:
		l.eject = act.Eject
		l.how = endingFor(e, act.Eject)
		if lost, ok := e.(legs.LegLost); ok && lost.Leg == legs.Prefill && l.run.Report().Unsent {
			l.how = web.Refused // nothing was asked of prefill: decode waits for nobody
		}
		return act.Verdict
	}
	return verdict.Verdict{}
}

// hear steps the machine and counts the guards that objected.
func (l *guardedLeg) hear(e legs.Event) legs.Action {
	act := l.machine.Take(e)
	switch e := e.(type) {
	case legs.LegError:
		l.last = e.Verdict
		if fits := l.guarded.fits; fits > 0 && e.Verdict.Code == verdict.ContextLength && !l.small {
			// Admission let it through: what is known of the workers' pools is not true.
			l.small = true
			l.object(objection{guardAdmission, l.modes.Of(guardAdmission), fmt.Sprintf("%s refused for its length a prompt of at most %d tokens, of %d that fit", e.Leg, fits, l.pair.Prompt)})
		}
	case legs.LegLost:
		l.last = verdict.Of(verdict.PeerLost, e.Leg.Layer(), "%s", e.Reason)
	case legs.LegBroke:
		l.last = e.Verdict
	}
	if fresh := l.machine.Spoke() &^ l.spoke; fresh != 0 {
		l.spoke |= fresh
		for n := range fresh.All {
			mode := l.modes.Of(n.String())
			detail := l.machine.Said(n)
			if detail == "" && act.Do == legs.Refuse {
				detail = act.Verdict.Reason
			}
			if detail == "" {
				detail = l.last.Reason
			}
			l.object(objection{n.String(), mode, detail})
		}
	}
	return act
}

// endingFor says how the legs are ended after a refusal.
func endingFor(e legs.Event, proof bool) web.Ending {
	switch e := e.(type) {
	case legs.ClientGone, legs.Deadline, legs.Withdrawn:
		return web.Unheard
	case legs.LegError:
		if e.Leg == legs.Prefill && !proof && refusedAtTheDoor(e.Verdict.Code) {
			return web.Refused
		}
	case legs.LegLost:
		if e.Leg == legs.Prefill && !proof {
			return web.Unheard
		}
	}
	return web.Swallow
}

// refusedAtTheDoor reports whether a prefill that refuses for this reason has written no page. One that failed while it worked may have
// pages on their way, which an abort of decode would hand to the next request under the writer's hands.
func refusedAtTheDoor(c verdict.Code) bool {
	switch c {
	case verdict.BadRequest, verdict.ContextLength, verdict.Overloaded, verdict.RateLimited, verdict.Unauthorized:
		return true
	}
	return false
}

func (l *guardedLeg) released() {
	if l.held == 0 && !l.came.IsZero() {
		l.held = max(time.Since(l.came), 1)
		l.g.metrics.hold.Observe(l.held.Seconds())
		l.sent.firstByte = time.Since(l.start)
		l.g.metrics.firstByte.Observe(l.sent.firstByte.Seconds())
	}
}
