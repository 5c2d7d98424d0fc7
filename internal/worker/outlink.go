package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// errOtherBoot: the decode worker at the plan's address is not the process that the plan was made for.
var errOtherBoot = errors.New("worker: the decode worker has restarted since the plan was made")

// outlinks are prefill's data links: one to each decode worker, kept open after its attempts.
type outlinks struct {
	w  *Worker
	mu sync.Mutex
	to map[admission.Endpoint]*outlink
}

// get returns the link to an endpoint, dialling if there is none. The boot is part of the endpoint: a worker that restarted gets a link of its own.
func (ls *outlinks) get(e admission.Endpoint) *outlink {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.to[e]; l != nil {
		return l
	}
	l := &outlink{w: ls.w, end: e, attempts: map[attempt.ID]*prefillAttempt{}, wake: make(chan struct{}, 1)}
	l.ctx, l.quit = context.WithCancel(ls.w.ctx)
	ls.to[e] = l
	ls.w.running.Go(l.run)
	return l
}

func (ls *outlinks) drop(l *outlink) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.to[l.end] == l {
		delete(ls.to, l.end)
	}
}

// close ends all links.
func (ls *outlinks) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.to {
		l.quit()
	}
}

// outlink is prefill's end of the data link to one decode worker. One goroutine writes: first what attempts say, then the pages of those
// that have sealed ones, one page of each in turn, so that a long prompt does not hold up the pages of a short one. Pages pass through
// one staging buffer, whatever the number of attempts.
type outlink struct {
	w   *Worker
	end admission.Endpoint

	mu       sync.Mutex
	attempts map[attempt.ID]*prefillAttempt
	words    []wire.Frame // attaches and aborts
	turns    []*shipment  // that have something to send, in turn
	err      error        // why the link is over
	wake     chan struct{}
	ctx      context.Context
	quit     context.CancelFunc

	strays int // of the reader alone
}

// shipment is what the sender knows of an attempt.
type shipment struct {
	a        *prefillAttempt // set once, before the link knows of it
	next, to uint32          // ordinals: the next to take, and the end of what is queued
	queued   bool            // in turns
	closing  *closing
}

type closing struct {
	manifest wire.Manifest
	end      wire.End
}

// join makes the attempt hear of the link's end, and says on it that the attempt is here.
func (l *outlink) join(a *prefillAttempt) {
	f := wire.Attach{Attempt: a.id}
	f.MAC = a.key.Sum(mac.Attach, 0, wire.Authenticated(f))
	l.mu.Lock()
	err := l.err
	if err == nil {
		l.attempts[a.id] = a
		l.words = append(l.words, f)
	}
	l.mu.Unlock()
	if err != nil {
		l.tell(a, err)
		return
	}
	l.signal()
}

func (l *outlink) forget(a *prefillAttempt) {
	l.mu.Lock()
	delete(l.attempts, a.id)
	l.mu.Unlock()
}

// say queues a frame ahead of all pages.
func (l *outlink) say(f wire.Frame) {
	l.mu.Lock()
	if l.err == nil {
		l.words = append(l.words, f)
	}
	l.mu.Unlock()
	l.signal()
}

// queuePages lets the sender take the attempt's pages up to ordinal to. Called under the attempt's lock.
func (l *outlink) queuePages(a *prefillAttempt, to uint32) {
	l.mu.Lock()
	a.shipment.to = to
	l.enqueue(&a.shipment)
	l.mu.Unlock()
	l.signal()
}

// queueClosing lets the sender send the closing statement, after the page that it is writing. Called under the attempt's lock.
func (l *outlink) queueClosing(a *prefillAttempt, m wire.Manifest, e wire.End) {
	l.mu.Lock()
	a.shipment.closing = &closing{m, e}
	l.enqueue(&a.shipment)
	l.mu.Unlock()
	l.signal()
}

func (l *outlink) enqueue(s *shipment) {
	if !s.queued && l.err == nil {
		s.queued = true
		l.turns = append(l.turns, s)
	}
}

func (l *outlink) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run dials, and then writes until the link ends.
func (l *outlink) run() {
	defer l.quit()
	conn, err := l.w.dialData(l.ctx, l.end)
	if err == nil && conn.Peer().Boot != l.end.Boot {
		err = fmt.Errorf("%w: the plan is for boot %s of %s, at %s is boot %s", errOtherBoot, l.end.Boot, l.end.Name, l.end.Data, conn.Peer().Boot)
		conn.Close()
	}
	if err != nil {
		err = unreached{err}
	} else {
		l.w.counters.dataLinks.Add(1)
		broken := make(chan error, 1)
		l.w.running.Go(func() { broken <- l.read(conn) })
		if err = l.write(conn, broken); errors.Is(err, errClosing) {
			l.w.farewell(conn)
		}
		conn.Close()
		l.w.counters.dataLinks.Add(-1)
	}
	l.over(err)
}

// over ends the link: its attempts hear why.
func (l *outlink) over(err error) {
	l.w.links.drop(l)
	l.mu.Lock()
	l.err = err
	left := l.attempts
	l.attempts, l.words, l.turns = map[attempt.ID]*prefillAttempt{}, nil, nil
	l.mu.Unlock()
	if brokeWire(err) || errors.Is(err, errStrays) {
		l.w.counters.linksBroken.Add(1)
		l.w.log.Warn("data link broken", "decode", l.end.Name, "error", err)
	}
	for _, a := range left {
		l.tell(a, err)
	}
}

