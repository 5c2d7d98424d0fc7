package h1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a server that answers each request on a connection with the next of its answers, then closes it.
type script struct {
	t       testing.TB
	ln      net.Listener
	conns   atomic.Int32
	answers []string
	wg      sync.WaitGroup
	heads   chan string
	keep    bool // the connection stays open after the last answer
	done    chan struct{}
}

func newScript(t testing.TB, keep bool, answers ...string) *script {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, ln: ln, answers: answers, heads: make(chan string, 100), keep: keep, done: make(chan struct{})}
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			s.wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() { close(s.done); ln.Close(); s.wg.Wait() })
	return s
}

func (s *script) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for _, a := range s.answers {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.heads <- fmt.Sprintf("%s %s %s %d %v %s", r.Method, r.URL, r.Host, r.ContentLength, r.Header, b)
		if _, err := io.WriteString(c, a); err != nil {
			return
		}
	}
	if s.keep {
		<-s.done
	}
}

func post(ctx context.Context, at, body string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+at+"/v1/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	return r
}

func ask(tr *Transport, r *http.Request) (status int, body string, err error) {
	resp, err := tr.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestAnswers(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		answer string
		status int
		body   string
		err    error // of the head or of the body
		again  bool  // the connection serves another request
	}{
		"length":               {ok, 200, "ok", nil, true},
		"bare line ends":       {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, "ok", nil, true},
		"no reason":            {"HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n", 404, "", nil, true},
		"chunks":               {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nab\r\nA;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\n", 200, "ab0123456789", nil, true},
		"informs":              {"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 100 Go\r\n\r\n" + ok, 200, "ok", nil, true},
		"close":                {"HTTP/1.1 200 OK\r\nConnection: keep, Close\r\nContent-Length: 2\r\n\r\nok", 200, "ok", nil, false},
		"to the end":           {"HTTP/1.1 200 OK\r\n\r\nall of it", 200, "all of it", nil, false},
		"1.0":                  {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", nil, false},
		"no content":           {"HTTP/1.1 204 No\r\n\r\n", 204, "", nil, true},
		"a body of no content": {"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\nok", 204, "", nil, false},
		"a body of 304":        {"HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 304, "", nil, false},
		"more than its chunks": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", 200, "ok", nil, false},
		"a whole answer more":  {ok + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", 200, "ok", nil, false},
		"more than its body":   {ok + "HTTP/1.1 200 OK\r\n", 200, "ok", nil, false},
		"lengths agree":        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", 200, "ok", nil, true},
		"lengths differ":       {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", 0, "", ErrAnswer, false},
		"length beside":        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 0, "", ErrAnswer, false},
		"another coding":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 0, "", ErrAnswer, false},
		"a signed length":      {"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", 0, "", ErrAnswer, false},
		"a list of lengths":    {"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", 0, "", ErrAnswer, false},
		"no HTTP":              {"SSH-2.0-OpenSSH\r\n\r\n", 0, "", ErrAnswer, false},
		"2.0":                  {"HTTP/2.0 200 OK\r\n\r\n", 0, "", ErrAnswer, false},
		"no number":            {"HTTP/1.1 2x0 OK\r\n\r\n", 0, "", ErrAnswer, false},
		"status 000":           {"HTTP/1.1 000 OK\r\n\r\n", 0, "", ErrAnswer, false},
		"switches":             {"HTTP/1.1 101 Up\r\nUpgrade: x\r\n\r\n", 0, "", ErrAnswer, false},
		"a space in a name":    {"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", 0, "", ErrAnswer, false},
		"a folded line":        {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 2\r\n\r\nok", 0, "", ErrAnswer, false},
		"nothing":              {"", 0, "", io.EOF, false},
		"half a head":          {"HTTP/1.1 200 OK\r\nContent-", 0, "", io.ErrUnexpectedEOF, false},
		"half a body":          {"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf", 200, "half", io.ErrUnexpectedEOF, false},
		"half the chunks":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", 200, "half", io.ErrUnexpectedEOF, false},
		"half a chunk":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf", 200, "half", io.ErrUnexpectedEOF, false},
		"no end of trailers":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", 200, "", io.ErrUnexpectedEOF, false},
		"a chunk too long":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", 200, "ab", ErrAnswer, false},
		"a bare LF in chunks":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n", 200, "", ErrAnswer, false},
		"a bare LF behind one": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\n0\r\n\r\n", 200, "ok", ErrAnswer, false},
		"a negative chunk":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nabc\r\n0\r\n\r\n", 200, "", ErrAnswer, false},
		"an endless number":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("f", 17) + "\r\n", 200, "", ErrAnswer, false},
		"a chunk of nothing":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nab", 200, "", ErrAnswer, false},
		"a long extension":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;" + long[:300] + "\r\nab\r\n0\r\n\r\n", 200, "", ErrAnswer, false},
		"a long line":          {"HTTP/1.1 200 OK\r\nA: " + long + "\r\n\r\n", 0, "", ErrAnswer, false},
		"a long head":          {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: "+long[:1000]+"\r\n", 70) + "\r\n", 0, "", ErrAnswer, false},
		"too many lines":       {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 300) + "\r\n", 0, "", ErrAnswer, false},
		"long trailers":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("A: "+long[:1000]+"\r\n", 70) + "\r\n", 200, "", ErrAnswer, false},
		"informs without end":  {strings.Repeat("HTTP/1.1 100 Go\r\n\r\n", 20) + ok, 0, "", ErrAnswer, false},
	} {
		t.Run(name, func(t *testing.T) {
			answers := []string{c.answer}
			if c.again {
				answers = append(answers, ok)
			}
			s := newScript(t, false, answers...)
			tr := &Transport{}
			defer tr.CloseIdleConnections()
			status, body, err := ask(tr, post(t.Context(), s.ln.Addr().String(), "hello"))
			if status != c.status || body != c.body || !errors.Is(err, c.err) {
				t.Fatalf("%d %.80q, %v; want %d %q, %v", status, body, err, c.status, c.body, c.err)
			}
			if head := <-s.heads; !strings.HasPrefix(head, "POST /v1/completions "+s.ln.Addr().String()+" 5 map[Content-Length:[5]] hello") {
				t.Errorf("sent %q", head)
			}
			if status, body, err := ask(tr, post(t.Context(), s.ln.Addr().String(), "again")); c.again && (status != 200 || body != "ok" || err != nil) {
				t.Errorf("the second: %d %q %v", status, body, err)
			}
			want := int32(2)
			if c.again {
				want = 1
			}
			if n := s.conns.Load(); n != want {
				t.Errorf("%d connections for two requests, want %d", n, want)
			}
		})
	}
}

func TestHeadersOfAnAnswer(t *testing.T) {
	s := newScript(t, false, "HTTP/1.1 200 OK\r\ncontent-type:  text/event-stream; charset=utf-8 \r\nX-A: 1\r\nx-a: 2\r\nempty:\r\nContent-Length: 0\r\n\r\n")
	resp, err := new(Transport).RoundTrip(post(t.Context(), s.ln.Addr().String(), ""))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	got := fmt.Sprint(resp.Header["Content-Type"], resp.Header["X-A"], resp.Header["Empty"])
	if want := "[text/event-stream; charset=utf-8] [1 2] []"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A body goes out as it is, whatever it is made of.
func TestBodiesOfAllSizes(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(echo))
	defer srv.Close()
	tr := &Transport{}
	defer tr.CloseIdleConnections()
	for _, sizes := range [][]int{{0}, {1}, {100, 5, 3}, {10, 1 << 20, 10}, {70 << 10, 20 << 10, 1}, {30 << 10, 30 << 10, 30 << 10}, {5 << 20}} {
		var parts []io.Reader
		var want []byte
		for i, n := range sizes {
			p := bytes.Repeat([]byte{byte('a' + i)}, n)
			want = append(want, p...)
			parts = append(parts, bytes.NewReader(p))
		}
		r := post(t.Context(), strings.TrimPrefix(srv.URL, "http://"), "")
		r.Body, r.ContentLength = io.NopCloser(&pieces{parts}), int64(len(want))
		status, body, err := ask(tr, r)
		if status != 200 || body != string(want) || err != nil {
			t.Errorf("%v: %d, %d bytes, %v", sizes, status, len(body), err)
		}
	}
	r := post(t.Context(), strings.TrimPrefix(srv.URL, "http://"), "four")
	r.ContentLength = 5
	if _, _, err := ask(tr, r); err == nil {
		t.Error("a body that is too short was sent")
	}
}

// pieces writes each of its readers with a write of its own.
type pieces struct{ parts []io.Reader }

func (p *pieces) Read(b []byte) (int, error) { return io.MultiReader(p.parts...).Read(b) }
func (p *pieces) WriteTo(w io.Writer) (n int64, err error) {
	for _, r := range p.parts {
		k, err := r.(*bytes.Reader).WriteTo(w)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

func TestContextEndsAnExchange(t *testing.T) {
	for name, answer := range map[string]string{"before the head": "", "in the body": "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf"} {
		s := newScript(t, true, answer)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-s.heads; time.Sleep(10 * time.Millisecond); cancel() }()
		if _, _, err := ask(new(Transport), post(ctx, s.ln.Addr().String(), "x")); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A worker that does not read: the write ends, too.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := ask(new(Transport), post(ctx, ln.Addr().String(), strings.Repeat("x", 32<<20))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write to a worker that does not read: %v", err)
	}
}

// A connection that the worker closed while it waited is not used; one that it closes on a request is an error, and the request is not
// sent again.
func TestAConnectionThatEnded(t *testing.T) {
	s := newScript(t, false, ok)
	tr := &Transport{}
	defer tr.CloseIdleConnections()
	for range 3 {
		if _, body, err := ask(tr, post(t.Context(), s.ln.Addr().String(), "x")); body != "ok" || err != nil {
			t.Fatalf("%q %v", body, err)
		}
		<-s.heads
		tr.untilNoticed(t, s.ln.Addr().String())
	}
	if n := s.conns.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

// untilNoticed waits until no connection to a worker is kept: what the worker sent on one that waits has come, and was seen. On a loopback that
// takes no time; the bound is for a transport that does not look.
func (t *Transport) untilNoticed(tb testing.TB, addr string) {
	tb.Helper()
	for began := time.Now(); t.waiting() > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			tb.Errorf("a connection on which something waits to be read is kept")
			t.CloseIdleConnections()
			return
		}
		if c := t.take(host{false, addr}); c != nil {
			t.put(c)
		}
	}
}

func (t *Transport) waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.idle {
		n += len(l)
	}
	return n
}

func TestErrorsOfADialAreThoseOfTheNet(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	ln.Close()
	_, _, err = ask(new(Transport), post(t.Context(), at, "x"))
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
}

// What a worker says before it has the whole body is heard, though it closes then.
func TestARefusalBeforeTheBodyWasRead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.ReadFull(c, make([]byte, 10))
		io.WriteString(c, "HTTP/1.1 413 No\r\nContent-Length: 3\r\n\r\nbig")
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, io.LimitReader(c, 1<<20)) // some of it
	})
	tr := &Transport{}
	status, body, err := ask(tr, post(t.Context(), ln.Addr().String(), strings.Repeat("x", 16<<20)))
	if err == nil && (status != 413 || body != "big") {
		t.Errorf("%d %q %v", status, body, err)
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v", err)
	}
	if tr.waiting() > 0 {
		t.Error("the connection is used again after half a request")
	}
}

