// Package mac authenticates pages and closing statements: AES-GMAC under an attempt's own random key.
//
// A nonce is (kind, ordinal) and is used at most once a key: each tag is sent once, a resend needs a new grant, and a new
// attempt has a new key. Source of the construction: NIST SP 800-38D (GCM with an empty plaintext).
//
// There are two paths to the same bits: the standard library's GCM, everywhere, and GHASH at 512 bits, fused with the copy
// that lands a page, on machines with AVX-512 and VPCLMULQDQ. Path says which runs.
package mac

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
)

// Path names the path that Sum and SumCopy take in this process: "vpclmulqdq-512" or "standard".
func Path() string {
	if wideRuns {
		return "vpclmulqdq-512"
	}
	return "standard"
}

// Tag is a MAC, 16 bytes. Compare with Equal, not ==.
type Tag [16]byte

// Kind separates the uses of one key.
type Kind uint8

const (
	Page Kind = 1 + iota
	Attach
	Grant
	Manifest
	End
	AbortFromPrefill
	AbortFromDecode
)

// Key of one attempt. It is safe for concurrent use. Its methods do not retain or change what they hash.
type Key struct {
	gcm  cipher.AEAD
	wide *wideKey // nil where the machine has no wide path
}

// New makes a Key from the 32 random bytes that the gateway minted (AES-256).
func New(secret [32]byte) *Key {
	k := newStandard(secret)
	if wideRuns {
		k.wide = newWide(secret)
	}
	return k
}

// newStandard makes a Key that uses the standard library alone: the reference.
func newStandard(secret [32]byte) *Key {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic("mac: " + err.Error()) // 32 bytes are a key
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic("mac: " + err.Error()) // AES has 16-byte blocks
	}
	return &Key{gcm: gcm}
}

// nonce is unique for a key: the kind, 3 zero bytes, the ordinal as u64 little endian.
func nonce(kind Kind, ordinal uint64) (n [12]byte) {
	n[0] = byte(kind)
	binary.LittleEndian.PutUint64(n[4:], ordinal)
	return n
}

// Sum is the MAC of b under (kind, ordinal).
func (k *Key) Sum(kind Kind, ordinal uint64, b []byte) Tag {
	if k.wide != nil {
		return k.wide.sum(nonce(kind, ordinal), b)
	}
	return k.standardSum(nonce(kind, ordinal), b)
}

// SumCopy copies src to dst and returns the MAC of what was copied, in one pass where the machine allows it. The slices have
// one length and do not overlap; another length panics before a byte is copied.
func (k *Key) SumCopy(kind Kind, ordinal uint64, dst, src []byte) Tag {
	if len(dst) != len(src) {
		panic(fmt.Sprintf("mac: a copy of %d bytes into %d", len(src), len(dst)))
	}
	if k.wide != nil {
		return k.wide.sumCopy(nonce(kind, ordinal), dst, src)
	}
	copy(dst, src)
	return k.standardSum(nonce(kind, ordinal), dst) // of the copy, not of the source: what is judged is what landed
}

func (k *Key) standardSum(nonce [12]byte, b []byte) (t Tag) {
	k.gcm.Seal(t[:0], nonce[:], nil, b)
	return t
}

// Equal compares in constant time.
func Equal(a, b Tag) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }
