package liar

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/engine"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/wire"
)

// Config of a liar.
type Config struct {
	Name       string
	Model      *llm.Model
	PageTokens int
	KVTokens   int // its pool
	Context    int // what it advertises
	Claims     int // pool tokens that an overstating lie advertises
	Identity   keyring.Identity
	Fleet      *keyring.Fleet
}

// Liar is a running one. Tell it what to do with Tell; it begins honest.
type Liar struct {
	cfg    Config
	boot   page.Boot
	pool   *pool.Pool
	runner *llm.CPU
	engine *engine.Prefill
	listen *tcp.Listener[*tcp.Link]
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	lie      Lie
	controls map[*tcp.Link]bool
	data     map[admission.Endpoint]*data
	kept     *shipment // of the last attempt served honestly
	held     []func()  // late writes that wait for Loose
	waiting  chan struct{}
}

// Start starts a liar that listens on loopback.
func Start(cfg Config, lie Lie) (*Liar, error) {
	l := &Liar{cfg: cfg, boot: page.NewBoot(), lie: lie, controls: map[*tcp.Link]bool{}, data: map[admission.Endpoint]*data{}, waiting: make(chan struct{}, 64)}
	l.ctx, l.stop = context.WithCancel(context.Background())
	g := cfg.Model.Geometry(cfg.PageTokens)
	// Its own arena is large: how much it says it has is another matter.
	pages := g.Pages(max(cfg.KVTokens, cfg.Claims)) * 2
	var err error
	if l.pool, err = pool.New(pool.Config{Role: "liar", Boot: l.boot, Geometry: g, Pages: pages}); err != nil {
		return nil, err
	}
	l.runner = llm.NewRunner(cfg.Model, llm.RunnerOptions{})
	l.engine = engine.NewPrefill(engine.PrefillConfig{Runner: l.runner, Vocab: cfg.Model.Config().Vocab, PageTokens: cfg.PageTokens})
	hello := l.hello()
	if l.listen, err = tcp.ListenControl("127.0.0.1:0", tcp.Config{Identity: cfg.Identity, Hello: hello, Trust: cfg.Fleet.Trust(wire.RoleGateway)}); err != nil {
		l.Close()
		return nil, err
	}
	l.wg.Go(l.accept)
	return l, nil
}

func (l *Liar) hello() wire.Hello {
	g := l.cfg.Model.Geometry(l.cfg.PageTokens)
	return wire.Hello{Role: wire.RolePrefill, Name: l.cfg.Name, Boot: l.boot, Model: l.cfg.Model.Fingerprint(), Geometry: g, Path: kernel.Path(), MaxPage: uint32(g.Bytes())}
}

// Addr is its control socket.
func (l *Liar) Addr() string { return l.listen.Addr().String() }

// Pool is its arena.
func (l *Liar) Pool() *pool.Pool { return l.pool }

// Tell says how to treat attempts whose plans come from now on; "" is honestly.
func (l *Liar) Tell(lie Lie) {
	l.mu.Lock()
	l.lie = lie
	l.mu.Unlock()
}

// Holding is signalled when an attempt's writes are being kept back.
func (l *Liar) Holding() <-chan struct{} { return l.waiting }

// Loose lets the late writes go, and returns how many pages were sent.
func (l *Liar) Loose() int {
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	for _, f := range held {
		f()
	}
	return len(held)
}

// Close ends it.
func (l *Liar) Close() {
	l.stop()
	if l.listen != nil {
		l.listen.Close()
	}
	l.mu.Lock()
	for c := range l.controls {
		c.Close()
	}
	for _, d := range l.data {
		d.conn.Close()
	}
	l.mu.Unlock()
	if l.engine != nil {
		l.engine.Close()
	}
	l.wg.Wait()
	l.mu.Lock()
	if l.kept != nil {
		l.kept.lease.Release()
		<-l.kept.lease.Done()
		l.kept = nil
	}
	l.mu.Unlock()
	if l.runner != nil {
		l.runner.Close()
	}
	if l.pool != nil {
		l.pool.Close()
	}
}

func (l *Liar) accept() {
	for {
		c, err := l.listen.Accept(l.ctx)
		if err != nil {
			return
		}
		l.mu.Lock()
		l.controls[c] = true
		l.mu.Unlock()
		l.wg.Go(func() { l.serve(c) })
	}
}

