package foreign

import (
	"context"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet"
)

// Status is the fleet at this moment.
func (f *Fleet) Status(context.Context, bool) fleet.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	st := fleet.Status{Model: f.cfg.Model, Limit: f.widest(now).Limit, Workers: []fleet.WorkerStatus{}, Pairs: []fleet.PairStatus{}, Rested: f.rested}
	st.Ready = st.Limit.Tokens > 0
	for _, n := range f.workers {
		ws := fleet.WorkerStatus{Name: n.Name, Role: n.Role, Addr: n.URL.Redacted(), State: "up", Reason: n.reason, Boots: n.boots, Facts: n.facts, Load: n.load}
		if !n.assumed {
			ws.Limit = n.limit
		} else {
			ws.Reason = "its pool is not known; used because prefill's is pinned"
		}
		switch {
		case n.reason != "" && n.read:
			ws.State = "refused"
		case n.reason != "":
			ws.State = "connecting"
		}
		st.Workers = append(st.Workers, ws)
	}
	for p := range f.pairs {
		if p.Prefill == nil {
			continue
		}
		if len(st.Pairs) == listed {
			st.MorePairs++
			continue
		}
		st.Pairs = append(st.Pairs, f.pairStatus(p, now))
	}
	return st
}

// listed is how many pairs a status lists.
const listed = 4096

func (f *Fleet) pairStatus(p Pair, now time.Time) fleet.PairStatus {
	ps := fleet.PairStatus{Prefill: p.Prefill.Name, Decode: p.Decode.Name, State: "usable"}
	r := f.rests[p.key()]
	switch {
	case !p.Prefill.usable():
		ps.State, ps.Reason = "down", string(capacity.Prefill)+": "+p.Prefill.reason
	case !p.Decode.usable():
		ps.State, ps.Reason = "down", string(capacity.Decode)+": "+p.Decode.reason
	case differ(p.Prefill, p.Decode) != "":
		ps.State, ps.Reason = "refused", differ(p.Prefill, p.Decode)
	case r != nil && !r.over(now):
		ps.State, ps.Reason, ps.Until = "resting", r.reason, r.until
	}
	if ps.State == "usable" || ps.State == "resting" {
		ps.Limit = f.measured(p).Limit
	}
	return ps
}

// Facts of all workers, as they are known now.
func (f *Fleet) Facts() (out []capacity.Facts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.workers {
		out = append(out, n.facts)
	}
	return out
}
