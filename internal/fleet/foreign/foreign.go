// Package foreign is a model's workers of other engines (SGLang, vLLM, any OpenAI-compatible server) as the gateway sees them:
// which there are, their facts, their pairs, their limits, their load, their rests.
//
// Workers come from the configuration, from a directory of files and from DNS (source.go, dns.go), and may come and go while requests
// run (roster.go): one that goes gets no new attempt, and those that it has end on it. What a worker says of itself is read from its
// own endpoints (read.go), again and again, with the readers of check, and at once when there is a sign that its process is another
// (restart.go): until then it is not used. What the configuration states by hand (pinned) stands over what is read; a worker of which
// nothing is known is not used.
//
// A pair is chosen by load, by the power of two choices (pick.go), near what it computed before where that is known (affinity.go).
// A pair whose legs contradicted each other rests until its transfer is over, and serves again only after it proved itself (rest.go).
//
// The package sends no request of a client and judges no answer.
//
// Lock order: Fleet.mu is a leaf.
package foreign

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/certs"
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
	Name string // default: its role and the host:port of its URL
	Role capacity.Role
	URL  *url.URL

	PoolTokens, Context, PageSize int
	Version, DType, Model         string // Model: of the weights, where two workers name the same ones differently
	DP                            int

	BootstrapHost string   // SGLang, Mooncake: of prefill's bootstrap server; default: the URL's
	BootstrapPort int      //
	EngineID      string   // Mooncake
	KVHosts       []string // NIXL: hosts that prefill's handles may name; default: the URL's
	KVPort        int      // NIXL: the port that they name; 0: any
	Key           string   // bearer token for the worker
	TLS           certs.ClientFiles
}

// Config of a fleet: one model and its workers. Fields without a comment of their own follow their name.
type Config struct {
	Model   string
	Engine  string            // one of the names above; a reload cannot change it
	Workers []Worker          // that the configuration names
	Sources []Source          // of more workers
	TLS     certs.ClientFiles // of workers that name none of their own
	Every   time.Duration     // between readings of a worker's facts (10 s)
	Patient time.Duration     // for one reading (5 s)
	Rests   fleet.Rests       // MaxShare: of the pairs that may be ejected at once (0.5); For: how long before they may prove themselves (1 min)
	// Proofs is how many canaries in a row an ejected pair must answer right before it serves again (3); negative: none, time alone.
	Proofs    int
	Budget    int           // tokens in flight on one worker; 0: no bound
	SlowStart time.Duration // how long a worker that came (back) gets less than its share (30 s); negative: none
	Log       *slog.Logger
}

func (c Config) filled() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Every, 10*time.Second)
	def(&c.Patient, 5*time.Second)
	def(&c.Rests.For, time.Minute)
	def(&c.SlowStart, 30*time.Second)
	c.Proofs = cmp.Or(c.Proofs, 3)
	if c.Rests.MaxShare <= 0 || c.Rests.MaxShare > 1 {
		c.Rests.MaxShare = 0.5
	}
	return c
}

// Fleet of one model.
type Fleet struct {
	engine  string // as capacity names it
	log     *slog.Logger
	secured secured
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	reading chan struct{} // as many readings at once as it holds

	mu       sync.Mutex
	cfg      Config
	started  bool
	workers  []*Node // in the order of the sources
	leaving  []*Node // taken out, with attempts that end on them
	byName   map[string]*Node
	sources  []*watched
	rests    map[[2]string]*rest
	rested   uint64
	proved   uint64
	changed  chan struct{}
	names    map[string]named
	table    *table // nil: made again at the next question
	affinity affinity
}

