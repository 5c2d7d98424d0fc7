package keyring

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/wire"
)

func id(t testing.TB, name string, r wire.Role) Identity {
	t.Helper()
	id, err := Generate(Node{name, r})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// meet runs a TLS handshake over a socket, with one byte each way so that the server's refusal reaches the client.
func meet(t testing.TB, client, server *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer raw.Close()
		raw.SetDeadline(time.Now().Add(5 * time.Second))
		c := tls.Server(raw, server)
		if err = c.Handshake(); err == nil {
			_, err = c.Write([]byte("!"))
		}
		io.Copy(io.Discard, c)
		done <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	raw.SetDeadline(time.Now().Add(5 * time.Second))
	c := tls.Client(raw, client)
	if clientErr = c.Handshake(); clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1))
	}
	c.Close()
	return clientErr, <-done
}

func TestPinnedKeysMeet(t *testing.T) {
	a, b := id(t, "a", wire.RoleGateway), id(t, "b", wire.RoleDecode)
	var seen []ed25519.PublicKey
	note := func(next func(ed25519.PublicKey) error) func(ed25519.PublicKey) error {
		return func(pub ed25519.PublicKey) error { seen = append(seen, pub); return next(pub) }
	}
	client, server := a.TLS("x/1", note(Only(b.Public()))), b.TLS("x/1", Only(a.Public()))
	// No clock can keep two nodes apart: verification is by key alone.
	for _, now := range []time.Time{time.Now(), time.Unix(0, 0), time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(10500, 1, 1, 0, 0, 0, 0, time.UTC)} {
		client.Time = func() time.Time { return now }
		if c, s := meet(t, client, server); c != nil || s != nil {
			t.Fatalf("at %v: client %v, server %v", now, c, s)
		}
	}
	if !seen[0].Equal(b.Public()) {
		t.Fatalf("the client was asked about %s", Short(seen[0]))
	}
}

func TestTLSRefusesAllButThePinnedKey(t *testing.T) {
	a, b, stranger := id(t, "a", wire.RoleGateway), id(t, "b", wire.RoleDecode), id(t, "a", wire.RoleGateway)
	client, server := a.TLS("x/1", Only(b.Public())), b.TLS("x/1", Only(a.Public()))

	if _, s := meet(t, stranger.TLS("x/1", Only(b.Public())), server); !errors.Is(s, ErrUntrusted) {
		t.Errorf("a stranger as client: %v", s)
	}
	if c, _ := meet(t, client, stranger.TLS("x/1", Only(a.Public()))); !errors.Is(c, ErrUntrusted) {
		t.Errorf("a stranger as server: %v", c)
	}

	// Another key type, and more than one certificate.
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	odd := a.TLS("x/1", Only(b.Public()))
	odd.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	if _, s := meet(t, odd, server); !errors.Is(s, ErrNoKey) {
		t.Errorf("an ECDSA key: %v", s)
	}
	odd = a.TLS("x/1", Only(b.Public()))
	odd.Certificates[0].Certificate = append(odd.Certificates[0].Certificate[:1:1], der)
	if _, s := meet(t, odd, server); !errors.Is(s, ErrNoKey) {
		t.Errorf("two certificates: %v", s)
	}

	// No certificate: a browser, a scanner.
	odd = a.TLS("x/1", Only(b.Public()))
	odd.Certificates = nil
	if _, s := meet(t, odd, server); s == nil {
		t.Error("no certificate")
	}

	// The pinned certificate without its key: copied from the wire.
	odd = stranger.TLS("x/1", Only(b.Public()))
	odd.Certificates = []tls.Certificate{{Certificate: a.cert.Certificate, PrivateKey: stranger.private}}
	if c, s := meet(t, odd, server); c == nil || s == nil {
		t.Errorf("a stolen certificate: %v, %v", c, s)
	}
}

func TestTLSRefusesOldVersionsAndOtherProtocols(t *testing.T) {
	a, b := id(t, "a", wire.RoleGateway), id(t, "b", wire.RoleDecode)
	server := b.TLS("x/1", Only(a.Public()))
	old := a.TLS("x/1", Only(b.Public()))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if c, s := meet(t, old, server); s == nil || !strings.Contains(s.Error(), "unsupported versions") || c == nil {
		t.Errorf("TLS 1.2: %v, %v", c, s)
	}
	if c, s := meet(t, a.TLS("x/2", Only(b.Public())), server); c == nil || s == nil {
		t.Errorf("another protocol: %v, %v", c, s)
	}
	none := a.TLS("x/1", Only(b.Public()))
	none.NextProtos, none.VerifyConnection = nil, nil
	if _, s := meet(t, none, server); !errors.Is(s, ErrProtocol) {
		t.Errorf("no protocol: %v", s)
	}
}

func TestSignaturesAreTheKeys(t *testing.T) {
	a := id(t, "a", wire.RoleGateway)
	sig := a.Sign([]byte("m"))
	k := a.Key()
	if !ed25519.Verify(k[:], []byte("m"), sig[:]) || ed25519.Verify(k[:], []byte("n"), sig[:]) || !bytes.Equal(k[:], a.Public()) || !a.PrivateKey().Public().(ed25519.PublicKey).Equal(a.Public()) {
		t.Error("Sign, Key, Public and PrivateKey are not of one key")
	}
	if a.IsZero() || !(Identity{}).IsZero() {
		t.Error("IsZero")
	}
}
