package worker

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace/pooltrace"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// Worker is a running node. Make it with New, then Start it; Drain lets it end well, Close ends it.
type Worker struct {
	cfg      Config
	log      *slog.Logger
	boot     page.Boot
	model    [32]byte
	vocab    int
	geometry page.Geometry
	facts    capacity.Facts
	limit    capacity.Limit

	pool      *pool.Pool
	pages     *turnstile
	table     *table
	links     *outlinks     // prefill
	prefills  prefillEngine // prefill
	decodes   decodeEngine  // decode
	endRunner func()
	counters  counters

	controls *tcp.Listener[*tcp.Link]
	data     *tcp.Listener[*tcp.DataLink] // decode

	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
	draining atomic.Bool
	closing  sync.Once

	mu           sync.Mutex
	gateways     map[*control]struct{}
	prefillLinks map[*inbound]struct{} // of decode
	closed       bool
}

// New checks the configuration, compares the pool with the context (a capacity.Shortfall when it cannot hold it), and takes the pool's
// memory. Nothing listens yet.
func New(cfg Config) (*Worker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.PageTokens == 0 {
		cfg.PageTokens = 64
	}
	if cfg.PoolPages == 0 {
		cfg.PoolPages = cfg.KVTokens / cfg.PageTokens
	}
	if cfg.Context == 0 {
		cfg.Context = cfg.Model.Config().Context
	}
	if cfg.Boot == 0 {
		cfg.Boot = page.NewBoot()
	}
	if cfg.KernelPath == "" {
		cfg.KernelPath = kernel.Path()
	}
	if cfg.Chunk <= 0 {
		cfg.Chunk = defaultChunk
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Limits = cfg.Limits.filled()
	w := &Worker{
		cfg: cfg, boot: cfg.Boot, model: cfg.Model.Fingerprint(), vocab: cfg.Model.Config().Vocab,
		geometry: cfg.Model.Geometry(cfg.PageTokens), gateways: map[*control]struct{}{}, prefillLinks: map[*inbound]struct{}{},
		log: cfg.Log.With("worker", cfg.Name, "role", string(cfg.Role)),
	}
	facts, err := capacity.CheckStart(capacity.Facts{
		Name: cfg.Name, Engine: "native", Version: cfg.Version, Role: cfg.Role, PoolTokens: cfg.PoolPages * cfg.PageTokens,
		PageSize: cfg.PageTokens, Context: cfg.Context, DType: "f16", Model: cfg.Model.Config().Name,
		Fingerprint: fmt.Sprintf("%x", w.model), Connector: "sluice", Boot: w.boot.String(), EncryptData: cfg.EncryptData,
	}, cfg.ServeSmaller)
	if err != nil {
		return nil, err
	}
	w.facts, w.limit = facts, capacity.Node(facts)
	w.pool, err = pool.New(pool.Config{Role: string(cfg.Role), Boot: w.boot, Geometry: w.geometry, Pages: cfg.PoolPages,
		Trace: pooltrace.Of(cfg.Trace)})
	if err != nil {
		return nil, err
	}
	w.pages = newTurnstile(w.pool, cfg.Limits.Waiting)
	w.table = newTable(cfg.Limits.Attempts, cfg.Limits.Finished)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.links = &outlinks{w: w, to: map[admission.Endpoint]*outlink{}}
	return w, nil
}

// Start opens the sockets and the engine.
func (w *Worker) Start() (err error) {
	w.startEngine()
	if w.cfg.Role == capacity.Decode {
		c := w.dataConfig(w.cfg.Fleet.Trust(wire.RolePrefill))
		c.OnRefuse = w.sayRefused("data")
		w.data, err = tcp.ListenData(w.cfg.Data, c)
		if err != nil {
			return err
		}
	}
	w.controls, err = tcp.ListenControl(w.cfg.Listen, tcp.Config{
		Identity: w.cfg.Identity, Hello: w.hello(), Trust: w.cfg.Fleet.Trust(wire.RoleGateway), Accept: w.cfg.Fleet.Check,
		OnRefuse: w.sayRefused("control"),
	})
	if err != nil {
		if w.data != nil {
			w.data.Close()
		}
		return err
	}
	w.running.Go(w.acceptControls)
	if w.data != nil {
		w.running.Go(w.acceptData)
	}
	return nil
}

func (w *Worker) role() wire.Role {
	if w.cfg.Role == capacity.Decode {
		return wire.RoleDecode
	}
	return wire.RolePrefill
}

func (w *Worker) hello() wire.Hello {
	return wire.Hello{
		Role: w.role(), Name: w.cfg.Name, Boot: w.boot, Model: w.model, Geometry: w.geometry,
		Path: w.cfg.KernelPath, MaxPage: uint32(w.geometry.Bytes()),
	}
}

func (w *Worker) dataConfig(trust func(ed25519.PublicKey) error) tcp.Config {
	return tcp.Config{Identity: w.cfg.Identity, Hello: w.hello(), Trust: trust, Accept: w.cfg.Fleet.Check, Encrypt: w.cfg.EncryptData}
}

func (w *Worker) dialData(ctx context.Context, e admission.Endpoint) (dataLink, error) {
	l, err := tcp.DialData(ctx, e.Data, w.dataConfig(keyring.Only(e.Key[:])))
	if err != nil {
		return nil, err
	}
	return w.filteredData(l), nil
}

// sayRefused logs the handshakes that a socket ended: the dialler is told no more than that. At most one line a second, since anybody
// may knock.
func (w *Worker) sayRefused(socket string) func(net.Addr, error) {
	var next atomic.Int64 // since began: the wall clock may jump
	began := time.Now()
	return func(remote net.Addr, err error) {
		now, due := int64(time.Since(began)), next.Load()
		if now >= due && next.CompareAndSwap(due, now+int64(time.Second)) {
			w.log.Warn("link refused", "socket", socket, "remote", remote, "error", err)
		}
	}
}

func (w *Worker) acceptControls() {
	for {
		l, err := w.controls.Accept(w.ctx)
		if err != nil {
			return
		}
		w.running.Go(func() { w.serveControl(w.filteredControl(l)) })
	}
}

func (w *Worker) acceptData() {
	for {
		l, err := w.data.Accept(w.ctx)
		if err != nil {
			return
		}
		w.running.Go(func() { w.serveData(w.filteredData(l)) })
	}
}

// enter makes a gateway known, and says to it what this worker is.
func (w *Worker) enter(c *control) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.gateways) >= w.cfg.Limits.Controls {
		return false
	}
	w.gateways[c] = struct{}{}
	w.counters.controls.Add(1)
	c.out.put(w.factsFrame())
	return true
}

