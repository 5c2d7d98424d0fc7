package certs

import (
	"crypto/tls"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/certs/certstest"
)

// listen answers each connection with one byte.
func listen(t *testing.T, c *tls.Config) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Write([]byte{1})
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// dial says what a connection sees: the certificate's serial, or why there is none.
func dial(addr string, c *tls.Config) (string, error) {
	// A Go client shows no certificate of an issuer that was not asked for; this one does.
	if len(c.Certificates) > 0 {
		cert := c.Certificates[0]
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer raw.Close()
	conn := tls.Client(raw, c)
	if err := conn.Handshake(); err != nil {
		return "", err
	}
	// What a server thinks of a client's certificate comes after the handshake, since TLS 1.3.
	if _, err := conn.Read(make([]byte, 1)); err != nil && conn.ConnectionState().Version >= tls.VersionTLS13 {
		return "", err
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

func load(t *testing.T, f ClientFiles) *Client {
	t.Helper()
	c, err := LoadClient(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestBothSides(t *testing.T) {
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	cert, key := ours.Issue("worker.example")
	s, err := LoadServer(ServerFiles{Cert: cert, Key: key, ClientCA: ours.File})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen(t, s.Config())
	mine, mineKey := ours.Issue("gateway")
	other, otherKey := theirs.Issue("stranger")
	for name, c := range map[string]struct {
		files ClientFiles
		want  string
	}{
		"good":                       {ClientFiles{CA: ours.File, Cert: mine, Key: mineKey, ServerName: "worker.example"}, ""},
		"no certificate":             {ClientFiles{CA: ours.File, ServerName: "worker.example"}, "certificate required"},
		"a stranger's certificate":   {ClientFiles{CA: ours.File, Cert: other, Key: otherKey, ServerName: "worker.example"}, "unknown certificate authority"},
		"a worker of another issuer": {ClientFiles{CA: theirs.File, Cert: mine, Key: mineKey, ServerName: "worker.example"}, "unknown authority"},
		"a worker of another name":   {ClientFiles{CA: ours.File, Cert: mine, Key: mineKey, ServerName: "else.example"}, "valid for worker.example, not else.example"},
		"its address for a name":     {ClientFiles{CA: ours.File, Cert: mine, Key: mineKey}, "127.0.0.1"},
		"the system's authorities":   {ClientFiles{Cert: mine, Key: mineKey, ServerName: "worker.example"}, "unknown authority"},
	} {
		_, err := dial(addr, load(t, c.files).For("127.0.0.1"))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	old := load(t, ClientFiles{CA: ours.File, Cert: mine, Key: mineKey, ServerName: "worker.example"}).For("")
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, err := dial(addr, old); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1 was spoken: %v", err)
	}
	// And towards a worker that knows nothing newer.
	ancient := s.now.Load().Clone()
	ancient.MinVersion, ancient.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	at := listen(t, ancient)
	today := load(t, ClientFiles{CA: ours.File, Cert: mine, Key: mineKey, ServerName: "worker.example"}).For("")
	lax := today.Clone()
	lax.MinVersion = tls.VersionTLS10
	if _, err := dial(at, lax); err != nil {
		t.Errorf("nobody can speak to that worker: %v", err)
	}
	if _, err := dial(at, today); err == nil {
		t.Error("TLS 1.1 was spoken to a worker")
	}
	if c := (*Client)(nil).For("h"); c.MinVersion != tls.VersionTLS12 || c.ServerName != "h" || c.InsecureSkipVerify {
		t.Errorf("%+v", c)
	}
}

// New files count for the next connection, on both sides; bad ones change nothing.
func TestReload(t *testing.T) {
	one, two := certstest.New(t, "one"), certstest.New(t, "two")
	cert, key := one.Issue("127.0.0.1")
	s, err := LoadServer(ServerFiles{Cert: cert, Key: key, ClientCA: one.File})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen(t, s.Config())
	mine, mineKey := one.Issue("gateway")
	c := load(t, ClientFiles{CA: one.File, Cert: mine, Key: mineKey})
	first, err := dial(addr, c.For("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	one.Write("127.0.0.1", cert, key)
	if got, err := dial(addr, c.For("127.0.0.1")); err != nil || got != first {
		t.Errorf("a certificate that was not read yet: %s %v", got, err)
	}
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	second, err := dial(addr, c.For("127.0.0.1"))
	if err != nil || second == first {
		t.Errorf("%s %v", second, err)
	}
	// The client's own, and whom it trusts.
	two.Write("gateway", mine, mineKey)
	if err := c.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(addr, c.For("127.0.0.1")); err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
		t.Errorf("a certificate of another issuer: %v", err)
	}
	one.Write("gateway", mine, mineKey)
	if err := c.Reload(); err != nil {
		t.Fatal(err)
	}
	trusted := c.For("127.0.0.1") // as of now, whatever becomes of the files
	for what, spoil := range map[string]func(){
		"no PEM":              func() { os.WriteFile(cert, []byte("nonsense"), 0o600) },
		"another's key":       func() { two.Write("127.0.0.1", cert, t.TempDir()+"/k") },
		"no authority":        func() { os.WriteFile(one.File, []byte("none"), 0o600) },
		"no key":              func() { os.Remove(key) },
		"no file":             func() { os.Remove(cert) },
		"no authority's file": func() { os.Remove(one.File) },
	} {
		authority, err := os.ReadFile(one.File)
		if err != nil {
			t.Fatal(err)
		}
		spoil()
		if err := s.Reload(); err == nil || !strings.Contains(err.Error(), ".pem") && !strings.Contains(err.Error(), ".key") || strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: %v", what, err)
		}
		if got, err := dial(addr, trusted); err != nil || got != second {
			t.Errorf("%s: bad files changed something: %s %v", what, got, err)
		}
		os.WriteFile(one.File, authority, 0o600)
		one.Write("127.0.0.1", cert, key)
	}
	// A client whose issuer is not trusted any more does not come in again by the session it had.
	authority, _ := os.ReadFile(two.File)
	os.WriteFile(one.File, authority, 0o600)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(addr, trusted); err == nil {
		t.Error("a session was resumed by a client that is not trusted any more")
	}
}

func TestFilesThatAreMissing(t *testing.T) {
	a := certstest.New(t, "a")
	cert, key := a.Issue("x")
	for _, f := range []ServerFiles{{}, {Cert: cert}, {Key: key}, {Cert: "none", Key: key}, {Cert: cert, Key: "none"}, {Cert: cert, Key: key, ClientCA: "none"}, {Cert: key, Key: cert}, {Cert: cert, Key: key, ClientCA: key}} {
		if _, err := LoadServer(f); err == nil {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range []ClientFiles{{Cert: cert}, {Key: key}, {CA: "none"}, {CA: key}, {Cert: key, Key: cert}} {
		if _, err := LoadClient(f); err == nil {
			t.Errorf("%+v", f)
		}
	}
	if c := load(t, ClientFiles{Cert: cert, Key: key}); c.NotAfter().IsZero() || len(c.Paths()) != 2 {
		t.Errorf("%v %v", c.NotAfter(), c.Paths())
	}
	if c := load(t, ClientFiles{}); !c.NotAfter().IsZero() || len(c.Paths()) != 0 {
		t.Errorf("%v %v", c.NotAfter(), c.Paths())
	}
}
