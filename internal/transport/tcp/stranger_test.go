package tcp

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// refused collects what a listener's handshakes ended with.
type refused chan error

func (r refused) note(_ net.Addr, err error) { r <- err }

func (r refused) next(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the listener refused nobody")
		return nil
	}
}

// door is a listener that strangers knock at.
func dataDoor(t testing.TB, c Config) (*Listener[*DataLink], refused) {
	t.Helper()
	r := make(refused, 1000)
	c.OnRefuse = r.note
	l, err := ListenData("127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, r
}

func controlDoor(t testing.TB, c Config) (*Listener[*Link], refused) {
	t.Helper()
	r := make(refused, 1000)
	c.OnRefuse = r.note
	l, err := ListenControl("127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, r
}

func knockAt(t testing.TB, addr net.Addr) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

func encoded(t testing.TB, f wire.Frame) []byte {
	t.Helper()
	b, err := wire.Append(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// helloOf is the hello that an honest end would send.
func helloOf(c Config) wire.Hello {
	h := c.Hello
	h.Key, h.Session = c.Identity.Key(), [16]byte{42}
	return h
}

// readHello reads a hello from a raw connection.
func readHello(t testing.TB, c net.Conn) (wire.Hello, []byte) {
	t.Helper()
	b := make([]byte, wire.HeaderSize)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	h, err := wire.ParseHeader(b)
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, h.Body)
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	f, err := wire.Decode(h.Kind, body)
	if err != nil {
		t.Fatal(err)
	}
	return f.(wire.Hello), append(b, body...)
}

func TestWhatStrangersSayToADataListener(t *testing.T) {
	f := newTrio()
	hello := encoded(t, helloOf(f.prefill))
	spoilt := func(change func([]byte)) []byte { b := bytes.Clone(hello); change(b); return b }
	for _, c := range []struct {
		name string
		send []byte
		end  bool // close for writing after it
		want error
		text string
	}{
		{"nothing, and stay", nil, false, ErrHandshake, "300ms"},
		{"nothing, and leave", nil, true, ErrRefused, "EOF"},
		{"half a header, and stay", hello[:5], false, ErrHandshake, "300ms"},
		{"half a header, and leave", hello[:5], true, ErrRefused, "EOF"},
		{"half a hello, and stay", hello[:40], false, ErrHandshake, "300ms"},
		{"half a hello, and leave", hello[:40], true, ErrRefused, "in hello"},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), false, ErrGarbage, "no hello"},
		{"zeroes", make([]byte, 4096), false, ErrGarbage, "no hello"},
		{"noise", bytes.Repeat([]byte{0xde, 0xad}, 4096), false, ErrGarbage, "no hello"},
		{"a frame of 4 GB", spoilt(func(b []byte) { b[0], b[1], b[2], b[3] = 255, 255, 255, 255 }), false, wire.ErrLength, "4294967291 bytes on hello"},
		{"another version", spoilt(func(b []byte) { b[4] = 9 }), false, wire.ErrVersion, "the peer speaks version 9, this end version 1"},
		{"a flag", spoilt(func(b []byte) { b[6] = 1 }), false, ErrGarbage, ""},
		{"a page first", encoded(t, wire.PageHeader{Attempt: someAttempt, Length: 1 << 20}), false, ErrGarbage, ""},
		{"auth first", encoded(t, wire.Auth{}), false, ErrGarbage, ""},
		{"an unknown role", spoilt(func(b []byte) { b[8] = 77 }), false, wire.ErrValue, "role 77"},
		{"a hello with something inside its length behind it", spoilt(func(b []byte) { b[0]-- }), false, wire.ErrShort, ""},
		{"a TLS client", []byte{0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3}, false, ErrEncryption, "the peer does"},
	} {
		t.Run(c.name, func(t *testing.T) {
			decode := f.decode
			if c.want == ErrHandshake {
				decode.Timeouts.Handshake = 300 * time.Millisecond
			}
			l, r := dataDoor(t, decode)
			conn := knockAt(t, l.Addr())
			conn.Write(c.send)
			if c.end {
				conn.CloseWrite()
			}
			began := time.Now()
			if err := r.next(t); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v", err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			// The other end hears of it: the connection is over, and whatever came before is one hello at most.
			if b, _ := io.ReadAll(conn); len(b) > wire.HeaderSize+wire.MaxHello {
				t.Errorf("a stranger was told %d bytes", len(b))
			}
		})
	}
}

var someAttempt = [16]byte{1}

func TestEachEndNamesBothVersions(t *testing.T) {
	f := newTrio()
	l, r := dataDoor(t, f.decode)
	conn := knockAt(t, l.Addr())
	future := encoded(t, helloOf(f.prefill))
	future[4] = wire.Version + 1
	conn.Write(future)
	own, _ := readHello(t, conn) // the listener's own, although it refuses: so the other end can name both too
	if own.Name != "decode" || !errors.Is(r.next(t), wire.ErrVersion) {
		t.Fatal(own)
	}

	// The other way round: a listener of another version.
	addr := impostor(t, func(c net.Conn) {
		b := encoded(t, helloOf(f.decode))
		b[4] = wire.Version + 1
		c.Write(b)
		io.Copy(io.Discard, c)
	})
	_, err := DialData(within(t, 5*time.Second), addr, f.prefill)
	var v wire.VersionError
	if !errors.As(err, &v) || v != (wire.VersionError{Own: wire.Version, Peer: wire.Version + 1}) {
		t.Fatal(err)
	}
}

// impostor listens and runs talk with each connection.
func impostor(t testing.TB, talk func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			all.Go(func() { defer c.Close(); talk(c) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

// A difference is named by both ends, with both values.
func TestPairsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(prefill, decode *Config)
		field       string
		theirs, own string // as prefill says it
	}{
		{"model", func(p, d *Config) { d.Hello.Model = [32]byte{9} }, "model", "0900000000000000…", "0102030000000000…"},
		{"page size", func(p, d *Config) { p.Hello.Geometry.Tokens, p.Hello.MaxPage = 16, 1<<20 }, "page geometry", "64 tokens", "16 tokens"},
		{"layers", func(p, d *Config) { p.Hello.Geometry.Layers++ }, "page geometry", "4 layers", "5 layers"},
		{"room", func(p, d *Config) { d.Hello.MaxPage = 4096 }, "page size", "room for 4096", "pages of 32768"},
		{"two prefills", func(p, d *Config) {
			id, h := p.Identity, p.Hello
			*d = *p
			d.Identity, d.Hello = id, h
			d.Trust, p.Trust = anyone, anyone
		}, "role", "prefill", "prefill"},
	} {
		f := newTrio()
		c.change(&f.prefill, &f.decode)
		l, r := dataDoor(t, f.decode)
		_, err := DialData(within(t, 5*time.Second), l.Addr().String(), f.prefill)
		for side, err := range map[string]error{"prefill": err, "decode": r.next(t)} {
			if !errors.Is(err, wire.ErrMismatch) {
				t.Errorf("%s, at %s: %v", c.name, side, err)
				continue
			}
			for _, text := range []string{c.field, c.theirs, c.own} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s, at %s: %q lacks %q", c.name, side, err, text)
				}
			}
		}
	}
	f := newTrio()
	l, r := controlDoor(t, f.decode)
	two := f.prefill
	two.Trust = anyone
	f.decode.Trust = anyone
	if _, err := DialControl(within(t, 5*time.Second), l.Addr().String(), two); err == nil {
		t.Error("a control link between two workers")
	}
	r.next(t)
}