func TestConnectionsThatWaitTooLong(t *testing.T) {
	s := newScript(t, true, ok, ok)
	tr := &Transport{IdleFor: 20 * time.Millisecond}
	if _, _, err := ask(tr, post(t.Context(), s.ln.Addr().String(), "x")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); tr.waiting() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it still waits")
		}
	}
}

func TestManyWait(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(echo))
	defer srv.Close()
	tr := &Transport{MaxIdle: 3}
	defer tr.CloseIdleConnections()
	var bodies []io.ReadCloser
	for range 8 {
		resp, err := tr.RoundTrip(post(t.Context(), strings.TrimPrefix(srv.URL, "http://"), "x"))
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, resp.Body)
	}
	for _, b := range bodies {
		io.Copy(io.Discard, b)
		b.Close()
	}
	if n := tr.waiting(); n != 3 {
		t.Errorf("%d wait", n)
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	r := post(t.Context(), strings.TrimPrefix(srv.URL, "https://"), "secret")
	r.URL.Scheme = "https"
	if _, _, err := ask(new(Transport), r); err == nil {
		t.Error("a certificate of nobody was taken")
	}
	tr := &Transport{TLS: func(host string) (*tls.Config, error) {
		c := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		c.ServerName = host
		return c, nil
	}}
	defer tr.CloseIdleConnections()
	for range 3 {
		r := post(t.Context(), strings.TrimPrefix(srv.URL, "https://"), "secret")
		r.URL.Scheme = "https"
		if status, body, err := ask(tr, r); status != 200 || body != "secret" || err != nil {
			t.Errorf("%d %q %v", status, body, err)
		}
	}
}

