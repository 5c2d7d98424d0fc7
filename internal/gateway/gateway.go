// Package gateway is the one front door: it authenticates, encodes a prompt once, admits it, chooses a pair, runs the attempt on
// both legs, holds the reply until they agree, and leaves a record whatever happened.
//
// One file per step of a request's walk: body, parse, encode, admit and plan, legs (reconcile), reply (stream), finish. walk.go
// is the order of the steps. Each step says no with a verdict, and one function (refuse) turns a verdict into what a client sees.
//
// # Goroutines
//
// A request runs on its connection's goroutine alone. Frames come to it through its run, whose buffer is bounded by max_tokens; a
// client that reads slowly holds up itself and nobody else.
//
// # What a client hears
//
// X-Request-Id and X-Sluice-Attempt are on every reply of the API. X-Sluice-Verdict is "CODE; layer=LAYER": a header where the verdict
// is known before the reply begins (all refusals, all replies that are not streamed), a trailer of the same name on streams.
//
// Lock order: model.mu and ending.mu are leaves.
package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/follow"
	"github.com/sluicekv/sluice/internal/gateway/tenant"
	"github.com/sluicekv/sluice/internal/gateway/upstream"
	"github.com/sluicekv/sluice/internal/gateway/upstream/native"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// WorkerAddr is where a worker is: name, role, control address, key.
type WorkerAddr = fleet.Worker

// ModelConfig is one model and the workers that run it.
type ModelConfig struct {
	Name        string
	Encoder     *prompt.Encoder
	Fingerprint [32]byte // of the model that Encoder encodes for; a worker with another is refused
	Workers     []WorkerAddr
	Temperature *float32 // for requests that give none; nil: 1
	Guarded     *Guarded // a fleet of another engine: then only Name is read of the fields above
	Aliases     []string // guarded: names that clients may use too, which the workers know as they are (adapters)
}

// Config of a gateway. Listen, Models and Identity must be given.
type Config struct {
	Listen string // host:port of the API
	Admin  string // host:port of metrics, fleet, records and profiles; empty: none
	Models []ModelConfig

	Identity keyring.Identity
	Keys     *keyring.Fleet // where workers without a key are looked up
	APIKeys  string         // file of tenants' keys (package tenant); empty: everybody is one tenant
	TLS      TLS            // of the listeners
	Follow   time.Duration  // between looks at the files of keys and certificates (2 s)

	Unknown openai.Policy // fields that nobody knows
	Modes   Modes         // of the guards over other engines
	Webhook string        // URL that incidents are posted to; empty: none
	Limits  Limits
	Timing  fleet.Timing
	Rests   fleet.Rests

	RecordsFile string    // JSON lines are appended to it; empty: none
	Records     io.Writer // or to this
	AccessLog   string    // a JSON line a request is appended to it, "-" is standard output; empty: none
	Trace       trace.Recorder
	Version     string
	Log         *slog.Logger
}

// Limits of a gateway. A zero field takes its default.
type Limits struct {
	Body       int64         // bytes of one body (32 MiB)
	Bodies     int64         // bytes of all bodies that are being read or encoded (1 GiB)
	BodyTime   time.Duration // for a body to come (60 s)
	HeaderTime time.Duration // for a request's head to come (10 s)
	Header     int           // bytes of it (64 KiB)
	Idle       time.Duration // of a connection between requests (2 min)
	Write      time.Duration // for a client to take what is written to it (30 s)

	PairWait       time.Duration // for a pair when none can serve, because workers restart (5 s; negative: none)
	PairWaiters    int           // requests that wait for one at once; more get 503 at once (1024)
	Deadline       time.Duration // of a request; a client may ask for less with X-Request-Timeout (10 min)
	Settle         time.Duration // for the legs to give their pages back after a verdict, before that is counted (30 s)
	ChatTokens     int           // max_tokens of a chat that gives none, if so many fit (1024)
	CompleteTokens int           // of a completion (16, as the public API has it)
	Records        int           // kept in memory for /admin/records (1024)
}

