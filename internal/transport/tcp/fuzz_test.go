package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

// script is a connection whose peer has said all it will say. Deadlines pass at once: what is not there never comes.
type script struct{ said *bytes.Reader }

func (s script) Read(p []byte) (int, error) {
	// Small pieces, so that every boundary is met in the middle.
	return s.said.Read(p[:min(len(p), 1+s.said.Len()%7)])
}
func (script) Write(p []byte) (int, error)      { return len(p), nil }
func (script) Close() error                     { return nil }
func (script) LocalAddr() net.Addr              { return nil }
func (script) RemoteAddr() net.Addr             { return nil }
func (script) SetDeadline(time.Time) error      { return nil }
func (script) SetReadDeadline(time.Time) error  { return nil }
func (script) SetWriteDeadline(time.Time) error { return nil }

// FuzzRecv: whatever stream a peer sends after the handshake, the link gives frames that its role may send, each written again as
// the bytes that came, and then ends with an error that has a name.
func FuzzRecv(f *testing.F) {
	page := append(encoded(f, pageHeader(20)), make([]byte, 20)...)
	end := encoded(f, wire.End{Attempt: someAttempt})
	f.Add(byte(wire.RolePrefill), append(append([]byte(nil), page...), end...))
	f.Add(byte(wire.RolePrefill), end[:20])
	f.Add(byte(wire.RoleDecode), encoded(f, wire.Grant{Attempt: someAttempt, Boot: 1, Pages: make([]wire.GrantedPage, 3)}))
	f.Add(byte(wire.RolePrefill), []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, role byte, said []byte) {
		conn := script{bytes.NewReader(said)}
		c := Config{}.withDefaults()
		g := greeting{conn: conn, raw: conn, in: newReceiver(conn, dataBuffer, 0), peer: wire.Hello{Role: wire.Role(role)}, own: wire.Hello{MaxPage: 64}}
		l := &DataLink{newLink(wire.Data, g, c)}
		defer l.Close()
		var again []byte
		staging := make([]byte, 64)
		for {
			frame, payload, err := l.Recv(staging)
			if err != nil {
				for _, n := range named {
					if errors.Is(err, n) {
						if !bytes.HasPrefix(said, again) {
							t.Fatalf("%x came, %x was understood", said, again)
						}
						return
					}
				}
				t.Fatal("an end without a name:", err)
			}
			if !wire.May(wire.Data, wire.Role(role), frame.Kind()) {
				t.Fatalf("a %s", frame.Kind())
			}
			again = append(append(again, encoded(t, frame)...), payload...)
		}
	})
}

// FuzzHello: whatever a stranger says first, the handshake takes a hello that is written again as the bytes that came, or ends with a name.
func FuzzHello(f *testing.F) {
	t := newTrio()
	f.Add(encoded(f, helloOf(t.prefill)))
	f.Add(encoded(f, helloOf(t.gateway)))
	f.Add([]byte{0x16, 3, 1, 0, 200, 1, 0, 0})
	f.Fuzz(func(t *testing.T, said []byte) {
		conn := script{bytes.NewReader(said)}
		g := greeting{conn: conn, raw: conn, in: newReceiver(conn, dataBuffer, 0)}
		b, err := g.hello()
		if err != nil {
			err = handshakeError(err, time.Second)
			for _, n := range named {
				if errors.Is(err, n) {
					return
				}
			}
			t.Fatal("an end without a name:", err)
		}
		if !bytes.HasPrefix(said, b) || !bytes.Equal(encoded(t, g.peer), b) {
			t.Fatalf("%x came, %x was understood", said, b)
		}
	})
}

var _ io.Reader = script{}
