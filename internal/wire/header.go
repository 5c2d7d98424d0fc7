package wire

import (
	"encoding/binary"
	"fmt"
)

// HeaderSize is the bytes before a body.
const HeaderSize = 8

// lengthOverhead is what the length field counts beside the body: version, kind and flags.
const lengthOverhead = HeaderSize - 4

// Header is the eight bytes before a body, checked.
type Header struct {
	Kind Kind
	Body int // bytes that follow; for a page: its head and its payload
}

// ParseHeader reads a header. b must hold HeaderSize bytes (ErrShort). The version is looked at first, since nothing else of another
// version's frame means anything here (VersionError); then kind, flags and the length against MaxBody.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("%w: a header of %d bytes, not %d", ErrShort, len(b), HeaderSize)
	}
	le := binary.LittleEndian
	length, version, kind, flags := le.Uint32(b), b[4], Kind(b[5]), le.Uint16(b[6:])
	switch {
	case version != Version:
		return Header{}, VersionError{Own: Version, Peer: version}
	case !kind.Known():
		return Header{}, fmt.Errorf("%w: %d", ErrKind, uint8(kind))
	case flags != 0:
		return Header{}, fmt.Errorf("%w: %#04x on %s", ErrFlags, flags, kind)
	case length < lengthOverhead:
		return Header{}, fmt.Errorf("%w: a length of %d on %s, at least %d", ErrShort, length, kind, lengthOverhead)
	case int64(length)-lengthOverhead > int64(MaxBody(kind)):
		return Header{}, fmt.Errorf("%w: a body of %d bytes on %s, at most %d", ErrLength, int64(length)-lengthOverhead, kind, MaxBody(kind))
	}
	return Header{Kind: kind, Body: int(length) - lengthOverhead}, nil
}

// appendHeader writes a header for a body of n bytes.
func appendHeader(dst []byte, k Kind, n int) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(n+lengthOverhead))
	return append(dst, Version, byte(k), 0, 0)
}
