package foreign

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/source"
)

// readingAtOnce is how many workers are read at the same time.
const readingAtOnce = 64

// Pauses between readings: quick while a worker is not there, so that one that comes back is not waited for.
const (
	firstPause = 100 * time.Millisecond
	downPause  = 2 * time.Second
	leastPause = 20 * time.Millisecond // between readings that something asked for
)

// staleAfter is how many readings in a row may not come in time, with no sign of a restart, before what is known of a worker is old.
const staleAfter = 6

// keep reads one worker's facts until it is taken out. Under mu.
func (f *Fleet) keep(n *Node) {
	f.wg.Go(func() {
		quick := firstPause
		for {
			ok := f.readSoon(n)
			every := f.config().Every
			wait := every - every/10 + rand.N(every/5+1) // not all at once
			if !ok {
				wait = min(quick, every, downPause)
				quick *= 2
			} else {
				quick = firstPause
			}
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-n.kick:
				t.Stop()
				select {
				case <-time.After(leastPause):
				case <-n.ctx.Done():
					return
				}
			case <-n.ctx.Done():
				t.Stop()
				return
			}
		}
	})
}

// readSoon is readOnce among not too many others.
func (f *Fleet) readSoon(n *Node) bool {
	select {
	case f.reading <- struct{}{}:
		defer func() { <-f.reading }()
		return f.readOnce(n)
	case <-n.ctx.Done():
		return false
	}
}

// reading is what came of asking a worker what it is.
type reading struct {
	node     *facts.Node // nil: nothing that an engine says
	refused  bool        // nobody takes connections there
	dark     string      // why, in our own words
	late     bool        // somebody does, and did not answer in time
	engineID string
	uvicorn  bool
	idle     net.Conn // was opened before anything was read; nil: none
}

// ask a worker what it is.
func (f *Fleet) ask(n *Node, patient time.Duration, t *source.Options) (r reading) {
	ctx, cancel := context.WithTimeout(n.ctx, patient)
	defer cancel()
	began := time.Now()
	// Before anything is read: what is read is then of the process behind this connection, or of a later one, which ends it.
	c, err := dialer.DialContext(ctx, "tcp", hostPort(n))
	if err != nil {
		r.refused = n.ctx.Err() == nil
		r.late = !r.refused
		r.dark = "it cannot be reached: " + unreached(err)
		return r
	}
	r.idle = c
	client := source.Client(*t)
	defer client.CloseIdleConnections()
	heard := &listener{next: client.Transport}
	client.Transport = heard
	t.Client = client
	x := source.Ask(ctx, n.URL.String(), *t)
	if len(x.Facts) > 0 && (x.Int(facts.Pool) > 0 || x.Int(facts.Context) > 0 || x.Text(facts.Version) != "") {
		r.node = x
	}
	r.late = r.node == nil && time.Since(began) >= patient*9/10 // the client gives up a little sooner
	r.uvicorn = heard.server == "uvicorn"
	if r.node == nil && !heard.any && heard.err != nil && n.ctx.Err() == nil {
		r.dark = unanswered(heard.err, n.URL.Scheme == "https")
	}
	if f.asksID(n) {
		r.engineID = f.askEngineID(ctx, n)
	}
	if f.engine == VLLMNixl && n.Role == capacity.Prefill {
		f.noteLate(ctx, n)
	}
	return r
}

// unreached says in our own words why a connection could not be made: what a system says names addresses.
func unreached(err error) string {
	var name *net.DNSError
	var ne net.Error
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return "its host name is not known"
	case errors.As(err, &name):
		return "its host name cannot be looked up"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to its host"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return "connecting took too long"
	}
	return "the connection failed"
}

// asksID reports whether a worker's bootstrap server is to be asked for the id of its engine.
func (f *Fleet) asksID(n *Node) bool {
	return f.engine == VLLMMooncake && n.Role == capacity.Prefill && n.EngineID == ""
}

// listener hears what server answers. One goroutine uses it.
type listener struct {
	next   http.RoundTripper
	server string
	any    bool  // it answered something
	err    error // why it did not, the first time
}

func (l *listener) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err == nil {
		l.server, l.any = resp.Header.Get("Server"), true
	} else if l.err == nil {
		l.err = err
	}
	return resp, err
}

