package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// keepBuffer is the largest buffer that stays with an idle link: a burst does not cost a thousand links their peak for ever.
const keepBuffer = 256 << 10

// sender writes frames in the order they were given. Small ones are encoded into a queue that one goroutine empties, all that is there
// at a time, so that a step's worth of tokens is one write; pages go out on the caller's goroutine, behind what is queued.
type sender struct {
	conn    net.Conn
	timeout time.Duration
	bound   int
	dead    func(error) error // ends the link, returns the error that ended it

	turn sync.Mutex // held by whoever writes to conn; taken before mu

	mu      sync.Mutex
	room    sync.Cond // queued shrank, or the link ended
	queued  []byte
	spare   []byte // the other buffer, while it is not being written
	writing bool
	closing bool // nothing more is taken: Shutdown has begun
	ended   bool

	kick chan struct{} // 1: something was queued
	head []byte        // of a page, under turn
	vec  net.Buffers   // likewise; it is eaten by each write
	full [3][]byte     // what vec is made from
}

func newSender(conn net.Conn, c Config, dead func(error) error) *sender {
	s := &sender{conn: conn, timeout: c.Timeouts.Write, bound: c.Queue, dead: dead, kick: make(chan struct{}, 1)}
	s.room.L = &s.mu
	return s
}

// enqueue encodes f behind what is queued. Over the bound it waits, or fails with ErrOverflow and ends the link. A frame larger
// than the bound is taken when nothing else is queued.
func (s *sender) enqueue(f wire.Frame, wait bool) error {
	s.mu.Lock()
	for !s.ended && !s.closing {
		before := len(s.queued)
		b, err := wire.Append(s.queued, f)
		if err != nil {
			s.mu.Unlock()
			return err
		}
		if before == 0 || len(b) <= s.bound {
			s.queued = b
			break
		}
		s.queued = b[:before]
		if !wait {
			s.mu.Unlock()
			return s.dead(fmt.Errorf("%w: %d bytes wait, and a %s does not fit", ErrOverflow, before, f.Kind()))
		}
		s.room.Wait()
	}
	ended, closing := s.ended, s.closing
	s.mu.Unlock()
	switch {
	case ended:
		return s.dead(ErrClosed)
	case closing:
		return ErrClosed
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
	return nil
}

// run empties the queue until the link ends.
func (s *sender) run(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-s.kick:
		}
		s.turn.Lock()
		err := s.write(nil)
		s.turn.Unlock()
		if err != nil {
			_ = s.dead(err)
			return
		}
	}
}

// page writes what is queued, then the page, and returns when the socket has taken it: payload is the caller's again.
func (s *sender) page(h wire.PageHeader, payload []byte) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	head, err := wire.Append(s.head[:0], h)
	if err != nil {
		return err
	}
	s.head = head
	s.mu.Lock()
	ended, closing := s.ended, s.closing
	s.writing = !ended && !closing // from here on drain waits for the page
	s.mu.Unlock()
	if closing && !ended {
		return ErrClosed
	}
	if err := s.write(payload); err != nil {
		return s.dead(err)
	}
	return nil
}

// write sends the queue and, if payload is not nil, s.head and payload behind it, as one vector. The caller has the turn.
func (s *sender) write(payload []byte) error {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return ErrClosed
	}
	batch := s.queued
	s.queued, s.spare = s.spare[:0], nil
	s.writing = true
	s.room.Broadcast()
	s.mu.Unlock()

	vec := s.full[:0]
	if len(batch) > 0 {
		vec = append(vec, batch)
	}
	if payload != nil {
		vec = append(vec, s.head, payload)
	}
	s.vec = vec
	err := s.flush()
	s.full = [3][]byte{}

	s.mu.Lock()
	s.writing = false
	if cap(batch) <= keepBuffer {
		s.spare = batch[:0]
	}
	if cap(s.queued) > keepBuffer && len(s.queued) == 0 {
		s.queued = nil
	}
	s.room.Broadcast()
	s.mu.Unlock()
	return err
}

func (s *sender) flush() error {
	n := 0
	for _, b := range s.vec {
		n += len(b)
	}
	if n == 0 {
		return nil
	}
	limit := allowance(s.timeout, n)
	if err := s.conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	_, err := s.vec.WriteTo(s.conn)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %d bytes in %s", ErrUnread, n, limit)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// end wakes whoever waits for room.
func (s *sender) end() {
	s.mu.Lock()
	s.ended = true
	s.room.Broadcast()
	s.mu.Unlock()
}

// drain takes no more, and waits until all that is queued was written, the link ended, or ctx is done.
func (s *sender) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.room.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	s.room.Broadcast()
	for !s.ended && (len(s.queued) > 0 || s.writing) {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.room.Wait()
	}
	return nil
}
