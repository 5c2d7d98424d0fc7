package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/wire"
)

// Status is a fleet at one moment, as /admin/fleet shows it.
type Status struct {
	Model       string         `json:"model"`
	Fingerprint string         `json:"fingerprint"`
	Ready       bool           `json:"ready"`
	Limit       capacity.Limit `json:"limit"`
	Workers     []WorkerStatus `json:"workers"`
	Pairs       []PairStatus   `json:"pairs"`
	MorePairs   int            `json:"more_pairs,omitzero"`   // not listed
	Rested      uint64         `json:"rested"`                // pairs that were made to rest, since start
	Proved      uint64         `json:"proved,omitzero"`       // ejected pairs that proved themselves, since start
	Counts      map[string]int `json:"pair_counts,omitempty"` // of all pairs, by state
	Sources     []SourceStatus `json:"sources,omitempty"`     // where workers come from; other engines
}

// WorkerStatus is one worker. Pool is nil when the worker did not answer just now.
type WorkerStatus struct {
	Name     string         `json:"name"`
	Role     capacity.Role  `json:"role"`
	Addr     string         `json:"addr"`
	State    string         `json:"state"` // connecting, up, refused
	Reason   string         `json:"reason,omitzero"`
	Boot     page.Boot      `json:"boot"`
	Boots    int            `json:"boots"` // seen by this gateway
	Facts    capacity.Facts `json:"facts"`
	Limit    capacity.Limit `json:"limit"`
	Path     string         `json:"path,omitzero"` // of the kernels
	Data     string         `json:"data,omitzero"`
	Draining bool           `json:"draining,omitzero"`
	Source   string         `json:"source,omitzero"` // what names it; other engines
	Load     int            `json:"load_tokens"`     // in flight, by this gateway's count
	Late     uint64         `json:"late_frames"`     // on this link, of attempts that nobody waits for any more
	Pool     *PoolStatus    `json:"pool"`
}

// SourceStatus is where workers come from, and what is wrong there.
type SourceStatus struct {
	Name     string   `json:"name"`
	Workers  int      `json:"workers"`
	Problems []string `json:"problems,omitempty"`
}

// PoolStatus is a worker's own accounting, asked for at this moment. Pages.
type PoolStatus struct {
	Total   uint32 `json:"pages_total"`
	Free    uint32 `json:"pages_free"`
	Fenced  uint32 `json:"pages_fenced"`
	Held    uint32 `json:"pages_held"`
	Pins    uint32 `json:"pins"`
	Active  uint32 `json:"active"` // attempts
	Queued  uint32 `json:"queued"`
	Settled uint64 `json:"settled"`
	// NonzeroFree is the non-zero bytes in free pages; nil unless a scan was asked for.
	NonzeroFree *uint64 `json:"nonzero_free_bytes,omitempty"`
}

// PairStatus is one pair.
type PairStatus struct {
	Prefill string         `json:"prefill"`
	Decode  string         `json:"decode"`
	State   string         `json:"state"` // usable, down, refused, resting
	Reason  string         `json:"reason,omitzero"`
	Until   time.Time      `json:"until,omitzero"`
	Limit   capacity.Limit `json:"limit,omitzero"`
}

// listed is how many pairs a status lists: a thousand workers have a quarter of a million.
const listed = 4096

// Status asks every worker that is up for its accounting, at the same time, and waits for the answers until ctx is done.
func (f *Fleet) Status(ctx context.Context, scan bool) Status {
	pongs := f.pingAll(ctx, scan)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	st := Status{Model: f.cfg.Model, Fingerprint: f.Fingerprint(), Limit: f.board.widest(now), Workers: []WorkerStatus{}, Pairs: []PairStatus{}, Rested: f.board.rested}
	st.Ready = st.Limit.Tokens > 0
	for _, n := range f.board.names() {
		w := f.board.byName[n]
		ws := WorkerStatus{
			Name: w.name, Role: w.role, Addr: w.addr, State: w.state.String(), Reason: w.reason, Boot: w.boot, Boots: w.boots, Facts: w.facts,
			Limit: w.limit, Path: w.hello.Path, Data: w.data, Draining: w.draining, Load: w.load,
		}
		if s := f.sessions[n]; s != nil {
			s.mu.Lock()
			ws.Late = s.late
			s.mu.Unlock()
		}
		if p, ok := pongs[n]; ok {
			ws.Pool = &PoolStatus{p.PagesTotal, p.PagesFree, p.PagesFenced, p.PagesHeld, p.Pins, p.Active, p.Queued, p.Settled, nil}
			if scan {
				ws.Pool.NonzeroFree = &p.NonzeroFree
			}
		}
		st.Workers = append(st.Workers, ws)
	}
	for p, d := range f.board.pairs {
		if len(st.Pairs) == listed {
			st.MorePairs = len(f.board.prefill)*len(f.board.decode) - listed
			break
		}
		st.Pairs = append(st.Pairs, f.board.pairStatus(p, d, now))
	}
	return st
}

func (b *board) pairStatus(p, d *worker, now time.Time) PairStatus {
	ps := PairStatus{Prefill: p.name, Decode: d.name, State: "usable"}
	r, resting := b.resting[pairKey{p.name, d.name}]
	switch {
	case !p.usable():
		ps.State, ps.Reason = "down", "prefill is "+p.condition()
	case !d.usable():
		ps.State, ps.Reason = "down", "decode is "+d.condition()
	case differ(p, d) != "":
		ps.State, ps.Reason = "refused", differ(p, d)
	case resting && now.Before(r.until):
		ps.State, ps.Reason, ps.Until = "resting", r.reason, r.until
	}
	if ps.State == "usable" || ps.State == "resting" {
		ps.Limit = pairLimit(p, d)
	}
	return ps
}

func (w *worker) condition() string {
	if w.state == Up && w.draining {
		return "draining"
	}
	return w.state.String()
}

func (f *Fleet) pingAll(ctx context.Context, scan bool) map[string]wire.Pong {
	f.mu.Lock()
	var up []*Session
	for _, s := range f.sessions {
		up = append(up, s)
	}
	f.mu.Unlock()
	pongs := make(map[string]wire.Pong, len(up))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range up {
		wg.Go(func() {
			if p, err := s.Ping(ctx, scan); err == nil {
				mu.Lock()
				pongs[s.Name()] = p
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return pongs
}
