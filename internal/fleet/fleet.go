// Package fleet is a model's workers as the gateway sees them: control links, facts, pairs, limits, rests.
//
// The board (board.go) is pure: it knows which workers are up, what they say of themselves, which pairs may serve and what
// their limit is; time comes in as an argument. The driver (driver.go, session.go) dials each worker, reconnects with growing
// pauses, and tells the board. A worker that restarts has another boot: its facts are read again, its limits computed again,
// and attempts of the boot before are lost with their link.
//
// The package is not for policy over attempts: what a leg said is judged in gateway/legs. It chooses a pair and carries frames.
//
// Lock order: Fleet.mu, then Session.mu; neither is held while a sink or a link is called.
package fleet

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// Worker is where a native worker is and whom its key must prove it to be.
type Worker struct {
	Name string
	Role capacity.Role
	Addr string            // host:port of its control socket
	Key  ed25519.PublicKey // nil: looked up by name in Config.Keys at each dial
}

// Link is a control link. *tcp.Link is one. Send may block; any error ends the link.
type Link interface {
	Send(wire.Frame) error
	Recv() (wire.Frame, error)
	Peer() wire.Hello
	Close() error
}

// Config of a fleet: one model and its workers.
type Config struct {
	Model       string
	Fingerprint [32]byte // of the model that prompts are encoded for; a worker with another is refused
	Workers     []Worker
	Identity    keyring.Identity // of this gateway; plans are signed with it
	Keys        *keyring.Fleet
	Timing      Timing
	Rests       Rests
	Log         *slog.Logger
	// Dial opens a control link; nil dials TCP with pinned keys. Its ctx bounds dialling and handshake.
	Dial func(ctx context.Context, w Worker) (Link, error)
}

// Timing of links. A zero field takes its default.
type Timing struct {
	PauseMin  time.Duration // before the second attempt to dial; doubles, with jitter (50 ms)
	PauseMax  time.Duration // 1 s
	PingEvery time.Duration // 2 s
	Silence   time.Duration // without a frame, after which a link is given up (20 s)
}

// Rests of pairs whose legs contradicted each other.
type Rests struct {
	For      time.Duration // how long a pair rests (60 s)
	Last     time.Duration // how long the last usable pair rests, and those over the share: serving is worse than a pause (2 s)
	MaxShare float64       // of the pairs that may rest For at once; one always may (0.5)
}

func (c Config) filled() Config {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&c.Timing.PauseMin, 50*time.Millisecond)
	def(&c.Timing.PauseMax, time.Second)
	def(&c.Timing.PingEvery, 2*time.Second)
	def(&c.Timing.Silence, 20*time.Second)
	def(&c.Rests.For, time.Minute)
	def(&c.Rests.Last, 2*time.Second)
	if c.Rests.MaxShare <= 0 || c.Rests.MaxShare > 1 {
		c.Rests.MaxShare = 0.5
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Fleet runs the links of one model's workers.
type Fleet struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	board    *board
	sessions map[string]*Session // by name, of workers that are up
	changed  chan struct{}       // closed when the board changes
}

