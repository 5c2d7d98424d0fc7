package fleet

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/wire"
)

// errRefused marks a worker that answered and is not one to use.
var errRefused = errors.New("refused")

// keep dials a worker, serves its link, and dials again, until the fleet is closed.
func (f *Fleet) keep(w Worker) {
	pause := f.cfg.Timing.PauseMin
	for f.ctx.Err() == nil {
		began := time.Now()
		err := f.once(w)
		if f.ctx.Err() != nil {
			return
		}
		s := Connecting
		if errors.Is(err, errRefused) {
			s = Refused
		}
		f.down(w, s, err)
		if time.Since(began) > f.cfg.Timing.PauseMax {
			pause = f.cfg.Timing.PauseMin // it was up: the next try is soon
		}
		// Full jitter, so that a thousand gateways do not meet a worker that restarts at the same moment.
		wait := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-f.ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		pause = min(2*pause, f.cfg.Timing.PauseMax)
	}
}

// once dials and serves one link to its end.
func (f *Fleet) once(w Worker) error {
	dial := f.cfg.Dial
	if dial == nil {
		dial = f.dial
	}
	link, err := dial(f.ctx, w)
	if err != nil {
		return err
	}
	s := newSession(f, w, link)
	if err := f.accept(s); err != nil {
		s.end(err)
		return err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(f.ctx, func() {
		defer close(ended)
		s.end(ErrLost)
	})
	defer func() {
		if !stop() {
			<-ended // no sink is called once Close has returned
		}
	}()
	f.wg.Go(s.write)
	err = s.read()
	s.end(fmt.Errorf("%w: %w", ErrLost, err))
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, errRefused) {
		return err
	}
	return s.lost
}

// dial opens a TCP control link with the worker's key pinned.
func (f *Fleet) dial(ctx context.Context, w Worker) (Link, error) {
	key := w.Key
	if key == nil {
		_, found, ok := f.cfg.Keys.Lookup(w.Name)
		if !ok {
			return nil, fmt.Errorf("%w: the fleet has no key for %s", errRefused, w.Name)
		}
		key = found
	}
	return tcp.DialControl(ctx, w.Addr, tcp.Config{
		Identity: f.cfg.Identity,
		Hello:    wire.Hello{Role: wire.RoleGateway, Name: f.cfg.Identity.Name, Model: f.cfg.Fingerprint},
		Trust:    keyring.Only(key),
	})
}

// accept compares a worker's hello with what it should be.
func (f *Fleet) accept(s *Session) error {
	h, role := s.hello, wire.RolePrefill
	if s.worker.Role == capacity.Decode {
		role = wire.RoleDecode
	}
	switch {
	case h.Role != role:
		return fmt.Errorf("%w: it is a %s worker, configured as %s", errRefused, h.Role, s.worker.Role)
	case h.Name != s.worker.Name:
		return fmt.Errorf("%w: it says that it is %s", errRefused, h.Name)
	case h.Model != f.cfg.Fingerprint:
		return fmt.Errorf("%w: it runs model %s…, prompts are encoded for %s…", errRefused, hex.EncodeToString(h.Model[:8]), hex.EncodeToString(f.cfg.Fingerprint[:8]))
	case h.Geometry == (page.Geometry{}):
		return fmt.Errorf("%w: it names no page geometry", errRefused)
	}
	return nil
}

// learn takes a worker's word on itself: the first makes it usable, later ones change what it can.
func (f *Fleet) learn(s *Session, w wire.Facts) error {
	var facts capacity.Facts
	if err := json.Unmarshal(w.JSON, &facts); err != nil {
		return fmt.Errorf("%w: its facts cannot be read: %w", errRefused, err)
	}
	switch {
	case facts.Name != s.worker.Name || facts.Role != s.worker.Role:
		return fmt.Errorf("%w: its facts are those of %s %q", errRefused, facts.Role, facts.Name)
	case facts.PoolTokens <= 0 || facts.Context <= 0:
		return fmt.Errorf("%w: a pool of %d and a context of %d tokens", errRefused, facts.PoolTokens, facts.Context)
	case !guard.Unsafe && strings.Contains(facts.Version, guard.Mark):
		return fmt.Errorf("%w: guards can be taken out of its build (%s), and not of this one", errRefused, guard.Mark)
	case facts.Usable() < facts.Context && !guard.Off(guard.Admission):
		// Rule 2. A worker of ours refuses to start like this; one that does not is not to be trusted with a prompt in between.
		return fmt.Errorf("%w: %w", errRefused, capacity.Shortfall{Role: facts.Role, Pool: facts.Usable(), Context: facts.Context})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	if lost != nil {
		return lost
	}
	first := f.sessions[s.worker.Name] != s
	f.sessions[s.worker.Name] = s
	f.board.up(s.worker.Name, s.hello, facts, w.Data, w.Draining)
	f.change()
	if first {
		f.cfg.Log.Info("worker up", "model", f.cfg.Model, "worker", s.worker.Name, "role", facts.Role, "boot", s.hello.Boot,
			"pool_tokens", facts.PoolTokens, "context", facts.Context, "limit", capacity.Node(facts).Tokens)
		if why := f.board.alone(s.worker.Name); why != "" {
			f.cfg.Log.Warn("worker pairs with no other", "model", f.cfg.Model, "worker", s.worker.Name, "role", facts.Role, "reason", why)
		}
	}
	return nil
}

// gone takes a session out of use.
func (f *Fleet) gone(s *Session, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[s.worker.Name] != s {
		return
	}
	delete(f.sessions, s.worker.Name)
	f.board.down(s.worker.Name, Connecting, why.Error())
	f.change()
	if f.ctx.Err() == nil {
		f.cfg.Log.Warn("worker lost", "model", f.cfg.Model, "worker", s.worker.Name, "role", s.worker.Role, "boot", s.hello.Boot, "reason", why)
	}
}

// down notes why a worker is not up, and logs what is new about it.
func (f *Fleet) down(w Worker, s state, why error) {
	f.mu.Lock()
	news := f.board.byName[w.Name].reason != why.Error()
	f.board.down(w.Name, s, why.Error())
	f.mu.Unlock()
	if news {
		f.cfg.Log.Warn("worker is not usable", "model", f.cfg.Model, "worker", w.Name, "role", w.Role, "addr", w.Addr, "state", s.String(), "reason", why)
	}
}
