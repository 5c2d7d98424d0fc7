package main

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicekv/sluice/internal/config"
	"github.com/sluicekv/sluice/internal/gateway"
)

// running is the configuration that a gateway runs with.
type running struct {
	settings *gatewaySettings
	flags    *pflag.FlagSet    // with their values of now
	given    map[string]string // on the command line: they stand over the file
	models   []modelEntry
	opened   []gateway.ModelConfig // of models
}

// commandLine is what was given there.
func commandLine(fs *pflag.FlagSet) map[string]string {
	given := map[string]string{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = f.Value.String() })
	return given
}

// reloadable are the flags that may change while the gateway runs.
var reloadable = map[string]bool{"mode": true, "webhook": true, "max-body": true, "request-timeout": true, "config": true}

// reload takes the file as it is now, whole or not at all, and logs what differs.
func (r *running) reload(g *gateway.Gateway) {
	log := g.Log()
	changes, waits, err := r.take(g)
	if err != nil {
		log.Error("reload: the file is not taken, everything stays as it is", "error", err)
		return
	}
	for _, c := range changes {
		log.Warn("reload", "change", c)
	}
	for _, w := range waits {
		log.Warn("reload: needs a restart and stays as it is", "setting", w)
	}
	log.Info("reload: done", "changes", len(changes))
}

// take reads the file, and applies it.
func (r *running) take(g *gateway.Gateway) (changes, waits []string, err error) {
	var next gatewaySettings
	var file fleetFile
	c := &cobra.Command{}
	next.register(c.Flags())
	for name, v := range r.given {
		if f := c.Flags().Lookup(name); f != nil {
			if err := c.Flags().Set(name, v); err != nil {
				return nil, nil, err
			}
		}
	}
	if err := load(c, next.config, map[string]config.Section{"models": file.section, "guards": next.guards.section}); err != nil {
		return nil, nil, err
	}
	if len(file.models) == 0 {
		return nil, nil, errors.New("no models")
	}
	door, err := next.door()
	if err != nil {
		return nil, nil, err
	}
	modes, err := next.modes()
	if err != nil {
		return nil, nil, err
	}
	if err := r.identified(file.models); err != nil {
		return nil, nil, err
	}
	opened, changes, err := r.open(file.models)
	if err != nil {
		return nil, nil, err
	}
	before := g.Modes()
	done, err := g.Reload(gateway.Reload{Models: opened, Modes: modes, Webhook: next.webhook, Limits: door.Limits})
	if err != nil {
		return nil, nil, err
	}
	for _, guard := range gateway.Guards() {
		if a, b := before.Of(guard), modes.Of(guard); a != b {
			changes = append(changes, fmt.Sprintf("guard %s was %s, now %s", guard, a, b))
		}
	}
	changed, waits := r.flagsThatDiffer(c.Flags())
	r.settings, r.models, r.opened = &next, file.models, opened
	return append(append(changes, done...), changed...), waits, nil
}

// identified makes sure that the gateway has the identity that native workers ask for.
func (r *running) identified(next []modelEntry) error {
	native := func(ms []modelEntry) bool {
		for _, m := range ms {
			if m.native() {
				return true
			}
		}
		return false
	}
	if native(next) && !native(r.models) && r.settings.keys == "" {
		return errors.New("a native model needs the fleet's keys, which are read at the start: it needs a restart")
	}
	return nil
}

// open makes the gateway's configuration of every model, and says which settings differ. A native model that is stated as before is not
// opened again.
func (r *running) open(next []modelEntry) (opened []gateway.ModelConfig, changes []string, err error) {
	was := map[string]int{}
	for i, m := range r.models {
		was[m.Name] = i
	}
	for _, m := range next {
		i, known := was[m.Name]
		if known && m.Engine == r.models[i].Engine {
			d := diffStruct("", r.models[i], m, "workers")
			for _, c := range d {
				changes = append(changes, "model "+m.Name+": "+c)
			}
			if m.native() && len(d) == 0 && fmt.Sprint(m.Workers) == fmt.Sprint(r.models[i].Workers) {
				opened = append(opened, r.opened[i])
				continue
			}
		} else if known {
			changes = append(changes, fmt.Sprintf("model %s: engine was %s, now %s: its workers are read anew", m.Name, r.models[i].Engine, m.Engine))
		}
		mc, err := m.open()
		if err != nil {
			return nil, nil, fmt.Errorf("model %s: %w", m.Name, err)
		}
		opened = append(opened, mc)
	}
	return opened, changes, nil
}

// flagsThatDiffer lists settings at the top of the file that changed: those that were taken, and those that wait for a restart.
func (r *running) flagsThatDiffer(next *pflag.FlagSet) (taken, waits []string) {
	next.VisitAll(func(f *pflag.Flag) {
		old := r.flags.Lookup(f.Name)
		if old == nil || old.Value.String() == f.Value.String() {
			return
		}
		s := fmt.Sprintf("%s was %s, now %s", config.KeyName(f.Name), quoted(old.Value.String()), quoted(f.Value.String()))
		switch {
		case f.Name == "mode": // the guards that it changes were named
		case f.Name == "webhook": // its address may hold a secret
			taken = append(taken, "webhook changed")
		case reloadable[f.Name]:
			taken = append(taken, s)
		default:
			waits = append(waits, s)
		}
		if reloadable[f.Name] {
			_ = old.Value.Set(f.Value.String())
		}
	})
	sort.Strings(taken)
	return taken, waits
}

func quoted(s string) string {
	if s == "" {
		return "not set"
	}
	return strings.TrimSpace(s)
}
