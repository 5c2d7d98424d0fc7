package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is one kind of requests.
type load struct {
	size   int // bytes of the body
	at     int // requests at one time
	stream bool
}

func (l load) String() string {
	s := fmt.Sprintf("%s, %d", sizeName(l.size), l.at)
	if l.stream {
		s += fmt.Sprintf(", stream of %d", streamTokens)
	}
	return s
}

func sizeName(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MB", n>>20)
	}
	return fmt.Sprintf("%d KB", n>>10)
}

// streamTokens is how many tokens a reply has.
const streamTokens = 64

// body of a chat of about size bytes: lines of text, as people send it.
func body(size int, stream bool, mark string) []byte {
	b := []byte(`{"model":"recall","stream":` + strconv.FormatBool(stream) + `,"max_tokens":` + strconv.Itoa(streamTokens) + `,"messages":[{"role":"user","content":"` + mark)
	const line = `the harbour master wrote down each ship that came in with the tide\n`
	for len(b) < size-4 {
		b = append(b, line[:min(len(line), max(size-4-len(b), 2))]...)
	}
	b = bytes.TrimRight(b, `\`)
	return append(b, `"}]}`...)
}

// sample is what one slice of time showed.
type sample struct {
	took     []time.Duration // of each request
	requests int
	wall     time.Duration
	cpu      time.Duration // of the gateway
	err      error
}

// client sends requests over connections of its own, kept between slices.
type client struct {
	addr  string
	conns []*clientConn
}

type clientConn struct {
	c  net.Conn
	in *bufio.Reader
}

func newClient(at string) (*client, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	return &client{addr: u.Host}, nil
}

func (c *client) close() {
	for _, x := range c.conns {
		if x != nil && x.c != nil {
			x.c.Close()
		}
	}
	c.conns = nil
}

// run sends requests for a time, or until each connection has had at least least of them.
func (c *client) run(l load, request []byte, for_ time.Duration, least int) (s sample) {
	for len(c.conns) < l.at {
		c.conns = append(c.conns, &clientConn{})
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed atomic.Bool
	begin := time.Now()
	for _, x := range c.conns[:l.at] {
		wg.Go(func() {
			var took []time.Duration
			for n := 0; (n < least || time.Since(begin) < for_) && !failed.Load(); n++ {
				t := time.Now()
				if err := x.ask(c.addr, request, l.stream); err != nil {
					failed.Store(true)
					mu.Lock()
					if s.err == nil {
						s.err = err // the others failed for the same reason
					}
					mu.Unlock()
					return
				}
				took = append(took, time.Since(t))
			}
			mu.Lock()
			s.took = append(s.took, took...)
			mu.Unlock()
		})
	}
	wg.Wait()
	s.wall, s.requests = time.Since(begin), len(s.took)
	return s
}

// requestFor is a request's head and body as they go out.
func requestFor(host string, body []byte) []byte {
	b := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", host, len(body))
	return append(b, body...)
}

// ask sends a request and reads its reply to the end. A connection that was closed meanwhile is opened anew.
func (x *clientConn) ask(addr string, request []byte, stream bool) error {
	if err := x.send(addr, request); err != nil {
		return err
	}
	whole, err := x.reply(stream)
	if err != nil {
		x.c.Close()
		x.c = nil
		return err
	}
	if !whole {
		return errors.New("a reply without its end")
	}
	return nil
}

func (x *clientConn) send(addr string, request []byte) (err error) {
	for range 2 {
		if x.c == nil {
			if x.c, err = net.Dial("tcp", addr); err != nil {
				return err
			}
			x.in = bufio.NewReaderSize(x.c, 16<<10)
		}
		x.c.SetDeadline(time.Now().Add(60 * time.Second))
		if _, err = x.c.Write(request); err == nil {
			return nil
		}
		x.c.Close()
		x.c = nil
	}
	return err
}

var doneMark, finishMark = []byte("data: [DONE]"), []byte(`"finish_reason":"length"`)

// reply reads a reply; whole is whether it had the end that it should have.
func (x *clientConn) reply(stream bool) (whole bool, err error) {
	line, err := x.in.ReadSlice('\n')
	if err != nil {
		return false, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		rest, _ := x.in.Peek(min(x.in.Buffered(), 600))
		return false, fmt.Errorf("%q %q", line, rest)
	}
	length, chunked, ends := int64(-1), false, false
	for {
		if line, err = x.in.ReadSlice('\n'); err != nil {
			return false, err
		}
		if len(line) <= 2 {
			break
		}
		switch c := line[0] | 0x20; {
		case c == 'c' && hasFold(line, "content-length:"):
			length, _ = strconv.ParseInt(strings.TrimSpace(string(line[15:])), 10, 64)
		case c == 't' && hasFold(line, "transfer-encoding:"):
			chunked = true
		case c == 'c' && hasFold(line, "connection: close"):
			ends = true
		}
	}
	mark := finishMark
	if stream {
		mark = doneMark
	}
	if !chunked {
		for length > 0 {
			b, err := x.in.Peek(int(min(length, 16<<10)))
			if err != nil {
				return false, err
			}
			whole = whole || bytes.Contains(b, mark)
			n, _ := x.in.Discard(len(b))
			length -= int64(n)
		}
	}
	for chunked {
		if line, err = x.in.ReadSlice('\n'); err != nil {
			return false, err
		}
		n, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 64)
		if err != nil {
			return false, err
		}
		if n == 0 {
			// Trailers, and the line that ends them.
			for {
				if line, err = x.in.ReadSlice('\n'); err != nil {
					return false, err
				}
				if len(line) <= 2 {
					break
				}
			}
			break
		}
		for n > 0 {
			b, err := x.in.Peek(int(min(n, 16<<10)))
			if err != nil {
				return false, err
			}
			whole = whole || bytes.Contains(b, mark)
			k, _ := x.in.Discard(len(b))
			n -= int64(k)
		}
		if _, err := x.in.Discard(2); err != nil {
			return false, err
		}
	}
	if ends {
		x.c.Close()
		x.c = nil
	}
	return whole, nil
}

func hasFold(line []byte, name string) bool {
	return len(line) >= len(name) && bytes.EqualFold(line[:len(name)], []byte(name))
}

// begin sends a request and reads the first bytes of its reply's body, and no more.
func (x *clientConn) begin(addr string, request []byte) error {
	if err := x.send(addr, request); err != nil {
		return err
	}
	for {
		line, err := x.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if bytes.HasPrefix(line, []byte("HTTP/1.1 ")) && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
			return fmt.Errorf("%q", line)
		}
		if bytes.HasPrefix(line, []byte("data: ")) {
			x.c.SetDeadline(time.Time{})
			return nil
		}
		if err == io.EOF {
			return err
		}
	}
}
