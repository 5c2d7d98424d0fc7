package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/sluicekv/sluice/internal/wire"
)

// DialControl opens a control link to a worker. ctx bounds the dialling and the handshake, not the link.
func DialControl(ctx context.Context, addr string, c Config) (*Link, error) {
	l, err := dial(ctx, addr, wire.Control, c)
	if err != nil {
		return nil, err
	}
	return &Link{l}, nil
}

// DialData opens a data link from prefill to decode. ctx as in DialControl.
func DialData(ctx context.Context, addr string, c Config) (*DataLink, error) {
	l, err := dial(ctx, addr, wire.Data, c)
	if err != nil {
		return nil, err
	}
	return &DataLink{l}, nil
}

func dial(ctx context.Context, addr string, m wire.Medium, c Config) (*link, error) {
	c = c.withDefaults()
	c.check()
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeouts.Handshake, fmt.Errorf("%w: over %s", ErrHandshake, c.Timeouts.Handshake))
	defer cancel()
	raw, err := dialer().DialContext(ctx, "tcp", addr)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return nil, fmt.Errorf("tcp: %s link to %s: %w", m, addr, err)
	}
	g, err := greet(ctx, c.wrap(raw), m, true, c)
	if err != nil {
		return nil, fmt.Errorf("tcp: %s link to %s: %w", m, addr, err)
	}
	return newLink(m, g, c), nil
}

func (c Config) wrap(conn net.Conn) net.Conn {
	if c.Wrap == nil {
		return conn
	}
	return c.Wrap(conn)
}

// check panics on a Config that is no end of a link: the caller's mistake, not a peer's.
func (c Config) check() {
	if c.Identity.IsZero() || c.Trust == nil {
		panic(fmt.Sprintf("tcp: the config of %q has no identity or trusts nobody", c.Hello.Name))
	}
}
