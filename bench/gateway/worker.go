package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
)

// A light worker answers requests for completions from memory, over bare sockets, at the least cost there is: what stands in front of
// it is measured, and it shares the machine. Everything else (facts, health, models) is answered by a fake worker of internal/fake.
//
// It reads no prompt: the legs of every request say the same count. A request for a stream gets tokens chunks, each in a write of its
// own as an engine sends them; a prompt that begins with holdMark gets one chunk, and the rest when the connection ends.
type lightWorker struct {
	engine  string
	prefill bool
	behind  string // the fake's host:port
	serial  struct {
		sync.Mutex
		n int
	}
}

const (
	promptTokens = 100
	holdMark     = "HOLD:"
	window       = 4096 // bytes at a body's beginning and end that are looked at
)

// serveWorkers is the process of a pair: it prints the workers' addresses and runs until it is told to stop.
func serveWorkers(engine string, tokens int) error {
	pair, err := fake.NewFleet(nil).Pair(fake.Options{Engine: engine, Light: true, Context: 16 << 20, Prefill: fake.Leg{Pool: 16 << 20}, Decode: fake.Leg{Pool: 16 << 20}})
	if err != nil {
		return err
	}
	defer pair.Close()
	for _, w := range pair.Workers() {
		l := &lightWorker{engine: engine, prefill: w == pair.Prefill, behind: w.Addr()}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go l.accept(ln, tokens)
		fmt.Printf("%s %s\n", w.Config().Leg, ln.Addr())
	}
	_, port := pair.Bootstrap()
	fmt.Printf("ready %d\n", port)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	return nil
}

func (l *lightWorker) accept(ln net.Listener, tokens int) {
	for {
		c, err := ln.Accept()
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go func() {
			defer c.Close()
			newLightConn(l, c, tokens).run()
		}()
	}
}

// lightConn is one connection.
type lightConn struct {
	l      *lightWorker
	c      net.Conn
	buf    []byte // first window bytes: what came before
	in     *bufio.Reader
	out    []byte
	tokens int
	id     string
}

func newLightConn(l *lightWorker, c net.Conn, tokens int) *lightConn {
	return &lightConn{l: l, c: c, in: bufio.NewReaderSize(c, 4096), tokens: tokens}
}

// run answers requests until the connection ends.
func (x *lightConn) run() {
	for {
		line, err := x.in.ReadSlice('\n')
		if err != nil {
			return
		}
		post := bytes.HasPrefix(line, []byte("POST /v1/c"))
		method, path := "", ""
		if !post {
			f := strings.Fields(string(line))
			if len(f) < 2 {
				return
			}
			method, path = f[0], f[1]
		}
		length, chunked := int64(0), false
		x.id = ""
		for {
			if line, err = x.in.ReadSlice('\n'); err != nil {
				return
			}
			if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
				break
			}
			name, value, _ := bytes.Cut(line, []byte{':'})
			value = bytes.TrimSpace(value)
			switch {
			case len(name) == 14 && bytes.EqualFold(name, []byte("content-length")):
				length, _ = strconv.ParseInt(string(value), 10, 64)
			case len(name) == 17 && bytes.EqualFold(name, []byte("transfer-encoding")):
				chunked = true
			case len(name) == 12 && bytes.EqualFold(name, []byte("x-request-id")):
				x.id = string(value)
			}
		}
		if !post {
			if !x.pass(method, path, length, chunked) {
				return
			}
			continue
		}
		seen, err := x.body(length, chunked)
		if err != nil || !x.answer(seen) {
			return
		}
	}
}

// seen is what was seen in a body.
type seen struct {
	stream, usage, every, chat, hold bool
	rid                              string // SGLang
}

// body reads a request's body and keeps nothing of it.
func (x *lightConn) body(length int64, chunked bool) (s seen, err error) {
	if x.buf == nil || length > int64(len(x.buf)) && len(x.buf) < window+(256<<10) {
		x.buf = make([]byte, window+int(min(max(length, window), 256<<10)))
	}
	have, first := 0, true
	take := func(n int64) error {
		for n > 0 {
			k, err := x.in.Read(x.buf[window : window+int(min(n, int64(len(x.buf)-window)))])
			if err != nil {
				return err
			}
			n -= int64(k)
			if first {
				s.look(x.buf[window : window+min(k, window)])
				first = false
			}
			// The end of what has come moves to the front.
			all := min(have+k, window)
			copy(x.buf[window-all:window], x.buf[window+k-all:window+k])
			have = all
		}
		return nil
	}
	if !chunked {
		err = take(length)
	}
	for chunked {
		line, err := x.in.ReadSlice('\n')
		if err != nil {
			return s, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(line)), 16, 64)
		if err != nil {
			return s, err
		}
		if err := take(n); err != nil {
			return s, err
		}
		if _, err := x.in.ReadSlice('\n'); err != nil {
			return s, err
		}
		chunked = n > 0
	}
	s.look(x.buf[window-have : window])
	return s, err
}

func (s *seen) look(b []byte) {
	s.stream = s.stream || bytes.Contains(b, []byte(`"stream":true`))
	s.usage = s.usage || bytes.Contains(b, []byte(`"include_usage":true`))
	s.every = s.every || bytes.Contains(b, []byte(`"continuous_usage_stats":true`))
	s.chat = s.chat || bytes.Contains(b, []byte(`"messages"`))
	s.hold = s.hold || bytes.Contains(b, []byte(holdMark))
	if _, after, ok := bytes.Cut(b, []byte(`"rid":"`)); ok && s.rid == "" {
		rid, _, _ := bytes.Cut(after, []byte{'"'})
		s.rid = string(rid)
	}
}

