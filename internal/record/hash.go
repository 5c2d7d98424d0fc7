package record

import (
	"encoding/hex"
	"strconv"
)

// Hash is 32 bytes, hex in JSON; the zero Hash is the empty string.
type Hash [32]byte

// MarshalText writes hex.
func (h Hash) MarshalText() ([]byte, error) {
	if h == (Hash{}) {
		return nil, nil
	}
	return []byte(hex.EncodeToString(h[:])), nil
}

// UnmarshalText reads what MarshalText writes.
func (h *Hash) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*h = Hash{}
		return nil
	}
	if len(b) != 2*len(h) {
		return hex.ErrLength
	}
	_, err := hex.Decode(h[:], b)
	return err
}

func appendInt(b []byte, v int64) []byte { return strconv.AppendInt(b, v, 10) }
