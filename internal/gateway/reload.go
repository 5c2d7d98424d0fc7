package gateway

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
)

// Reload is what of a configuration can change while the gateway runs.
type Reload struct {
	Models  []ModelConfig
	Modes   Modes
	Webhook string
	Limits  Limits // of which Body and Deadline are read
}

// Reload takes another configuration: all of it, or nothing and an error. Requests that are under way end on what they began with;
// workers and models that are gone get no new ones. It says what changed among models and workers, one line each.
func (g *Gateway) Reload(r Reload) (changes []string, err error) {
	g.reloads.Lock()
	defer g.reloads.Unlock()
	if g.requests.closed() {
		return nil, errors.New("gateway: it is shutting down")
	}
	if err := r.Modes.check(); err != nil {
		return nil, err
	}
	if len(r.Models) == 0 {
		return nil, errors.New("gateway: no models")
	}
	next, err := g.plan(r.Models)
	if err != nil {
		for _, m := range next.fresh {
			m.fleet.Close()
			m.release()
		}
		return nil, err
	}
	// From here on nothing fails.
	changes = next.changes
	for _, c := range next.refit {
		diff, err := c.fleet.Reconfigure(c.cfg)
		if err != nil {
			g.log.Error("reload: a fleet that was checked cannot be changed", "model", c.cfg.Model, "error", err)
		}
		for _, d := range diff {
			changes = append(changes, "model "+c.cfg.Model+": "+d)
		}
	}
	before := g.catalog()
	now := newCatalog(next.models)
	g.now.Store(now)
	g.guards.now.Store(&r.Modes)
	g.webhook.to(r.Webhook)
	limits := r.Limits.filled()
	g.live.set(limits.Body, limits.Deadline)
	if g.started {
		for _, m := range next.fresh {
			g.begin(m)
		}
	}
	for _, m := range before.order {
		g.retire(m, now)
	}
	return changes, nil
}

// retire lets go of what a catalog does not hold any more, once the last request on it has ended.
func (g *Gateway) retire(m *model, now *catalog) {
	keepsFleet, keepsPower := false, false
	for _, n := range now.order {
		keepsFleet = keepsFleet || n.fleet == m.fleet
		keepsPower = keepsPower || n.power == m.power
	}
	if keepsFleet && keepsPower {
		return
	}
	g.leaving.Go(func() {
		m.await(g.quitting)
		if !keepsFleet && !m.alias {
			m.fleet.Close()
		}
		if !keepsPower {
			m.release()
		}
	})
}

// plan of a reload: what the models will be.
type plan struct {
	models  []*model
	fresh   []*model // with fleets that were made for it
	refit   []refit
	changes []string
}

// refit is a fleet that gets another configuration.
type refit struct {
	fleet *foreign.Fleet
	cfg   foreign.Config
}

// plan makes the models of a configuration out of those that there are. Nothing that serves is touched.
func (g *Gateway) plan(cfgs []ModelConfig) (p plan, err error) {
	before := g.catalog()
	seen := map[string]bool{}
	for _, c := range cfgs {
		old := before.find(c.Name)
		if old != nil && old.alias {
			old = nil
		}
		ms, err := g.planned(&p, c, old, seen)
		if err != nil {
			return p, err
		}
		p.models = append(p.models, ms...)
	}
	for _, m := range p.models {
		if was := before.find(m.name); was != nil {
			m.release()
			m.power = was.power
		} else {
			p.changes = append(p.changes, fmt.Sprintf("model %s added", m.name))
		}
	}
	for _, m := range before.order {
		if !slices.ContainsFunc(p.models, func(n *model) bool { return n.name == m.name }) {
			p.changes = append(p.changes, fmt.Sprintf("model %s removed: its requests end, new ones are refused", m.name))
		}
	}
	return p, nil
}

// planned makes one entry's models.
func (g *Gateway) planned(p *plan, c ModelConfig, old *model, seen map[string]bool) ([]*model, error) {
	switch {
	case old != nil && old.native != nil && c.Guarded == nil:
		if old.cfg.Fingerprint != c.Fingerprint || !reflect.DeepEqual(old.cfg.Workers, c.Workers) || !reflect.DeepEqual(old.cfg.Temperature, c.Temperature) {
			p.changes = append(p.changes, fmt.Sprintf("model %s changed: native workers are linked by key, it needs a restart and stays as it is", c.Name))
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("gateway: model %q: names are unique", c.Name)
		}
		seen[c.Name] = true
		m := *old
		m.power = newPower(g.ctx, m.name)
		return []*model{&m}, nil
	case old != nil && old.guarded != nil && c.Guarded != nil && old.guarded.cfg.Fleet.Engine == c.Guarded.Fleet.Engine:
		if err := claim(c, seen); err != nil {
			return nil, err
		}
		ms, err := g.guardedModels(c, old)
		if err != nil {
			return nil, err
		}
		cfg := ms[0].guarded.cfg.Fleet
		if err := old.guarded.fleet.Check(cfg); err != nil {
			return nil, err
		}
		p.refit = append(p.refit, refit{old.guarded.fleet, cfg})
		return ms, nil
	}
	ms, err := g.newModels(c, seen)
	if err == nil {
		p.fresh = append(p.fresh, ms[0])
	}
	return ms, err
}
