package worker

import (
	"context"
	"crypto/ed25519"

	"github.com/sluicekv/sluice/internal/wire"
)

// controlLink is a link to a gateway. *tcp.Link is one. Send keeps order, and may be called while Recv waits; an error
// of either ends the link.
type controlLink interface {
	Send(wire.Frame) error
	Recv() (wire.Frame, error)
	Peer() wire.Hello
	Own() wire.Hello
	Shutdown(context.Context) error
	Close() error
}

// dataLink is a link between prefill and decode. *tcp.DataLink is one. The payload of a page is read into staging, and is valid until
// the next Recv.
type dataLink interface {
	Send(wire.Frame) error
	SendPage(h wire.PageHeader, payload []byte) error
	Recv(staging []byte) (wire.Frame, []byte, error)
	Peer() wire.Hello
	Own() wire.Hello
	PeerKey() ed25519.PublicKey
	Shutdown(context.Context) error
	Close() error
}
