package foreign

import (
	"context"
	"slices"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet"
)

// Status is the fleet at this moment. A thousand workers have a quarter of a million pairs: those are looked at one decode worker at a time,
// so that requests that look for a pair wait for one row of them at most.
func (f *Fleet) Status(context.Context, bool) fleet.Status {
	now := time.Now()
	st, workers := f.statusOfWorkers(now)
	if !f.two() {
		f.listRests(&st, now)
		return st
	}
	f.listPairs(&st, workers, now)
	return st
}

// statusOfWorkers is a status without its pairs, and the workers that can have any.
func (f *Fleet) statusOfWorkers(now time.Time) (fleet.Status, []*Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := fleet.Status{
		Model: f.cfg.Model, Limit: f.current(now).wide.Limit, Workers: []fleet.WorkerStatus{}, Pairs: []fleet.PairStatus{},
		Rested: f.rested, Proved: f.proved,
	}
	st.Ready = st.Limit.Tokens > 0
	for _, n := range f.workers {
		st.Workers = append(st.Workers, n.status(now))
	}
	for _, n := range f.leaving {
		st.Workers = append(st.Workers, n.status(now))
	}
	for _, s := range f.sources {
		ss := fleet.SourceStatus{Name: s.id, Workers: len(s.workers), Problems: append(append([]string{}, s.problems...), s.clash...)}
		if s.err != nil {
			ss.Problems = append(ss.Problems, s.err.Error())
		}
		st.Sources = append(st.Sources, ss)
	}
	return st, slices.Clone(f.workers)
}

// status of a worker. Under mu.
func (n *Node) status(now time.Time) fleet.WorkerStatus {
	ws := fleet.WorkerStatus{
		Name: n.Name, Role: n.Role, Addr: n.URL.Redacted(), State: "up", Reason: n.why(), Boots: n.boots, Facts: n.facts, Load: *n.load,
		Draining: n.drained || n.gone, Source: n.from,
	}
	if !n.assumed {
		ws.Limit = n.limit
	} else if ws.Reason == "" {
		ws.Reason = "its pool is not known; used because prefill's is pinned"
	}
	switch {
	case n.gone, n.drained:
		ws.State = "draining"
	case n.suspect != "":
		ws.State = "connecting"
	case n.reason != "" && n.last != nil:
		ws.State = "refused"
	case n.reason != "":
		ws.State = "connecting"
	case n.failures > 0 && now.Before(n.shunned):
		ws.Reason = "it failed just now: others are preferred"
	}
	return ws
}

// listed is how many pairs a status lists.
const listed = 4096

// listRests lists the workers that work alone and rest.
func (f *Fleet) listRests(st *fleet.Status, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, r := range f.rests {
		if d := f.byName[key[1]]; d != nil && key[0] == "" && !r.over(now) {
			st.Pairs = append(st.Pairs, f.pairStatus(Pair{Decode: d}, now))
		}
	}
}

// listPairs lists the pairs of workers, those that do not serve first: in a large fleet they are what matters.
func (f *Fleet) listPairs(st *fleet.Status, workers []*Node, now time.Time) {
	st.Counts = map[string]int{}
	var serving []fleet.PairStatus
	row := func(d *Node) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range workers {
			if p.Role != capacity.Prefill {
				continue
			}
			state := f.pairState(Pair{Prefill: p, Decode: d}, now)
			st.Counts[state]++
			switch {
			case len(st.Pairs)+len(serving) >= listed && (state == "usable" || len(st.Pairs) >= listed):
				st.MorePairs++
			case state == "usable":
				serving = append(serving, f.pairStatus(Pair{Prefill: p, Decode: d}, now))
			default:
				st.Pairs = append(st.Pairs, f.pairStatus(Pair{Prefill: p, Decode: d}, now))
			}
		}
	}
	for _, d := range workers {
		if d.Role == capacity.Decode {
			row(d)
		}
	}
	st.Pairs = append(st.Pairs, serving...)
	if over := len(st.Pairs) - listed; over > 0 {
		st.Pairs = st.Pairs[:listed]
		st.MorePairs += over
	}
}

func (f *Fleet) pairState(p Pair, now time.Time) string {
	switch {
	case p.Prefill != nil && !p.Prefill.usable(), !p.Decode.usable():
		return "down"
	case p.Prefill != nil && p.Prefill.class != p.Decode.class && p.Prefill.class.differ(p.Decode.class) != "":
		return "refused"
	case len(f.rests) > 0 && !f.rests[p.key()].over(now):
		return "resting"
	}
	return "usable"
}

func (f *Fleet) pairStatus(p Pair, now time.Time) fleet.PairStatus {
	ps := fleet.PairStatus{Decode: p.Decode.Name, State: f.pairState(p, now)}
	if p.Prefill != nil {
		ps.Prefill = p.Prefill.Name
	}
	switch ps.State {
	case "down":
		ps.Reason = string(p.Decode.Role) + ": " + p.Decode.why()
		if p.Prefill != nil && !p.Prefill.usable() {
			ps.Reason = string(capacity.Prefill) + ": " + p.Prefill.why()
		}
	case "refused":
		ps.Reason = p.Prefill.class.differ(p.Decode.class)
	case "resting":
		r := f.rests[p.key()]
		ps.Reason, ps.Until = r.says(now), r.until
		ps.Limit = f.measured(p).Limit
	default:
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