// New makes a fleet; Start dials.
func New(cfg Config) (*Fleet, error) {
	cfg = cfg.filled()
	f := &Fleet{cfg: cfg, board: newBoard(cfg.Rests), sessions: map[string]*Session{}, changed: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	for _, w := range cfg.Workers {
		if w.Role != capacity.Prefill && w.Role != capacity.Decode {
			return nil, fmt.Errorf("fleet: worker %s of model %s: role %q: must be %s or %s", w.Name, cfg.Model, w.Role, capacity.Prefill, capacity.Decode)
		}
		if w.Name == "" || len(w.Name) > wire.MaxName {
			return nil, fmt.Errorf("fleet: a worker of model %s: a name has 1 to %d bytes", cfg.Model, wire.MaxName)
		}
		if !f.board.add(w.Name, w.Role, w.Addr) {
			return nil, fmt.Errorf("fleet: model %s has two workers named %s", cfg.Model, w.Name)
		}
		if w.Key == nil && cfg.Keys == nil && cfg.Dial == nil {
			return nil, fmt.Errorf("fleet: worker %s of model %s has no key", w.Name, cfg.Model)
		}
	}
	return f, nil
}

// Start dials every worker and keeps dialling until Close.
func (f *Fleet) Start() {
	for _, w := range f.cfg.Workers {
		f.wg.Go(func() { f.keep(w) })
	}
}

// Close ends all links and returns when their goroutines have.
func (f *Fleet) Close() {
	f.cancel()
	f.wg.Wait()
}

// Model is the name that clients use, Fingerprint the model's in hex.
func (f *Fleet) Model() string       { return f.cfg.Model }
func (f *Fleet) Fingerprint() string { return hex.EncodeToString(f.cfg.Fingerprint[:]) }

// Pair is a prefill and a decode worker chosen for one attempt. Done must be called once when the attempt is quiet.
type Pair struct {
	Prefill, Decode *Session
	Limit           capacity.Limit
	prefill, decode string // names
	tokens          int
	epochs          [2]int
	fleet           *Fleet
}

// Names of the two workers.
func (p Pair) Names() (prefill, decode string) { return p.prefill, p.decode }

// Need is what an attempt needs of a pair.
type Need struct {
	Tokens int // prompt and reply: a pair with a lower limit is chosen only if there is none that fits
	Load   int // tokens that count as in flight while it runs
	// Not is the pair of the attempt before: it is chosen again only if nothing else fits, and if Again says so.
	Not   Pair
	Again Again
}

// Again says when a pair that failed an attempt may be chosen for the next.
type Again uint8

const (
	Never  Again = iota
	Anew         // once one of its links has come up anew: a lost link may not be noticed on both sides yet
	Always       // also as it is
)

// Pick chooses a pair: of two random usable ones, the one with fewer tokens in flight. A pair whose limit is below the
// need is returned when none fits: admission then says the limit. The verdict is Overloaded when no pair can serve.
func (f *Fleet) Pick(n Need) (Pair, verdict.Verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.board.pick(n, rand.IntN, time.Now())
	if !ok {
		return Pair{}, f.unready()
	}
	p := Pair{Prefill: f.sessions[c.prefill.name], Decode: f.sessions[c.decode.name], Limit: c.limit, prefill: c.prefill.name, decode: c.decode.name, tokens: n.Load, fleet: f}
	p.epochs = [2]int{c.prefill.epoch, c.decode.epoch}
	c.prefill.load += n.Load
	c.decode.load += n.Load
	return p, verdict.Verdict{}
}

// Unready is what a request is told while no pair can serve.
func (f *Fleet) Unready() verdict.Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unready()
}

func (f *Fleet) unready() verdict.Verdict {
	return verdict.Of(verdict.Overloaded, verdict.PlanLayer, "no pair can serve model %s now: %s", f.cfg.Model, f.board.why(time.Now()))
}

// Done gives the attempt's tokens back.
func (p Pair) Done() {
	p.fleet.mu.Lock()
	defer p.fleet.mu.Unlock()
	p.fleet.board.unload(p.prefill, p.epochs[0], p.tokens)
	p.fleet.board.unload(p.decode, p.epochs[1], p.tokens)
}

// Rest takes a pair out of use for a time: its legs contradicted each other.
func (f *Fleet) Rest(prefill, decode, reason string) (until time.Time) {
	f.mu.Lock()
	until = f.board.rest(prefill, decode, reason, time.Now())
	f.mu.Unlock()
	f.cfg.Log.Warn("pair rests", "model", f.cfg.Model, "prefill", prefill, "decode", decode, "until", until, "reason", reason)
	return until
}

// Limit is what the fleet can promise now: the widest of its usable pairs. It is zero when none can serve.
func (f *Fleet) Limit() capacity.Limit {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.board.widest(time.Now())
}

// Ready reports whether a pair can serve.
func (f *Fleet) Ready() bool { return f.Limit().Tokens > 0 }

// Resting reports whether a pair rests that could serve otherwise.
func (f *Fleet) Resting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.board.someRest(time.Now())
}

// Changed returns a channel that is closed at the next change of what is up or may serve.
func (f *Fleet) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// change runs under f.mu after the board changed.
func (f *Fleet) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}