const longestReply = 8 << 10

// answer writes a reply; false when the connection is of no more use.
func (x *lightConn) answer(s seen) bool {
	if x.out == nil {
		x.out = make([]byte, 0, longestReply)
	}
	tokens := x.tokens
	if x.l.prefill {
		tokens = 1
	}
	if !s.stream {
		b := x.whole(make([]byte, 0, longestReply), s, tokens)
		x.out = append(x.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
		x.out = append(strconv.AppendInt(x.out, int64(len(b)), 10), "\r\n\r\n"...)
		_, err := x.c.Write(append(x.out, b...))
		return err == nil
	}
	x.out = append(x.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"...)
	var event []byte
	send := func(data []byte) bool {
		x.out = strconv.AppendInt(x.out, int64(len(data)+8), 16)
		x.out = append(append(append(x.out, "\r\ndata: "...), data...), "\n\n\r\n"...)
		_, err := x.c.Write(x.out)
		x.out = x.out[:0]
		return err == nil
	}
	for n := 1; n <= tokens; n++ {
		event = x.chunk(event[:0], s, n, n == tokens)
		if !send(event) {
			return false
		}
		if s.hold && !x.l.prefill {
			// Until the other side has had enough.
			_, _ = io.Copy(io.Discard, x.c)
			return false
		}
	}
	if s.usage {
		event = x.tail(event[:0], s, tokens)
		if !send(event) {
			return false
		}
	}
	if !send([]byte("[DONE]")) {
		return false
	}
	_, err := x.c.Write([]byte("0\r\n\r\n"))
	return err == nil
}

func (x *lightConn) head(b []byte, s seen, suffix string) []byte {
	b = append(b, `{"id":"`...)
	if s.rid != "" {
		b = append(b, s.rid...)
	} else if x.l.engine == fake.SGLang || x.id == "" {
		b = append(b, "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf"...)
	} else if s.chat {
		b = append(append(b, "chatcmpl-"...), x.id...)
	} else {
		b = append(append(b, "cmpl-"...), x.id...)
	}
	if s.chat {
		b = append(append(b, `","object":"chat.completion`...), suffix...)
	} else {
		b = append(b, `","object":"text_completion`...)
	}
	return append(b, `","created":1796000000,"model":"recall","choices":[`...)
}

const word = " harbour"

func (x *lightConn) whole(b []byte, s seen, tokens int) []byte {
	b = x.head(b, s, "")
	if s.chat {
		b = append(b, `{"index":0,"message":{"role":"assistant","content":"`...)
	} else {
		b = append(b, `{"index":0,"text":"`...)
	}
	for range tokens {
		b = append(b, word...)
	}
	b = append(b, '"')
	if s.chat {
		b = append(b, '}')
	}
	b = append(b, `,"logprobs":null,"finish_reason":"length"}],"usage":`...)
	b = usageOf(b, tokens)
	if x.l.prefill && x.l.engine == fake.VLLMNixl {
		x.l.serial.Lock()
		x.l.serial.n++
		n := x.l.serial.n
		x.l.serial.Unlock()
		b = append(b, `,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7]],"remote_engine_id":"9a1c4c5e-6c0e-4e57-8a53-51a5ac3c2c77","remote_request_id":"`...)
		if x.id == "" {
			b = append(b, "cmpl-none-"...)
		} else {
			b = append(append(append(b, "cmpl-"...), x.id...), "-0-"...)
		}
		b = strconv.AppendInt(b, int64(n), 16)
		b = append(b, `","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":100}`...)
	}
	return append(b, '}')
}

func usageOf(b []byte, tokens int) []byte {
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), promptTokens, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), promptTokens+int64(tokens), 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(tokens), 10)
	return append(b, '}')
}

func (x *lightConn) chunk(b []byte, s seen, n int, last bool) []byte {
	b = x.head(b, s, ".chunk")
	if s.chat {
		b = append(b, `{"index":0,"delta":{"content":"`+word+`"},"logprobs":null,"finish_reason":`...)
	} else {
		b = append(b, `{"index":0,"text":"`+word+`","logprobs":null,"finish_reason":`...)
	}
	if last {
		b = append(b, `"length"}]`...)
	} else {
		b = append(b, `null}]`...)
	}
	if s.every {
		b = usageOf(append(b, `,"usage":`...), n)
	}
	return append(b, '}')
}

func (x *lightConn) tail(b []byte, s seen, tokens int) []byte {
	b = append(x.head(b, s, ".chunk"), `],"usage":`...)
	return append(usageOf(b, tokens), '}')
}

// pass has the fake answer what is no request for a completion; false when the connection ends with it.
func (x *lightConn) pass(method, path string, length int64, chunked bool) bool {
	if chunked || length > 1<<20 {
		return false
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(x.in, body); err != nil {
		return false
	}
	req, err := http.NewRequest(method, "http://"+x.l.behind+path, bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return false
	}
	_, err = fmt.Fprintf(x.c, "HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", resp.StatusCode, resp.Header.Get("Content-Type"), len(b), b)
	return err == nil
}
