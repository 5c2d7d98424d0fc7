package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluicekv/sluice/internal/gateway/legs"
)

// Mode of a guard over other engines: one that observes counts, records and logs what it objects to, and lets the bytes pass.
type Mode uint8

const (
	Enforce Mode = iota
	Observe
	Off // of the guards that cost an engine something, or learn: the others can only observe
)

func (m Mode) String() string { return [...]string{"enforce", "observe", "off"}[m] }

// ParseMode reads observe, enforce or off.
func ParseMode(s string) (Mode, error) {
	for m := Enforce; m <= Off; m++ {
		if m.String() == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("a mode is observe or enforce (or off, for some guards), not %q", s)
}

// Guards that have a mode, beside the needs of gateway/legs.
const (
	guardAdmission    = "admission"
	guardPlausibility = "plausibility"
)

// optional are the guards that can be off, and what they are unless a configuration names them: what --mode says does not reach them.
var optional = map[string]Mode{
	guardPlausibility:        Observe, // it learns from traffic, and may be wrong
	legs.FirstToken.String(): Off,     // engines compute more for it
}

// Modes of all guards: one for all, and those of single ones.
type Modes struct {
	All  Mode
	Each map[string]Mode
}

// Guards that a mode can be given to. What no reply can be finished without, and what keeps control fields and addresses from
// clients, has none.
func Guards() []string {
	out := []string{guardAdmission, guardPlausibility}
	for n := range modal.All {
		out = append(out, n.String())
	}
	return out
}

// modal is the needs that can be observed.
var modal = legs.Of(legs.PrefillVerdict, legs.PrefillFinish, legs.PrefillHandle, legs.PromptAgree, legs.FirstToken, legs.FinishSaid, legs.WireKept)

// check finds a guard's name that does not exist, or a mode that it cannot have.
func (m Modes) check() error {
	if m.All == Off {
		return errors.New("gateway: the mode of all guards is observe or enforce, not off")
	}
	for name, mode := range m.Each {
		if _, can := optional[name]; mode == Off && !can {
			return fmt.Errorf("gateway: the guard %s can observe, and cannot be off", name)
		}
		if !slices.Contains(Guards(), name) {
			return fmt.Errorf("gateway: no guard with a mode is named %q; there are %s", name, strings.Join(Guards(), ", "))
		}
	}
	return nil
}

// Of is the mode of a guard.
func (m Modes) Of(guard string) Mode {
	if mode, ok := m.Each[guard]; ok {
		return mode
	}
	if mode, ok := optional[guard]; ok {
		return mode
	}
	return m.All
}

// guards holds the modes that count now.
type guards struct{ now atomic.Pointer[Modes] }

func (g *guards) modes() Modes {
	if m := g.now.Load(); m != nil {
		return *m
	}
	return Modes{}
}

// observed is the needs that only observe.
func (m Modes) observed() (set legs.Needs) {
	for n := range modal.All {
		if m.Of(n.String()) != Enforce {
			set |= legs.Of(n)
		}
	}
	return set
}

// SetModes changes the modes of requests that begin from now on.
func (g *Gateway) SetModes(m Modes) error {
	if err := m.check(); err != nil {
		return err
	}
	g.guards.now.Store(&m)
	return nil
}

// Modes that count now.
func (g *Gateway) Modes() Modes { return g.guards.modes() }
