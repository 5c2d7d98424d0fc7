package web

import (
	"net/http"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Asked is a client's request for which an adapter makes a Plan.
type Asked struct {
	Doc  *jsonedit.Doc
	Path string // of the API: the engines' is the same
	Chat bool
	// Messages says that the dialect is Anthropic's, of the body and of the reply.
	Messages bool
	Pair     foreign.Pair
	Model    string // its name at the workers, if that is another than the client's; else ""
	Stream   bool
	Usage    bool   // the client asked for usage at the end of a stream
	Every    bool   // and in every chunk
	Salt     string // parts the caches of scopes
	SaltAs   string // plain: the field that its workers read it from; empty: none is known
	ID       string // of the request at the engines: random, for this attempt alone
	GoOn     bool   // where prefill hands nothing over, let decode compute by itself: its guard only observes
	First    int    // likeliest tokens of the first position that both legs are asked for, to be compared; 0: none
	Most     int    // choices that were asked for; 0: not known
	Hold     int
	Lease    time.Duration // after which a prefill may have given back what it handed over
	Whole    int
}

// Plan begins a plan with what is the same on every engine.
func (a Asked) Plan() Plan {
	return Plan{Messages: a.Messages, ID: a.ID, Stream: a.Stream, Usage: a.Usage, Every: a.Every, Most: a.Most, Hold: a.Hold, Whole: a.Whole, Lease: a.Lease}
}

// Edit begins a leg's body.
func (a Asked) Edit() *jsonedit.Edit {
	e := a.Doc.Edit()
	if a.Model != "" {
		e.SetText("model", a.Model)
	}
	return e
}

var wholeStream = []byte(`{"include_usage":true,"continuous_usage_stats":true}`)

// AskUsage makes a streamed leg say what it computed, in every chunk where it can.
func (a Asked) AskUsage(e *jsonedit.Edit) *jsonedit.Edit {
	if a.Stream {
		e.Set("stream_options", wholeStream)
	}
	return e
}

// Whole makes a leg's answer one body: prefill's is never a stream.
func Whole(e *jsonedit.Edit) *jsonedit.Edit {
	return e.Delete("stream_options").SetBool("stream", false)
}

// Call to a worker. No header of the client is among those sent.
func (a Asked) Call(n *foreign.Node, body jsonedit.Body, more ...[2]string) *Call {
	h := make(http.Header, len(n.Header)+len(more)+1)
	for k, v := range n.Header {
		h[k] = v
	}
	h["X-Request-Id"] = []string{a.ID}
	for _, m := range more {
		h[m[0]] = []string{m[1]}
	}
	return &Call{Transport: n.Transport, URL: n.At(a.Path), Header: h, Body: body}
}
