package admission

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// Digester hashes token ids under a scope, so that equal prompts of two scopes have different digests. It is incremental:
// prefill feeds what it computes, chunk by chunk.
type Digester struct {
	h hash.Hash
	n int
}

// NewDigester starts a digest: SHA-256 over "sluice prompt v1\0" || scope || ids as int32 little endian.
func NewDigester(s Scope) *Digester {
	h := sha256.New()
	h.Write([]byte("sluice prompt v1\x00"))
	h.Write(s[:])
	return &Digester{h: h}
}

// Add hashes ids.
func (d *Digester) Add(ids []int32) {
	var buf [4096]byte
	for len(ids) > 0 {
		n := min(len(ids), len(buf)/4)
		for i, id := range ids[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], uint32(id))
		}
		d.h.Write(buf[:4*n])
		ids = ids[n:]
		d.n += n
	}
}

// Sum returns the digest of what was added.
func (d *Digester) Sum() (out [32]byte) { d.h.Sum(out[:0]); return out }

// Tokens is the number of ids added.
func (d *Digester) Tokens() int { return d.n }

// Digest of one slice.
func Digest(s Scope, ids []int32) [32]byte {
	d := NewDigester(s)
	d.Add(ids)
	return d.Sum()
}
