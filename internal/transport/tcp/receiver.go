package tcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// receiver reads frames. Between frames it waits without a deadline; from a frame's first byte on, the whole frame must come within its
// time. One goroutine at a time.
type receiver struct {
	conn    net.Conn
	br      *bufio.Reader
	timeout time.Duration
	armed   bool   // a read deadline is set
	body    []byte // scratch of up to keepBuffer
}

// Sizes of the buffered reader. A page's payload is read past it, so on a data link it only needs to hold heads; larger would copy more.
const (
	controlBuffer = 16 << 10
	dataBuffer    = 4 << 10
)

// firstBody is how much is allocated for a body before any of it has come. It doubles as bytes arrive, so a length that is only
// announced costs no more than this.
const firstBody = 64 << 10

func newReceiver(conn net.Conn, size int, timeout time.Duration) *receiver {
	return &receiver{conn: conn, br: bufio.NewReaderSize(conn, size), timeout: timeout}
}

// header waits for a frame and reads its header. size is what the frame's body may hold here.
func (r *receiver) header() (wire.Header, error) {
	if r.br.Buffered() == 0 {
		if err := r.disarm(); err != nil {
			return wire.Header{}, err
		}
		if _, err := r.br.Peek(1); err != nil {
			if errors.Is(err, io.EOF) {
				return wire.Header{}, ErrPeerClosed
			}
			return wire.Header{}, fmt.Errorf("%w: %w", ErrLost, err)
		}
	}
	if err := r.arm(wire.HeaderSize); err != nil {
		return wire.Header{}, err
	}
	b, err := r.br.Peek(wire.HeaderSize)
	if err != nil {
		return wire.Header{}, inside(err, "a header")
	}
	h, err := wire.ParseHeader(b)
	if err != nil {
		return wire.Header{}, err
	}
	r.br.Discard(wire.HeaderSize)
	return h, r.arm(h.Body)
}

// frame reads the body of any frame but a page and decodes it.
func (r *receiver) frame(h wire.Header) (wire.Frame, error) {
	b, err := r.read(h)
	if err != nil {
		return nil, err
	}
	f, err := wire.Decode(h.Kind, b)
	if cap(r.body) > keepBuffer {
		r.body = nil
	}
	return f, err
}

func (r *receiver) read(h wire.Header) ([]byte, error) {
	b := r.body[:0]
	for len(b) < h.Body {
		have := len(b)
		want := min(h.Body, max(2*have, firstBody))
		if want > cap(b) {
			b = append(make([]byte, 0, want), b...)
		}
		b = b[:want]
		if _, err := io.ReadFull(r.br, b[have:]); err != nil {
			return nil, inside(err, h.Kind.String())
		}
	}
	r.body = b
	return b, nil
}

// page reads a page whole: its head, and its payload into staging.
func (r *receiver) page(h wire.Header, staging []byte, most int) (wire.PageHeader, []byte, error) {
	n := h.Body - wire.PageHead
	if n < 0 {
		return wire.PageHeader{}, nil, fmt.Errorf("%w: a page of %d bytes with its head, at least %d", wire.ErrShort, h.Body, wire.PageHead)
	}
	if n > min(len(staging), most) {
		return wire.PageHeader{}, nil, fmt.Errorf("%w: a page of %d bytes, at most %d on this link", wire.ErrLength, n, min(len(staging), most))
	}
	b, err := r.br.Peek(wire.PageHead)
	if err != nil {
		return wire.PageHeader{}, nil, inside(err, "a page's head")
	}
	f, err := wire.Decode(wire.KindPage, b)
	if err != nil {
		return wire.PageHeader{}, nil, err
	}
	r.br.Discard(wire.PageHead)
	head := f.(wire.PageHeader)
	if int(head.Length) != n {
		return wire.PageHeader{}, nil, fmt.Errorf("%w: a page's head says %d bytes, its frame has %d", wire.ErrLength, head.Length, n)
	}
	payload := staging[:n:n]
	if _, err := io.ReadFull(r.br, payload); err != nil {
		return wire.PageHeader{}, nil, inside(err, "a page")
	}
	return head, payload, nil
}

// arm sets a deadline for the next n bytes unless they have come already.
func (r *receiver) arm(n int) error {
	if r.br.Buffered() >= n {
		return nil
	}
	r.armed = true
	if err := r.conn.SetReadDeadline(time.Now().Add(allowance(r.timeout, n))); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

func (r *receiver) disarm() error {
	if !r.armed {
		return nil
	}
	r.armed = false
	if err := r.conn.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

// inside names a read error in the middle of a frame.
func inside(err error, what string) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: in %s", ErrHalfFrame, what)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: in %s", ErrStalled, what)
	}
	return fmt.Errorf("%w: in %s: %w", ErrLost, what, err)
}
