package faultconn

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Conn is a connection with faults. Deadlines and Close interrupt delays and stalls as they interrupt the connection itself.
type Conn struct {
	net.Conn
	out, in stream
	closed  chan struct{}
	once    sync.Once
}

// Wrap puts faults on a connection.
func Wrap(conn net.Conn, faults ...Fault) *Conn {
	c := &Conn{Conn: conn, closed: make(chan struct{})}
	for _, f := range faults {
		s := &c.out
		if f.Side == In {
			s = &c.in
		}
		s.plan = append(s.plan, f)
	}
	for _, s := range []*stream{&c.out, &c.in} {
		slices.SortStableFunc(s.plan, func(a, b Fault) int { return int(max(-1, min(1, a.At-b.At))) })
		s.fired = make([]bool, len(s.plan))
		s.deadline.changed = make(chan struct{})
	}
	return c
}

// stream is one direction.
type stream struct {
	turn  sync.Mutex // one Read, one Write at a time
	plan  []Fault    // by At
	off   int64      // bytes that have passed
	twice []byte     // Duplicate's, until its end is reached; in: also what is still to be handed out
	ready []byte     // in: duplicated bytes, to be read next
	ended error      // HalfClose, Reset

	mu       sync.Mutex
	fired    []bool
	deadline deadline
}

// Fired lists the faults that have acted.
func (c *Conn) Fired() []Fault {
	var all []Fault
	for _, s := range []*stream{&c.out, &c.in} {
		s.mu.Lock()
		for i, f := range s.plan {
			if s.fired[i] {
				all = append(all, f)
			}
		}
		s.mu.Unlock()
	}
	return all
}

// step says what is next in a stream: how many bytes pass until something changes, which faults apply to those bytes, and which
// fires now. A fault that fires now is returned once.
func (s *stream) step(most int) (n int, now *Fault, on [numKinds]*Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = most
	for i := range s.plan {
		f := &s.plan[i]
		end := f.At
		if f.Kind.lengths() {
			end = f.At + int64(f.Len)
		}
		switch {
		case s.off < f.At:
			n = int(min(int64(n), f.At-s.off))
		case f.Kind == Tear:
			s.fired[i] = true
			on[Tear] = f
			n = min(n, f.Len)
		case f.Kind.lengths() && s.off < end:
			s.fired[i] = true
			on[f.Kind] = f
			n = int(min(int64(n), end-s.off))
		case !f.Kind.lengths() && !s.fired[i]:
			s.fired[i] = true
			return 0, f, on
		}
	}
	return n, nil, on
}

// strike performs a fault that acts at a point.
func (c *Conn) strike(s *stream, f *Fault) error {
	switch f.Kind {
	case Delay:
		return c.wait(s, f.Wait)
	case Stall:
		return c.wait(s, 1<<62)
	case HalfClose:
		s.ended = io.EOF
		if f.Side == Out {
			s.ended = syscall.EPIPE
			if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
				half.CloseWrite()
			}
		}
	case Reset:
		s.ended = syscall.ECONNRESET
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		c.Close()
	}
	return s.ended
}

// Write lets bytes pass up to the next fault, and so on.
func (c *Conn) Write(p []byte) (done int, err error) {
	s := &c.out
	s.turn.Lock()
	defer s.turn.Unlock()
	for done < len(p) {
		if s.ended != nil {
			return done, &net.OpError{Op: "write", Net: "fault", Err: s.ended}
		}
		n, now, on := s.step(len(p) - done)
		if now != nil {
			if err := c.strike(s, now); err != nil {
				return done, &net.OpError{Op: "write", Net: "fault", Err: err}
			}
			continue
		}
		b := s.apply(p[done:done+n], on)
		if _, err := c.Conn.Write(b); err != nil {
			return done, err
		}
		s.off += int64(n)
		done += n
		if again := s.repeat(on); again != nil {
			if _, err := c.Conn.Write(again); err != nil {
				return done, err
			}
		}
		if t := on[Tear]; t != nil && t.Wait > 0 {
			if err := c.wait(s, t.Wait); err != nil {
				return done, &net.OpError{Op: "write", Net: "fault", Err: err}
			}
		}
	}
	return done, nil
}

// Read hands out bytes up to the next fault.
func (c *Conn) Read(p []byte) (int, error) {
	s := &c.in
	s.turn.Lock()
	defer s.turn.Unlock()
	for len(p) > 0 {
		if len(s.ready) > 0 {
			n := copy(p, s.ready)
			s.ready = s.ready[n:]
			return n, nil
		}
		if errors.Is(s.ended, io.EOF) {
			return 0, io.EOF
		}
		if s.ended != nil {
			return 0, &net.OpError{Op: "read", Net: "fault", Err: s.ended}
		}
		n, now, on := s.step(len(p))
		if now != nil {
			if err := c.strike(s, now); errors.Is(err, io.EOF) {
				return 0, io.EOF
			} else if err != nil {
				return 0, &net.OpError{Op: "read", Net: "fault", Err: err}
			}
			continue
		}
		if t := on[Tear]; t != nil && t.Wait > 0 {
			if err := c.wait(s, t.Wait); err != nil {
				return 0, &net.OpError{Op: "read", Net: "fault", Err: err}
			}
		}
		n, err := c.Conn.Read(p[:n])
		b := s.apply(p[:n], on)
		s.off += int64(n)
		s.ready = append(s.ready, s.repeat(on)...)
		copy(p, b)
		if len(b) > 0 || err != nil {
			return len(b), err
		}
	}
	return 0, nil
}

// apply makes of b what passes; b itself is not changed.
func (s *stream) apply(b []byte, on [numKinds]*Fault) []byte {
	if on[Drop] != nil {
		return nil
	}
	if on[Flip] != nil {
		b = slices.Clone(b)
		for i := range b {
			b[i] ^= 1 << (uint64(s.off+int64(i)) % 8)
		}
	}
	if on[Duplicate] != nil {
		s.twice = append(s.twice, b...)
	}
	return b
}

// repeat returns Duplicate's bytes once all of them have passed.
func (s *stream) repeat(on [numKinds]*Fault) []byte {
	d := on[Duplicate]
	if d == nil || s.off < d.At+int64(d.Len) {
		return nil
	}
	b := s.twice
	s.twice = nil
	return b
}

// deadline of one direction. changed is closed and replaced when it is set.
type deadline struct {
	at      time.Time
	changed chan struct{}
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	s.deadline.at = t
	close(s.deadline.changed)
	s.deadline.changed = make(chan struct{})
	s.mu.Unlock()
}

// wait passes time, unless the connection is closed or the stream's deadline comes first.
func (c *Conn) wait(s *stream, d time.Duration) error {
	end := time.NewTimer(d)
	defer end.Stop()
	for {
		s.mu.Lock()
		at, changed := s.deadline.at, s.deadline.changed
		s.mu.Unlock()
		var late <-chan time.Time
		if !at.IsZero() {
			t := time.NewTimer(time.Until(at))
			defer t.Stop()
			late = t.C
		}
		select {
		case <-end.C:
			return nil
		case <-late:
			return os.ErrDeadlineExceeded
		case <-c.closed:
			return net.ErrClosed
		case <-changed:
		}
	}
}

// SetDeadline, SetReadDeadline and SetWriteDeadline also bound delays and stalls.
func (c *Conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(t)
	c.out.setDeadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(t)
	return c.Conn.SetWriteDeadline(t)
}

// CloseWrite ends the outgoing direction, where the connection can.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return net.ErrClosed
}

// Close ends delays and stalls too.
func (c *Conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