func (w *Worker) leave(c *control) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gateways, c)
	w.counters.controls.Add(-1)
}

// enterData makes a prefill worker's link known.
func (w *Worker) enterData(in *inbound) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.prefillLinks) >= w.cfg.Limits.DataLinks {
		return false
	}
	w.prefillLinks[in] = struct{}{}
	w.counters.dataLinks.Add(1)
	return true
}

func (w *Worker) leaveData(in *inbound) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.prefillLinks, in)
	w.counters.dataLinks.Add(-1)
}

// Addr is the control socket's address, DataAddr the data socket's (nil for prefill).
func (w *Worker) Addr() net.Addr { return w.controls.Addr() }

// DataAddr is the data socket's address, nil for prefill.
func (w *Worker) DataAddr() net.Addr {
	if w.data == nil {
		return nil
	}
	return w.data.Addr()
}

func (w *Worker) advertised() string {
	switch {
	case w.cfg.Advertise != "":
		return w.cfg.Advertise
	case w.data != nil:
		return w.data.Addr().String()
	}
	return ""
}

// Facts are what the worker says of itself.
func (w *Worker) Facts() capacity.Facts { return w.facts }

// Boot is this process's.
func (w *Worker) Boot() page.Boot { return w.boot }

// Pool is the worker's, for its accounting.
func (w *Worker) Pool() *pool.Pool { return w.pool }

// pageWait is how long an attempt may wait for pages: past that there would be no time left to use them.
func (w *Worker) pageWait(p admission.Plan) time.Duration {
	return min(w.cfg.Limits.PageWait, p.Budget/10*9)
}

// Drain refuses new plans and lets those under way end, until ctx is done; what is left then ends as shutting down. It returns once every
// attempt is settled, with ctx's error if any had to be ended.
func (w *Worker) Drain(ctx context.Context) error {
	w.table.shut(w.shuttingDown(verdict.Open))
	if !w.draining.Swap(true) {
		w.mu.Lock()
		for c := range w.gateways {
			c.out.put(w.factsFrame())
		}
		w.mu.Unlock()
	}
	quiet := w.table.quiet()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
	}
	w.abortAll()
	<-quiet
	return fmt.Errorf("worker: %s did not drain in time: %w", w.cfg.Name, context.Cause(ctx))
}

func (w *Worker) shuttingDown(l verdict.Layer) verdict.Verdict {
	return verdict.Of(verdict.ShuttingDown, l, "%s %s is shutting down", w.cfg.Role, w.cfg.Name)
}

func (w *Worker) abortAll() {
	v := w.shuttingDown(verdict.Decode)
	if w.cfg.Role == capacity.Prefill {
		v = v.At(verdict.Prefill)
	}
	for _, d := range w.table.living(func(driver) bool { return true }) {
		d.abort(handoff.Self, v)
	}
}

// farewell lets what is queued on a link leave, for a moment.
func (w *Worker) farewell(l interface{ Shutdown(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), w.cfg.Limits.CloseGrace)
	defer cancel()
	l.Shutdown(ctx)
}

// Close ends every attempt, the links, the engine and the pool, in that order. It waits for all of them. Idempotent.
func (w *Worker) Close() (err error) {
	w.closing.Do(func() {
		w.draining.Store(true)
		w.table.shut(w.shuttingDown(verdict.Open))
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		var errs []error
		if w.controls != nil {
			errs = append(errs, w.controls.Close())
		}
		if w.data != nil {
			errs = append(errs, w.data.Close())
		}
		w.abortAll()
		<-w.table.quiet()
		w.mu.Lock()
		for c := range w.gateways {
			c.out.close() // its goroutine sends what is left and then shuts the link down, which ends the reader
		}
		for in := range w.prefillLinks {
			in.out.close()
		}
		w.mu.Unlock()
		w.links.close()
		w.cancel()
		w.running.Wait()
		w.stopEngine()
		errs = append(errs, w.pool.Close())
		err = errors.Join(errs...)
	})
	return err
}
