package h1

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// conn is one connection. It serves one request at a time.
type conn struct {
	t     *Transport
	at    host
	c     net.Conn      // what is read and written: raw, or TLS over it
	raw   net.Conn      // the socket
	in    *bufio.Reader // nil while it waits
	since time.Time     // it waits

	once sync.Once
}

var longAgo = time.Unix(1, 0)

// interrupt makes what is read or written fail.
func (c *conn) interrupt() { c.raw.SetDeadline(longAgo) }

func (c *conn) close() {
	c.once.Do(func() {
		c.c.Close()
	})
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4096) }}

var heads = sync.Pool{New: func() any { return &vector{buf: make([]byte, 0, 4096)} }}

// exchange sends a request and reads the head of its answer. sent is whether anything of it may have left.
func (c *conn) exchange(req *http.Request, stop func() bool) (resp *http.Response, sent bool, err error) {
	sent, err = c.send(req)
	if err != nil && !sent {
		return nil, false, err
	}
	if err != nil {
		// A worker may have refused before it read the whole body, and closed: its word may lie here already.
		c.raw.SetReadDeadline(time.Now().Add(time.Second))
	}
	c.in = readers.Get().(*bufio.Reader)
	c.in.Reset(c.c)
	a := &answer{c: c, stop: stop, half: err != nil}
	if e := c.head(a, req); e != nil {
		c.letGo()
		if err != nil {
			e = err
		}
		return nil, true, e
	}
	return &a.resp, true, nil
}

// letGo gives the reader back.
func (c *conn) letGo() {
	if c.in != nil {
		c.in.Reset(nil)
		readers.Put(c.in)
		c.in = nil
	}
}

// send writes a request.
func (c *conn) send(req *http.Request) (sent bool, err error) {
	v := heads.Get().(*vector)
	defer func() {
		if cap(v.buf) <= 64<<10 {
			v.to = nil
			heads.Put(v)
		}
	}()
	v.to, v.wrote, v.buf = c.c, false, v.buf[:0]
	path := req.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	b := append(append(append(v.buf, req.Method...), ' '), path...)
	if q := req.URL.RawQuery; q != "" {
		b = append(append(b, '?'), q...)
	}
	name := req.Host
	if name == "" {
		name = req.URL.Host
	}
	b = append(append(append(b, " HTTP/1.1\r\nHost: "...), name...), "\r\n"...)
	bad := strings.ContainsAny(name+path+req.Method+req.URL.RawQuery, "\r\n ")
	for k, values := range req.Header {
		for _, s := range values {
			bad = bad || strings.ContainsAny(k, "\r\n :") || strings.ContainsAny(s, "\r\n")
			b = append(append(append(append(b, k...), ": "...), s...), "\r\n"...)
		}
	}
	if bad {
		return false, errors.New("h1: a request's head would not be one")
	}
	if req.Body != nil {
		b = strconv.AppendInt(append(b, "Content-Length: "...), req.ContentLength, 10)
		b = append(b, "\r\n"...)
	}
	v.buf = append(b, "\r\n"...)
	if req.Body != nil {
		n, err := io.Copy(v, req.Body) // takes its WriteTo
		if err == nil && n != req.ContentLength {
			err = errors.New("h1: a request's body is not as long as it says")
		}
		if err != nil {
			return v.wrote, err
		}
	}
	err = v.flush(nil)
	return v.wrote, err
}

// vector gathers small pieces and sends large ones from where they lie.
type vector struct {
	to    net.Conn
	buf   []byte
	wrote bool // something may have left
	two   [2][]byte
}

// small pieces are copied.
const small = 16 << 10

func (v *vector) Write(p []byte) (int, error) {
	if len(p) <= small && len(v.buf)+len(p) <= 4*small {
		v.buf = append(v.buf, p...)
		return len(p), nil
	}
	if err := v.flush(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// flush sends what was gathered, and more.
func (v *vector) flush(more []byte) error {
	var n int64
	var err error
	switch {
	case len(v.buf) == 0 && len(more) == 0:
		return nil
	case len(more) == 0:
		var k int
		k, err = v.to.Write(v.buf)
		n = int64(k)
	default:
		v.two = [2][]byte{v.buf, more}
		both := net.Buffers(v.two[:])
		n, err = both.WriteTo(v.to)
		v.two = [2][]byte{}
	}
	v.wrote = v.wrote || n > 0 || err == nil
	v.buf = v.buf[:0]
	return err
}
