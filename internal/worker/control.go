package worker

import (
	"encoding/json"
	"fmt"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/invariant"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// control is a worker's end of one gateway's link. Attempts belong to the link that their plan came on: only it can abort them, and
// they end with it.
type control struct {
	w    *Worker
	conn controlLink
	out  *outbox
	seq  uint64 // of the newest plan; of the reader alone
}

func (c *control) name() string { return c.conn.Peer().Name }

// serveControl runs a control link to its end.
func (w *Worker) serveControl(conn controlLink) {
	c := &control{w: w, conn: conn}
	c.out = newOutbox(w.cfg.Limits.Outbox, func() { conn.Close() })
	if !w.enter(c) {
		conn.Close()
		return
	}
	w.log.Info("gateway connected", "gateway", c.name())
	w.running.Go(func() {
		if c.out.run(conn.Send) != nil {
			conn.Close()
		}
		c.w.farewell(conn)
	})
	err := c.read()
	c.out.close()
	w.leave(c)
	if brokeWire(err) {
		w.counters.linksBroken.Add(1)
	}
	w.log.Info("gateway gone", "gateway", c.name(), "error", err)
	for _, d := range w.table.living(func(d driver) bool { return d.control() == c }) {
		d.lost(handoff.GatewayEnd, err.Error())
	}
	conn.Close()
}

func (c *control) read() error {
	for {
		f, err := c.conn.Recv()
		if err != nil {
			return err
		}
		if err := c.take(f); err != nil {
			return err
		}
	}
}

func (c *control) take(f wire.Frame) error {
	switch f := f.(type) {
	case wire.Plan:
		return c.plan(f)
	case wire.Prompt:
		return c.forward(f.Attempt, f)
	case wire.Stop:
		return c.forward(f.Attempt, f)
	case wire.Abort:
		if d := c.of(f.Attempt); d != nil {
			d.abort(handoff.GatewayEnd, f.Verdict)
		}
	case wire.Ping:
		c.out.put(c.w.pong(f))
	case wire.Pong:
	default:
		return fmt.Errorf("worker: gateway %s sent a %s", c.name(), f.Kind())
	}
	return nil
}

// of returns a live attempt of this link. A frame of another, or of one that is settled, is late, and dropped.
func (c *control) of(id attempt.ID) driver {
	if d, _, _ := c.w.table.find(id); d != nil && d.control() == c {
		return d
	}
	c.w.counters.lateFrames.Add(1)
	return nil
}

func (c *control) forward(id attempt.ID, f wire.Frame) error {
	if d := c.of(id); d != nil && !d.frame(f) {
		return fmt.Errorf("worker: gateway %s sent a %s to a %s worker", c.name(), f.Kind(), c.w.cfg.Role)
	}
	return nil
}

// plan opens a plan. A plan that no gateway of this fleet signed ends the link; one that is refused gets its outcome here.
func (c *control) plan(f wire.Plan) error {
	w := c.w
	t, v := admission.Open(f.Signed, w.cfg.Fleet, admission.Here{
		Role: w.cfg.Role, Limit: w.limit, Boot: w.boot, Model: w.model, Session: c.conn.Own().Session, LastSeq: c.seq,
	})
	var p admission.Plan
	if v.IsZero() {
		p = t.Plan()
	} else {
		var err error
		if p, err = admission.Verify(f.Signed, w.cfg.Fleet); err != nil {
			return fmt.Errorf("worker: a plan of gateway %s: %w", c.name(), err)
		}
	}
	if p.Session == c.conn.Own().Session {
		c.seq = max(c.seq, p.Seq)
	}
	if v.IsZero() {
		t.Verdict().Conflict = invariant.Conflict[verdict.Verdict]("verdict of attempt " + p.Attempt.String())
		if w.cfg.Role == capacity.Decode {
			v = w.openDecode(c, t, f.MACKey)
		} else {
			v = w.openPrefill(c, t, f.MACKey)
		}
	}
	if !v.IsZero() {
		if d, _, _ := w.table.find(p.Attempt); d != nil && d.control() == c {
			// The same attempt a second time, while it is under way here: an answer would be taken for the end of the first, and its pages for free.
			w.counters.strayFrames.Add(1)
			w.log.Warn("a plan came twice", "attempt", p.Attempt, "gateway", c.name())
			return nil
		}
		w.counters.plansRefused.Add(1)
		w.counters.verdicts[v.Code].Add(1)
		w.log.Debug("plan refused", "attempt", p.Attempt, "code", v.Code.String(), "reason", v.Reason)
		c.out.put(wire.Outcome{Attempt: p.Attempt, Verdict: v})
		c.out.put(wire.Settled{Attempt: p.Attempt})
	}
	return nil
}

// factsFrame says what this worker is.
func (w *Worker) factsFrame() wire.Facts {
	b, err := json.Marshal(w.facts)
	if err != nil {
		panic("worker: facts do not marshal: " + err.Error()) // strings and numbers always do
	}
	return wire.Facts{JSON: b, Data: w.advertised(), Draining: w.draining.Load()}
}

// pong is the accounting of this moment. A scan reads the free pages, and takes its time on the link's reader.
func (w *Worker) pong(p wire.Ping) wire.Pong {
	s := w.pool.Stats()
	live, settled := w.table.active()
	out := wire.Pong{
		Nonce: p.Nonce, PagesTotal: uint32(s.Total), PagesFree: uint32(s.Free), PagesFenced: uint32(s.Fenced), PagesHeld: uint32(s.Reserved),
		Pins: uint32(s.Pins), Active: uint32(live), Queued: uint32(w.pages.queued()), Settled: settled,
	}
	if p.Scan {
		out.NonzeroFree = w.pool.ScanFree()
	}
	return out
}
