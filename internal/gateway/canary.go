package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/verdict"
)

// A canary is a request of the gateway's own, on an ejected pair: a prompt that nobody sent, with a number that nobody knows, in a scope
// that no tenant has. Every guard is enforced on it, whatever the modes, and one objection of any is a failure. Its record says that it
// is test traffic.

const (
	canaryTime   = time.Minute // for one
	canaryTokens = 4           // of its reply
	canaryLeast  = 64          // bytes of its prompt
	canaryMost   = 4096
	canaryPages  = 4 // that it has at least, if the pair holds that many
)

// prove sends canaries to the ejected pairs of a fleet until it is taken out.
func (g *Gateway) prove(name string, f *foreign.Fleet) {
	for {
		changed := f.Changed()
		m := g.catalog().find(name)
		if m == nil || m.guarded == nil || m.guarded.fleet != f {
			return
		}
		wait := time.Duration(math.MaxInt64)
		if _, off := m.isOff(); off {
			wait = time.Second
		} else {
			p, in, ok := f.Due(canaryMost)
			if ok {
				good, why := g.canary(m, p)
				f.Proved(p, good, why)
				result := "failed"
				if good {
					result = "passed"
				}
				g.metrics.canaries.WithLabelValues(m.name, result).Inc()
				continue
			}
			if in > 0 {
				wait = in
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-changed:
		case <-t.C:
		case <-g.quitting.Done():
			t.Stop()
			return
		case <-f.Closed():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// canary makes one attempt on a pair, which is booked already, and says whether all went right.
func (g *Gateway) canary(m *model, p foreign.Pair) (good bool, why string) {
	defer func() { // a fault of ours costs a proof, and not the process
		if e := recover(); e != nil {
			g.metrics.panics.Inc()
			g.log.Error("a canary met a broken invariant", "model", m.name, "panic", fmt.Sprint(e), "stack", string(debug.Stack()))
			good, why = false, "the gateway failed on a canary"
		}
	}()
	var nonce [16]byte
	rand.Read(nonce[:])
	stream := nonce[0]&1 == 1
	body := canaryBody(m.name, hex.EncodeToString(nonce[:]), canarySize(p), stream)
	doc, no := jsonedit.Read(body, m.guarded.policies[openai.Completions])
	if no != nil {
		m.guarded.fleet.Done(p)
		return false, fmt.Sprintf("the canary cannot be made: %v", no.Reason)
	}
	ctx, cancel := context.WithTimeout(g.ctx, canaryTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", http.NoBody)
	if err != nil {
		m.guarded.fleet.Done(p)
		return false, "the canary cannot be made"
	}
	x := &walk{
		g: g, catalog: g.catalog(), w: &nobody{header: http.Header{}}, r: r, endpoint: openai.Completions, start: time.Now(),
		request: "canary-" + hex.EncodeToString(nonce[:8]), test: make(chan outcome, 1),
	}
	rand.Read(x.tenant.Scope[:])
	x.tenant.ID = canaryTenant
	x.deadline = x.start.Add(canaryTime)
	x.asked = asked{model: m.name, stream: stream, maxTokens: canaryTokens}
	x.use(m)
	defer m.leave()
	x.begin()
	x.guarded = &guardedRequest{doc: doc, tokens: len(body), modes: g.guards.modes().enforced(), body: g.bodies.hold(&memory{b: body}, 0)}
	defer x.letGo()
	x.guarded.salt = x.salt(doc)
	x.bind()
	defer x.unbind()
	_, _ = x.tryGuarded(p) // what came of it is told when its legs are quiet
	o := <-x.test          // its legs are quiet, and nothing more can be said about it
	switch {
	case !o.verdict.OK():
		return false, "a canary ended with " + o.verdict.Code.String() + ": " + o.verdict.Reason
	case len(o.said) > 0:
		return false, "a canary met the guard " + o.said[0].guard + ": " + o.said[0].detail
	case !o.settled:
		return false, "a canary's legs did not end"
	}
	return true, ""
}

const canaryTenant = "sluice-canary"

// outcome of a request that the gateway made itself.
type outcome struct {
	verdict verdict.Verdict
	said    []objection
	settled bool
}

// enforced is the same guards with all that observe enforced.
func (m Modes) enforced() Modes {
	out := Modes{All: Enforce, Each: map[string]Mode{}}
	for _, name := range Guards() {
		if mode := m.Of(name); mode == Off {
			out.Each[name] = Off
		} else {
			out.Each[name] = Enforce
		}
	}
	return out
}

// canarySize is how many bytes a canary's prompt has: several pages, and surely within the limit, since a token is at least a byte.
func canarySize(p foreign.Pair) int {
	page := p.Decode.Facts().PageSize
	if p.Prefill != nil {
		page = max(page, p.Prefill.Facts().PageSize)
	}
	n := max(canaryPages*max(page, 16)*4, canaryLeast) // text has some four bytes a token
	return max(min(n, canaryMost, p.Prompt/2-canaryTokens), canaryLeast/2)
}

// canaryBody is a prompt that no other is like.
func canaryBody(model, nonce string, size int, stream bool) []byte {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "Line %d of the test %s. ", i, nonce)
	}
	prompt := b.String()[:size]
	name, _ := jsontext.AppendQuote(nil, model)
	return fmt.Appendf(nil, `{"model":%s,"prompt":"%s","max_tokens":%d,"temperature":0,"stream":%v}`, name, prompt, canaryTokens, stream)
}

// nobody is the client of a canary.
type nobody struct{ header http.Header }

func (n *nobody) Header() http.Header              { return n.header }
func (n *nobody) Write(b []byte) (int, error)      { return len(b), nil }
func (n *nobody) WriteHeader(int)                  {}
func (n *nobody) Flush()                           {}
func (n *nobody) SetWriteDeadline(time.Time) error { return nil }