// honest are facts about what it has.
func (l *Liar) honest() capacity.Facts {
	f, err := capacity.CheckStart(capacity.Facts{Name: l.cfg.Name, Engine: "native", Version: "drill", Role: capacity.Prefill, PoolTokens: l.cfg.KVTokens,
		PageSize: l.cfg.PageTokens, Context: l.cfg.Context, DType: "f16", Model: l.cfg.Model.Config().Name, Boot: l.boot.String()}, true) // as a worker told to serve the smaller limit
	if err != nil {
		panic(err)
	}
	fp := l.cfg.Model.Fingerprint()
	f.Fingerprint = fmt.Sprintf("%x", fp)
	return f
}

// facts are honest about the pool unless the lie needs otherwise.
func (l *Liar) facts() wire.Facts {
	l.mu.Lock()
	lie := l.lie
	l.mu.Unlock()
	f := l.honest()
	if lie.overstates() {
		f.PoolTokens, f.Context = l.cfg.Claims, max(l.cfg.Context, l.cfg.Claims)
	}
	b, _ := json.Marshal(f)
	return wire.Facts{JSON: b}
}

// serve runs one gateway's link.
func (l *Liar) serve(c *tcp.Link) {
	defer c.Close()
	if c.Send(l.facts()) != nil {
		return
	}
	plans := map[attempt.ID]*lying{}
	for {
		f, err := c.Recv()
		if err != nil {
			for _, a := range plans {
				a.cancel()
			}
			return
		}
		switch f := f.(type) {
		case wire.Plan:
			p, err := admission.Verify(f.Signed, l.cfg.Fleet)
			if err != nil {
				return
			}
			a := l.begin(c, p, f.Signed, f.MACKey)
			plans[p.Attempt] = a
		case wire.Prompt:
			if a := plans[f.Attempt]; a != nil {
				a.tokens = append(a.tokens, f.IDs...)
				if len(a.tokens) >= int(a.plan.PromptTokens) {
					l.wg.Go(a.run)
				}
			}
		case wire.Abort:
			if a := plans[f.Attempt]; a != nil {
				a.cancel()
			}
		case wire.Ping:
			st := l.pool.Stats()
			if c.Send(wire.Pong{Nonce: f.Nonce, PagesTotal: uint32(st.Total), PagesFree: uint32(st.Free)}) != nil {
				return
			}
		}
	}
}

// data is the link to one decode worker.
type data struct {
	conn   *tcp.DataLink
	mu     sync.Mutex
	grants map[attempt.ID]chan wire.Grant
}

func (l *Liar) dial(e admission.Endpoint, lie Lie) (*data, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hello := l.hello()
	switch lie {
	case OtherShape:
		hello.Geometry.Tokens /= 2
	case OtherDType:
		hello.Model[0] ^= 1 // the fingerprint is of weights, tokenizer, rope and dtype
	default:
		if d := l.data[e]; d != nil && d.conn.Err() == nil {
			return d, nil
		}
	}
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
	defer cancel()
	conn, err := tcp.DialData(ctx, e.Data, tcp.Config{Identity: l.cfg.Identity, Hello: hello, Trust: keyring.Only(ed25519.PublicKey(e.Key[:]))})
	if err != nil {
		return nil, err
	}
	d := &data{conn: conn, grants: map[attempt.ID]chan wire.Grant{}}
	l.data[e] = d
	l.wg.Go(d.read)
	return d, nil
}

func (d *data) read() {
	for {
		f, _, err := d.conn.Recv(nil)
		if err != nil {
			d.mu.Lock()
			for id, c := range d.grants {
				close(c)
				delete(d.grants, id)
			}
			d.mu.Unlock()
			return
		}
		var id attempt.ID
		g, ok := f.(wire.Grant)
		if ok {
			id = g.Attempt
		} else if a, is := f.(wire.Abort); is {
			id = a.Attempt
		}
		d.mu.Lock()
		c := d.grants[id]
		delete(d.grants, id)
		d.mu.Unlock()
		if c != nil && ok {
			c <- g
		}
		if c != nil {
			close(c)
		}
	}
}

var errNoGrant = errors.New("liar: no grant")
