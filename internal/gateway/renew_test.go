package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/certs/certstest"
	"github.com/sluicekv/sluice/internal/fleet/fleettest"
)

// secure is a client that trusts an authority, and shows a certificate (files; "": none).
func secure(t *testing.T, a *certstest.Authority, cert, key string) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AppendCertsFromPEM(pem)
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// at is what a client hears at a URL, or that it hears nothing; serial is the certificate's.
func at(c *http.Client, url string) (status int, serial string) {
	c.CloseIdleConnections()
	resp, err := c.Get(url)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	if resp.TLS != nil {
		serial = resp.TLS.PeerCertificates[0].SerialNumber.String()
	}
	return resp.StatusCode, serial
}

// Both listeners speak TLS; clients need a certificate of the clients' authority, operators one of the operators'.
func TestTheDoorSpeaksTLS(t *testing.T) {
	ours, theirs, none := certstest.New(t, "clients"), certstest.New(t, "operators"), certstest.New(t, "strangers")
	cert, key := ours.Issue("127.0.0.1")
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) {
		c.TLS = TLS{Cert: cert, Key: key, ClientCA: ours.File, AdminClientCA: theirs.File}
		c.Follow = 5 * time.Millisecond
	})
	client := func(a *certstest.Authority) *http.Client {
		c, k := a.Issue("someone")
		return secure(t, ours, c, k)
	}
	api, admin := d.g.URL()+"/v1/models", d.g.AdminURL()+"/admin/fleet"
	if !strings.HasPrefix(api, "https://") || !strings.HasPrefix(admin, "https://") {
		t.Fatal(api, admin)
	}
	for name, c := range map[string]struct {
		client     *http.Client
		api, admin int
	}{
		"a client": {client(ours), 200, 0}, "an operator": {client(theirs), 0, 200}, "a stranger": {client(none), 0, 0}, "nobody": {secure(t, ours, "", ""), 0, 0},
	} {
		a, _ := at(c.client, api)
		b, _ := at(c.client, admin)
		if a != c.api || b != c.admin {
			t.Errorf("%s hears %d and %d, want %d and %d", name, a, b, c.api, c.admin)
		}
	}
	if s, _ := at(http.DefaultClient, "http://"+d.g.Addr()+"/v1/models"); s == 200 {
		t.Error("the door speaks without TLS")
	}
	// A certificate that is replaced counts for the next connection, without a restart; a bad one changes nothing.
	c := client(ours)
	_, before := at(c, api)
	ours.Write("127.0.0.1", cert, key)
	var after string
	fleettest.Until(t, "the new certificate", func() bool { _, after = at(c, api); return after != "" && after != before })
	os.WriteFile(cert, []byte("nonsense"), 0o600)
	op := client(theirs)
	fleettest.Until(t, "the mistake said", func() bool {
		resp, err := op.Get(d.g.AdminURL() + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(b), `sluice_renew_ok{what="door"} 0`) && strings.Contains(string(b), `sluice_certificate_expiry_timestamp_seconds{use="door"} 1.`)
	})
	if s, serial := at(c, api); s != 200 || serial != after {
		t.Errorf("%d %s", s, serial)
	}
}

func TestTLSThatCannotBe(t *testing.T) {
	a := certstest.New(t, "a")
	cert, key := a.Issue("127.0.0.1")
	for want, c := range map[string]Config{
		"go together":             {TLS: TLS{Cert: cert}},
		"need --tls-cert":         {TLS: TLS{ClientCA: a.File}},
		"is for loopback only":    {TLS: TLS{Cert: cert, Key: key, AdminPlain: true}, Admin: "192.0.2.1:9"},
		"says that there is none": {TLS: TLS{Cert: cert, Key: key, AdminPlain: true, AdminClientCA: a.File}},
		"no such file":            {TLS: TLS{Cert: cert, Key: key + "x"}},
	} {
		keys := fleettest.Keys("p0")
		c.Listen, c.Identity, c.Models = "127.0.0.1:0", keys.IDs[fleettest.Gateway], []ModelConfig{{Name: "m", Encoder: encoder()}}
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.TLS = TLS{Cert: cert, Key: key, AdminPlain: true} })
	if d.g.AdminURL() != "http://"+d.g.AdminAddr() || d.get(d.admin("/healthz")).status != 200 {
		t.Errorf("%s", d.g.AdminURL())
	}
}

// A drain tells every client to close its connection, and lets finish what runs.
func TestADrainClosesConnections(t *testing.T) {
	begun, goOn := make(chan bool, 1), make(chan bool)
	d := open(t, holding(begun, goOn), nil)
	reply := make(chan answer)
	go func() { reply <- d.post("/v1/completions", complete("x", "")) }()
	<-begun
	drained := make(chan error)
	go func() { drained <- d.g.Drain(t.Context()) }()
	fleettest.Until(t, "draining", d.g.requests.closed)
	for path, want := range map[string]int{"/readyz": 503, "/healthz": 200, "/v1/models": 200} {
		r, _ := http.NewRequest("GET", d.url(path), nil)
		resp, err := d.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want || !resp.Close {
			t.Errorf("%s: %d, close=%v", path, resp.StatusCode, resp.Close)
		}
	}
	r, _ := http.NewRequest("POST", d.url("/v1/completions"), strings.NewReader(complete("x", "")))
	resp, err := d.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 503 || !resp.Close || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%d close=%v %v", resp.StatusCode, resp.Close, resp.Header)
	}
	if a := d.get(d.admin("/readyz")); a.status != 503 || a.body != "shutting down\n" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if m := d.get(d.admin("/metrics")).body; !strings.Contains(m, "sluice_draining 1\n") || !strings.Contains(m, "sluice_ready 0\n") {
		t.Error("metrics do not say that it drains")
	}
	goOn <- true
	if a := <-reply; a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A client that does not read what it asked for does not keep a drain from its end.
func TestADrainEndsThoughAClientDoesNotRead(t *testing.T) {
	full := make(chan bool, 1)
	d := open(t, func(a *fleettest.Attempt) {
		if !a.Prefilled() {
			return
		}
		ids := make([]int32, 4000)
		for i := range ids {
			ids[i] = 'a'
		}
		for i := range 2000 {
			a.Output(i*len(ids), ids...)
			if i == 1000 {
				full <- true // more than any socket holds
			}
		}
		a.No(decode, a.Aborted(decode))
	}, func(c *Config, p *fleettest.Pair) {
		p.Prefill.Facts.PoolTokens, p.Prefill.Facts.Context = 1<<24, 1<<24
		p.Decode.Facts.PoolTokens, p.Decode.Facts.Context = 1<<24, 1<<24
		c.Limits.Write = time.Hour
	})
	d.trace = nil // cut off in the middle: what the script still says is heard by nobody
	conn, err := net.Dial("tcp", d.g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetReadBuffer(4096)
	body := complete("x", `,"stream":true,"max_tokens":9000000`)
	io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
	if status, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.Contains(status, " 200 ") {
		t.Fatal(status, err)
	}
	<-full
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- d.g.Drain(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the drain waits for a client that does not read")
	}
}