func TestHeadsThatWouldNotBeOne(t *testing.T) {
	s := newScript(t, false, ok)
	for _, h := range []http.Header{{"A": {"b\r\nC: d"}}, {"A\r\nB": {"c"}}, {"A b": {"c"}}} {
		r := post(t.Context(), s.ln.Addr().String(), "x")
		r.Header = h
		if _, _, err := ask(new(Transport), r); err == nil {
			t.Errorf("%q was sent", h)
		}
	}
}

// Whatever a worker says ends, and nothing that was read is more than it sent.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{ok, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nT: v\r\n\r\n", "HTTP/1.1 103 x\r\n\r\n" + ok, "HTTP/1.0 200\n\nabc"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		tr := &Transport{Dial: func(context.Context, string, string) (net.Conn, error) {
			return &canned{Reader: bytes.NewReader(answer)}, nil
		}}
		status, body, err := ask(tr, post(t.Context(), "worker", "x"))
		tr.CloseIdleConnections()
		if len(body) > len(answer) {
			t.Fatalf("%d bytes of %d", len(body), len(answer))
		}
		compare(t, answer, status, body, err)
	})
}

// compare holds what was read of an answer against what the standard library reads of it: where both take it they read the same, and
// what it refuses is refused here, too, but for what laxer lists.
func compare(t *testing.T, answer []byte, status int, body string, err error) {
	in := bufio.NewReader(bytes.NewReader(answer))
	var resp *http.Response
	var err2 error
	for range maxInforms {
		resp, err2 = http.ReadResponse(in, &http.Request{Method: "POST"})
		if err2 != nil || resp.StatusCode >= 200 || resp.StatusCode == 101 {
			break
		}
	}
	var want []byte
	if err2 == nil {
		want, err2 = io.ReadAll(resp.Body)
	}
	switch {
	case err == nil && err2 == nil && (status != resp.StatusCode || body != string(want)):
		t.Fatalf("%d %q, and net/http reads %d %q", status, body, resp.StatusCode, want)
	case err == nil && err2 != nil && !laxer(answer, err2):
		t.Fatalf("%d %q, and net/http refuses: %v", status, body, err2)
	}
}

