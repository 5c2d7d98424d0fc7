// Package tcp is the sockets: links that carry the wire's frames between gateway, prefill and decode.
//
// A control link (Link) runs over TLS 1.3 with keys pinned both ways. A data link (DataLink) is plain TCP whose hellos are signed both ways
// and whose frames carry MACs, or TLS as well when both ends ask for it. The package owns sockets, deadlines and buffers; it
// knows frames but no attempts, grants or pages, and it makes no policy beyond what may be sent by whom (wire.May).
//
// A hostile peer costs bounded memory and bounded time: before it is authenticated it can send one hello of a few hundred bytes, within the
// handshake's deadline; after that a frame of its own role, whole, within the frame's deadline. Every such end has a named error.
//
// Goroutines: one writer a link, which ends with the link; one a handshake in a Listener. Lock order: sender.turn, then sender.mu;
// link.mu and Listener.mu are leaves.
package tcp

import (
	"crypto/ed25519"
	"errors"
	"net"
	"time"

	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// Errors that end a link or a handshake. The wire's own (wire.ErrVersion, wire.ErrMismatch, wire.ErrLength…) and the keyring's
// (keyring.ErrUntrusted) come through as they are.
var (
	ErrClosed     = errors.New("tcp: the link was closed here")
	ErrPeerClosed = errors.New("tcp: the peer closed the link")
	ErrLost       = errors.New("tcp: the connection was lost")
	ErrHalfFrame  = errors.New("tcp: the link ended inside a frame")
	ErrStalled    = errors.New("tcp: the peer stalled inside a frame")
	ErrUnread     = errors.New("tcp: the peer does not read what it is sent")
	ErrOverflow   = errors.New("tcp: the queue to the peer is full")
	ErrUnexpected = errors.New("tcp: a frame that the peer may not send here")
	ErrHandshake  = errors.New("tcp: the handshake took too long")
	ErrGarbage    = errors.New("tcp: what the peer sent is not the sluice wire")
	ErrTLS        = errors.New("tcp: the TLS handshake failed")
	ErrEncryption = errors.New("tcp: one end encrypts the data link and the other does not")
	ErrSignature  = errors.New("tcp: the peer's signature over the hellos is wrong")
	ErrRefused    = errors.New("tcp: the peer ended the handshake (its log says why; it may not trust this end's key)")
	ErrCrowded    = errors.New("tcp: pushed out by newer handshakes")
)

// Config of one end. It is copied; a Config serves any number of links.
type Config struct {
	Identity keyring.Identity
	// Hello is this end's, without Session and Key: they are filled in for each connection.
	Hello wire.Hello
	// Trust says whether a peer's key is one that may be at the other end (keyring.Only, Fleet.Trust).
	Trust func(ed25519.PublicKey) error
	// Accept, if not nil, judges the peer's hello once its key is proven (Fleet.Check).
	Accept func(ed25519.PublicKey, wire.Hello) error
	// Encrypt runs a data link over TLS as well. Both ends must say the same: there is no negotiation to downgrade.
	Encrypt bool
	// OnRefuse, if not nil, hears of each handshake that a Listener ended. It must not block.
	OnRefuse func(remote net.Addr, err error)
	// Wrap, if not nil, is put around each new connection: drills inject faults with it.
	Wrap func(net.Conn) net.Conn

	Timeouts Timeouts
	Queue    int // bytes of queued frames at which Send waits and Post gives up; 0 is 1 MiB
	Pending  int // handshakes that a Listener has in progress at once; 0 is 64
}

// Timeouts of a link; 0 is the default. Frame and Write grow by a second for each MiB of the frame.
type Timeouts struct {
	Handshake time.Duration // from the connection to the end of the handshake; 5 s
	Frame     time.Duration // from a frame's first byte to its last; 10 s
	Write     time.Duration // for the peer to take what is sent; 10 s
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Timeouts.Handshake, 5*time.Second)
	def(&c.Timeouts.Frame, 10*time.Second)
	def(&c.Timeouts.Write, 10*time.Second)
	if c.Queue == 0 {
		c.Queue = 1 << 20
	}
	if c.Pending == 0 {
		c.Pending = 64
	}
	return c
}

// allowance is the time that n bytes get beside a base time-out: a mebibyte a second is slower than any link that is worth using.
func allowance(base time.Duration, n int) time.Duration {
	return base + time.Duration(n>>10)*(time.Second/1024)
}

// ALPN protocols. A control connection cannot be taken for a data connection.
const (
	protoControl = "sluice/1"
	protoData    = "sluice-data/1"
)

func (c Config) protocol(m wire.Medium) string {
	if m == wire.Data {
		return protoData
	}
	return protoControl
}
