package actor

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Config of a worker. A restart may change all of it but the address.
type Config struct {
	Name      string
	Engine    string // sglang, vllm-nixl, vllm-mooncake or plain: for the catalogue
	Version   string
	Leg       Leg
	Model     string
	Addr      string // where it listens; "" is any port of loopback
	Pool      int    // slots
	PageSize  int    // slots a page
	Context   int    // tokens
	Ranks     int    // data-parallel ranks; 0 is 1
	APIKey    string // that requests must carry
	AdminKey  string // that aborts must carry, where the engine has one
	Block0    bool   // page 0 is never given out
	Light     bool   // for load: prompts are counted, not kept, and replies are a fixed text
	FirstWait time.Duration
	TokenWait time.Duration
	Transfer  time.Duration // how long pages take from prefill to decode
	Patience  time.Duration // how long a leg waits for the other; engines have 300 s. Default 5 s
	Facts     Facts
}

// Facts are lies about the worker itself, for as long as the configuration stands. Zero values are honest.
type Facts struct {
	Pool     int    // said instead of the pool
	Context  int    // said instead of the context
	PageSize int    // said instead of the page size
	Version  string // said instead of the version
	Leg      string // said instead of the role
	Metrics  int    // pool in /metrics, when it contradicts the other pages
	Gone     bool   // 404 on every page of facts
	Garbage  bool   // pages that mean nothing
	Hang     bool   // pages that never come
}

// Worker is one process: what engines embed.
type Worker struct {
	*Stage
	Handler http.Handler // of the engine; set before Start

	mu      sync.Mutex
	cfg     Config
	process *Process
	lies    []*telling
	srv     *http.Server
	conns   map[net.Conn]struct{}
	frozen  chan struct{} // closed when it thaws; nil when it is not frozen

	Requests, PromptTokens, ReplyTokens, Aborts atomic.Int64
	PromptTokensStream, ReplyTokensStream       atomic.Int64
}

// telling is a lie that is told, and to how many requests of its leg so far.
type telling struct {
	Lie
	asked, told int
}

// NewWorker makes a worker; Start runs it.
func NewWorker(s *Stage, cfg Config) *Worker {
	return &Worker{Stage: s, cfg: cfg.filled(), conns: map[net.Conn]struct{}{}}
}

func (c Config) filled() Config {
	if c.PageSize == 0 {
		c.PageSize = 16
	}
	if c.Pool == 0 {
		c.Pool = 8192
	}
	if c.Context == 0 {
		c.Context = 8192
	}
	if c.Model == "" {
		c.Model = "recall"
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
	if c.Ranks == 0 {
		c.Ranks = 1
	}
	if c.Name == "" {
		c.Name = c.Leg.String()
	}
	return c
}

// Start listens and serves.
func (w *Worker) Start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	addr := w.cfg.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	w.cfg.Addr = ln.Addr().String()
	n := w.cfg.Pool / w.cfg.PageSize
	if w.cfg.Light {
		n = 1
	}
	p := &Process{Pages: NewPages(n, w.cfg.PageSize, w.cfg.Block0), Down: make(chan struct{}), boot: time.Now(), nth: 1}
	if w.process != nil {
		p.nth = w.process.nth + 1
	}
	w.process = p
	w.srv = &http.Server{Handler: w, ConnState: w.connState, BaseContext: func(net.Listener) context.Context {
		return context.WithValue(context.Background(), processKey{}, p)
	}}
	go w.srv.Serve(ln)
	return nil
}

func (w *Worker) connState(c net.Conn, s http.ConnState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s == http.StateClosed || s == http.StateHijacked {
		delete(w.conns, c)
	} else {
		w.conns[c] = struct{}{}
	}
}

// ServeHTTP hands requests to the engine, unless the worker is frozen.
func (w *Worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	frozen, h := w.frozen, w.Handler
	w.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-r.Context().Done():
			return
		}
	}
	rw.Header()["Server"] = uvicorn
	h.ServeHTTP(rw, r)
}

var uvicorn = []string{"uvicorn"}

// Addr is host:port.
func (w *Worker) Addr() string { return w.Config().Addr }

// URL of the worker.
func (w *Worker) URL() string { return "http://" + w.Addr() }

// Config as it stands.
func (w *Worker) Config() Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cfg
}

