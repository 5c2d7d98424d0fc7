package tcp

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// Listener accepts links. Handshakes run beside each other, at most Config.Pending of them. When one more comes, the oldest is
// pushed out if it has had its grace, else the newcomer waits (in the kernel's backlog): a stranger that opens connections and
// says nothing keeps nobody out, since an honest handshake takes milliseconds, and a crowd of honest ones does not push each other
// out.
type Listener[L interface{ Close() error }] struct {
	socket net.Listener
	medium wire.Medium
	config Config
	make   func(*link) L
	ready  chan L
	done   chan struct{}
	freed  chan struct{} // 1: a handshake ended
	work   sync.WaitGroup

	mu      sync.Mutex
	pending list.List // of *knock, oldest first
	closed  bool
}

// knock is a connection whose handshake is going on.
type knock struct {
	since  time.Time
	cancel context.CancelCauseFunc
}

// grace is how long a handshake is left alone when others wait.
const grace = 100 * time.Millisecond

// ListenControl accepts control links at a worker.
func ListenControl(addr string, c Config) (*Listener[*Link], error) {
	return listen(addr, wire.Control, c, func(l *link) *Link { return &Link{l} })
}

// ListenData accepts data links at decode.
func ListenData(addr string, c Config) (*Listener[*DataLink], error) {
	return listen(addr, wire.Data, c, func(l *link) *DataLink { return &DataLink{l} })
}

func listen[L interface{ Close() error }](addr string, m wire.Medium, c Config, wrap func(*link) L) (*Listener[L], error) {
	c = c.withDefaults()
	c.check()
	socket, err := listenConfig().Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: %s listener: %w", m, err)
	}
	l := &Listener[L]{socket: socket, medium: m, config: c, make: wrap, ready: make(chan L), done: make(chan struct{}), freed: make(chan struct{}, 1)}
	l.work.Go(l.run)
	return l, nil
}

// Addr is where it listens.
func (l *Listener[L]) Addr() net.Addr { return l.socket.Addr() }

// Accept returns the next link whose handshake succeeded; ErrClosed after Close, or ctx's error. A link that nobody accepts within
// the handshake's time is closed.
func (l *Listener[L]) Accept(ctx context.Context) (L, error) {
	var none L
	select {
	case link := <-l.ready:
		return link, nil
	case <-l.done:
		return none, fmt.Errorf("tcp: %s listener: %w", l.medium, net.ErrClosed)
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// Close ends the listener and the handshakes in progress; links that were accepted stay. It waits for its goroutines.
func (l *Listener[L]) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	for e := l.pending.Front(); e != nil; e = e.Next() {
		e.Value.(*knock).cancel(ErrClosed)
	}
	l.mu.Unlock()
	var err error
	if first {
		close(l.done)
		err = l.socket.Close()
	}
	l.work.Wait()
	return err
}

func (l *Listener[L]) run() {
	pause := time.Duration(0)
	for {
		raw, err := l.socket.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, or a connection that was gone before it was taken: the listener outlives both.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-l.done:
				return
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		l.admit(raw)
	}
}

// admit starts a handshake once there is room for it.
func (l *Listener[L]) admit(raw net.Conn) {
	ctx, cancel := context.WithCancelCause(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.pending.Len() >= l.config.Pending {
		oldest := l.pending.Front()
		k := oldest.Value.(*knock)
		left := grace - time.Since(k.since)
		if left <= 0 {
			l.pending.Remove(oldest)
			k.cancel(ErrCrowded)
			break
		}
		l.mu.Unlock()
		wait := time.NewTimer(left)
		select {
		case <-l.freed:
		case <-wait.C:
		case <-l.done:
		}
		wait.Stop()
		l.mu.Lock()
	}
	if l.closed {
		cancel(ErrClosed)
		raw.Close()
		return
	}
	e := l.pending.PushBack(&knock{time.Now(), cancel})
	l.work.Go(func() {
		defer cancel(nil)
		l.handshake(ctx, raw, e)
	})
}

func (l *Listener[L]) handshake(ctx context.Context, raw net.Conn, e *list.Element) {
	g, err := greet(ctx, l.config.wrap(raw), l.medium, false, l.config)
	l.mu.Lock()
	l.pending.Remove(e) // does nothing if it was pushed out
	l.mu.Unlock()
	select {
	case l.freed <- struct{}{}:
	default:
	}
	if err != nil {
		if l.config.OnRefuse != nil {
			l.config.OnRefuse(raw.RemoteAddr(), err)
		}
		return
	}
	link := l.make(newLink(l.medium, g, l.config))
	wait := time.NewTimer(l.config.Timeouts.Handshake)
	defer wait.Stop()
	select {
	case l.ready <- link:
	case <-l.done:
		link.Close()
	case <-wait.C:
		link.Close()
	}
}