func anyone(ed25519.PublicKey) error { return nil }

func TestOneEndEncrypts(t *testing.T) {
	f := newTrio()
	f.decode.Encrypt = true
	l, r := dataDoor(t, f.decode)
	_, err := DialData(within(t, 5*time.Second), l.Addr().String(), f.prefill)
	if err == nil {
		t.Fatal("a plain dialler at an encrypting listener")
	}
	if err := r.next(t); !errors.Is(err, ErrEncryption) {
		t.Errorf("encrypting listener: %v", err)
	}

	f.decode.Encrypt, f.prefill.Encrypt = false, true
	l, r = dataDoor(t, f.decode)
	if _, err := DialData(within(t, 5*time.Second), l.Addr().String(), f.prefill); err == nil {
		t.Fatal("an encrypting dialler at a plain listener")
	}
	if err := r.next(t); !errors.Is(err, ErrEncryption) {
		t.Errorf("plain listener: %v", err)
	}
}

func TestNothingButAuthAfterTheHello(t *testing.T) {
	f := newTrio()
	for name, c := range map[string]struct {
		send []byte
		want error
	}{
		"a page of 256 MiB":  {encoded(t, wire.PageHeader{Attempt: someAttempt, Length: wire.MaxPagePayload}), ErrUnexpected},
		"a grant":            {encoded(t, wire.Grant{Attempt: someAttempt, Boot: 1}), ErrUnexpected},
		"a hello":            {encoded(t, helloOf(f.prefill)), ErrUnexpected},
		"an empty signature": {encoded(t, wire.Auth{}), ErrSignature},
		"garbage":            {bytes.Repeat([]byte{7}, 100), wire.ErrVersion},
	} {
		l, r := dataDoor(t, f.decode)
		conn := knockAt(t, l.Addr())
		conn.Write(encoded(t, helloOf(f.prefill)))
		readHello(t, conn)
		conn.Write(c.send)
		if err := r.next(t); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if b, _ := io.ReadAll(conn); len(b) != 0 {
			t.Errorf("%s: the listener signed for a stranger (%d bytes)", name, len(b))
		}
	}
}

