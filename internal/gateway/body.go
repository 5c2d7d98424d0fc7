package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/sluicekv/sluice/internal/verdict"
)

// firstRead is how much is allocated for a body before any of it has come: a length that is only announced costs no more.
const firstRead = 64 << 10

// readBody reads the whole body within its limits of size and time. held is what was taken of the budget for bodies, whatever the
// verdict.
func (x *walk) readBody() (body []byte, held int64, v verdict.Verdict) {
	limit := x.limit()
	if e := x.r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, 0, verdict.Of(verdict.BadRequest, verdict.Body, "a compressed body is not supported")
	}
	if x.r.ContentLength > limit {
		return nil, 0, x.tooLarge()
	}
	by := x.start.Add(x.g.limits.BodyTime)
	if x.deadline.Before(by) {
		by = x.deadline
	}
	control := http.NewResponseController(x.w)
	control.SetReadDeadline(by)
	defer control.SetReadDeadline(time.Time{})
	// When the gateway withdraws its requests, a drain does not wait for a client that still sends.
	cut := make(chan struct{})
	stop := context.AfterFunc(x.g.ctx, func() {
		defer close(cut)
		control.SetReadDeadline(time.Now())
	})
	defer func() {
		if !stop() {
			<-cut
		}
	}()

	// One byte more than announced, so that the end is seen in the same read.
	want := min(limit, firstRead)
	if n := x.r.ContentLength; n >= 0 {
		want = min(want, n+1)
	}
	m := &x.memory
	for {
		if len(m.b) == cap(m.b) {
			if !x.g.bodies.take(want - held) {
				return nil, held, verdict.Of(verdict.Overloaded, verdict.Body, "too many bytes of other requests' bodies are held")
			}
			held = want
			if m.grow(int(want), false) != nil {
				return nil, held, verdict.Of(verdict.Overloaded, verdict.Body, "there is no memory for the body")
			}
			switch n := x.r.ContentLength; {
			case n >= 0:
				want = n + 1
			default:
				want = min(want+want/4+firstRead, limit+1)
			}
		}
		n, err := x.r.Body.Read(m.b[len(m.b):cap(m.b)])
		m.b = m.b[:len(m.b)+n]
		switch {
		case int64(len(m.b)) > limit:
			return nil, held, x.tooLarge()
		case err == io.EOF:
			return m.b, held, verdict.Verdict{}
		case err != nil:
			x.w.Header().Set("Connection", "close")
			return nil, held, x.brokenBody(err)
		}
	}
}

// limit of a body, in bytes.
func (x *walk) limit() int64 { return x.g.live.body.Load() }

func (x *walk) tooLarge() verdict.Verdict {
	x.w.Header().Set("Connection", "close") // what is left of the body is not read
	return verdict.Of(verdict.BodyTooLarge, verdict.Body, "the body has more than %d bytes", x.limit())
}

func (x *walk) brokenBody(err error) verdict.Verdict {
	var w withdrawn
	if errors.As(context.Cause(x.g.ctx), &w) {
		return w.verdict
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		v := verdict.Of(verdict.Deadline, verdict.Body, "the body took longer than its time")
		v.Status = http.StatusRequestTimeout
		return v
	}
	return verdict.Of(verdict.BadRequest, verdict.Body, "the body ended early, or its chunks are broken")
}
