package faultconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sockets is a TCP connection, both ends.
func sockets(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

var text = []byte("0123456789abcdef")

func must(t testing.TB, s string) []Fault {
	t.Helper()
	faults, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return faults
}

func TestWhatPasses(t *testing.T) {
	flipped := slices.Clone(text)
	flipped[3] ^= 1 << 3
	flipped[4] ^= 1 << 4
	for _, c := range []struct {
		faults string
		want   string
	}{
		{"", "0123456789abcdef"},
		{"%s drop@4+3", "0123789abcdef"},
		{"%s duplicate@14+2", "0123456789abcdefef"},
		{"%s duplicate@0+3", "0120123456789abcdef"},
		{"%s flip@3+2", string(flipped)},
		{"%s tear@2+3", "0123456789abcdef"},
		{"%s delay@5=1ms", "0123456789abcdef"},
		{"%s halfclose@5", "01234"},
		{"%s drop@1; %s duplicate@2+2; %s tear@0+1; %s halfclose@8", "0232345678"[:9]},
	} {
		for _, side := range []string{"out", "in"} {
			for _, chunk := range []int{1, 3, 16} {
				faults := must(t, strings.ReplaceAll(c.faults, "%s", side))
				a, b := sockets(t)
				var w, r net.Conn = a, b
				var faulty *Conn
				if side == "out" {
					faulty = Wrap(a, faults...)
					w = faulty
				} else {
					faulty = Wrap(b, faults...)
					r = faulty
				}
				go func() {
					for p := range slices.Chunk(text, chunk) {
						if _, err := w.Write(p); err != nil {
							break
						}
					}
					a.CloseWrite()
				}()
				got, err := io.ReadAll(r)
				if err != nil || string(got) != c.want {
					t.Errorf("%s %q, %d at a time: %q, %v", side, c.faults, chunk, got, err)
				}
				if fired := faulty.Fired(); len(fired) != len(faults) {
					t.Errorf("%s %q: fired %v", side, c.faults, fired)
				}
			}
		}
	}
	if want := "0123456789abcdef"; string(text) != want {
		t.Error("a fault changed the caller's bytes")
	}
}

func TestTearLimitsEachRead(t *testing.T) {
	a, b := sockets(t)
	r := Wrap(b, must(t, "in tear@2+3")...)
	if _, err := a.Write(text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"01", "234", "567"} {
		buf := make([]byte, 16)
		if n, err := r.Read(buf); err != nil || string(buf[:n]) != want {
			t.Fatalf("%q, %v", buf[:n], err)
		}
	}
}

func TestStallsEndAtADeadlineOrClose(t *testing.T) {
	a, b := sockets(t)
	w, r := Wrap(a, must(t, "out stall@3")...), Wrap(b, must(t, "in stall@0")...)
	w.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := w.Write(text); n != 3 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %d, %v", n, err)
	}
	done := make(chan error, 1)
	go func() { _, err := r.Read(make([]byte, 1)); done <- err }()
	for len(r.Fired()) == 0 {
		time.Sleep(time.Millisecond)
	}
	r.SetReadDeadline(time.Now().Add(time.Hour)) // a deadline that is set during the stall counts
	r.SetReadDeadline(time.Now().Add(time.Millisecond))
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	again := Wrap(b, must(t, "in stall@0")...)
	go func() { _, err := again.Read(make([]byte, 1)); done <- err }()
	for len(again.Fired()) == 0 {
		time.Sleep(time.Millisecond)
	}
	again.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestResetReachesThePeer(t *testing.T) {
	a, b := sockets(t)
	w := Wrap(a, must(t, "out reset@3")...)
	if n, err := w.Write(text); n != 3 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("write: %d, %v", n, err)
	}
	if _, err := io.ReadAll(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer: %v", err)
	}
}

func TestHalfCloseLeavesTheOtherDirection(t *testing.T) {
	a, b := sockets(t)
	w := Wrap(a, must(t, "out halfclose@3")...)
	if n, err := w.Write(text); n != 3 || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write: %d, %v", n, err)
	}
	if got, err := io.ReadAll(b); err != nil || string(got) != "012" {
		t.Errorf("the peer read %q, %v", got, err)
	}
	if _, err := b.Write([]byte("back")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(w, got); err != nil || string(got) != "back" {
		t.Errorf("back: %q, %v", got, err)
	}
}

func TestTheSameSeedIsTheSameFaults(t *testing.T) {
	if a, b := Random(7, 50, 1000), Random(7, 50, 1000); !slices.Equal(a, b) {
		t.Error("one seed, two runs")
	}
	if slices.Equal(Random(7, 50, 1000), Random(8, 50, 1000)) {
		t.Error("two seeds, one run")
	}
	rapid.Check(t, func(t *rapid.T) {
		for _, f := range Random(rapid.Uint64().Draw(t, "seed"), 5, 1000) {
			got, err := Parse(f.String())
			if err != nil || len(got) != 1 || got[0] != f {
				t.Fatalf("%s read as %v, %v", f, got, err)
			}
		}
	})
}

func TestFaultsThatAreNone(t *testing.T) {
	for _, s := range []string{"flip@3", "up flip@3", "out flip", "out wobble@3", "out flip@-3", "out flip@x", "out flip@3+0", "out flip@3+2000000",
		"out stall@3+1", "out flip@3=1s", "out delay@3=-1s", "out delay@3=x", "out"} {
		if f, err := Parse(s); err == nil {
			t.Errorf("%q is %v", s, f)
		}
	}
	if f, err := Parse(" ; "); err != nil || f != nil {
		t.Errorf("nothing is %v, %v", f, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("out flip@4096+8; in stall@100; out tear@0+7=1ms; out delay@3=2s")
	f.Fuzz(func(t *testing.T, s string) {
		faults, err := Parse(s)
		if err != nil {
			return
		}
		var parts []string
		for _, f := range faults {
			parts = append(parts, f.String())
		}
		again, err := Parse(strings.Join(parts, ";"))
		if err != nil || !slices.Equal(again, faults) {
			t.Fatalf("%v became %v, %v", faults, again, err)
		}
	})
}

// Whatever the faults, a wrapped connection ends: no goroutine hangs past its deadline.
func TestRandomFaultsEnd(t *testing.T) {
	for seed := range uint64(40) {
		a, b := sockets(t)
		w, r := Wrap(a, Random(seed, 3, 64)...), Wrap(b, Random(seed+1000, 3, 64)...)
		deadline := time.Now().Add(50 * time.Millisecond)
		w.SetDeadline(deadline)
		r.SetDeadline(deadline)
		go func() {
			w.Write(bytes.Repeat(text, 8))
			w.Close()
		}()
		io.Copy(io.Discard, r)
		r.Close()
	}
}
