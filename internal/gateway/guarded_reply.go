package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/sse"
	"github.com/sluicekv/sluice/internal/verdict"
)

// guardedReply passes decode's bytes on. Nothing is written before the first pass but, with commit-after, signs of life.
type guardedReply struct {
	l      *guardedLeg
	begun  bool // a stream's head was sent
	pieces [][]byte
	buf    []byte
	err    error
}

func (r *guardedReply) start(l *guardedLeg) { r.l = l }

func (r *guardedReply) begin() {
	if r.begun {
		return
	}
	r.begun, r.l.replied = true, true
	h := r.l.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	h.Set("Trailer", verdictHeader)
	r.l.w.WriteHeader(http.StatusOK)
	r.l.letGo() // no other attempt follows
}

// keepAlive tells a client that waits that it is not forgotten.
func (r *guardedReply) keepAlive() {
	r.begin()
	r.buf = sse.AppendComment(r.buf[:0], "waiting for the legs to agree")
	r.write(r.buf)
	r.flush()
}

// pass sends what was judged. A whole reply is sent at once, a stream as it comes.
func (r *guardedReply) pass(run *web.Run) {
	r.pieces = run.Take(r.pieces[:0])
	if !r.l.asked.stream {
		r.whole()
		return
	}
	r.begin()
	if len(r.pieces) == 0 {
		return
	}
	if len(r.pieces) == 1 {
		r.write(r.pieces[0])
	} else {
		r.buf = r.buf[:0]
		for _, p := range r.pieces {
			r.buf = append(r.buf, p...)
		}
		r.write(r.buf)
	}
	r.flush()
}

func (r *guardedReply) whole() {
	r.l.replied = true
	r.l.letGo()
	n := 0
	for _, p := range r.pieces {
		n += len(p)
	}
	h := r.l.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(n))
	h.Set(verdictHeader, verdictText(verdict.Served(verdict.Decode)))
	for _, p := range r.pieces {
		r.write(p)
	}
}

func (r *guardedReply) write(b []byte) {
	if r.err != nil {
		return
	}
	http.NewResponseController(r.l.w).SetWriteDeadline(time.Now().Add(r.l.g.limits.Write))
	_, r.err = r.l.w.Write(b)
}

func (r *guardedReply) flush() {
	if r.err == nil {
		r.err = http.NewResponseController(r.l.w).Flush()
	}
}

// close ends a reply that was begun: well, or with the error as an event and without the end that a good one has.
func (l *guardedLeg) close(v verdict.Verdict) {
	l.count(v, http.StatusOK)
	if !l.asked.stream {
		return
	}
	r := &l.out
	if !v.OK() {
		r.buf = appendErrorEvent(r.buf[:0], l.endpoint, v, openai.Param(v.Code, l.endpoint))
		r.write(r.buf)
	}
	l.w.Header().Set(verdictHeader, verdictText(v))
	r.flush()
}