// Boot is when the process started, and its number.
func (w *Worker) Boot() (time.Time, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.process.boot, w.process.nth
}

// Pages of the process that runs now.
func (w *Worker) Pages() *Pages {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.process.Pages
}

// Kill ends the process: the port is closed, connections are reset.
func (w *Worker) Kill() {
	w.mu.Lock()
	srv := w.srv
	if srv == nil {
		w.mu.Unlock()
		return
	}
	w.srv = nil
	close(w.process.Down)
	for c := range w.conns {
		if tc, ok := c.(*net.TCPConn); ok {
			tc.SetLinger(0)
		}
	}
	w.mu.Unlock()
	srv.Close()
}

// Restart kills the process and starts another one at the same address, with other facts if change says so.
func (w *Worker) Restart(change func(*Config)) error {
	w.Kill()
	w.mu.Lock()
	if change != nil {
		addr := w.cfg.Addr
		change(&w.cfg)
		w.cfg.Addr = addr
		w.cfg = w.cfg.filled()
	}
	w.mu.Unlock()
	var err error
	for range 50 {
		if err = w.Start(); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // the kernel may keep the port for a moment
	}
	return err
}

// Freeze lets the process accept connections and requests and answer nothing, until thaw is called.
func (w *Worker) Freeze() (thaw func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ch := make(chan struct{})
	w.frozen = ch
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.frozen == ch {
			w.frozen = nil
		}
		close(ch)
	})
}

// SetFacts changes what the worker says of itself, at once and without a restart.
func (w *Worker) SetFacts(f Facts) {
	w.mu.Lock()
	w.cfg.Facts = f
	w.mu.Unlock()
}

// Hurry changes how long the worker takes for a first token, at once and without a restart.
func (w *Worker) Hurry(firstWait time.Duration) {
	w.mu.Lock()
	w.cfg.FirstWait = firstWait
	w.mu.Unlock()
}

// Tell adds a lie.
func (w *Worker) Tell(l Lie) {
	w.mu.Lock()
	w.lies = append(w.lies, &telling{Lie: l})
	w.mu.Unlock()
}

// Honest ends all lies.
func (w *Worker) Honest() {
	w.mu.Lock()
	w.lies = nil
	w.mu.Unlock()
}

// Lie returns the lie that the next request of a leg is told, nil for the truth.
func (w *Worker) Lie(leg Leg) *Lie {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.lies {
		if t.Leg != leg {
			continue
		}
		t.asked++
		if t.Every > 1 && t.asked%t.Every != 0 || t.Times > 0 && t.told >= t.Times {
			continue
		}
		t.told++
		return &t.Lie
	}
	return nil
}

// Violate records a broken rule of a request to this worker.
func (w *Worker) Violate(rule Rule, format string, args ...any) {
	w.Stage.Violate(w.Config().Name, rule, format, args...)
}

// Checks of a request that hold on every engine: key and headers.
func (w *Worker) CheckHeaders(r *http.Request, allowed ...string) bool {
	cfg := w.Config()
	ok := true
	for name := range r.Header {
		if !expected[name] && !contains(allowed, name) {
			w.Violate(RuleHeader, "%s", name)
			ok = false
		}
	}
	if auth := r.Header.Get("Authorization"); cfg.APIKey != "" && auth != "Bearer "+cfg.APIKey {
		w.Violate(RuleKey, "the upstream key is missing or wrong")
		return false
	} else if cfg.APIKey == "" && auth != "" {
		w.Violate(RuleKey, "a key reached a worker that has none")
	}
	return ok
}

// expected headers of a gateway that forwards none of a client's own.
var expected = map[string]bool{
	"Accept": true, "Accept-Encoding": true, "Authorization": true, "Content-Length": true, "Content-Type": true, "User-Agent": true,
	"X-Request-Id": true, "Traceparent": true, "Tracestate": true,
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// Sleep waits, or until the request or the process ends; then it is false.
func (w *Worker) Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-w.Process(ctx).Down:
	}
	return false
}

// Leaked records a reply with tokens of others.
func (w *Worker) Leaked(request string, tokens int) {
	if tokens > 0 {
		w.Stage.leaked(Leak{w.Config().Name, request, tokens})
	}
}

func (w *Worker) String() string {
	c := w.Config()
	return fmt.Sprintf("%s %s %s at %s", c.Engine, c.Leg, c.Name, c.Addr)
}
