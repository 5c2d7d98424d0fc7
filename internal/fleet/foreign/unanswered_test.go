package foreign

import (
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/certs"
)

// A worker that takes connections and answers nothing is said to do what it does, and what would help.
func TestWhyAWorkerAnswersNothing(t *testing.T) {
	no := http.HandlerFunc(http.NotFound)
	secure := httptest.NewTLSServer(no)
	defer secure.Close()
	open := httptest.NewServer(no)
	defer open.Close()
	mutual := httptest.NewUnstartedServer(no)
	mutual.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	mutual.StartTLS()
	defer mutual.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(behave func(net.Conn)) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go behave(c)
			}
		}()
		return "http://" + ln.Addr().String()
	}
	for name, c := range map[string]struct {
		url  string
		tls  certs.ClientFiles
		want string
	}{
		"authority":    {secure.URL, certs.ClientFiles{}, "ca_file"},
		"name":         {secure.URL, certs.ClientFiles{CA: ca, ServerName: "elsewhere.test"}, "server_name"},
		"no TLS":       {strings.Replace(open.URL, "http:", "https:", 1), certs.ClientFiles{}, "begin with http://"},
		"mutual":       {mutual.URL, certs.ClientFiles{CA: ca}, "cert_file"},
		"closes":       {at(func(c net.Conn) { c.Read(make([]byte, 1<<10)); c.Close() }), certs.ClientFiles{}, "begin with https://"},
		"no handshake": {strings.Replace(at(func(c net.Conn) { c.Read(make([]byte, 1<<10)); c.Close() }), "http:", "https:", 1), certs.ClientFiles{}, "begin with http://"},
		"no HTTP":      {at(func(c net.Conn) { c.Read(make([]byte, 1<<10)); c.Write([]byte("hello\r\n\r\n")); c.Close() }), certs.ClientFiles{}, "HTTP server?"},
		"mute":         {at(func(c net.Conn) { c.Read(make([]byte, 1<<10)) }), certs.ClientFiles{}, "answers nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(c.url)
			if err != nil {
				t.Fatal(err)
			}
			patient := 20 * time.Second
			if name == "mute" {
				patient = 200 * time.Millisecond
			}
			f, err := New(Config{Engine: Plain, Every: time.Hour, Patient: patient, Workers: []Worker{{Role: capacity.Both, Name: "w", URL: u, TLS: c.tls}}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(f.Close)
			f.ReadAll(t.Context())
			if why := f.Status(t.Context(), false).Workers[0].Reason; !strings.Contains(why, c.want) || strings.Contains(why, "127.0.0.1") {
				t.Errorf("%q, want %q in it", why, c.want)
			}
		})
	}
}
