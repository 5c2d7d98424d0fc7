package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/gateway/tenant"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// walk is one request's way through the gateway, from its head to its record.
type walk struct {
	g        *Gateway
	w        http.ResponseWriter
	r        *http.Request
	endpoint openai.Endpoint
	request  string // X-Request-Id
	tenant   tenant.Tenant
	lease    *tenant.Lease // nil: it was refused before it counted
	wait     time.Duration // for Retry-After, where a limit says how long
	sent     sent          // to the client
	start    time.Time
	deadline time.Time

	catalog *catalog // of the moment at which it began
	model   *model
	asked   asked
	ctx     context.Context // since the model is known
	unbind  func()
	ids     []int32 // of the prompt; let go once they cannot be needed again

	guarded *guardedRequest // nil: native
	test    chan outcome    // of a request of the gateway's own; nil: a client's
	memory  memory          // of the body, until prepare is over

	attempt attempt.ID
	tries   int
	rec     record.Record // of the attempt under way
	kept    bool          // the record was made
	replied bool          // a status has been sent
	heard   bool          // the body came to its end, or broke
}

// asked is what of a request lives longer than its body.
type asked struct {
	model       string
	stream      bool
	usage       bool
	stop        []string
	maxTokens   uint32 // 0: not said
	short       bool   // the client gives less time than the gateway does
	temperature float32
	topP        float32
	seed        uint64
}

// serve is the handler of an endpoint: the walk's order.
func (g *Gateway) serve(e openai.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &walk{g: g, catalog: g.catalog(), w: w, r: r, endpoint: e, start: time.Now(), request: requestID(credentials(e, r.Header), r.Header.Get("X-Request-Id"))}
		x.begin()
		defer x.leave()
		in := g.requests.enter()
		if in {
			defer g.requests.leave()
		}
		defer x.recover()
		if !in {
			x.refuse(shuttingDown(), "")
			return
		}
		v, param := x.prepare()
		if x.unbind != nil {
			defer x.unbind()
		}
		defer x.letGo()
		if x.model != nil {
			defer x.model.leave()
		}
		switch {
		case !v.IsZero():
			x.refuse(v, param)
		case x.overTokens():
		case x.guarded != nil:
			x.runGuarded()
		default:
			x.run()
		}
	}
}

// begin starts an attempt: its id, its record, its header.
func (x *walk) begin() {
	encode := x.rec.Times[record.PhaseEncode]
	x.kept = false
	x.attempt = attempt.New()
	x.rec = record.Record{TestTraffic: x.test != nil, Attempt: x.attempt.String(), Request: x.request, Scope: hex.EncodeToString(x.tenant.Scope[:]), Model: x.asked.model, Start: time.Now()}
	if x.model != nil {
		x.rec.Revision = x.model.fleet.Fingerprint()
	}
	x.rec.Times[record.PhaseEncode] = encode
	h := x.w.Header()
	h.Set("X-Request-Id", x.request)
	h.Set("X-Sluice-Attempt", x.rec.Attempt)
}

// prepare takes the steps before a pair is chosen. The body lives no longer than this call.
func (x *walk) prepare() (v verdict.Verdict, param string) {
	x.deadline, v = x.timeLimit()
	if !v.IsZero() {
		return v, ""
	}
	if x.tenant, v = x.g.tenants.Authenticate(credentials(x.endpoint, x.r.Header)); !v.IsZero() {
		return v, ""
	}
	x.rec.Scope = hex.EncodeToString(x.tenant.Scope[:])
	if v = x.enter(); !v.IsZero() {
		return v, ""
	}
	body, held, v := x.readBody()
	defer x.memory.drop()
	defer func() {
		if x.guarded == nil {
			x.g.bodies.give(held)
		}
	}()
	if !v.IsZero() {
		return v, ""
	}
	if x.endpoint == openai.Messages {
		m, doc, v, param := x.messagesModel(body)
		if !v.IsZero() {
			return v, param
		}
		x.guarded = &guardedRequest{doc: doc, body: x.g.bodies.hold(&x.memory, held)}
		return x.prepareGuarded(m)
	}
	if m, doc, refusal := x.guardedModel(x.endpoint, body); refusal != nil {
		return refusal.Verdict(), refusal.Path
	} else if m != nil {
		x.guarded = &guardedRequest{doc: doc, body: x.g.bodies.hold(&x.memory, held)}
		return x.prepareGuarded(m)
	}
	req, refusal := openai.Parse(x.endpoint, body, x.g.cfg.Unknown)
	if refusal != nil {
		return refusal.Verdict, refusal.Param
	}
	if v = x.chooseModel(req); v.IsZero() {
		x.bind()
		if v = x.await(x.ready); v.IsZero() {
			v = x.encode(req)
		}
	}
	x.rec.Times[record.PhaseEncode] = time.Since(x.start)
	return v, openai.Param(v.Code, x.endpoint)
}