func (l Limits) filled() Limits {
	l.Body = or(l.Body, 32<<20)
	l.Bodies = max(or(l.Bodies, 1<<30), l.Body)
	l.BodyTime = or(l.BodyTime, time.Minute)
	l.HeaderTime = or(l.HeaderTime, 10*time.Second)
	l.Header = or(l.Header, 64<<10)
	l.Idle = or(l.Idle, 2*time.Minute)
	l.Write = or(l.Write, 30*time.Second)
	if l.PairWait == 0 {
		l.PairWait = 5 * time.Second
	}
	l.PairWaiters = or(l.PairWaiters, 1024)
	l.Deadline = or(l.Deadline, 10*time.Minute)
	l.Settle = or(l.Settle, 30*time.Second)
	l.ChatTokens = or(l.ChatTokens, 1024)
	l.CompleteTokens = or(l.CompleteTokens, 16)
	l.Records = or(l.Records, 1024)
	return l
}

func or[T int | int64 | float64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// Gateway serves the API.
type Gateway struct {
	cfg     Config
	limits  Limits
	log     *slog.Logger
	tenants *tenant.Directory
	now     atomic.Pointer[catalog] // the models
	natives upstream.Engine         // runs attempts on native workers
	created int64
	live    live           // limits that a reload may change
	reloads sync.Mutex     // one at a time
	started bool           // under reloads
	proving sync.WaitGroup // canaries
	leaving sync.WaitGroup // fleets that were taken out and are still used
	ring    *record.Ring
	writer  *record.Writer // nil: none
	access  *accessLog     // nil: none
	metrics *metrics
	runs    runs // on other engines

	following  context.Context // ends when files are not looked at any more
	unfollowed context.CancelFunc
	guards     guards // over other engines

	incidents incidents
	webhook   *webhook
	quitting  context.Context // ends when legs that nobody waits for are cut off
	quit      context.CancelFunc

	ctx      context.Context // ends with the verdict of Withdrawn when requests are cut off
	withdraw context.CancelCauseFunc
	requests gate
	bodies   budget
	waiting  atomic.Int64   // requests that wait for a pair
	endings  sync.WaitGroup // records that wait for their legs to settle

	api, admin   *http.Server
	apiLn, admLn net.Listener
	listeners    listeners // their certificates
	serving      sync.WaitGroup
	closed       sync.Once
}

// workers is a model's fleet, whatever engine it runs.
type workers interface {
	Start()
	Close()
	Limit() capacity.Limit
	Ready() bool
	Unready() verdict.Verdict
	Resting() bool
	Changed() <-chan struct{}
	Fingerprint() string
	Status(ctx context.Context, scan bool) fleet.Status
}

// New checks the config and makes a gateway; Start opens its sockets.
func New(cfg Config) (*Gateway, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, limits: cfg.Limits.filled(), log: cfg.Log, created: time.Now().Unix()}
	g.bodies.most = g.limits.Bodies
	g.live.set(g.limits.Body, g.limits.Deadline)
	g.ctx, g.withdraw = context.WithCancelCause(context.Background())
	g.quitting, g.quit = context.WithCancel(context.Background())
	g.following, g.unfollowed = context.WithCancel(context.Background())
	switch {
	case cfg.Listen == "":
		return nil, errors.New("gateway: no address to listen on")
	case cfg.Identity.IsZero():
		return nil, errors.New("gateway: no identity")
	case len(cfg.Models) == 0:
		return nil, errors.New("gateway: no models")
	case cfg.Records != nil && cfg.RecordsFile != "":
		return nil, errors.New("gateway: records go to a file or to a writer, not to both")
	}
	if err := cfg.TLS.check(cfg.Admin); err != nil {
		return nil, err
	}
	if guard.Unsafe {
		for _, a := range []string{cfg.Listen, cfg.Admin} {
			if a != "" && !loopback(a) {
				return nil, fmt.Errorf("gateway: this is an unsafe build: it listens on loopback only, not on %s", a)
			}
		}
	}
	secret := hmac.New(sha256.New, cfg.Identity.PrivateKey())
	secret.Write([]byte("sluice scope secret v1"))
	scopes := secret.Sum(nil)
	g.tenants = tenant.Open(scopes)
	if cfg.APIKeys != "" {
		keys, err := tenant.Load(cfg.APIKeys, scopes)
		if err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
		g.tenants = keys
	}
	g.natives = &native.Engine{Trace: cfg.Trace, SettleWithin: g.limits.Settle}
	var models []*model
	seen := map[string]bool{}
	for _, m := range cfg.Models {
		ms, err := g.newModels(m, seen)
		if err != nil {
			return nil, err
		}
		models = append(models, ms...)
	}
	g.now.Store(newCatalog(models))
	if err := g.SetModes(cfg.Modes); err != nil {
		return nil, err
	}
	g.ring = record.NewRing(g.limits.Records)
	var err error
	if g.listeners, err = cfg.TLS.load(); err != nil {
		return nil, err
	}
	if cfg.RecordsFile != "" {
		if g.writer, err = record.Open(cfg.RecordsFile, g.recordLost); err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
	} else if cfg.Records != nil {
		g.writer = record.NewWriter(cfg.Records, g.recordLost)
	}
	if cfg.AccessLog != "" {
		if g.access, err = openAccessLog(cfg.AccessLog); err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
	}
	g.cfg.Follow = or(cfg.Follow, follow.Every)
	g.metrics = newMetrics(g)
	g.webhook = newWebhook(cfg.Webhook, g.log, g.metrics.webhook)
	g.warnOfModels()
	return g, nil
}

