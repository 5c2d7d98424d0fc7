package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/verdict"
)

// A client that hangs up, in any phase: both legs that were asked are told so, and the record says so.
func TestClientGone(t *testing.T) {
	for name, script := range map[string]func(at chan<- bool) fleettest.Script{
		"before pages": func(at chan<- bool) fleettest.Script {
			return func(a *fleettest.Attempt) { at <- true; a.No(decode, a.Aborted(decode)) }
		},
		"mid-prefill": func(at chan<- bool) fleettest.Script {
			return func(a *fleettest.Attempt) {
				a.Reserved()
				a.WaitPrompt()
				at <- true
				a.No(prefill, a.Aborted(prefill))
				a.No(decode, a.Aborted(decode))
			}
		},
		"before the seal": func(at chan<- bool) fleettest.Script {
			return func(a *fleettest.Attempt) {
				a.Reserved()
				a.WaitPrompt()
				a.Ends(prefill, a.Outcome(prefill, 0))
				at <- true
				a.No(decode, a.Aborted(decode))
			}
		},
		"mid-decode": func(at chan<- bool) fleettest.Script {
			return func(a *fleettest.Attempt) {
				if a.Prefilled() {
					a.Output(0, 'x')
					at <- true
					a.No(decode, a.Aborted(decode))
				}
			}
		},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%v", name, stream), func(t *testing.T) {
				at := make(chan bool, 1)
				d := open(t, script(at), nil)
				ctx, cancel := context.WithCancel(t.Context())
				r, err := http.NewRequestWithContext(ctx, "POST", d.url("/v1/completions"), strings.NewReader(complete("x", fmt.Sprintf(`,"stream":%v`, stream))))
				if err != nil {
					t.Fatal(err)
				}
				go func() { <-at; cancel() }()
				if resp, err := d.client.Do(r); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				fleettest.Until(t, "a record", func() bool { return len(d.g.ring.Last(1, nil)) == 1 })
				d.quiet()
				if v := d.last().Verdict; v.Code != verdict.ClientGone || v.Layer != verdict.Stream || v.Status != 499 {
					t.Errorf("%+v", v)
				}
			})
		}
	}
}

// A client that does not read holds up nobody: when its time is over the attempt ends.
func TestSlowClient(t *testing.T) {
	d := open(t, func(a *fleettest.Attempt) {
		if !a.Prefilled() {
			return
		}
		some := text(strings.Repeat("x", 4000))
		for i := 0; i < int(a.Plan.MaxTokens); i += len(some) {
			a.Output(i, some...)
		}
		a.No(decode, a.Aborted(decode))
	}, func(c *Config, p *fleettest.Pair) {
		c.Limits.Write = 100 * time.Millisecond
		for _, w := range []*fleettest.Worker{p.Prefill, p.Decode} {
			w.Facts.PoolTokens, w.Facts.Context = 16<<20, 16<<20
		}
	})
	conn, err := net.Dial("tcp", d.g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetReadBuffer(4096)
	body := complete("x", `,"stream":true,"max_tokens":6000000`)
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	other := make(chan struct{})
	go func() {
		defer close(other)
		if a := d.get(d.url("/healthz")); a.status != 200 {
			t.Errorf("%d", a.status)
		}
	}()
	fleettest.Until(t, "a record", func() bool { return len(d.g.ring.Last(1, nil)) == 1 })
	<-other
	d.quiet()
	if v := d.last().Verdict; v.Code != verdict.ClientGone {
		t.Errorf("%+v", v)
	}
}

// raw sends bytes and returns the status line and body that come back.
func raw(t *testing.T, d *door, send string, then func(net.Conn)) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", d.g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, send); err != nil {
		t.Fatal(err)
	}
	if then != nil {
		then(conn)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func TestBodies(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) {
		c.Limits.Body, c.Limits.BodyTime = 100_000, time.Second
	})
	good := complete("x", "")
	head := "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
	large := errorBody("the body has more than 100000 bytes", invalid, "null", "body_too_large")
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 60_000, strings.Repeat(" ", 60_000))
	for name, c := range map[string]struct {
		send   string
		then   func(net.Conn)
		status int
		body   string
		layer  verdict.Layer
	}{
		"100 MB announced":  {head + "Content-Length: 104857600\r\n\r\n", nil, 413, large, verdict.Body},
		"too many chunks":   {head + "Transfer-Encoding: chunked\r\n\r\n" + chunk + chunk, nil, 413, large, verdict.Body},
		"chunked":           {head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(good), good), nil, 200, "", verdict.Decode},
		"exactly the limit": {head + "Content-Length: 100000\r\n\r\n" + good + strings.Repeat(" ", 100_000-len(good)), nil, 200, "", verdict.Decode},
		"one more":          {head + "Content-Length: 100001\r\n\r\n" + good + strings.Repeat(" ", 100_001-len(good)), nil, 413, large, verdict.Body},
		"compressed":        {head + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", nil, 400, errorBody("a compressed body is not supported", invalid, "null", invalid), verdict.Body},
		"half, then nothing": {head + "Content-Length: 5000\r\n\r\n{", nil, 408,
			errorBody("the body took longer than its time (layer body)", "server_error", "null", "deadline_exceeded"), verdict.Body},
		"half, then closed": {head + "Content-Length: 5000\r\n\r\n{", func(c net.Conn) { c.(*net.TCPConn).CloseWrite() }, 400,
			errorBody("the body ended early, or its chunks are broken", invalid, "null", invalid), verdict.Body},
		"broken chunks": {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", nil, 400, errorBody("the body ended early, or its chunks are broken", invalid, "null", invalid), verdict.Body},
	} {
		t.Run(name, func(t *testing.T) {
			before := d.g.ring.Last(1, nil)
			status, body := raw(t, d, c.send, c.then)
			if status != c.status || c.body != "" && body != c.body {
				t.Errorf("%d %s\nwant %d %s", status, body, c.status, c.body)
			}
			fleettest.Until(t, "a record", func() bool {
				now := d.g.ring.Last(1, nil)
				return len(now) > 0 && (len(before) == 0 || now[0].Attempt != before[0].Attempt)
			})
			if v := d.last().Verdict; v.Layer != c.layer || v.Status != c.status {
				t.Errorf("%+v", v)
			}
			fleettest.Until(t, "the body's bytes given back", func() bool { return d.g.bodies.held.Load() == 0 })
		})
	}
}

