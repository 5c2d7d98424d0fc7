package tcp

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// link is what control and data links share. It lives until the first error; that error is what every call returns from then on.
type link struct {
	conn   net.Conn
	raw    net.Conn // the same below TLS
	medium wire.Medium
	own    wire.Hello
	peer   wire.Hello
	key    ed25519.PublicKey
	out    *sender
	in     *receiver
	writer sync.WaitGroup
	done   chan struct{}

	mu  sync.Mutex
	err error
}

// newLink starts a link on a connection whose handshake is over.
func newLink(m wire.Medium, g greeting, c Config) *link {
	l := &link{conn: g.conn, raw: g.raw, medium: m, own: g.own, peer: g.peer, key: g.key, in: g.in, done: make(chan struct{})}
	l.in.timeout = c.Timeouts.Frame
	l.out = newSender(g.conn, c, l.fail)
	l.writer.Go(func() { l.out.run(l.done) })
	return l
}

// fail ends the link with err, unless it has ended; it returns the error that the link ended with.
func (l *link) fail(err error) error {
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	l.err = err
	l.mu.Unlock()
	close(l.done)
	// TLS says goodbye first, and would wait for a peer that does not read: it gets a moment.
	cut := time.AfterFunc(goodbyeTime, func() { l.raw.Close() })
	l.conn.Close()
	cut.Stop()
	l.out.end()
	return err
}

const goodbyeTime = 50 * time.Millisecond

// Send queues a frame behind those sent before it and returns; while the queue is full it waits. Frames that gather while the
// socket is busy leave in one write. The error is the link's, or says that the frame itself cannot be sent (wire.Append). Safe for
// concurrent use.
func (l *link) Send(f wire.Frame) error { return l.out.enqueue(f, true) }

// Post is Send for callers that must not wait: a full queue ends the link with ErrOverflow, since a frame that is left out
// silently would be a lie.
func (l *link) Post(f wire.Frame) error { return l.out.enqueue(f, false) }

// Peer is the hello of the other end, Own the one sent to it (its Session is this connection's), PeerKey the key that the peer proved.
func (l *link) Peer() wire.Hello           { return l.peer }
func (l *link) Own() wire.Hello            { return l.own }
func (l *link) PeerKey() ed25519.PublicKey { return l.key }

// RemoteAddr is the socket's other end.
func (l *link) RemoteAddr() net.Addr { return l.conn.RemoteAddr() }

// Done is closed when the link has ended; Err then says why, and is nil before.
func (l *link) Done() <-chan struct{} { return l.done }

func (l *link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the link at once; what is queued is lost. Idempotent.
func (l *link) Close() error {
	l.fail(ErrClosed)
	l.writer.Wait()
	return nil
}

// lingerTime is how long Shutdown waits for the peer to close its side.
const lingerTime = time.Second

// Shutdown takes no more frames, sends what is queued, says that nothing follows, waits a moment for the peer to close too (so
// that closing a socket with unread bytes does not reset away what was just sent), and closes. It returns an error if something
// queued was not sent. Recv must be going on, or not be called again.
func (l *link) Shutdown(ctx context.Context) error {
	defer l.Close()
	if err := l.out.drain(ctx); err != nil {
		return fmt.Errorf("tcp: shutdown with frames unsent: %w", err)
	}
	if err := l.Err(); err != nil {
		return err
	}
	if c, ok := l.conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		linger, cancel := context.WithTimeout(ctx, lingerTime)
		defer cancel()
		select {
		case <-l.done:
		case <-linger.Done():
		}
	}
	return nil
}

// next reads a header that the peer may send.
func (l *link) next() (wire.Header, error) {
	h, err := l.in.header()
	if err == nil && !wire.May(l.medium, l.peer.Role, h.Kind) {
		err = fmt.Errorf("%w: a %s from a %s on a %s link", ErrUnexpected, h.Kind, l.peer.Role, l.medium)
	}
	return h, err
}

// Link is a control link, gateway to worker.
type Link struct{ *link }

// Recv returns the next frame. Any error ends the link: ErrPeerClosed between frames, ErrHalfFrame or ErrStalled inside one,
// ErrUnexpected, or the wire's. One goroutine at a time.
func (l *Link) Recv() (wire.Frame, error) {
	h, err := l.next()
	if err != nil {
		return nil, l.fail(err)
	}
	f, err := l.in.frame(h)
	if err != nil {
		return nil, l.fail(err)
	}
	return f, nil
}

// DataLink is a data link, prefill to decode.
type DataLink struct{ *link }

// ErrPage is a page that the peer has said it does not take; nothing was sent.
var ErrPage = errors.New("tcp: a page that cannot be sent")

// SendPage sends a page behind all frames sent before it, header and payload in one write, and returns when the socket has taken
// it: payload is then the caller's again. len(payload) must be h.Length. A peer that does not read ends the link with ErrUnread.
// Safe for concurrent use.
func (l *DataLink) SendPage(h wire.PageHeader, payload []byte) error {
	if int(h.Length) != len(payload) || len(payload) == 0 {
		panic(fmt.Sprintf("tcp: page %s of attempt %s says %d bytes and has %d", h.Tag, h.Attempt, h.Length, len(payload)))
	}
	if len(payload) > int(l.peer.MaxPage) {
		return fmt.Errorf("%w: %d bytes, the peer takes %d", ErrPage, len(payload), l.peer.MaxPage)
	}
	return l.out.page(h, payload)
}

// Recv returns the next frame. For a page the frame is a wire.PageHeader and payload, a part of staging, holds its bytes, all of
// them: nothing needs to be asked or pinned before they are there. For other frames payload is nil. staging is the caller's, at
// least as long as the Hello.MaxPage of this end. Errors as in Link.Recv.
func (l *DataLink) Recv(staging []byte) (f wire.Frame, payload []byte, err error) {
	h, err := l.next()
	switch {
	case err != nil:
	case h.Kind == wire.KindPage:
		f, payload, err = l.page(h, staging)
	default:
		f, err = l.in.frame(h)
	}
	if err != nil {
		return nil, nil, l.fail(err)
	}
	return f, payload, nil
}

func (l *DataLink) page(h wire.Header, staging []byte) (wire.Frame, []byte, error) {
	head, payload, err := l.in.page(h, staging, int(l.own.MaxPage))
	return head, payload, err
}
