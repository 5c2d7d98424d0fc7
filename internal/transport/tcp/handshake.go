package tcp

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// greeting is a connection whose handshake is over.
type greeting struct {
	conn, raw net.Conn // with TLS and below it
	in        *receiver
	own, peer wire.Hello
	key       ed25519.PublicKey
}

// greet runs the handshake on raw within its deadline. On an error raw is closed.
//
//	control   TLS · hello of the gateway · hello of the worker
//	data      [TLS] · hello of prefill · hello of decode · auth of prefill · auth of decode
//
// The listener answers a hello with its own even when it will refuse it: so both ends can name both values. It signs only after it
// has verified the dialler's signature: strangers get no signatures out of it.
func greet(ctx context.Context, raw net.Conn, m wire.Medium, dialled bool, c Config) (g greeting, err error) {
	deadline := time.Now().Add(c.Timeouts.Handshake)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	raw.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		if err == nil {
			err = raw.SetDeadline(time.Time{})
		}
		if err == nil {
			err = context.Cause(ctx) // it may have hit between stop and the line above
		}
		if err != nil {
			raw.Close()
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			} else {
				err = handshakeError(err, c.Timeouts.Handshake)
			}
		}
	}()

	g.conn, g.raw = raw, raw
	var proven ed25519.PublicKey
	if m == wire.Control || c.Encrypt {
		if g.conn, proven, err = secure(raw, m, dialled, c); err != nil {
			return g, err
		}
	}
	size := controlBuffer
	if m == wire.Data {
		size = dataBuffer
	}
	g.in = newReceiver(g.conn, size, 0)

	g.own = c.Hello
	g.own.Key = c.Identity.Key()
	rand.Read(g.own.Session[:])
	ours, err := wire.Append(nil, g.own)
	if err != nil {
		return g, fmt.Errorf("tcp: own hello: %w", err)
	}
	theirs, err := g.exchange(ours, dialled)
	if err != nil {
		return g, err
	}

	compare := wire.CompareControl
	if m == wire.Data {
		compare = wire.Compare
	}
	if err := compare(g.own, g.peer); err != nil {
		return g, err
	}
	g.key = ed25519.PublicKey(append([]byte(nil), g.peer.Key[:]...))
	if proven != nil && !proven.Equal(g.key) {
		return g, fmt.Errorf("%w: TLS proved %s, the hello names %s", keyring.ErrUntrusted, keyring.Short(proven), keyring.Short(g.key))
	}
	if err := c.Trust(g.key); err != nil {
		return g, err
	}
	if m == wire.Data {
		if err := g.authenticate(c.Identity, ours, theirs, dialled); err != nil {
			return g, err
		}
	}
	if c.Accept != nil {
		if err := c.Accept(g.key, g.peer); err != nil {
			return g, err
		}
	}
	return g, nil
}

// secure runs TLS and returns the key that the peer proved.
func secure(raw net.Conn, m wire.Medium, dialled bool, c Config) (net.Conn, ed25519.PublicKey, error) {
	config := c.Identity.TLS(c.protocol(m), c.Trust)
	conn := tls.Server(raw, config)
	if dialled {
		conn = tls.Client(raw, config)
	}
	if err := conn.Handshake(); err != nil {
		if record := (tls.RecordHeaderError{}); errors.As(err, &record) {
			if m == wire.Data {
				return nil, nil, fmt.Errorf("%w: this end does", ErrEncryption)
			}
			return nil, nil, fmt.Errorf("%w: no TLS", ErrGarbage)
		}
		return nil, nil, fmt.Errorf("%w: %w", ErrTLS, err)
	}
	key, err := keyring.PeerKey(conn.ConnectionState())
	return conn, key, err
}

// exchange swaps hellos, the dialler's first, and returns the peer's as it was encoded.
func (g *greeting) exchange(ours []byte, dialled bool) ([]byte, error) {
	if dialled {
		if _, err := g.conn.Write(ours); err != nil {
			return nil, err
		}
		return g.hello()
	}
	theirs, err := g.hello()
	if err == nil || errors.Is(err, wire.ErrVersion) {
		if _, werr := g.conn.Write(ours); err == nil {
			err = werr
		}
	}
	return theirs, err
}

// hello reads the peer's.
func (g *greeting) hello() ([]byte, error) {
	b, err := g.in.br.Peek(wire.HeaderSize)
	if err != nil {
		return nil, err
	}
	encoded := append(make([]byte, 0, wire.HeaderSize+wire.MaxHello), b...)
	h, err := wire.ParseHeader(b)
	switch {
	case err != nil && b[0] == 0x16 && b[1] == 0x03: // a TLS record: handshake, version 3.x
		return nil, fmt.Errorf("%w: the peer does", ErrEncryption)
	case wire.Kind(b[5]) != wire.KindHello || b[6]|b[7] != 0:
		return nil, fmt.Errorf("%w: no hello", ErrGarbage)
	case err != nil:
		return nil, err
	}
	g.in.br.Discard(wire.HeaderSize)
	body, err := g.in.read(h)
	if err != nil {
		return nil, err
	}
	f, err := wire.Decode(h.Kind, body)
	if err != nil {
		return nil, err
	}
	g.peer = f.(wire.Hello)
	return append(encoded, body...), nil
}

// authenticate proves each end's key over both hellos.
func (g *greeting) authenticate(id keyring.Identity, ours, theirs []byte, dialled bool) error {
	first, second := theirs, ours
	if dialled {
		first, second = ours, theirs
	}
	sign := func() error {
		b, err := wire.Append(nil, wire.Auth{Sig: id.Sign(wire.AuthMessage(g.own.Role, first, second))})
		if err == nil {
			_, err = g.conn.Write(b)
		}
		return err
	}
	verify := func() error {
		b, err := g.in.br.Peek(wire.HeaderSize)
		if err != nil {
			return err
		}
		h, err := wire.ParseHeader(b)
		if err != nil {
			return err
		}
		if h.Kind != wire.KindAuth {
			return fmt.Errorf("%w: a %s before auth", ErrUnexpected, h.Kind)
		}
		g.in.br.Discard(wire.HeaderSize)
		f, err := g.in.frame(h)
		if err != nil {
			return err
		}
		sig := f.(wire.Auth).Sig
		if !ed25519.Verify(g.key, wire.AuthMessage(g.peer.Role, first, second), sig[:]) {
			return fmt.Errorf("%w: by %s", ErrSignature, keyring.Short(g.key))
		}
		return nil
	}
	if dialled {
		if err := sign(); err != nil {
			return err
		}
		return verify()
	}
	if err := verify(); err != nil {
		return err
	}
	return sign()
}

// handshakeError names what ended a handshake.
func handshakeError(err error, limit time.Duration) error {
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, ErrStalled):
		return fmt.Errorf("%w: over %s", ErrHandshake, limit)
	case errors.As(err, &op) && op.Op == "remote error", // a TLS alert
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, ErrHalfFrame):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}
