package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/verdict"
)

var errTooLong = errors.New("the answer is longer than may be held")

// lost says in our own words why a leg's connection ended: what an engine or a system says may name addresses.
func lost(err error) string {
	var ne net.Error
	switch {
	case errors.Is(err, errTooLong):
		return "its answer is longer than may be held"
	case errors.Is(err, context.Canceled):
		return "its connection was closed by the gateway"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "its connection ended before its answer did"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return "it did not answer in time"
	}
	if unsent(err) {
		return "it cannot be reached"
	}
	return "its connection failed"
}

// unsent reports whether a leg was never reached.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// loses says that a leg's connection ended.
func (r *Run) loses(l legs.Leg, err error) {
	r.mu.Lock()
	r.report.Unsent = r.report.Unsent || unsent(err)
	r.mu.Unlock()
	r.tell(legs.LegLost{Leg: l, Reason: l.String() + ": " + lost(err), Excused: unsent(err) || errors.Is(err, context.Canceled)}, nil)
}

// tooLong are words with which engines refuse a prompt for its length. They decide about a code, and are not passed on.
var tooLong = [][]byte{
	[]byte("maximum context length"), []byte("exceeds the maximum allowed length"), []byte("longer than the model's context length"),
	[]byte("exceeds the maximum"), []byte("Requested token count exceeds"), []byte("exceeds model's maximum"), []byte("maximum model length"),
	[]byte("context_length_exceeded"),
}

// refusal is the verdict of an answer with another status than 200. Engines' own words may hold paths, addresses or a client's
// text: they are read and not repeated.
func refusal(l legs.Leg, status int, body []byte) verdict.Verdict {
	v := verdict.Of(verdict.EngineFailed, l.Layer(), "%s's engine answered %d", l, status)
	v.Status = http.StatusBadGateway
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		if len(body) > 1<<16 {
			body = body[:1<<16]
		}
		for _, w := range tooLong {
			if bytes.Contains(body, w) {
				return verdict.Of(verdict.ContextLength, l.Layer(), "the engine refused the prompt for its length (HTTP %d)", status)
			}
		}
		return verdict.Of(verdict.BadRequest, l.Layer(), "the engine refused the request (HTTP %d)", status)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return verdict.Of(verdict.Overloaded, l.Layer(), "%s's engine is overloaded (HTTP %d)", l, status)
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return verdict.Of(verdict.Deadline, l.Layer(), "%s's engine ran out of time (HTTP %d)", l, status)
	}
	return v
}

// kinds are the errors of Anthropic's API, which have no code: the status of each that is not the engine's own fault.
var kinds = map[string]int64{
	"invalid_request_error": http.StatusBadRequest, "request_too_large": http.StatusRequestEntityTooLarge,
	"rate_limit_error": http.StatusTooManyRequests, "overloaded_error": http.StatusServiceUnavailable,
	"timeout_error": http.StatusGatewayTimeout, "request_timeout_error": http.StatusRequestTimeout,
}

// errorUnder200 finds an error in a body whose status says that there is none.
func errorUnder200(l legs.Leg, doc *jsonedit.Doc) (verdict.Verdict, bool) {
	e := doc.Get("error")
	object, _ := doc.Get("object").Text()
	flat := string(object) == "error"
	if !e.Said() && !flat {
		return verdict.Verdict{}, false
	}
	code := doc.Get("code")
	raw := e.Raw()
	if e.Kind() == jsonedit.Object {
		if c := e.Get("code"); c.Said() {
			code = c
		}
	}
	if flat {
		raw = doc.Get("message").Raw()
	}
	status, ok := code.Int()
	if !ok || status < 400 || status > 599 {
		status = 500
		if named := kinds[word(e.Get("type"))]; !ok && named != 0 {
			status = named
		}
	}
	v := refusal(l, int(status), raw)
	v.Reason = "an error under status 200: " + v.Reason
	return v, true
}