// CloseIdleConnections is for http.Client.
func (l *listener) CloseIdleConnections() {
	if c, ok := l.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func hostPort(n *Node) string {
	port := n.URL.Port()
	if port == "" {
		port = map[string]string{"https": "443"}[n.URL.Scheme]
		if port == "" {
			port = "80"
		}
	}
	return net.JoinHostPort(n.URL.Hostname(), port)
}

// readOnce asks a worker what it is, and takes what it says. It reports whether there is no need to ask again soon.
func (f *Fleet) readOnce(n *Node) bool {
	cfg := f.config()
	t, err := f.tlsOf(n.TLS, n.URL.Hostname())
	if err != nil {
		f.log.Error("a worker's TLS files cannot be read: it cannot be reached", "worker", n.Name, "error", err)
		t = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()} // trusts nobody
	}
	r := f.ask(n, cfg.Patient, &source.Options{Timeout: cfg.Patient, Parallel: 1, APIKey: n.Key, TLS: t})
	f.mu.Lock()
	if n.gone || n.heir != nil || n.ctx.Err() != nil {
		f.mu.Unlock()
		if r.idle != nil {
			r.idle.Close()
		}
		return true
	}
	before, why := n.facts, n.why()
	restarted := n.take(r)
	asksID := f.asksID(n) && n.engineID == ""
	n.settle()
	f.assume(n)
	after, now := n.facts, n.why()
	if now == "" && (why != "" || restarted) {
		n.since = time.Now()
	}
	if before != after || why != now {
		f.change()
	}
	watch := r.idle != nil && r.uvicorn && !n.watching && n.strikes < maxStrikes
	n.watching = n.watching || watch
	f.mu.Unlock()
	if watch {
		f.wg.Go(func() { f.watch(n, r.idle) })
	} else if r.idle != nil {
		r.idle.Close()
	}
	if restarted {
		f.log.Warn("worker restarted", "model", cfg.Model, "worker", n.Name, "boots", n.boots)
	}
	switch {
	case before == after && why == now:
	case now != "":
		f.log.Warn("worker is not used", "model", cfg.Model, "worker", n.Name, "reason", now)
	default:
		f.log.Info("worker's facts", "model", cfg.Model, "worker", n.Name, "engine", after.Engine, "version", after.Version,
			"pool_tokens", after.PoolTokens, "page_size", after.PageSize, "context", after.Context, "dtype", after.DType, "read", r.node != nil)
	}
	// Decode has to be told the id of a Mooncake engine: it is asked again soon where there was no answer.
	return r.node != nil && (r.engineID != "" || !asksID)
}

// take notes a reading. It reports whether the worker is another process than before. Under mu.
func (n *Node) take(r reading) (restarted bool) {
	if r.engineID != "" {
		n.engineID = r.engineID
	}
	n.dark = r.dark
	switch {
	case r.node != nil:
		next := markOf(r)
		restarted = n.boots > 0 && (next.after(n.mark) || n.mark.lost && !next.same(n.mark))
		if restarted || n.boots == 0 {
			n.boots++
			n.era = eras.Add(1)
		}
		if restarted {
			n.failures, n.shunned = 0, time.Time{}
		}
		n.last, n.mark, n.silent, n.suspect = r.node, next, 0, ""
	case r.refused:
		n.mark.lost = true
		n.era = eras.Add(1)
		n.suspect = cmp.Or(r.dark, "it cannot be reached")
	case r.late && n.last != nil:
		// Busy, most likely. What is known of it stays, unless there is a sign that it is of another process, or it gets old.
		if n.silent++; n.silent >= staleAfter && n.suspect == "" {
			n.suspect = "it does not answer"
			n.era = eras.Add(1)
		}
	default: // it answers, and not as an engine does; or never did
		n.last = nil
		n.suspect = ""
	}
	return restarted
}

// askEngineID asks Mooncake's bootstrap server of prefill who it is.
func (f *Fleet) askEngineID(ctx context.Context, n *Node) string {
	f.mu.Lock()
	host, port := n.bootstrap()
	f.mu.Unlock()
	if port == 0 {
		return ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, strconv.Itoa(port))+"/query", nil)
	if err != nil {
		return ""
	}
	resp, err := n.Transport.RoundTrip(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return ""
	}
	var ranks map[string]struct {
		EngineID string `json:"engine_id"`
	}
	if json.Unmarshal(b, &ranks) != nil {
		return ""
	}
	return ranks["0"].EngineID
}

// ReadAll looks at every source and reads every worker's facts once, and returns when all have answered or not.
func (f *Fleet) ReadAll(ctx context.Context) {
	f.mu.Lock()
	sources := f.sources
	f.mu.Unlock()
	for _, s := range sources {
		if s.source != nil {
			f.look(s)
			f.mu.Lock()
			again := s.err != nil
			f.mu.Unlock()
			if again {
				f.look(s)
			}
		}
	}
	f.mu.Lock()
	workers := f.workers
	f.mu.Unlock()
	done := make(chan struct{})
	for _, n := range workers {
		f.wg.Go(func() {
			f.readSoon(n)
			select {
			case done <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}
	for range workers {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}
