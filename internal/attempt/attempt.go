// Package attempt names one try at one request on one pair.
//
// An ID is minted by the gateway, 128 bits of crypto/rand, and used once: a retry is a new attempt. The package
// holds the identity alone; what an attempt may do is in admission, what became of it in verdict and record.
package attempt

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// ID identifies an attempt. The zero ID names no attempt.
type ID [16]byte

// New mints an ID.
func New() ID {
	var id ID
	rand.Read(id[:]) // never fails: crypto/rand aborts the process instead
	return id
}

// Parse reads the 32 hex digits that String writes.
func Parse(s string) (ID, error) {
	var id ID
	if len(s) != 2*len(id) {
		return ID{}, fmt.Errorf("attempt: an id has %d hex digits, got %d", 2*len(id), len(s))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("attempt: %w", err)
	}
	return id, nil
}

// IsZero reports whether the ID names no attempt.
func (id ID) IsZero() bool { return id == ID{} }

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText makes the ID a JSON string of 32 hex digits.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (id *ID) UnmarshalText(b []byte) (err error) {
	*id, err = Parse(string(b))
	return err
}
