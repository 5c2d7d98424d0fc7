package mac

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
)

// keys are the paths that this machine has, by name.
func keys(secret [32]byte) map[string]*Key {
	return map[string]*Key{"standard": newStandard(secret), Path(): New(secret)}
}

// knownAnswer is what "openssl mac -cipher AES-256-GCM -macopt hexkey:000102…1f -macopt hexiv:040000000807060504030201 GMAC"
// prints for the message below.
const knownAnswer = "d4c30e27b2de3f971f09d80011f566d8"

// TestKnownAnswer pins the construction: AES-256 GCM of an empty plaintext, the message as additional data, nonce kind,
// 000000, ordinal little endian. Both ends of a handoff may run other builds.
func TestKnownAnswer(t *testing.T) {
	var secret [32]byte
	for i := range secret {
		secret[i] = byte(i)
	}
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := hex.DecodeString("04000000" + "0807060504030201")
	message := []byte("seventeen bytes..")
	want := gcm.Seal(nil, n, nil, message)
	for name, k := range keys(secret) {
		got := k.Sum(Manifest, 0x0102030405060708, message)
		if !bytes.Equal(got[:], want) {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
		if hex.EncodeToString(got[:]) != knownAnswer {
			t.Errorf("%s: %x, openssl says %s", name, got, knownAnswer)
		}
	}
}

func TestSumCopyCopiesAndSums(t *testing.T) {
	for name, k := range keys([32]byte{1}) {
		for _, n := range []int{0, 1, 15, 16, 17, 1023, 1024, 1025, 48 << 10, 48<<10 + 3} {
			src := make([]byte, n)
			rand.NewChaCha8([32]byte{byte(n)}).Read(src)
			before := bytes.Clone(src)
			dst := bytes.Repeat([]byte{0xaa}, n+32)
			got := k.SumCopy(Page, 5, dst[:n], src)
			if want := k.Sum(Page, 5, src); got != want {
				t.Fatalf("%s, %d bytes: %x copied, %x not", name, n, got, want)
			}
			if !bytes.Equal(dst[:n], src) || !bytes.Equal(src, before) || bytes.Count(dst[n:], []byte{0xaa}) != 32 {
				t.Fatalf("%s, %d bytes: the copy is wrong", name, n)
			}
		}
	}
}

// TestEveryBitCounts flips one bit of key, kind, ordinal and message in turn, and changes the length: no MAC stays.
func TestEveryBitCounts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name := range keys([32]byte{}) {
		t.Run(name, func(t *testing.T) {
			sum := func(secret [32]byte, kind Kind, ordinal uint64, b []byte) Tag {
				return keys(secret)[name].Sum(kind, ordinal, b)
			}
			var secret [32]byte
			message := make([]byte, 1024+200)
			base := sum(secret, Page, 7, message)
			for range 64 {
				s, m := secret, bytes.Clone(message)
				s[rng.IntN(32)] ^= 1 << rng.IntN(8)
				m[rng.IntN(len(m))] ^= 1 << rng.IntN(8)
				for what, got := range map[string]Tag{
					"key":     sum(s, Page, 7, message),
					"message": sum(secret, Page, 7, m),
					"kind":    sum(secret, Page^1<<rng.IntN(8), 7, message),
					"ordinal": sum(secret, Page, 7^1<<rng.IntN(64), message),
					"length":  sum(secret, Page, 7, message[:rng.IntN(len(message))]),
				} {
					if Equal(got, base) {
						t.Fatalf("another %s has the same MAC", what)
					}
				}
			}
		})
	}
}

func TestEqual(t *testing.T) {
	a := Tag{1, 2, 3}
	if !Equal(a, a) {
		t.Fatal("a tag does not equal itself")
	}
	for i := range a {
		b := a
		b[i] ^= 0x80
		if Equal(a, b) || Equal(b, a) {
			t.Fatalf("byte %d does not count", i)
		}
	}
}

func TestCopyOfAnotherLengthPanicsBeforeItCopies(t *testing.T) {
	for name, k := range keys([32]byte{}) {
		for _, n := range []int{0, 15, 17} {
			dst := make([]byte, n)
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: 16 bytes were copied into %d", name, n)
					}
				}()
				k.SumCopy(Page, 0, dst, bytes.Repeat([]byte{1}, 16))
			}()
			if bytes.Contains(dst, []byte{1}) {
				t.Errorf("%s: bytes were copied before the panic", name)
			}
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	for name, k := range keys([32]byte{4}) {
		message := make([]byte, 3000)
		want := k.Sum(Page, 1, message)
		done := make(chan Tag)
		for range 8 {
			go func() { done <- k.SumCopy(Page, 1, make([]byte, len(message)), message) }()
		}
		for range 8 {
			if got := <-done; got != want {
				t.Errorf("%s: %x, want %x", name, got, want)
			}
		}
	}
}

// FuzzSum holds the chosen path to the standard library's answer.
func FuzzSum(f *testing.F) {
	f.Add([]byte("key"), byte(1), uint64(0), []byte("message"))
	f.Add([]byte{}, byte(7), uint64(1)<<63, make([]byte, 1100))
	f.Fuzz(func(t *testing.T, key []byte, kind byte, ordinal uint64, message []byte) {
		var secret [32]byte
		copy(secret[:], key)
		want := newStandard(secret).Sum(Kind(kind), ordinal, message)
		k := New(secret)
		if got := k.Sum(Kind(kind), ordinal, message); got != want {
			t.Fatalf("sum %x, want %x", got, want)
		}
		dst := make([]byte, len(message))
		if got := k.SumCopy(Kind(kind), ordinal, dst, message); got != want || !bytes.Equal(dst, message) {
			t.Fatalf("sum of copy %x, want %x", got, want)
		}
	})
}

func BenchmarkSum(b *testing.B) {
	for name, k := range keys([32]byte{}) {
		for _, n := range []int{256, 48 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dB", name, n), func(b *testing.B) {
				message := make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					k.Sum(Page, 1, message)
				}
			})
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		New([32]byte{1})
	}
}