// laxer is what net/http refuses and this package reads: nothing.
func laxer([]byte, error) bool { return false }

// canned is a connection on which the answer lies already.
type canned struct {
	net.Conn
	*bytes.Reader
}

func (c *canned) Read(p []byte) (int, error)        { return c.Reader.Read(p) }
func (c *canned) Write(p []byte) (int, error)       { return len(p), nil }
func (c *canned) Close() error                      { return nil }
func (c *canned) SetDeadline(time.Time) error       { return nil }
func (c *canned) SetReadDeadline(t time.Time) error { return nil }

func BenchmarkRoundTrip(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(echo))
	defer srv.Close()
	for name, tr := range map[string]http.RoundTripper{"h1": &Transport{}, "nethttp": &http.Transport{DisableCompression: true}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resp, err := tr.RoundTrip(post(context.Background(), strings.TrimPrefix(srv.URL, "http://"), "hello"))
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Proto", r.Proto)
	w.Write(b)
}

// An answer that nobody asked for is read as no request's: not when it comes with the one before, and not when it comes while the
// connection waits.
func TestAnAnswerTooManyIsNobodys(t *testing.T) {
	const other = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
	for name, c := range map[string]struct{ first, later string }{
		"at once": {ok + other, ""}, "later": {ok, other}, "half later": {ok + other[:9], other[9:]}, "a byte": {ok, "x"},
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		later := make(chan struct{})
		sent := make(chan struct{}, 8)
		wg.Go(func() {
			for {
				c1, err := ln.Accept()
				if err != nil {
					return
				}
				wg.Go(func() {
					defer c1.Close()
					if _, err := http.ReadRequest(bufio.NewReader(c1)); err != nil {
						return
					}
					io.WriteString(c1, c.first)
					<-later
					io.WriteString(c1, c.later)
					sent <- struct{}{}
					io.Copy(io.Discard, c1)
				})
			}
		})
		tr := &Transport{}
		r := post(t.Context(), ln.Addr().String(), "")
		if _, body, err := ask(tr, r); err != nil || body != "ok" {
			t.Errorf("%s: %q %v", name, body, err)
		}
		close(later)
		<-sent
		tr.untilNoticed(t, ln.Addr().String())
		if _, body, err := ask(tr, post(t.Context(), ln.Addr().String(), "")); err != nil || body != "ok" {
			t.Errorf("%s: the next request got %q %v", name, body, err)
		}
		ln.Close()
		tr.CloseIdleConnections()
		wg.Wait()
	}
}
