package worker

import (
	"errors"
	"sync"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/wire"
)

// errStrays closes a data link that keeps sending frames of attempts that it has no part in.
var errStrays = errors.New("worker: too many frames of attempts that this link has no part in")

// inbound is decode's end of a prefill worker's data link. It carries many attempts, one after another and at once; what one of them
// does wrong ends that one. Only a frame that breaks the wire ends the link, and with it all of them.
type inbound struct {
	w     *Worker
	conn  dataLink
	out   *outbox
	exact bool // both ends compute on the same numeric path

	mu       sync.Mutex
	attempts map[attempt.ID]*decodeAttempt
	closed   bool

	strays int // of the reader alone
}

// serveData runs a data link to its end.
func (w *Worker) serveData(conn dataLink) {
	in := &inbound{w: w, conn: conn, attempts: map[attempt.ID]*decodeAttempt{}}
	in.exact = conn.Own().Path != "" && conn.Peer().Path == conn.Own().Path
	in.out = newOutbox(w.cfg.Limits.Outbox, func() { conn.Close() })
	if !w.enterData(in) {
		w.log.Warn("data link refused", "prefill", conn.Peer().Name, "links", w.cfg.Limits.DataLinks)
		conn.Close()
		return
	}
	w.running.Go(func() {
		if in.out.run(conn.Send) != nil {
			conn.Close()
		}
		w.farewell(conn)
	})
	err := in.read()
	in.out.close()
	w.leaveData(in)
	if errors.Is(err, errStrays) || brokeWire(err) {
		w.counters.linksBroken.Add(1)
		w.log.Warn("data link broken", "prefill", conn.Peer().Name, "error", err)
	}
	for _, a := range in.leave() {
		a.linkEnded(err)
	}
	conn.Close()
}

func (in *inbound) read() error {
	staging := make([]byte, in.w.geometry.Bytes())
	for {
		f, payload, err := in.conn.Recv(staging)
		if err != nil {
			return err
		}
		if err := in.take(f, payload); err != nil {
			return err
		}
	}
}

// take gives a frame to its attempt.
func (in *inbound) take(f wire.Frame, payload []byte) error {
	switch f := f.(type) {
	case wire.Attach:
		d, p, was := in.w.table.find(f.Attempt)
		if a, ok := d.(*decodeAttempt); ok && in.isPrefillOf(a.plan.Prefill.Key, uint64(a.plan.Prefill.Boot)) {
			a.attach(in, f)
			return nil
		}
		if was && in.isPrefillOf(p.plan.Prefill.Key, uint64(p.plan.Prefill.Boot)) {
			in.w.counters.lateFrames.Add(1)
			in.out.put(signedAbort(f.Attempt, p.verdict, p.key, mac.AbortFromDecode))
			return nil
		}
		return in.stray()
	case wire.PageHeader:
		if a, err := in.of(f.Attempt); a != nil {
			a.land(f, payload)
		} else if err != nil {
			return err
		} else if guard.Unsafe && guard.Off(guard.Gate) {
			in.landLate(f, payload)
		}
	case wire.Manifest:
		a, err := in.of(f.Attempt)
		if a == nil {
			return err
		}
		a.close(f)
	case wire.End:
		a, err := in.of(f.Attempt)
		if a == nil {
			return err
		}
		a.end(f)
	case wire.Abort:
		a, err := in.of(f.Attempt)
		if a == nil {
			return err
		}
		a.peerAbort(f)
	case wire.Ping:
		in.out.put(in.w.pong(f))
	case wire.Pong:
	default:
		return in.stray()
	}
	return nil
}

// of returns the attempt that attached on this link. A settled one is nobody's: its frame is late, which an honest abort can
// cause, and is dropped. Anything else is stray, and bounded.
func (in *inbound) of(id attempt.ID) (*decodeAttempt, error) {
	d, p, was := in.w.table.find(id)
	if a, ok := d.(*decodeAttempt); ok {
		// Its abort may come alone, when prefill gives up before it has attached.
		if in.isPrefillOf(a.plan.Prefill.Key, uint64(a.plan.Prefill.Boot)) && a.claim(in) {
			return a, nil
		}
	} else if was && in.isPrefillOf(p.plan.Prefill.Key, uint64(p.plan.Prefill.Boot)) {
		in.w.counters.lateFrames.Add(1)
		return nil, nil
	}
	return nil, in.stray()
}

// isPrefillOf reports whether the other end is the prefill worker that a plan names: the key that it proved, and the boot that it said.
func (in *inbound) isPrefillOf(key [32]byte, boot uint64) bool {
	return string(in.conn.PeerKey()) == string(key[:]) && uint64(in.conn.Peer().Boot) == boot
}

func (in *inbound) stray() error {
	in.w.counters.strayFrames.Add(1)
	if in.strays++; in.strays > in.w.cfg.Limits.Strays {
		return errStrays
	}
	return nil
}

// landLate is what happens without a gate: the frame of a settled attempt is written where its old tag points.
func (in *inbound) landLate(h wire.PageHeader, payload []byte) {
	if _, p, was := in.w.table.find(h.Attempt); was && p.lease != nil {
		_ = p.lease.Land(int(h.Ordinal), h.Tag, payload, p.key, mac.Tag(h.MAC))
	}
}

// join makes the link's end known to the attempt; false: it has ended.
func (in *inbound) join(a *decodeAttempt) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return false
	}
	in.attempts[a.id] = a
	return true
}

func (in *inbound) forget(id attempt.ID) {
	in.mu.Lock()
	delete(in.attempts, id)
	in.mu.Unlock()
}

func (in *inbound) leave() (left []*decodeAttempt) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for _, a := range in.attempts {
		left = append(left, a)
	}
	return left
}

// linkEnded tells the attempt that its data link is gone, and why.
func (a *decodeAttempt) linkEnded(err error) {
	if brokeWire(err) || errors.Is(err, errStrays) {
		a.step(violationOf(err), because{detail: err.Error()})
		return
	}
	a.lost(handoff.PrefillLeg, err.Error())
}
