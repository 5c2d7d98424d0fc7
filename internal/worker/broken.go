package worker

import (
	"errors"

	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// brokeWire reports whether a link ended because the peer broke the wire's rules, and not because it went away.
func brokeWire(err error) bool {
	for _, e := range []error{wire.ErrVersion, wire.ErrKind, wire.ErrFlags, wire.ErrLength, wire.ErrShort, wire.ErrTrailing,
		wire.ErrValue, tcp.ErrUnexpected, tcp.ErrGarbage} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func violationOf(error) handoff.Violation { return handoff.Violation{Code: verdict.ProtocolViolation} }
