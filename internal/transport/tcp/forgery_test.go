package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

func TestKeysThatDoNotBelong(t *testing.T) {
	other := newTrio() // another fleet, with the same names
	for _, c := range []struct {
		name   string
		change func(f *trio)
		want   error // at the listener
	}{
		{"a stranger's key", func(f *trio) { f.prefill.Identity = other.ids["prefill"] }, keyring.ErrUntrusted},
		{"a gateway's key", func(f *trio) { f.decode.Trust = keyring.Only(f.ids["gateway"].Public()) }, keyring.ErrUntrusted},
		{"another name", func(f *trio) { f.prefill.Hello.Name = "prefill-2" }, keyring.ErrUntrusted},
	} {
		for _, encrypt := range []bool{false, true} {
			f := newTrio()
			c.change(&f)
			f.prefill.Encrypt, f.decode.Encrypt = encrypt, encrypt
			l, r := dataDoor(t, f.decode)
			link, err := DialData(within(t, 5*time.Second), l.Addr().String(), f.prefill)
			if err == nil {
				// With TLS 1.3 a client is done before it hears that it was refused; with Accept the key was proven first. It
				// hears on its first read.
				_, _, err = link.Recv(nil)
				link.Close()
			}
			if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrPeerClosed) && !errors.Is(err, ErrLost) {
				t.Errorf("%s, encrypted %v, dialler: %v", c.name, encrypt, err)
			}
			if err := r.next(t); !errors.Is(err, c.want) {
				t.Errorf("%s, encrypted %v, listener: %v", c.name, encrypt, err)
			}
		}
	}
	// The dialler is as strict.
	for _, encrypt := range []bool{false, true} {
		f := newTrio()
		f.decode.Identity = other.ids["decode"]
		f.decode.Trust = anyone
		f.decode.Accept = nil
		f.prefill.Encrypt, f.decode.Encrypt = encrypt, encrypt
		l, r := dataDoor(t, f.decode)
		if _, err := DialData(within(t, 5*time.Second), l.Addr().String(), f.prefill); !errors.Is(err, keyring.ErrUntrusted) {
			t.Errorf("encrypted %v: %v", encrypt, err)
		}
		r.next(t)
	}
}

// recorder keeps what passes through a connection.
type recorder struct {
	net.Conn
	mu       sync.Mutex
	out, got bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.out.Write(b)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.mu.Lock()
	r.got.Write(b[:n])
	r.mu.Unlock()
	return n, err
}

// What a genuine end said once is worth nothing on another connection.
func TestReplayedHellosAndSignatures(t *testing.T) {
	f := newTrio()
	l, r := dataDoor(t, f.decode)
	var tape *recorder
	f.prefill.Wrap = func(c net.Conn) net.Conn { tape = &recorder{Conn: c}; return tape }
	p, err := DialData(within(t, 5*time.Second), l.Addr().String(), f.prefill)
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	d.Close()

	conn := knockAt(t, l.Addr())
	conn.Write(tape.out.Bytes())
	if err := r.next(t); !errors.Is(err, ErrSignature) {
		t.Errorf("prefill's words, replayed: %v", err)
	}
	addr := impostor(t, func(c net.Conn) { c.Write(tape.got.Bytes()); io.Copy(io.Discard, c) })
	f.prefill.Wrap = nil
	if _, err := DialData(within(t, 5*time.Second), addr, f.prefill); !errors.Is(err, ErrSignature) {
		t.Errorf("decode's words, replayed: %v", err)
	}
}

// A mirror: a listener without any key, that plays a dialler's own words back to it.
func TestReflectedSignatures(t *testing.T) {
	f := newTrio()
	f.prefill.Trust, f.prefill.Accept = anyone, nil
	addr := impostor(t, func(c net.Conn) {
		_, first := readHello(t, c)
		h := helloOf(f.decode)
		h.Key = f.prefill.Identity.Key() // so that the dialler's own signature is by the key it expects
		second := encoded(t, h)
		c.Write(second)
		auth := make([]byte, wire.HeaderSize+wire.MaxAuth)
		if _, err := io.ReadFull(c, auth); err != nil {
			t.Error(err)
		}
		_ = first
		c.Write(auth)
		io.Copy(io.Discard, c)
	})
	if _, err := DialData(within(t, 5*time.Second), addr, f.prefill); !errors.Is(err, ErrSignature) {
		t.Errorf("its own signature, played back: %v", err)
	}
}

// Signatures over other hellos than were exchanged: somebody in between changed one.
func TestChangedHellosBreakTheSignature(t *testing.T) {
	f := newTrio()
	l, r := dataDoor(t, f.decode)
	addr := impostor(t, func(c net.Conn) {
		up, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer up.Close()
		up.SetDeadline(time.Now().Add(5 * time.Second))
		h, _ := readHello(t, c)
		h.Boot++ // prefill's boot, as decode is to see it
		up.Write(encoded(t, h))
		go io.Copy(up, c)
		io.Copy(c, up)
	})
	if _, err := DialData(within(t, 5*time.Second), addr, f.prefill); err == nil {
		t.Error("the dialler accepted")
	}
	if err := r.next(t); !errors.Is(err, ErrSignature) {
		t.Errorf("the listener: %v", err)
	}
}
