package gateway

import (
	"net/http"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/sse"
	"github.com/sluicekv/sluice/internal/verdict"
)

// reply makes text of token ids and sends it: whole at the end, or as a stream once it was released. It holds at most what
// max_tokens can make.
type reply struct {
	x       *walk
	body    openai.Reply
	detok   *prompt.Detokenizer
	stops   stops
	text    []byte // not sent yet, and free to go
	stopped bool   // a stop string was found
	begun   bool   // a stream's head was sent
	buf     []byte
	event   []byte
	err     error // of writing to the client
}

func (x *walk) newReply() *reply {
	id := openai.ReplyID(x.endpoint, x.rec.Attempt)
	return &reply{
		x:     x,
		body:  openai.Reply{Endpoint: x.endpoint, ID: id, Created: x.start.Unix(), Model: x.asked.model, Fingerprint: "fp_" + x.rec.Revision[:16], Usage: x.asked.stream && x.asked.usage},
		detok: x.model.cfg.Encoder.Detokenizer(),
		stops: stops{strings: x.asked.stop},
	}
}

// feed takes generated ids. It reports whether they complete a stop string: what comes after it is not text of the reply.
func (r *reply) feed(ids []int32) (stop bool) {
	for _, id := range ids {
		if r.stopped {
			return false
		}
		if r.text, r.stopped = r.stops.add(r.text, r.detok.Add(id)); r.stopped {
			return true
		}
	}
	return false
}

// rest moves what was held back for a stop string that did not come into the text.
func (r *reply) rest() {
	if r.stopped {
		return
	}
	r.text, r.stopped = r.stops.add(r.text, r.detok.Flush())
	if !r.stopped {
		r.text = r.stops.flush(r.text)
	}
}

// begin sends a stream's head and what there is.
func (r *reply) begin() {
	if !r.begun {
		r.begun, r.x.replied = true, true
		h := r.x.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		h.Set("Trailer", verdictHeader)
		r.x.w.WriteHeader(http.StatusOK)
		if r.x.endpoint == openai.Chat {
			r.chunk(func(b []byte) []byte { return r.body.AppendRole(b) })
		}
	}
	r.flush()
}

// flush sends the text that may go. A stream that has not begun sends nothing.
func (r *reply) flush() {
	if !r.begun {
		return
	}
	if len(r.text) > 0 {
		text := string(r.text)
		r.text = r.text[:0]
		r.chunk(func(b []byte) []byte { return r.body.AppendText(b, text) })
	}
	r.write()
}

// chunk adds an event to what is to be written.
func (r *reply) chunk(appendTo func([]byte) []byte) {
	r.event = appendTo(r.event[:0])
	r.buf = sse.AppendData(r.buf, r.event)
}

// write sends what was added. A client that does not take it within its time is gone.
func (r *reply) write() {
	if r.err != nil || len(r.buf) == 0 {
		r.buf = r.buf[:0]
		return
	}
	control := http.NewResponseController(r.x.w)
	control.SetWriteDeadline(time.Now().Add(r.x.g.limits.Write))
	if _, r.err = r.x.w.Write(r.buf); r.err == nil {
		r.err = control.Flush()
	}
	r.buf = r.buf[:0]
}

// failed returns the error that the client cannot be written to.
func (r *reply) failed() error { return r.err }

// end finishes a reply well.
func (r *reply) end(f legs.Finish, u openai.Usage, v verdict.Verdict) {
	r.rest()
	finish := openai.FinishStop
	if f == legs.Length && !r.stopped {
		finish = openai.FinishLength
	}
	if !r.x.asked.stream {
		r.x.replied = true
		h := r.x.w.Header()
		h.Set("Content-Type", "application/json")
		h.Set(verdictHeader, verdictText(v))
		r.buf = r.body.AppendWhole(r.buf, string(r.text), finish, u)
		r.write()
		return
	}
	r.begin()
	r.chunk(func(b []byte) []byte { return r.body.AppendFinish(b, finish) })
	if r.body.Usage {
		r.chunk(func(b []byte) []byte { return r.body.AppendUsage(b, u) })
	}
	r.buf = sse.AppendDone(r.buf)
	r.x.w.Header().Set(verdictHeader, verdictText(v))
	r.write()
}

// cut ends a stream that failed midway: with the error as an event, and without the end that a good one has.
func (r *reply) cut(v verdict.Verdict) {
	r.chunk(func(b []byte) []byte { return openai.AppendError(b, v, openai.Param(v.Code, r.x.endpoint)) })
	r.x.w.Header().Set(verdictHeader, verdictText(v))
	r.write()
}
