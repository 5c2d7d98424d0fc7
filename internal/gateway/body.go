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
			x.heard = true
			return m.b, held, verdict.Verdict{}
		case err != nil:
			x.heard = true
			x.w.Header().Set("Connection", "close")
			return nil, held, x.brokenBody(err)
		}
	}
}

// unread reports whether so much of the body may not have come yet that the server would not wait for it: it reads up to 256 KiB by itself.
func (x *walk) unread() bool {
	n := x.r.ContentLength
	return !x.heard && (n < 0 || n > 256<<10)
}

// lingerIdle and lingerMost bound linger.
const (
	lingerIdle = time.Second
	lingerMost = 5 * time.Second
)

// linger reads the rest of a body that was refused unread, and throws it away: a connection that is closed on unread bytes is reset, and a
// client that sends all before it reads would see that in place of its answer. It ends when nothing comes for a second.
func (x *walk) linger(control *http.ResponseController) {
	var b [8 << 10]byte
	for most := time.Now().Add(lingerMost); x.g.ctx.Err() == nil; {
		by := time.Now().Add(lingerIdle)
		if by.After(most) {
			by = most
		}
		control.SetReadDeadline(by)
		if _, err := x.r.Body.Read(b[:]); err != nil {
			return
		}
	}
}

// limit of a body, in bytes.
func (x *walk) limit() int64 { return x.g.live.body.Load() }

func (x *walk) tooLarge() verdict.Verdict {
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
