package foreign

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// Source names workers that come and go: a directory of files, a name of the DNS.
type Source interface {
	// ID says what it is, for people and logs; two sources with one ID are the same source, with the same settings.
	ID() string
	// Every is how often it is looked at.
	Every() time.Duration
	// Look returns the workers that it names now. Problems are what a part of it has wrong: the other parts count. An error means that
	// nothing can be said: its workers stay as they are.
	Look(ctx context.Context) (ws []Worker, problems []string, err error)
}

// alike reports whether two sources with one ID are the same in what an ID may not show.
func alike(a, b Source) bool {
	x, ok := a.(*DNS)
	y, both := b.(*DNS)
	return !ok || !both || x.Like.Key == y.Like.Key
}

// file is the source that is the configuration itself.
const file = "the configuration"

// watched is a source and what it said last.
type watched struct {
	id     string
	source Source // nil: the configuration
	ctx    context.Context
	cancel context.CancelFunc

	// Under Fleet.mu.
	workers  []Worker
	problems []string
	clash    []string // with other sources
	err      error
	looked   time.Time
}

func newWatched(f *Fleet, s Source) *watched {
	w := &watched{id: s.ID(), source: s}
	w.ctx, w.cancel = context.WithCancel(f.ctx)
	return w
}

// follow looks at a source until it is taken out. Under mu.
func (f *Fleet) follow(w *watched) {
	if w.source == nil {
		return
	}
	f.wg.Go(func() {
		for {
			every := w.source.Every()
			if !f.look(w) {
				every = min(every, downPause)
			}
			// Not all gateways of a fleet ask at once.
			select {
			case <-time.After(every + rand.N(every/10+1)):
			case <-w.ctx.Done():
				return
			}
		}
	})
}

// look takes what a source says now. It reports whether it said anything.
func (f *Fleet) look(w *watched) bool {
	ws, problems, err := w.source.Look(w.ctx)
	if err == nil {
		_, err = named2(ws)
	}
	f.mu.Lock()
	if w.ctx.Err() != nil { // it was taken out meanwhile
		f.mu.Unlock()
		return true
	}
	first := w.looked.IsZero()
	w.looked = time.Now()
	fresh := problems
	if slices.Equal(w.problems, problems) {
		fresh = nil
	}
	news := err != nil && (w.err == nil || w.err.Error() != err.Error())
	w.err, w.problems = err, problems
	var diff []string
	if err == nil && (first || !slices.EqualFunc(w.workers, ws, same)) {
		w.workers = ws
		diff = f.settleRoster()
		fresh = append(fresh, w.clash...)
	} else if first {
		f.change()
	}
	model := f.cfg.Model
	f.mu.Unlock()
	if news {
		f.log.Error("a source of workers cannot be read: its workers stay as they are", "model", model, "source", w.id, "error", err)
	}
	for _, p := range fresh {
		f.log.Error("a part of a source of workers is not taken: what it named before stays", "model", model, "source", w.id, "error", p)
	}
	for _, d := range diff {
		f.log.Info("workers", "model", model, "source", w.id, "change", d)
	}
	return err == nil
}
