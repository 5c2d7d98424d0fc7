// Package web runs attempts on engines that speak HTTP: it sends each leg its body, reads what the legs answer, whole or streamed,
// strictly and bounded, and says what they said as events of gateway/legs. It knows no policy and no engine: which bodies the legs
// get, in which order, and what prefill hands over comes in a Plan from the adapter of the engine.
//
// # What is held
//
// Decode's output lies here as the bytes that a client would get, each piece beside the event that announced it: Take yields only
// the pieces of events that were already judged. At Plan.Hold bytes the reader of the stream stops reading (back-pressure).
//
// # How legs end
//
// A connection that is closed is an abort to these engines, and on two legs an abort may come while pages are being written. So after a
// verdict the legs are read on and swallowed (End says how far), and cut only where no transfer can be under way: before prefill
// handed anything over, after decode spoke, or when Settle has passed. Then quiet is called.
//
// Lock order: Run.mu is a leaf.
package web

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Call is one request to one worker.
type Call struct {
	Transport http.RoundTripper // follows no redirect
	URL       *url.URL
	Header    http.Header // the worker's credentials among them; not changed
	Body      jsonedit.Body
}

// Do makes the request. It can be made once.
func (c *Call) Do(ctx context.Context) (*http.Response, error) {
	r := &http.Request{
		Method: http.MethodPost, URL: c.URL, Header: c.Header, Host: c.URL.Host, ContentLength: c.Body.Len(), Body: &sender{c.Body.NewReader()},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	// For a connection that turns out to be closed before anything was written to it.
	r.GetBody = func() (io.ReadCloser, error) { return &sender{c.Body.NewReader()}, nil }
	resp, err := c.Transport.RoundTrip(r.WithContext(ctx))
	// The transport keeps the request while an answer is read: a stream of an hour must not keep a body of megabytes.
	c.Body = jsonedit.Body{}
	return resp, err
}

// sender lets go of a body once it was read.
type sender struct{ r *jsonedit.Reader }

func (s *sender) Read(p []byte) (int, error) {
	if s.r == nil {
		return 0, io.EOF
	}
	n, err := s.r.Read(p)
	if err != nil {
		s.r = nil
	}
	return n, err
}

// WriteTo writes what is left from where it lies.
func (s *sender) WriteTo(w io.Writer) (int64, error) {
	if s.r == nil {
		return 0, nil
	}
	n, err := s.r.WriteTo(w)
	s.r = nil
	return n, err
}

func (s *sender) Close() error { return nil }

// Plan of an attempt.
type Plan struct {
	ID       string   // of the request at the engines: their answers may not be to another
	Messages bool     // decode's reply is a message of Anthropic's API, or its events
	Stream   bool     // decode's reply is a stream
	Usage    bool     // the client asked for usage at the end of a stream
	Every    bool     // the client asked for usage in every chunk
	Most     int      // choices that were asked for; 0: not known
	Logprobs Logprobs // of the token after the prompt
	Prefill  *Call    // nil: one leg
	Decode   *Call    // nil: Hand makes it
	// Hand reads what a good answer of prefill hands over, and makes decode's call with it; nil where both legs run at once and
	// nothing is handed over. A nil call ends the attempt there: the handle's state says why.
	// age is how long ago the answer began, at least: what is handed over does not live for ever.
	Hand func(answer *jsonedit.Doc, age time.Duration) (legs.Handle, *Call)
	// Alone makes decode's call without what prefill should have handed over, where a guard that only observes lets the reply go
	// on; nil: it does not.
	Alone func() *Call
	// Kept is asked when decode first speaks later than Lease after prefill's answer: prefill keeps what it hands over for a time only,
	// and a decode that comes later reads what may be another's. It returns why that is so, "" if prefill still had it. nil: not asked.
	Kept  func(ctx context.Context, handed time.Time) (why string)
	Lease time.Duration
	// Sent is called once, when no leg reads the client's body any more: it may be gone then, while the legs still answer. nil: nobody waits
	// for that.
	Sent  func()
	Hold  int // most bytes of a stream that wait here
	Whole int // most bytes of an answer that is no stream
	// Abandon tells decode's engine that its request will get no pages: a request that waits for them for minutes otherwise.
	Abandon func(ctx context.Context)
}