// A client that sends the whole of a body before it reads gets the answer, whatever the body was refused for, and not a reset.
func TestAClientThatSendsFirstIsAnswered(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.Limits.Body = 1 << 20 })
	const size = 32 << 20 // more than sockets take in between
	body := strings.Repeat(" ", 1<<20)
	for name, c := range map[string]struct {
		head, each, end string
		status          int
	}{
		"announced":  {fmt.Sprintf("Content-Length: %d\r\n\r\n", size), body, "", 413},
		"chunked":    {"Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n", len(body), body), "0\r\n\r\n", 413},
		"compressed": {fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", size), body, "", 400},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := raw(t, d, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"+c.head, func(conn net.Conn) {
				for range size >> 20 {
					if _, err := io.WriteString(conn, c.each); err != nil {
						t.Fatal(err)
					}
				}
				io.WriteString(conn, c.end)
			})
			if status != c.status || !strings.Contains(answer, `"error"`) {
				t.Errorf("%d %s", status, answer)
			}
		})
	}
}

// The rest of a refused body is not read for ever: not when nothing comes, and not when something always does.
func TestARefusedBodyIsReadForABoundedTime(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.Limits.Body = 1000 })
	for name, c := range map[string]struct {
		every time.Duration // 0: nothing comes
		most  time.Duration
	}{"silent": {0, 4 * time.Second}, "drop by drop": {50 * time.Millisecond, 9 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			raw(t, d, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n", func(conn net.Conn) {
				conn.SetDeadline(time.Now().Add(c.most))
				if c.every == 0 {
					_, err := io.Copy(io.Discard, conn) // until the gateway closes it
					if errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("the connection was open after %s", c.most)
					}
					return
				}
				for time.Since(began) < c.most {
					if _, err := io.WriteString(conn, " "); err != nil {
						return
					}
					<-time.After(c.every) // what a slow client does
				}
				t.Errorf("the connection took bytes for %s", c.most)
			})
		})
	}
}

// A client that still sends its body does not hold up the end of a drain.
func TestADrainDoesNotWaitForABody(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.Limits.BodyTime = time.Hour })
	reply := make(chan string)
	go func() {
		status, body := raw(t, d, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{", nil)
		reply <- fmt.Sprint(status, " ", body)
	}()
	fleettest.Until(t, "the body awaited", func() bool { return d.g.requests.inFlight() == 1 })
	over, end := context.WithCancel(t.Context())
	end()
	if err := d.g.Drain(over); err == nil {
		t.Error("the drain says that all ended by itself")
	}
	if got, want := <-reply, "503 "+errorBody("the gateway is shutting down", "server_error", "null", "shutting_down"); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// Bodies together have a budget, so that many large ones cannot take the process's memory.
func TestBodyBudget(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.Limits.Body, c.Limits.Bodies = 100_000, 150_000 })
	hold := func() net.Conn {
		conn, err := net.Dial("tcp", d.g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n%s", strings.Repeat(" ", 80_000))
		return conn
	}
	first := hold()
	fleettest.Until(t, "the first body held", func() bool { return d.g.bodies.held.Load() > 80_000 })
	a := d.post("/v1/completions", complete(strings.Repeat("x", 80_000), ""))
	if want := errorBody("too many bytes of other requests' bodies are held", "server_error", "null", "overloaded"); a.status != 503 || a.body != want {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := d.post("/v1/completions", complete("x", "")); a.status != 200 {
		t.Errorf("a small body: %d %s", a.status, a.body)
	}
	first.Close()
	fleettest.Until(t, "given back", func() bool { return d.g.bodies.held.Load() == 0 })
}

// Heads that come slowly, or are too large, cost a connection for a bounded time and no request.
func TestSlowAndLargeHeads(t *testing.T) {
	d := open(t, fleettest.Honest(), func(c *Config, _ *fleettest.Pair) { c.Limits.HeaderTime, c.Limits.Header = time.Second, 8192 })
	if status, body := raw(t, d, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ", nil); status != 0 && status != 408 {
		t.Errorf("slow head: %d %s", status, body)
	}
	if status, _ := raw(t, d, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Big: "+strings.Repeat("x", 20_000)+"\r\n\r\n", nil); status != 431 {
		t.Errorf("large head: %d", status)
	}
	// HTTP/2 with prior knowledge is not spoken.
	if status, body := raw(t, d, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", nil); status == 200 {
		t.Errorf("h2c: %d %s", status, body)
	}
	if n := len(d.g.ring.Last(9, nil)); n != 0 {
		t.Errorf("%d records", n)
	}
}
