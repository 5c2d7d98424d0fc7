package wire

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/sluicekv/sluice/internal/page"
)

// ErrMismatch is what every Mismatch is.
var ErrMismatch = errors.New("wire: the two ends differ")

// Mismatch says in what two hellos differ, with both values: the pair is refused.
type Mismatch struct{ Field, Own, Peer string }

func (m Mismatch) Error() string {
	return fmt.Sprintf("wire: the two ends differ in %s: the peer has %s, this end %s", m.Field, m.Peer, m.Own)
}

// Is makes a Mismatch an ErrMismatch.
func (m Mismatch) Is(target error) bool { return target == ErrMismatch }

// Compare holds the peer's hello against one's own on a data link: one end is prefill and the other decode, of one model and one page
// geometry, and decode takes a whole page of it. The versions were compared by ParseHeader.
func Compare(own, peer Hello) error {
	switch {
	case own.Role == RoleGateway || peer.Role == RoleGateway || own.Role == peer.Role:
		return Mismatch{"role (a data link is from prefill to decode)", own.Role.String(), peer.Role.String()}
	case own.Model != peer.Model:
		return Mismatch{"model", fingerprint(own.Model), fingerprint(peer.Model)}
	case own.Geometry != peer.Geometry:
		return Mismatch{"page geometry", own.Geometry.String(), peer.Geometry.String()}
	case own.Geometry == (page.Geometry{}):
		return Mismatch{"page geometry", "none", "none"}
	case own.Role == RoleDecode && int64(own.MaxPage) < int64(own.Geometry.Bytes()):
		return Mismatch{"page size", fmt.Sprintf("room for %d bytes", own.MaxPage), fmt.Sprintf("pages of %d", own.Geometry.Bytes())}
	case peer.Role == RoleDecode && int64(peer.MaxPage) < int64(own.Geometry.Bytes()):
		return Mismatch{"page size", fmt.Sprintf("pages of %d bytes", own.Geometry.Bytes()), fmt.Sprintf("room for %d", peer.MaxPage)}
	}
	return nil
}

// CompareControl is Compare for a control link: a gateway at one end and a worker at the other. What the worker runs is the gateway's
// to judge.
func CompareControl(own, peer Hello) error {
	if (own.Role == RoleGateway) == (peer.Role == RoleGateway) {
		return Mismatch{"role (a control link is from gateway to worker)", own.Role.String(), peer.Role.String()}
	}
	return nil
}

func fingerprint(m [32]byte) string { return hex.EncodeToString(m[:8]) + "…" }

// AuthMessage is what Auth.Sig of the end with the given role is over. Both encoded hellos, headers and all, the dialler's first, carry a
// random session each, so a signature fits one connection; the role keeps one end's from serving as the other's.
func AuthMessage(signer Role, dialler, listener []byte) []byte {
	m := make([]byte, 0, len(authContext)+1+len(dialler)+len(listener))
	m = append(m, authContext...)
	m = append(m, byte(signer))
	m = append(m, dialler...)
	return append(m, listener...)
}

const authContext = "sluice data v1\x00"

// Medium is the kind of a link.
type Medium uint8

const (
	Control Medium = 1 // gateway to worker
	Data    Medium = 2 // prefill to decode
)

func (m Medium) String() string {
	if m == Data {
		return "data"
	}
	return "control"
}

// May reports whether the end with role from may send frames of kind k on a link once it is open. What is not listed ends the link, so that
// a peer can make this end hold only what the frames of its own role can carry.
func May(m Medium, from Role, k Kind) bool {
	if k == KindPing || k == KindPong || k == KindAbort {
		return true
	}
	switch {
	case m == Control && from == RoleGateway:
		return k == KindPlan || k == KindPrompt || k == KindStop
	case m == Control && from == RolePrefill:
		return k == KindFacts || k == KindOutcome || k == KindSettled
	case m == Control && from == RoleDecode:
		return k == KindFacts || k == KindReserved || k == KindSealed || k == KindOutput || k == KindOutcome || k == KindSettled
	case m == Data && from == RolePrefill:
		return k == KindAttach || k == KindPage || k == KindManifest || k == KindEnd
	case m == Data && from == RoleDecode:
		return k == KindGrant
	}
	return false
}