// newModels makes the models of an entry of the config, the one and its aliases. seen are the names so far.
func (g *Gateway) newModels(m ModelConfig, seen map[string]bool) ([]*model, error) {
	if err := claim(m, seen); err != nil {
		return nil, err
	}
	if m.Guarded != nil {
		return g.guardedModels(m, nil)
	}
	if m.Encoder == nil {
		return nil, fmt.Errorf("gateway: model %s has no encoder", m.Name)
	}
	f, err := fleet.New(fleet.Config{
		Model: m.Name, Fingerprint: m.Fingerprint, Workers: m.Workers, Identity: g.cfg.Identity, Keys: g.cfg.Keys, Timing: g.cfg.Timing, Rests: g.cfg.Rests, Log: g.log,
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return []*model{{name: m.Name, cfg: m, fleet: f, native: f, engine: g.natives, power: newPower(g.ctx, m.Name), users: new(users)}}, nil
}

// claim takes the names of an entry.
func claim(m ModelConfig, seen map[string]bool) error {
	for _, n := range append([]string{m.Name}, m.Aliases...) {
		if n == "" || len(n) > openai.MaxModelName || seen[n] {
			return fmt.Errorf("gateway: model %q: names are unique, of 1 to %d bytes", n, openai.MaxModelName)
		}
		seen[n] = true
	}
	return nil
}

// live are limits that a reload may change while requests read them.
type live struct{ body, deadline atomic.Int64 }

func (l *live) set(body int64, deadline time.Duration) {
	l.body.Store(body)
	l.deadline.Store(int64(deadline))
}

// deadline of a request that begins now.
func (g *Gateway) deadline() time.Duration { return time.Duration(g.live.deadline.Load()) }

// Start opens the sockets and dials the workers. It does not wait for workers: /readyz says when a pair can serve.
func (g *Gateway) Start() (err error) {
	if g.apiLn, err = net.Listen("tcp", g.cfg.Listen); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	if g.cfg.Admin != "" {
		if g.admLn, err = net.Listen("tcp", g.cfg.Admin); err != nil {
			g.apiLn.Close()
			return fmt.Errorf("gateway: admin: %w", err)
		}
		g.admin = g.server(g.adminMux())
		g.serving.Go(func() { g.admin.Serve(secured(g.admLn, g.listeners.admin)) })
	}
	g.api = g.server(g.apiMux())
	g.serving.Go(func() { g.api.Serve(secured(g.apiLn, g.listeners.door)) })
	g.serving.Go(func() { g.follow(g.following) })
	g.reloads.Lock()
	defer g.reloads.Unlock()
	g.started = true
	for m := range g.catalog().primaries {
		g.begin(m)
	}
	return nil
}

// begin starts a model's fleet, and what keeps it in order.
func (g *Gateway) begin(m *model) {
	m.fleet.Start()
	if m.guarded != nil {
		g.proving.Go(func() { g.prove(m.name, m.guarded.fleet) })
	}
}

// server has the limits of a server on a hostile network; h1 only, so that a connection is one request at a time.
func (g *Gateway) server(h http.Handler) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: g.limits.HeaderTime, IdleTimeout: g.limits.Idle, MaxHeaderBytes: g.limits.Header,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), Protocols: new(http.Protocols),
	}
	s.DisableGeneralOptionsHandler = true // "OPTIONS *" is no path either
	s.Protocols.SetHTTP1(true)
	return s
}