func TestWhatStrangersSayToAControlListener(t *testing.T) {
	f := newTrio()
	stranger := newTrio().ids["gateway"]
	talkTLS := func(c *tls.Config) func(net.Conn) {
		return func(conn net.Conn) {
			tc := tls.Client(conn, c)
			if tc.Handshake() == nil {
				io.ReadAll(tc)
			}
		}
	}
	old := f.ids["gateway"].TLS(protoControl, anyone)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	bare := f.ids["gateway"].TLS(protoControl, anyone)
	bare.Certificates = nil
	noALPN := f.ids["gateway"].TLS(protoControl, anyone)
	noALPN.NextProtos, noALPN.VerifyConnection = nil, nil
	for name, c := range map[string]struct {
		talk func(net.Conn)
		want error
		text string
	}{
		"nothing":                  {func(c net.Conn) { io.ReadAll(c) }, ErrHandshake, ""},
		"the plain wire":           {func(c net.Conn) { c.Write(encoded(t, helloOf(f.gateway))); io.ReadAll(c) }, ErrGarbage, "no TLS"},
		"HTTP":                     {func(c net.Conn) { c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); io.ReadAll(c) }, ErrGarbage, "no TLS"},
		"half a client hello":      {func(c net.Conn) { c.Write([]byte{0x16, 3, 1, 2, 0, 1, 0}); io.ReadAll(c) }, ErrHandshake, ""},
		"TLS 1.2":                  {talkTLS(old), nil, "unsupported versions"},
		"no certificate":           {talkTLS(bare), nil, "certificate"},
		"no ALPN":                  {talkTLS(noALPN), keyring.ErrProtocol, ""},
		"the data protocol":        {talkTLS(f.ids["gateway"].TLS(protoData, anyone)), nil, "application protocol"},
		"a stranger's key":         {talkTLS(stranger.TLS(protoControl, anyone)), keyring.ErrUntrusted, "not in the fleet"},
		"a worker's key":           {talkTLS(f.ids["prefill"].TLS(protoControl, anyone)), nil, ""},
		"a good key, then silence": {talkTLS(f.ids["gateway"].TLS(protoControl, anyone)), ErrHandshake, ""},
		"a good key, then 4 GB": {func(c net.Conn) {
			tc := tls.Client(c, f.ids["gateway"].TLS(protoControl, anyone))
			b := encoded(t, helloOf(f.gateway))
			b[0], b[1], b[2], b[3] = 255, 255, 255, 255
			tc.Write(b)
			io.ReadAll(tc)
		}, wire.ErrLength, "4294967291"},
		"a good key, another's hello": {func(c net.Conn) {
			tc := tls.Client(c, f.ids["gateway"].TLS(protoControl, anyone))
			h := helloOf(f.gateway)
			h.Key = stranger.Key()
			tc.Write(encoded(t, h))
			io.ReadAll(tc)
		}, keyring.ErrUntrusted, "TLS proved"},
	} {
		if name == "a worker's key" {
			f.decode.Trust = f.fleet.Trust(wire.RoleGateway)
			c.want = keyring.ErrUntrusted
		}
		decode := f.decode
		if c.want == ErrHandshake {
			decode.Timeouts.Handshake = 300 * time.Millisecond
		}
		l, r := controlDoor(t, decode)
		conn := knockAt(t, l.Addr())
		var talk sync.WaitGroup
		talk.Go(func() { c.talk(conn) })
		if err := r.next(t); (c.want != nil && !errors.Is(err, c.want)) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
		talk.Wait()
	}
}

func TestListenersThatDiallersMeet(t *testing.T) {
	f := newTrio()
	silent := impostor(t, func(c net.Conn) { io.ReadAll(c) })
	garbage := impostor(t, func(c net.Conn) { c.Write([]byte("SSH-2.0-OpenSSH_9.2p1 Debian\r\n")); io.ReadAll(c) })
	gone := impostor(t, func(c net.Conn) {})
	for name, c := range map[string]struct {
		addr          string
		control, data error
	}{
		"silent":  {silent, ErrHandshake, ErrHandshake},
		"garbage": {garbage, ErrGarbage, ErrGarbage},
		"gone":    {gone, ErrRefused, ErrRefused},
	} {
		if name == "silent" {
			f.gateway.Timeouts.Handshake, f.prefill.Timeouts.Handshake = 200*time.Millisecond, 200*time.Millisecond
		} else {
			f.gateway.Timeouts.Handshake, f.prefill.Timeouts.Handshake = 0, 0
		}
		if _, err := DialControl(t.Context(), c.addr, f.gateway); !errors.Is(err, c.control) {
			t.Errorf("%s, control: %v", name, err)
		}
		if _, err := DialData(t.Context(), c.addr, f.prefill); !errors.Is(err, c.data) {
			t.Errorf("%s, data: %v", name, err)
		}
	}
	// A caller that gives up does not wait for the deadline.
	f.gateway.Timeouts.Handshake = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := DialControl(ctx, silent, f.gateway); done <- err }()
	time.AfterFunc(20*time.Millisecond, cancel)
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("still dialling")
	}
}
