package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/gateway/upstream"
	"github.com/sluicekv/sluice/internal/openai"
)

// catalog is the models at one moment. It never changes: a reload puts another in its place, and a request that began with one ends
// with it, so that nobody sees half of a file.
type catalog struct {
	models map[string]*model // by every name that clients may use, exactly
	order  []*model
	names  []string // of models, in the order of the config; aliases are not among them
	sole   *model   // guarded: every model has its policy; nil: they differ
	mixed  bool     // there is a guarded model
	native bool     // there is no other
}

// newCatalog notes, once all models are known, which bodies have to be looked at for whose they are.
func newCatalog(ms []*model) *catalog {
	c := &catalog{models: map[string]*model{}, order: ms, native: true}
	foreign := 0
	for _, m := range ms {
		c.models[m.name] = m
		if !m.alias {
			c.names = append(c.names, m.name)
		}
		if m.guarded == nil {
			continue
		}
		c.native = false
		switch foreign++; {
		case foreign == 1:
			c.mixed, c.sole = true, m
		case c.sole != nil && !c.sole.guarded.samePolicy(m.guarded):
			c.sole = nil
		}
	}
	if foreign < len(ms) {
		c.sole = nil
	}
	return c
}

// catalog of this moment.
func (g *Gateway) catalog() *catalog { return g.now.Load() }

// primaries yields the models that have a fleet of their own, in the order of the config.
func (c *catalog) primaries(yield func(*model) bool) {
	for _, n := range c.names {
		if !yield(c.models[n]) {
			return
		}
	}
}

// all yields every name, aliases after their model.
func (c *catalog) all(yield func(*model) bool) {
	for _, m := range c.order {
		if !yield(m) {
			return
		}
	}
}

// model is one name that clients may use, with its fleet, encoder and switch. It does not change; a reload makes another, which may
// share fleet and switch with the one before.
type model struct {
	name    string // exact
	cfg     ModelConfig
	fleet   workers
	native  *fleet.Fleet // nil: guarded
	engine  upstream.Engine
	guarded *guarded // nil: native
	alias   bool     // it shares another's fleet
	served  string   // guarded: its name at the workers, where that is another; else ""
	*power
	*users
}

// power is a model's switch. It outlives reloads.
type power struct {
	name   string
	parent context.Context

	mu  sync.Mutex
	off string // the operator's reason; empty: on
	ctx context.Context
	cut context.CancelCauseFunc
}

func newPower(parent context.Context, name string) *power {
	p := &power{name: name, parent: parent}
	p.on()
	return p
}

// turnOff is the kill switch: new requests are refused and those in flight are cut off, with the operator's reason.
func (p *power) turnOff(reason string) {
	p.mu.Lock()
	p.off = reason
	cut := p.cut
	p.mu.Unlock()
	cut(withdrawn{modelOff(p.name, reason)})
}

// on undoes turnOff.
func (p *power) on() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.off != "" {
		p.off = ""
		p.ctx, p.cut = context.WithCancelCause(p.parent)
	}
}

func (p *power) isOff() (reason string, off bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.off, p.off != ""
}

// context ends when the model is switched off or the gateway withdraws its requests; its cause is a withdrawn.
func (p *power) context() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx
}

// release ends what the switch holds, when nothing uses the model any more.
func (p *power) release() {
	p.mu.Lock()
	cut := p.cut
	p.mu.Unlock()
	cut(context.Canceled)
}

// users counts the requests and the legs that still use a fleet.
type users struct {
	mu sync.Mutex
	n  int
}

func (u *users) enter() {
	u.mu.Lock()
	u.n++
	u.mu.Unlock()
}

func (u *users) leave() {
	u.mu.Lock()
	u.n--
	u.mu.Unlock()
}

func (u *users) idle() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n == 0
}

// idlePoll is how often a fleet that was taken out of the config is looked at.
const idlePoll = 50 * time.Millisecond

// await waits until nobody uses the fleet, or until ctx is done.
func (u *users) await(ctx context.Context) {
	for {
		// Twice, with a pause: a request may have found its model and not said so yet.
		idle := u.idle()
		select {
		case <-time.After(idlePoll):
		case <-ctx.Done():
			return
		}
		if idle && u.idle() {
			return
		}
	}
}

// find is the model of a name, exactly as clients spell it: a part of a name selects nothing, and what an engine would read into a
// name (an adapter behind a colon) is not looked for.
func (c *catalog) find(name string) *model {
	if len(name) > openai.MaxModelName {
		return nil
	}
	return c.models[name]
}
