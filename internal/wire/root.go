package wire

import (
	"crypto/sha256"
	"hash"
)

// Root hashes page MACs in ordinal order: SHA-256 over "sluice root v1\0" and the MACs, 16 bytes each. The manifest carries it, so that the
// pages of an attempt stand or fall as one.
type Root struct{ h hash.Hash }

// NewRoot starts a root.
func NewRoot() *Root {
	h := sha256.New()
	h.Write([]byte("sluice root v1\x00"))
	return &Root{h}
}

// Add hashes the MAC of the next ordinal.
func (r *Root) Add(mac [16]byte) { r.h.Write(mac[:]) }

// Sum is the root of what was added. More may be added after it.
func (r *Root) Sum() (out [32]byte) { r.h.Sum(out[:0]); return out }

// RootOf is the root of a whole slice.
func RootOf[M ~[16]byte](macs []M) [32]byte {
	r := NewRoot()
	for _, m := range macs {
		r.Add(m)
	}
	return r.Sum()
}
