package wire

import (
	"errors"
	"fmt"
)

// Errors of the codec. Each ends the connection: a peer that breaks a rule of the wire is not asked what it meant.
// A caller tells them apart with errors.Is; the text that wraps them carries kinds, lengths and numbers only.
var (
	ErrVersion  = errors.New("wire: another version")
	ErrKind     = errors.New("wire: unknown frame kind")
	ErrFlags    = errors.New("wire: unknown flags")
	ErrLength   = errors.New("wire: over-long")
	ErrShort    = errors.New("wire: cut short")
	ErrTrailing = errors.New("wire: trailing bytes")
	ErrValue    = errors.New("wire: value out of range")
)

// VersionError names both versions. It is an ErrVersion.
type VersionError struct{ Own, Peer uint8 }

func (e VersionError) Error() string {
	return fmt.Sprintf("wire: the peer speaks version %d, this end version %d", e.Peer, e.Own)
}

// Is makes a VersionError an ErrVersion.
func (e VersionError) Is(target error) bool { return target == ErrVersion }