// New makes a fleet; Start reads its workers.
func New(cfg Config) (*Fleet, error) {
	cfg = cfg.filled()
	f := &Fleet{
		cfg: cfg, engine: cfg.Engine, log: cfg.Log, rests: map[[2]string]*rest{}, names: map[string]named{}, changed: make(chan struct{}),
		byName: map[string]*Node{}, reading: make(chan struct{}, readingAtOnce),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if err := f.Check(cfg); err != nil {
		f.cancel()
		return nil, err
	}
	f.sources = []*watched{{id: file, workers: cfg.Workers}}
	for _, s := range cfg.Sources {
		f.sources = append(f.sources, newWatched(f, s))
	}
	f.settleRoster()
	return f, nil
}

// newTransport makes what requests to workers go through.
func (f *Fleet) newTransport(tls func(host string) (*tls.Config, error)) *h1.Transport {
	// Engines close idle connections after 5 s: a connection that they are about to close is not used.
	return &h1.Transport{Dial: dialer.DialContext, TLS: tls, MaxIdle: 2048, IdleFor: 3 * time.Second}
}

// Check says what is wrong with a configuration for this fleet; nothing changes.
func (f *Fleet) Check(cfg Config) error {
	if cfg.Engine != f.engine {
		return fmt.Errorf("fleet: model %s runs %s workers: another engine needs another model", cfg.Model, f.engine)
	}
	if _, err := named2(cfg.Workers); err != nil {
		return fmt.Errorf("fleet: model %s: %w", cfg.Model, err)
	}
	if err := f.checkTLS(cfg); err != nil {
		return err
	}
	ids := map[string]bool{file: true}
	for _, s := range cfg.Sources {
		if ids[s.ID()] {
			return fmt.Errorf("fleet: model %s: two sources of workers are the same: %s", cfg.Model, s.ID())
		}
		ids[s.ID()] = true
	}
	return nil
}

// named2 gives workers their default names. It is an error if two have one name, or if one has no URL.
func named2(ws []Worker) ([]Worker, error) {
	seen := map[string]bool{}
	out := make([]Worker, len(ws))
	for i, w := range ws {
		if w.URL == nil {
			return nil, fmt.Errorf("worker %d has no URL", i)
		}
		if w.Name == "" {
			w.Name = string(w.Role) + " " + w.URL.Host
		}
		if seen[w.Name] {
			return nil, fmt.Errorf("two workers are named %s", w.Name)
		}
		seen[w.Name] = true
		out[i] = w
	}
	if len(out) > maxWorkers {
		return nil, errors.New("more workers than one fleet holds")
	}
	return out, nil
}

// maxWorkers bounds what one source may name.
const maxWorkers = 4096

// Start reads every worker's facts, and again until Close; it looks at the sources, and again.
func (f *Fleet) Start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = true
	for _, n := range f.workers {
		f.keep(n)
	}
	for _, s := range f.sources {
		f.follow(s)
	}
}

// Close ends the readings and the idle connections.
func (f *Fleet) Close() {
	f.cancel()
	f.wg.Wait()
	f.secured.closeIdle()
}

// Closed is closed with the fleet.
func (f *Fleet) Closed() <-chan struct{} { return f.ctx.Done() }

// Reconfigure takes another configuration of the same model and engine: workers come and go, what is pinned changes, attempts end on
// what they began with. It says what changed among the workers, one line each. A configuration that Check refuses changes nothing.
func (f *Fleet) Reconfigure(cfg Config) ([]string, error) {
	cfg = cfg.filled()
	if err := f.Check(cfg); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	cfg.Log = f.cfg.Log
	if f.cfg.SlowStart != cfg.SlowStart || f.cfg.Every != cfg.Every {
		f.log.Debug("the fleet's timing changes", "model", cfg.Model)
	}
	f.cfg = cfg
	known := map[string]*watched{}
	for _, s := range f.sources[1:] {
		known[s.id] = s
	}
	f.sources[0].workers = cfg.Workers
	f.sources = f.sources[:1]
	for _, s := range cfg.Sources {
		w := known[s.ID()]
		if w == nil || !alike(w.source, s) {
			w = newWatched(f, s)
			if f.started {
				f.follow(w)
			}
		}
		if known[s.ID()] == w {
			delete(known, s.ID())
		} else if old := known[s.ID()]; old != nil {
			w.workers = old.workers // until it was looked at
		}
		f.sources = append(f.sources, w)
	}
	for _, w := range known {
		w.cancel()
	}
	return f.settleRoster(), nil
}

// Model is the name that clients use.
func (f *Fleet) Model() string { return f.config().Model }

// Engine of the workers.
func (f *Fleet) Engine() string { return f.engine }

func (f *Fleet) config() Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cfg
}

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

// change wakes whoever waits. Under mu.
func (f *Fleet) change() {
	f.table = nil
	f.wake()
}

// wake is change for what does not alter which pairs there are.
func (f *Fleet) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// two reports whether the engine runs two legs.
func (f *Fleet) two() bool { return f.engine != Plain }
