// Package mac authenticates pages and closing statements: AES-GMAC under an attempt's own random key.
//
// A nonce is (kind, ordinal) and is used at most once a key: each tag is sent once, a resend needs a new grant, and a new
// attempt has a new key. Source of the construction: NIST SP 800-38D (GCM with an empty plaintext).
package mac

// Tag is a MAC, 16 bytes.
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

// Key of one attempt.
type Key struct{}

// New makes a Key from the 32 random bytes that the gateway minted (AES-256).
func New(secret [32]byte) *Key { panic("unwritten") }

// Sum is the MAC of b under (kind, ordinal).
func (k *Key) Sum(kind Kind, ordinal uint64, b []byte) Tag { panic("unwritten") }

// SumCopy copies src to dst and returns the MAC of what was copied, in one pass where the machine allows it. len(dst) == len(src).
func (k *Key) SumCopy(kind Kind, ordinal uint64, dst, src []byte) Tag { panic("unwritten") }

// Equal compares in constant time.
func Equal(a, b Tag) bool { panic("unwritten") }
