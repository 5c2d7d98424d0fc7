package actor

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Out is an answer on its way to the gateway. Lies about how things are said happen here, once for all engines; lies about what
// was done are the engines'.
type Out struct {
	W      *Worker
	Lie    *Lie
	ID     string // of the reply, for lies that change it
	Named  bool   // events have names, and the last is message_stop: Anthropic's dialect
	Broken []byte // the engine's error event, for lies that need one

	rw     http.ResponseWriter
	r      *http.Request
	flush  http.Flusher
	begun  bool
	over   bool // nothing more leaves
	events int
	last   []byte
	buf    []byte
}

// NewOut answers a request.
func NewOut(w *Worker, lie *Lie, rw http.ResponseWriter, r *http.Request) *Out {
	f, _ := rw.(http.Flusher)
	return &Out{W: w, Lie: lie, rw: rw, r: r, flush: f}
}

// Silenced tells lies that leave nothing for an answer to say: it is true if the request is done with.
func (o *Out) Silenced() bool {
	l := o.Lie
	switch {
	case l.Is(HangHeaders, HalfOpen):
		o.W.Sleep(o.r.Context(), l.patience())
		o.cut(true)
	case l.Is(SlowHeaders):
		o.slowly()
	case l.Is(Redirect):
		o.rw.Header().Set("Location", "http://"+l.Elsewhere()+o.r.URL.Path)
		o.rw.WriteHeader(http.StatusTemporaryRedirect)
	case l.Is(NoContent):
		o.rw.WriteHeader(http.StatusNoContent)
	case l.Is(HTML):
		o.rw.Header().Set("Content-Type", "text/html")
		fmt.Fprint(o.rw, "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>")
	case l.Is(GzipBomb):
		o.rw.Header().Set("Content-Type", "application/json")
		o.rw.Header().Set("Content-Encoding", "gzip")
		o.rw.Write(bomb())
	default:
		return false
	}
	return true
}

// cut ends the connection amid an answer; hard resets it.
func (o *Out) cut(hard bool) {
	o.over = true
	if h, ok := o.rw.(http.Hijacker); ok {
		if c, _, err := h.Hijack(); err == nil {
			if tc, ok := c.(*net.TCPConn); ok && hard {
				tc.SetLinger(0)
			}
			c.Close()
			return
		}
	}
	panic(http.ErrAbortHandler)
}

// slowly says its headers a byte at a time.
func (o *Out) slowly() {
	h, ok := o.rw.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	c, _, err := h.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer c.Close()
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Slow: " + string(bytes.Repeat([]byte{'s'}, 4000))
	for i := range len(head) {
		if _, err := c.Write([]byte(head[i : i+1])); err != nil || !o.W.Sleep(o.r.Context(), o.Lie.patience()/time.Duration(len(head))) {
			return
		}
	}
}

// bomb is a gibibyte of spaces, compressed.
var bomb = sync.OnceValue(func() []byte {
	var one bytes.Buffer
	z, _ := gzip.NewWriterLevel(&one, gzip.BestCompression)
	_, _ = z.Write(bytes.Repeat([]byte{' '}, 1<<20))
	z.Close()
	return bytes.Repeat(one.Bytes(), 1<<10)
})

// long is longer than any event or body has reason to be.
const long = 8 << 20

// Whole sends an answer that is not streamed.
func (o *Out) Whole(status int, body []byte) {
	h := o.rw.Header()
	h["Content-Type"] = jsonType
	l := o.Lie
	switch {
	case l.Is(Trailing):
		body = append(bytes.Clone(body), `{"more":1}`...)
	case l.Is(Garbage):
		body = garbage(len(body))
	case l.Is(NotUTF8):
		body = spoil(body)
	case l.Is(LongLine):
		at := bytes.LastIndexByte(body, '}')
		body = append(append(bytes.Clone(body[:at]), `,"padding":"`...), bytes.Repeat([]byte{'x'}, long)...)
		body = append(body, `"}`...)
	case l.Is(WrongShape):
		h["Content-Type"] = streamType
		body = append(append([]byte("data: "), body...), "\n\ndata: [DONE]\n\n"...)
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	switch {
	case l.Is(Truncated, Reset, HangBody):
		o.rw.WriteHeader(status)
		o.rw.Write(body[:len(body)/2])
		o.flushed()
		if l.Is(HangBody) {
			o.W.Sleep(o.r.Context(), l.patience())
		}
		o.cut(l.Is(Reset))
		return
	case l.Is(Endless):
		delete(h, "Content-Length")
		o.rw.WriteHeader(status)
		o.rw.Write(body[:len(body)-1])
		for pad := bytes.Repeat([]byte{' '}, 64<<10); ; {
			if _, err := o.rw.Write(pad); err != nil || !o.W.Sleep(o.r.Context(), time.Millisecond) {
				return
			}
		}
	}
	o.rw.WriteHeader(status)
	o.rw.Write(body)
}

var (
	jsonType   = []string{"application/json"}
	streamType = []string{"text/event-stream; charset=utf-8"}
)

func (o *Out) flushed() {
	if o.flush != nil {
		o.flush.Flush()
	}
}

// Begin sends the headers of a stream.
func (o *Out) Begin() {
	if o.begun {
		return
	}
	o.begun = true
	if o.Lie.Is(WrongShape) {
		return
	}
	o.rw.Header()["Content-Type"] = streamType
	o.rw.WriteHeader(http.StatusOK)
	if !o.Lie.Is(Silent) {
		o.flushed()
	}
}

// Event sends one event of the reply. finish tells that it holds the finish reason.
func (o *Out) Event(data []byte, finish bool) {
	o.Begin()
	if o.over {
		return
	}
	l := o.Lie
	o.events++
	switch {
	case l == nil:
	case l.Is(Silent), l.Is(CutAtEnd) && finish:
		return
	case l.Is(WrongShape):
		o.over = true
		o.rw.Header()["Content-Type"] = jsonType
		o.rw.Write(data)
		return
	case l.Is(IDChanges) && o.events > 1 && o.ID != "":
		data = bytes.ReplaceAll(data, []byte(o.ID), []byte(OtherThan(o.ID)))
	case l.Is(NotUTF8) && o.events > 1:
		data = spoil(data)
	case l.Is(Garbage) && o.events > 1:
		data = bytes.ReplaceAll(garbage(64), []byte{'\n'}, []byte{0})
	case l.Is(LongLine) && o.events > 1:
		data = append(append([]byte(`{"padding":"`), bytes.Repeat([]byte{'x'}, long)...), `"}`...)
	case l.Is(ErrorMidway, ErrorNoDone) && o.events > 2:
		o.write(o.Broken)
		if l.Is(ErrorMidway) {
			o.Done()
		}
		o.over = true
		return
	case l.Is(CutMidway) && o.events > 2:
		o.over = true
		return
	case l.Is(Truncated) && o.events > 2:
		o.raw(append([]byte("data: "), data[:len(data)/2]...))
		o.over = true
		return
	case l.Is(Reset) && o.events > 2:
		o.cut(true)
		return
	case l.Is(HangBody) && o.events > 2:
		o.W.Sleep(o.r.Context(), l.patience())
		o.cut(false)
		return
	case l.Is(Endless) && finish:
		for o.r.Context().Err() == nil && !o.over {
			o.write(o.last)
			if !o.W.Sleep(o.r.Context(), time.Millisecond) {
				o.over = true
			}
		}
		return
	}
	if l != nil && !finish {
		o.last = bytes.Clone(data)
	}
	o.write(data)
}

func (o *Out) write(data []byte) {
	o.buf = o.buf[:0]
	if _, kind, ok := bytes.Cut(data, []byte(`"type":"`)); ok && o.Named {
		kind, _, _ = bytes.Cut(kind, []byte{'"'})
		o.buf = append(append(append(o.buf, "event: "...), kind...), '\n')
	}
	o.buf = append(append(append(o.buf, "data: "...), data...), "\n\n"...)
	o.raw(o.buf)
}

func (o *Out) raw(b []byte) {
	if _, err := o.rw.Write(b); err != nil {
		o.over = true
		return
	}
	o.flushed()
}

// Done marks a stream's end.
func (o *Out) Done() {
	o.Begin()
	if o.over || o.Lie.Is(NoDone) {
		return
	}
	if o.Named {
		o.write([]byte(`{"type":"message_stop"}`))
	} else {
		o.raw([]byte("data: [DONE]\n\n"))
	}
	if o.Lie.Is(AfterDone) {
		o.write(o.last)
		o.write(o.last)
	}
}

// Over reports that nothing more leaves: the lie, or the client, ended it.
func (o *Out) Over() bool { return o.over }

// Begun reports whether a stream's status has left.
func (o *Out) Begun() bool { return o.begun }

// OtherThan is an id of the same form that is not id.
func OtherThan(id string) string {
	b := []byte(id)
	for i := len(b) - 1; i >= 0 && i >= len(b)-8; i-- {
		if '0' <= b[i] && b[i] <= '8' || 'a' <= b[i] && b[i] <= 'e' {
			b[i]++
		} else {
			b[i] = '0'
		}
	}
	return string(b)
}

func garbage(n int) []byte {
	b := make([]byte, max(n, 16))
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// spoil puts a byte that is not UTF-8 into the reply's text.
func spoil(body []byte) []byte {
	for _, key := range []string{`"content":"`, `"text":"`} {
		if at := bytes.Index(body, []byte(key)); at >= 0 {
			at += len(key)
			return append(append(bytes.Clone(body[:at]), 0xff), body[at:]...)
		}
	}
	return append(bytes.Clone(body), 0xff)
}
