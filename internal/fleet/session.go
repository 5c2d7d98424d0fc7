package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/wire"
)

// ErrLost is returned once a session's link has ended.
var ErrLost = errors.New("fleet: the control link has ended")

// Sink hears about one attempt on one link, from the link's reader: it must not block, nor call the session back.
type Sink interface {
	// Frame is called for each frame of the attempt, in order.
	Frame(f wire.Frame)
	// Lost is called at most once, last: the link ended. reason holds no content.
	Lost(reason string)
}

// Session is one control link to a worker, from its hello to its end. Sending never blocks: frames are queued by reference and
// a writer of the session's own carries them to the link.
type Session struct {
	worker Worker
	link   Link
	hello  wire.Hello
	fleet  *Fleet

	mu     sync.Mutex
	sinks  map[attempt.ID]Sink
	pings  map[uint64]chan wire.Pong
	queue  []wire.Frame
	seq    uint64
	data   string // of the last Facts
	lost   error
	heard  time.Time // last frame
	late   uint64    // frames of attempts that nobody waits for any more
	kick   chan struct{}
	closed chan struct{}
}

func newSession(f *Fleet, w Worker, l Link) *Session {
	return &Session{
		worker: w, link: l, hello: l.Peer(), fleet: f, sinks: map[attempt.ID]Sink{}, pings: map[uint64]chan wire.Pong{}, heard: time.Now(),
		kick: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// Name of the worker.
func (s *Session) Name() string { return s.worker.Name }

// Endpoint is the worker as a plan names it.
func (s *Session) Endpoint() admission.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return admission.Endpoint{Name: s.worker.Name, Boot: s.hello.Boot, Data: s.data, Key: s.hello.Key}
}

// Attach makes sink hear of an attempt. ErrLost if the link has ended: sink then hears nothing.
func (s *Session) Attach(id attempt.ID, sink Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return s.lost
	}
	s.sinks[id] = sink
	return nil
}

// Detach ends that: later frames of the attempt are counted and dropped.
func (s *Session) Detach(id attempt.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sinks, id)
}

// SendPlan signs the plan for this connection and queues it: the session and the number that make it single use are this link's.
func (s *Session) SendPlan(p admission.Plan, macKey [32]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return s.lost
	}
	p.Session, p.Seq = s.hello.Session, s.seq+1
	signed, err := admission.Sign(p, s.fleet.cfg.Identity.PrivateKey())
	if err != nil {
		return err
	}
	s.seq++
	s.put(wire.Plan{Signed: signed, MACKey: macKey})
	return nil
}

// Send queues a frame. A frame behind a link that ended goes nowhere: the sink has heard, or will hear, that it is lost.
func (s *Session) Send(f wire.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.put(f)
	}
}

func (s *Session) put(f wire.Frame) {
	s.queue = append(s.queue, f)
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Ping asks the worker for its accounting at this moment.
func (s *Session) Ping(ctx context.Context, scan bool) (wire.Pong, error) {
	nonce, got := rand.Uint64(), make(chan wire.Pong, 1)
	s.mu.Lock()
	if s.lost != nil {
		s.mu.Unlock()
		return wire.Pong{}, s.lost
	}
	s.pings[nonce] = got
	s.put(wire.Ping{Nonce: nonce, Scan: scan})
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.pings, nonce)
		s.mu.Unlock()
	}()
	select {
	case p := <-got:
		return p, nil
	case <-s.closed:
		return wire.Pong{}, ErrLost
	case <-ctx.Done():
		return wire.Pong{}, ctx.Err()
	}
}

// write carries queued frames to the link, and pings a link that is quiet, until the session ends.
func (s *Session) write() {
	tick := time.NewTicker(s.fleet.cfg.Timing.PingEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-s.kick:
		case now := <-tick.C:
			s.mu.Lock()
			quiet := now.Sub(s.heard)
			s.mu.Unlock()
			if quiet > s.fleet.cfg.Timing.Silence {
				s.end(fmt.Errorf("%w: no frame for %s", ErrLost, quiet.Round(time.Millisecond)))
				return
			}
			s.Send(wire.Ping{Nonce: rand.Uint64()})
		}
		for {
			s.mu.Lock()
			q := s.queue
			s.queue = nil
			s.mu.Unlock()
			if len(q) == 0 {
				break
			}
			for i, f := range q {
				if err := s.link.Send(f); err != nil {
					s.end(fmt.Errorf("%w: %w", ErrLost, err))
					return
				}
				q[i] = nil // a prompt's ids are let go as soon as they are sent
			}
		}
	}
}

// read hands frames to their attempts until the link ends.
func (s *Session) read() error {
	for {
		f, err := s.link.Recv()
		if err != nil {
			return err
		}
		if err := s.take(f); err != nil {
			return err
		}
	}
}

func (s *Session) take(f wire.Frame) error {
	var id attempt.ID
	switch f := f.(type) {
	case wire.Facts:
		s.mu.Lock()
		s.heard, s.data = time.Now(), f.Data
		s.mu.Unlock()
		return s.fleet.learn(s, f)
	case wire.Pong:
		s.mu.Lock()
		s.heard = time.Now()
		if c := s.pings[f.Nonce]; c != nil {
			c <- f
			delete(s.pings, f.Nonce)
		}
		s.mu.Unlock()
		return nil
	case wire.Ping:
		s.Send(wire.Pong{Nonce: f.Nonce})
		return nil
	case wire.Reserved:
		id = f.Attempt
	case wire.Sealed:
		id = f.Attempt
	case wire.Output:
		id = f.Attempt
	case wire.Outcome:
		id = f.Attempt
	case wire.Settled:
		id = f.Attempt
	case wire.Abort:
		id = f.Attempt
	default:
		return fmt.Errorf("fleet: a %s is not for a gateway", f.Kind())
	}
	s.mu.Lock()
	s.heard = time.Now()
	sink := s.sinks[id]
	if sink == nil {
		s.late++
	}
	s.mu.Unlock()
	if sink != nil {
		sink.Frame(f)
	}
	return nil
}

// end ends the session once: the link is closed and every attempt on it hears that it is lost.
func (s *Session) end(why error) {
	s.mu.Lock()
	if s.lost != nil {
		s.mu.Unlock()
		return
	}
	s.lost = why
	sinks := s.sinks
	s.sinks, s.queue = nil, nil
	close(s.closed)
	s.mu.Unlock()
	s.fleet.gone(s, why)
	s.link.Close()
	for _, sink := range sinks {
		sink.Lost(fmt.Sprintf("the control link to %s %s ended", s.worker.Role, s.worker.Name))
	}
}
