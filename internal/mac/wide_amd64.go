//go:build !race

package mac

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/cpu"
)

// wideRuns reports whether this machine has what ghash_amd64.s uses.
var wideRuns = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VPCLMULQDQ

// element is a member of GF(2^128) with its bits in POLYVAL's order (RFC 8452, appendix A): GHASH's, byte-reversed.
type element struct{ lo, hi uint64 }

// lanes are four elements side by side, as one 512-bit register holds them.
type lanes [4]element

// stride is the blocks that are summed before one reduction: 64 blocks are 1 KiB.
const stride = 64

// powers of the hash key, highest first: H^64 … H^1, and then H^64 in four lanes.
type powers [stride + 4]element

// ghash absorbs n bytes into acc, which holds one partial sum a lane: their sum is the running hash. Only the last of several
// calls may have an n that is no multiple of 1024; a last block that is not whole counts as padded with zeros.
//
//go:noescape
func ghash(src *byte, n int, p *powers, acc *lanes)

// ghashCopy is ghash that also stores what it hashed.
//
//go:noescape
func ghashCopy(dst, src *byte, n int, p *powers, acc *lanes)

// ghashStream is ghashCopy past the caches, provided that dst is a multiple of 64, as a page is; else it is ghashCopy.
//
//go:noescape
func ghashStream(dst, src *byte, n int, p *powers, acc *lanes)

// mulLanes multiplies lane by lane.
//
//go:noescape
func mulLanes(a, b, product *lanes)

// wideKey is a key for the wide path: the cipher, which masks the hash, and the powers of the hash key.
type wideKey struct {
	block cipher.Block
	p     powers
}

func newWide(secret [32]byte) *wideKey {
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic("mac: " + err.Error()) // 32 bytes are a key
	}
	k := &wideKey{block: block}
	h := k.hashKey()
	power, by := lanes{h}, lanes{h}
	for i := stride - 1; ; i-- {
		k.p[i] = power[0]
		if i == 0 {
			break
		}
		mulLanes(&power, &by, &power)
	}
	for i := range 4 {
		k.p[stride+i] = k.p[0]
	}
	return k
}

// hashKey is AES(0) as POLYVAL wants it: byte-reversed, and times x, so that products need no shift by one bit.
func (k *wideKey) hashKey() element {
	var b [16]byte
	k.block.Encrypt(b[:], b[:])
	lo, hi := binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[:8])
	lo2, c := bits.Add64(lo, lo, 0)
	hi2, c := bits.Add64(hi, hi, c)
	return element{lo2 ^ c, hi2 ^ c*0xc200000000000000} // x^128 = x^127 + x^126 + x^121 + 1, reversed
}

func (k *wideKey) sum(nonce [12]byte, b []byte) Tag {
	var acc lanes
	if len(b) > 0 {
		ghash(&b[0], len(b), &k.p, &acc)
	}
	return k.finish(nonce, len(b), &acc)
}

// streamFrom is the size from which a copy goes past the caches: a page is read a whole transfer later, and a store that need
// not fetch the line first costs half (BenchmarkAbsorb).
const streamFrom = 32 << 10

func (k *wideKey) sumCopy(nonce [12]byte, dst, src []byte) Tag {
	var acc lanes
	switch n := len(src); {
	case n >= streamFrom:
		ghashStream(&dst[:n][0], &src[0], n, &k.p, &acc)
	case n > 0:
		ghashCopy(&dst[:n][0], &src[0], n, &k.p, &acc)
	}
	return k.finish(nonce, len(src), &acc)
}

// finish folds the lanes, absorbs the length block (n bytes of additional data, none of plaintext), and masks the hash with
// AES of the nonce's first counter block.
func (k *wideKey) finish(nonce [12]byte, n int, acc *lanes) (t Tag) {
	var hash, h lanes
	for _, e := range acc {
		hash[0].lo ^= e.lo
		hash[0].hi ^= e.hi
	}
	hash[0].hi ^= uint64(n) * 8
	h[0] = k.p[stride-1]
	mulLanes(&hash, &h, &hash)

	var mask [16]byte
	copy(mask[:], nonce[:])
	mask[15] = 1
	k.block.Encrypt(mask[:], mask[:])
	binary.BigEndian.PutUint64(t[:8], hash[0].hi^binary.BigEndian.Uint64(mask[:8]))
	binary.BigEndian.PutUint64(t[8:], hash[0].lo^binary.BigEndian.Uint64(mask[8:]))
	return t
}
