package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/sluicekv/sluice/internal/verdict"
)

// ready says whether a pair of the model can serve.
func (x *walk) ready() verdict.Verdict {
	if x.model.fleet.Ready() {
		return verdict.Verdict{}
	}
	return x.model.fleet.Unready()
}

// await asks for a pair, and asks again for a little while whenever the fleet changes: a worker that restarts is back within a
// moment, and a client that is told to come back would come at once. It does not wait for pairs that rest, since that is an
// answer; nor while the gateway drains, nor among too many others. The verdict is zero once ask is answered.
func (x *walk) await(ask func() verdict.Verdict) verdict.Verdict {
	f, g := x.model.fleet, x.g
	changed := f.Changed()
	v := ask()
	if v.IsZero() || g.limits.PairWait < 0 || f.Resting() {
		return v
	}
	if g.waiting.Add(1) > int64(g.limits.PairWaiters) {
		g.waiting.Add(-1)
		return v
	}
	defer g.waiting.Add(-1)
	enough := time.NewTimer(g.limits.PairWait)
	defer enough.Stop()
	for {
		select {
		case <-changed:
		case <-enough.C:
			return v
		case <-g.requests.closing():
			return shuttingDown()
		case <-x.ctx.Done():
			return x.ended()
		}
		changed = f.Changed()
		if v = ask(); v.IsZero() || f.Resting() {
			return v
		}
	}
}

// ended is the verdict of a request whose context ended while no attempt was under way.
func (x *walk) ended() verdict.Verdict {
	cause := context.Cause(x.ctx)
	var w withdrawn
	switch {
	case errors.As(cause, &w):
		return w.verdict
	case errors.Is(cause, errDeadline):
		return verdict.Of(verdict.Deadline, verdict.PlanLayer, "out of time while waiting for a pair that can serve")
	}
	return verdict.Of(verdict.ClientGone, verdict.Stream, "the client closed the connection")
}