// tell says to an attempt that the link is over.
func (l *outlink) tell(a *prefillAttempt, err error) {
	switch {
	case errors.Is(err, errOtherBoot):
		a.step(handoff.Violation{Code: verdict.PlanRefused}, because{detail: err.Error()})
	case brokeWire(err) || errors.Is(err, errStrays):
		a.step(violationOf(err), because{detail: err.Error()})
	default:
		var never unreached
		is := errors.As(err, &never)
		a.step(handoff.PeerLost{From: handoff.DecodeLeg}, because{detail: err.Error(), unreached: is})
	}
}

// work is the next thing to write.
func (l *outlink) work() (frames []wire.Frame, s *shipment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.words) > 0 {
		frames, l.words = l.words, nil
		return frames, nil
	}
	if len(l.turns) > 0 {
		s = l.turns[0]
		l.turns = l.turns[1:]
		s.queued = false
	}
	return nil, s
}

func (l *outlink) write(conn dataLink, broken <-chan error) error {
	staging := make([]byte, l.w.geometry.Bytes())
	for {
		frames, s := l.work()
		for _, f := range frames {
			if err := conn.Send(f); err != nil {
				return err
			}
		}
		if s != nil {
			if err := l.ship(conn, s, staging); err != nil {
				return err
			}
		}
		if frames != nil || s != nil {
			continue
		}
		select {
		case <-l.wake:
		case err := <-broken:
			return err
		case <-l.ctx.Done():
			return errClosing
		}
	}
}

// unreached is the error of a link that never was.
type unreached struct{ error }

func (u unreached) Unwrap() error { return u.error }

// errClosing: this worker closes its links.
var errClosing = errors.New("worker: closing")

// ship writes one page of an attempt, or its closing statement.
func (l *outlink) ship(conn dataLink, s *shipment, staging []byte) error {
	l.mu.Lock()
	n, to, c := s.next, s.to, s.closing
	l.mu.Unlock()
	a := s.a
	if n < to {
		switch a.advance(handoff.PageTaken{Ordinal: n}, because{}).(type) {
		case handoff.WritePage:
			if err := a.writePage(conn, n, staging); err != nil {
				return err
			}
			l.mu.Lock()
			s.next++
			l.enqueue(s)
			l.mu.Unlock()
			return nil
		}
		// The attempt is over: its pages stay here, and only the closing statement, if there is one, still goes.
		l.mu.Lock()
		s.next = s.to
		c = s.closing
		l.mu.Unlock()
	}
	if c == nil {
		return nil
	}
	l.mu.Lock()
	s.closing = nil
	l.mu.Unlock()
	if err := conn.Send(c.manifest); err != nil {
		return err
	}
	if err := conn.Send(c.end); err != nil {
		return err
	}
	a.step(handoff.ClosingSent{}, because{})
	return nil
}

// writePage copies a page out under a pin, and writes it without one. The error is the link's.
func (a *prefillAttempt) writePage(conn dataLink, n uint32, staging []byte) error {
	size, err := a.lease.CopyOut(staging, int(n))
	if err != nil { // fenced since it was taken
		a.step(handoff.PageDropped{Ordinal: n}, because{detail: err.Error()})
		return nil
	}
	a.mu.Lock()
	h := wire.PageHeader{Attempt: a.id, Tag: a.tags[n], Ordinal: n, Length: uint32(size), MAC: a.macs[n]}
	a.mu.Unlock()
	if err := conn.SendPage(h, staging[:size]); err != nil {
		a.lost(handoff.DecodeLeg, err.Error())
		a.step(handoff.PageDropped{Ordinal: n}, because{})
		return err
	}
	a.w.counters.pagesSent.Add(1)
	a.w.counters.bytesSent.Add(uint64(size))
	a.step(handoff.PageSent{Ordinal: n}, because{})
	return nil
}

// read takes what decode says.
func (l *outlink) read(conn dataLink) error {
	var none [0]byte
	for {
		f, _, err := conn.Recv(none[:])
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case wire.Grant:
			if a := l.of(f.Attempt); a != nil {
				a.grant(f)
				continue
			}
		case wire.Abort:
			if a := l.of(f.Attempt); a != nil {
				a.peerAbort(f)
				continue
			}
		case wire.Ping:
			l.say(l.w.pong(f))
			continue
		case wire.Pong:
			continue
		}
		if l.late(f) {
			l.w.counters.lateFrames.Add(1)
			continue
		}
		l.w.counters.strayFrames.Add(1)
		if l.strays++; l.strays > l.w.cfg.Limits.Strays {
			conn.Close()
			return errStrays
		}
	}
}

func (l *outlink) of(id attempt.ID) *prefillAttempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attempts[id]
}

// late reports whether a frame is of an attempt that was made here and is settled.
func (l *outlink) late(f wire.Frame) bool {
	var id attempt.ID
	switch f := f.(type) {
	case wire.Grant:
		id = f.Attempt
	case wire.Abort:
		id = f.Attempt
	}
	_, p, was := l.w.table.find(id)
	return was && p.plan.Decode == l.end
}