// chooseModel finds the model and keeps what of the request outlives its body.
func (x *walk) chooseModel(req *openai.Request) verdict.Verdict {
	x.asked = asked{stream: req.Stream, usage: req.IncludeUsage, stop: req.Stop, maxTokens: req.MaxTokens, temperature: 1, topP: 1}
	m := x.find(req.Model)
	if m == nil {
		return verdict.Of(verdict.ModelNotFound, verdict.PlanLayer, "there is no such model; GET /v1/models lists them")
	}
	x.use(m)
	x.asked.model, x.rec.Model, x.rec.Revision = m.cfg.Name, m.cfg.Name, m.fleet.Fingerprint()
	if m.cfg.Temperature != nil {
		x.asked.temperature = *m.cfg.Temperature
	}
	if req.Temperature != nil {
		x.asked.temperature = *req.Temperature
	}
	if req.TopP != nil {
		if x.asked.topP = *req.TopP; x.asked.topP == 0 {
			x.asked.temperature, x.asked.topP = 0, 1 // the smallest nucleus there is: the likeliest token alone
		}
	}
	if req.Seed != nil {
		x.asked.seed = uint64(*req.Seed)
	} else {
		var b [8]byte
		rand.Read(b[:])
		x.asked.seed = binary.LittleEndian.Uint64(b[:])
	}
	if reason, off := m.isOff(); off {
		return modelOff(m.cfg.Name, reason)
	}
	return verdict.Verdict{}
}

// use notes whose request it is.
func (x *walk) use(m *model) {
	x.model = m
	m.enter()
}

// bind makes the context that ends when the client hangs up, the deadline passes, or the gateway withdraws the request.
func (x *walk) bind() {
	cut, cancel := context.WithCancelCause(x.r.Context())
	stop := context.AfterFunc(x.model.context(), func() { cancel(context.Cause(x.model.context())) })
	ctx, release := context.WithDeadlineCause(cut, x.deadline, errDeadline)
	x.ctx, x.unbind = ctx, func() { release(); stop(); cancel(nil) }
}

// run makes attempts until one has an answer for the client: at most two, the second only when the first failed in a way
// that is not the request's and nothing was sent.
func (x *walk) run() {
	pair, v := x.pick(fleet.Pair{}, fleet.Never)
	if !v.IsZero() {
		x.refuse(v, openai.Param(v.Code, x.endpoint))
		return
	}
	for {
		v, retry := x.try(x.ctx, pair)
		if v.IsZero() {
			return // the reply is out, or as much of it as will be
		}
		if retry {
			next, none := x.pick(pair, again(v.Code))
			if none.IsZero() {
				pair = next
				x.g.metrics.retries.Inc()
				x.begin()
				continue
			}
		}
		x.answer(v)
		return
	}
}

// again says when the pair of a failed attempt may be tried once more.
func again(c verdict.Code) fleet.Again {
	switch c {
	case verdict.PeerLost:
		return fleet.Anew
	case verdict.PlanRefused:
		return fleet.Always // the plan was for a boot or a session that ended in between
	}
	return fleet.Never
}

var errDeadline = errors.New("the deadline of the request has passed")

// recover turns a panic of ours into a verdict: one request is lost, loudly, and not the process.
func (x *walk) recover() {
	p := recover()
	if p == nil {
		return
	}
	if p == any(http.ErrAbortHandler) {
		panic(p)
	}
	x.g.log.Error("a request met a broken invariant", "request", x.request, "attempt", x.rec.Attempt, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	x.g.metrics.panics.Inc()
	v := verdict.Of(verdict.Internal, verdict.PlanLayer, "the gateway failed on this request")
	x.record(v)
	x.sent.verdict = v
	if x.replied {
		panic(http.ErrAbortHandler) // the connection is cut: no end that could look like a good one
	}
	x.respond(v, "")
}

// maxRequestID bounds X-Request-Id, as plans do.
const maxRequestID = 128

// requestID takes a client's id if it is harmless in headers, logs and records, else mints one. One that holds the client's key is not.
func requestID(credentials http.Header, s string) string {
	if key := tenant.Bearer(credentials); key != "" && strings.Contains(s, key) {
		s = ""
	}
	ok := s != "" && len(s) <= maxRequestID && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/+=@", r))
	}) < 0
	if ok {
		return s
	}
	id := attempt.New()
	return "req-" + hex.EncodeToString(id[:8])
}
