// Package h1 is an HTTP/1.1 client for requests with whole bodies to workers: an http.RoundTripper that costs as little as it can.
//
// A request is written and its answer read by the goroutine that asks: a connection has no goroutine of its own, and one that waits in
// the pool holds no buffer. A body that knows how to write itself (io.WriterTo) goes from where it lies to the socket, without a copy in
// between. Nothing is followed, decompressed, upgraded or sent twice; a request is repeated only where a pooled connection took none of its
// bytes.
//
// # What peers may send
//
// Heads are bounded in bytes and lines; a length that is not plain, two that differ, one beside chunks, a transfer coding other than
// chunked, a broken chunk, or bytes after an answer are errors, or end the connection. Trailers are read, bounded, and dropped.
//
// Lock order: Transport.mu is a leaf.
package h1

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Transport keeps connections to hosts. A zero field takes its default. It must not be changed once it is used.
type Transport struct {
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error) // default: a net.Dialer
	TLS     func(host string) (*tls.Config, error)                            // of the next connection to an https host; nil: the system's roots
	MaxIdle int                                                               // connections to one host that wait for use (1024)
	IdleFor time.Duration                                                     // how long they do (3 s)
	MaxHead int                                                               // bytes of an answer's head, or of its trailers (64 KiB)

	mu     sync.Mutex
	idle   map[host][]*conn
	reaper *time.Timer
}

type host struct {
	tls  bool
	name string // with its port, if the URL gives one
}

func (t *Transport) maxIdle() int           { return or(t.MaxIdle, 1024) }
func (t *Transport) idleFor() time.Duration { return or(t.IdleFor, 3*time.Second) }
func (t *Transport) maxHead() int           { return or(t.MaxHead, 64<<10) }

func or[T int | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// RoundTrip sends a request and returns its answer once the head is there. The request's context ends the exchange until the body
// was read to its end or closed. Errors: of ctx, of the dial (*net.OpError with Op "dial"), io.ErrUnexpectedEOF where a connection ended early,
// ErrAnswer where it was not HTTP.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		resp, again, err := t.once(req)
		if err == nil || !again {
			return resp, err
		}
		if req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			next := *req
			next.Body = body
			req = &next
		}
	}
}

// once makes one try. again is true where a pooled connection was gone before it took a byte.
func (t *Transport) once(req *http.Request) (resp *http.Response, again bool, err error) {
	ctx := req.Context()
	if req.Body != nil {
		defer req.Body.Close()
	}
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" || req.URL.Host == "" {
		return nil, false, fmt.Errorf("h1: %q is no URL of a worker", req.URL.Redacted())
	}
	if req.Body != nil && req.ContentLength < 0 {
		return nil, false, errors.New("h1: the length of a request's body must be known")
	}
	at := host{req.URL.Scheme == "https", req.URL.Host}
	c, pooled := t.take(at), true
	if c == nil {
		pooled = false
		if c, err = t.dial(ctx, at); err != nil {
			return nil, false, err
		}
	}
	stop := context.AfterFunc(ctx, c.interrupt)
	resp, sent, err := c.exchange(req, stop)
	if err == nil {
		return resp, false, nil
	}
	stop()
	c.close()
	if e := ctx.Err(); e != nil {
		return nil, false, e
	}
	return nil, pooled && !sent && (req.Body == nil || req.GetBody != nil), err
}

// take returns a connection that waits, the one that was used last.
func (t *Transport) take(at host) *conn {
	for {
		t.mu.Lock()
		list := t.idle[at]
		n := len(list)
		if n == 0 {
			t.mu.Unlock()
			return nil
		}
		c := list[n-1]
		list[n-1] = nil
		t.idle[at] = list[:n-1]
		t.mu.Unlock()
		if time.Since(c.since) < t.idleFor() && c.quiet() {
			return c
		}
		c.close()
	}
}

// put lets a connection wait for its next request.
func (t *Transport) put(c *conn) {
	c.since = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.idle[c.at]
	if len(list) >= t.maxIdle() {
		go c.close()
		return
	}
	if t.idle == nil {
		t.idle = map[host][]*conn{}
	}
	t.idle[c.at] = append(list, c)
	if t.reaper == nil {
		t.reaper = time.AfterFunc(t.idleFor(), t.reap)
	}
}

// reap closes connections that waited for too long, and comes again while there are any.
func (t *Transport) reap() {
	t.drop(func(c *conn, now time.Time) bool { return now.Sub(c.since) >= t.idleFor() })
}

// CloseIdleConnections closes those that wait.
func (t *Transport) CloseIdleConnections() {
	t.drop(func(*conn, time.Time) bool { return true })
}

func (t *Transport) drop(old func(*conn, time.Time) bool) {
	now := time.Now()
	var gone []*conn
	t.mu.Lock()
	for at, list := range t.idle {
		kept := list[:0]
		for _, c := range list {
			if old(c, now) {
				gone = append(gone, c)
			} else {
				kept = append(kept, c)
			}
		}
		clear(list[len(kept):])
		if t.idle[at] = kept; len(kept) == 0 {
			delete(t.idle, at)
		}
	}
	if t.reaper != nil {
		t.reaper.Stop()
		t.reaper = nil
	}
	if len(t.idle) > 0 {
		t.reaper = time.AfterFunc(t.idleFor()/2, t.reap)
	}
	t.mu.Unlock()
	for _, c := range gone {
		c.close()
	}
}

func (t *Transport) dial(ctx context.Context, at host) (*conn, error) {
	addr := at.name
	if _, _, err := net.SplitHostPort(addr); err != nil {
		port := "80"
		if at.tls {
			port = "443"
		}
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), port)
	}
	dial := t.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &conn{t: t, at: at, c: raw, raw: raw}
	if at.tls {
		name, _, _ := net.SplitHostPort(addr)
		cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
		if t.TLS != nil {
			if cfg, err = t.TLS(name); err != nil {
				raw.Close()
				return nil, err
			}
		}
		cfg.NextProtos = []string{"http/1.1"}
		secure := tls.Client(raw, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, err
		}
		c.c = secure
	}
	return c, nil
}

// ErrAnswer is an answer that is not what HTTP/1.1 says.
var ErrAnswer = errors.New("h1: the answer is broken")

func broken(why string) error { return fmt.Errorf("%w: %s", ErrAnswer, why) }

// early makes the end of a connection inside an answer an error of its own.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