// Addr is where the API listens, AdminAddr the admin listener; empty before Start.
func (g *Gateway) Addr() string      { return addr(g.apiLn) }
func (g *Gateway) AdminAddr() string { return addr(g.admLn) }

func addr(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// Ready reports whether a pair of a model that is on can serve, and the gateway is not shutting down.
func (g *Gateway) Ready() bool {
	ready, _ := g.readiness("")
	return ready
}

// WaitReady waits until Ready, or until ctx is done.
func (g *Gateway) WaitReady(ctx context.Context) error {
	for _, m := range g.catalog().models {
		for {
			changed := m.fleet.Changed()
			if m.fleet.Ready() {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return fmt.Errorf("gateway: model %s has no pair that can serve: %w", m.name, ctx.Err())
			}
		}
	}
	return nil
}

// Limit of a model now: zero when it is not known or no pair can serve.
func (g *Gateway) Limit(name string) capacity.Limit {
	if m := g.catalog().find(name); m != nil {
		return m.fleet.Limit()
	}
	return capacity.Limit{}
}

// Drain refuses new requests and waits for those in flight. When ctx ends first they are cut off, each with the verdict that the
// gateway is shutting down, and ctx's error is returned.
func (g *Gateway) Drain(ctx context.Context) error {
	idle := g.requests.close()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	g.withdraw(withdrawn{shuttingDown()})
	// A client that does not read what it is told keeps its request until its connection is closed.
	select {
	case <-idle:
	case <-time.After(lastWordsTime):
		g.log.Warn("connections are closed whose clients do not read", "requests", g.requests.inFlight())
		if g.api != nil {
			g.api.Close()
		}
		<-idle
	}
	return ctx.Err()
}

// lastWordsTime is how long clients may take, once a drain's time is over, to read why their requests end.
const lastWordsTime = 2 * time.Second

func shuttingDown() verdict.Verdict {
	return verdict.Of(verdict.ShuttingDown, verdict.PlanLayer, "the gateway is shutting down")
}

// Close cuts off what is in flight, closes the sockets and links, and writes the last records. Idempotent.
func (g *Gateway) Close() error {
	var err error
	g.closed.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		g.Drain(ctx)
		g.unfollowed()
		for _, s := range []*http.Server{g.api, g.admin} {
			if s != nil {
				s.Close()
			}
		}
		g.serving.Wait()
		g.reloads.Lock()
		c := g.catalog()
		g.reloads.Unlock()
		for m := range c.primaries {
			m.fleet.Close()
		}
		for _, m := range c.models {
			m.release()
		}
		g.quit()
		g.proving.Wait()
		g.endings.Wait()
		g.leaving.Wait()
		g.webhook.close()
		if g.writer != nil {
			err = g.writer.Close()
		}
		if g.access != nil {
			g.access.close()
		}
	})
	return err
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (g *Gateway) recordLost(lost int, err error) {
	g.log.Error("records were lost", "count", lost, "error", err)
}

// withdrawn is the cause of a context that the gateway itself ended.
type withdrawn struct{ verdict verdict.Verdict }

func (w withdrawn) Error() string { return w.verdict.String() }
