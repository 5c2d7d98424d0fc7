//go:build !race

package mac

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// absorbers are the three ways that the wide path reads a message; the copying ones also store it.
var absorbers = []struct {
	name   string
	copies bool
	absorb func(dst, src []byte, p *powers, acc *lanes)
}{
	{"hash", false, func(_, src []byte, p *powers, acc *lanes) { ghash(&src[0], len(src), p, acc) }},
	{"copy", true, func(dst, src []byte, p *powers, acc *lanes) { ghashCopy(&dst[0], &src[0], len(src), p, acc) }},
	{"stream", true, func(dst, src []byte, p *powers, acc *lanes) { ghashStream(&dst[0], &src[0], len(src), p, acc) }},
}

func skipUnlessWide(t testing.TB) {
	if !wideRuns {
		t.Skip("this machine has no AVX-512 with VPCLMULQDQ")
	}
}

// fenced returns n bytes that end where an unmapped page begins.
func fenced(t testing.TB, n int) []byte {
	m := os.Getpagesize()
	size := (n + m - 1) / m * m
	b, err := unix.Mmap(-1, 0, size+m, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	if err := unix.Mprotect(b[size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return b[size-n : size : size]
}

// aligned returns n bytes that start on a multiple of 64, inside a larger slice whose other bytes are 0xee.
func aligned(n int) (whole, b []byte) {
	whole = bytes.Repeat([]byte{0xee}, n+192)
	skip := 64
	for addr := fmt.Sprintf("%p", &whole[skip]); !onLine(addr); addr = fmt.Sprintf("%p", &whole[skip]) {
		skip++
	}
	return whole, whole[skip : skip+n : skip+n]
}

// onLine reports whether a printed address is a multiple of 64.
func onLine(addr string) bool {
	var a uint64
	fmt.Sscanf(addr, "0x%x", &a)
	return a%64 == 0
}

func TestWideEqualsStandardLibrary(t *testing.T) {
	skipUnlessWide(t)
	rng := rand.NewChaCha8([32]byte{7})
	var secret [32]byte
	rng.Read(secret[:])
	reference, wide := newStandard(secret), newWide(secret)
	lengths := []int{48 << 10, 64<<10 - 1, 1<<20 + 5}
	for n := range 2*1024 + 130 { // past two whole strides, every remainder
		lengths = append(lengths, n)
	}
	message := fenced(t, 1<<20+5)
	rng.Read(message)
	for _, n := range lengths {
		src := message[len(message)-n:] // ends where the mapping ends: an overread is a fault
		no := nonce(Page, uint64(n)<<33|uint64(n))
		want := reference.standardSum(no, src)
		if got := wide.sum(no, src); got != want {
			t.Fatalf("sum of %d bytes: %x, the standard library says %x", n, got, want)
		}
		if n == 0 {
			continue
		}
		for _, a := range absorbers {
			whole, dst := aligned(n)
			var acc lanes
			a.absorb(dst, src, &wide.p, &acc)
			if got := wide.finish(no, n, &acc); got != want {
				t.Fatalf("%s of %d bytes: %x, the standard library says %x", a.name, n, got, want)
			}
			if !a.copies {
				continue
			}
			if !bytes.Equal(dst, src) {
				t.Fatalf("%s of %d bytes: the copy differs", a.name, n)
			}
			if extra := bytes.Count(whole, []byte{0xee}) - bytes.Count(dst, []byte{0xee}); extra != len(whole)-n {
				t.Fatalf("%s of %d bytes wrote outside its destination: %d bytes kept, want %d", a.name, n, extra, len(whole)-n)
			}
			edge := fenced(t, n)
			acc = lanes{}
			a.absorb(edge, src, &wide.p, &acc)
			if got := wide.finish(no, n, &acc); got != want || !bytes.Equal(edge, src) {
				t.Fatalf("%s of %d bytes to an address that is no multiple of 64: %x, want %x", a.name, n, got, want)
			}
		}
	}
}

func TestWideInPieces(t *testing.T) {
	skipUnlessWide(t)
	var secret [32]byte
	secret[3] = 9
	reference, wide := newStandard(secret), newWide(secret)
	message := make([]byte, 5*1024+77)
	rand.NewChaCha8([32]byte{1}).Read(message)
	no := nonce(Manifest, 3)
	for cut := 1024; cut < len(message); cut += 1024 {
		var acc lanes
		ghash(&message[0], cut, &wide.p, &acc)
		ghash(&message[cut], len(message)-cut, &wide.p, &acc)
		if got, want := wide.finish(no, len(message), &acc), reference.standardSum(no, message); got != want {
			t.Fatalf("cut at %d: %x, want %x", cut, got, want)
		}
	}
}

func BenchmarkAbsorb(b *testing.B) {
	skipUnlessWide(b)
	wide := newWide([32]byte{})
	for _, size := range []int{48 << 10, 1 << 20} {
		const cold = 256 << 20
		src, dst := make([]byte, cold), make([]byte, cold+64)
		_, dst = alignedIn(dst)
		rand.NewChaCha8([32]byte{}).Read(src[:1<<20])
		for i := 1 << 20; i < cold; i *= 2 {
			copy(src[i:], src[:i])
		}
		clear(dst)
		for _, frame := range []string{"hot", "cold"} {
			for _, a := range absorbers {
				b.Run(fmt.Sprintf("%s/%dKiB/frame-%s-page-cold", a.name, size>>10, frame), func(b *testing.B) {
					b.SetBytes(int64(size))
					var acc lanes
					off := 0
					for b.Loop() {
						from := off
						if frame == "hot" {
							from = 0
						}
						a.absorb(dst[off:off+size], src[from:from+size], &wide.p, &acc)
						if off += size; off+size > cold {
							off = 0
						}
					}
				})
			}
		}
	}
}

// alignedIn cuts b so that it starts on a multiple of 64.
func alignedIn(b []byte) (skip int, out []byte) {
	for !onLine(fmt.Sprintf("%p", &b[skip])) {
		skip++
	}
	return skip, b[skip:]
}
