// Package foreign is a model's workers of other engines (SGLang, vLLM, any OpenAI-compatible server) as the gateway sees them:
// their facts, their pairs, their limits, their load, their rests.
//
// What a worker says of itself is read from its own endpoints, again and again, with the readers of check; what the configuration
// states by hand (pinned) stands over it. A worker of which nothing is known is not used. The package sends no request of a client
// and judges no answer.
//
// Lock order: Fleet.mu is a leaf.
package foreign

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/transport/h1"
)

// Engines, as configurations name them.
const (
	SGLang       = "sglang"
	VLLMNixl     = "vllm-nixl"
	VLLMMooncake = "vllm-mooncake"
	Plain        = "plain" // any OpenAI-compatible server, not disaggregated
)

// Worker is where a worker is and what is stated of it by hand. Zero fields are read from the worker.
type Worker struct {
	Name string // default: host:port of its URL
	Role capacity.Role
	URL  *url.URL

	PoolTokens, Context, PageSize int
	Version, DType                string
	DP                            int

	BootstrapHost string   // SGLang, Mooncake: of prefill's bootstrap server; default: the URL's
	BootstrapPort int      //
	EngineID      string   // Mooncake
	KVHosts       []string // NIXL: hosts that prefill's handles may name; default: the URL's
	KVPort        int      // NIXL: the port that they name; 0: any
	Key           string   // bearer token for the worker
}

// Config of a fleet: one model and its workers.
type Config struct {
	Model   string
	Engine  string // one of the names below
	Workers []Worker
	TLS     *tls.Config
	Every   time.Duration // between readings of a worker's facts (10 s)
	Patient time.Duration // for one reading (5 s)
	Rests   fleet.Rests
	Budget  int // tokens in flight on one worker; 0: no bound
	Log     *slog.Logger
}

// Fleet of one model.
type Fleet struct {
	cfg       Config
	engine    string // as capacity names it
	transport *h1.Transport
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu      sync.Mutex
	workers []*Node
	rests   map[[2]string]*rest
	rested  uint64
	changed chan struct{}
	names   map[string]named
}

// New makes a fleet; Start reads its workers.
func New(cfg Config) (*Fleet, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.Every, 10*time.Second)
	def(&cfg.Patient, 5*time.Second)
	def(&cfg.Rests.For, time.Minute)
	if cfg.Rests.MaxShare <= 0 || cfg.Rests.MaxShare > 1 {
		cfg.Rests.MaxShare = 0.5
	}
	f := &Fleet{cfg: cfg, engine: cfg.Engine, rests: map[[2]string]*rest{}, names: map[string]named{}, changed: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.transport = f.newTransport(cfg.TLS)
	names := map[string]bool{}
	for i, w := range cfg.Workers {
		if w.URL == nil {
			return nil, fmt.Errorf("fleet: worker %d of model %s has no URL", i, cfg.Model)
		}
		if w.Name == "" {
			w.Name = string(w.Role) + " " + w.URL.Host
		}
		if names[w.Name] {
			return nil, fmt.Errorf("fleet: model %s has two workers named %s", cfg.Model, w.Name)
		}
		names[w.Name] = true
		f.workers = append(f.workers, newNode(f, w))
	}
	for _, n := range f.workers {
		f.assume(n)
	}
	return f, nil
}

// newTransport makes what requests to workers go through.
func (f *Fleet) newTransport(tls *tls.Config) *h1.Transport {
	// Engines close idle connections after 5 s: a connection that they are about to close is not used.
	return &h1.Transport{Dial: dialer.DialContext, TLS: tls, MaxIdle: 2048, IdleFor: 3 * time.Second}
}

// Start reads every worker's facts, and again until Close.
func (f *Fleet) Start() {
	for _, n := range f.workers {
		f.wg.Go(func() { f.keep(n) })
	}
}

// Close ends the readings and the idle connections.
func (f *Fleet) Close() {
	f.cancel()
	f.wg.Wait()
	f.transport.CloseIdleConnections()
}

// Model is the name that clients use.
func (f *Fleet) Model() string { return f.cfg.Model }

// Engine of the workers.
func (f *Fleet) Engine() string { return f.cfg.Engine }

// Fingerprint is empty: other engines do not say what weights they run.
func (f *Fleet) Fingerprint() string { return "" }

// Ready reports whether a pair can serve.
func (f *Fleet) Ready() bool { return f.Limit().Tokens > 0 }

// Changed returns a channel that is closed at the next change of what may serve.
func (f *Fleet) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *Fleet) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// two reports whether the engine runs two legs.
func (f *Fleet) two() bool { return f.cfg.Engine != Plain }
