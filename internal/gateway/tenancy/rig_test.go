package tenancy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/certs"
	"github.com/sluicekv/sluice/internal/certs/certstest"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/gateway/tenant"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

const (
	workerKey = "wk-0123456789-of-the-workers"
	clientKey = "sk-0123456789-of-alice"
	otherKey  = "sk-0123456789-of-bob"
)

// rig is a gateway before fake workers that are behind TLS, with two tenants.
type rig struct {
	*testing.T
	g      *gateway.Gateway
	up     *wireTap // what workers get
	log    *tap
	access string
}

type tap struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *tap) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *tap) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// wireTap is a proxy before workers that asks for certificates and notes every request, head and body.
type wireTap struct {
	tap
	mu     sync.Mutex
	bodies []map[string]any
	shown  int // requests with a client's certificate
}

func (w *wireTap) before(t *testing.T, worker string, authority *certstest.Authority, name string) string {
	t.Helper()
	at, err := url.Parse(worker)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := authority.Issue(name)
	s, err := certs.LoadServer(certs.ServerFiles{Cert: cert, Key: key, ClientCA: authority.File})
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(at)
	proxy.FlushInterval = -1
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		head, _ := httputil.DumpRequest(r, false)
		w.Write(head)
		w.Write(body)
		w.mu.Lock()
		var m map[string]any
		if json.Unmarshal(body, &m) == nil && (strings.HasSuffix(r.URL.Path, "completions") || strings.HasSuffix(r.URL.Path, "messages")) {
			w.bodies = append(w.bodies, m)
		}
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName == "gateway" {
			w.shown++
		}
		w.mu.Unlock()
		r.Header["X-Forwarded-For"] = nil // the proxy adds none
		proxy.ServeHTTP(rw, r)
	}))
	srv.Listener.Close()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv.Listener = tls.NewListener(raw, s.Config())
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	srv.Start()
	t.Cleanup(srv.Close)
	return "https://" + raw.Addr().String()
}

// taken are the bodies of completions since the last call.
func (w *wireTap) taken() []map[string]any {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.bodies
	w.bodies = nil
	return b
}

func newRig(t *testing.T, engine string) *rig {
	t.Helper()
	r := &rig{T: t, up: &wireTap{}, log: &tap{}, access: filepath.Join(t.TempDir(), "access")}
	authority := certstest.New(t, "fleet")
	mine, mineKey := authority.Issue("gateway")
	p := fake.NewPair(t, fake.Options{Engine: engine, APIKey: workerKey})
	m := &gateway.Guarded{Fleet: foreign.Config{Engine: engine, Every: time.Hour, Patient: 5 * time.Second,
		TLS: certs.ClientFiles{CA: authority.File, Cert: mine, Key: mineKey}}}
	if engine == fake.Plain {
		m.SaltAs, m.Messages = "cache_salt", true
	}
	for _, w := range p.Workers() {
		c := w.Config()
		at, err := url.Parse(r.up.before(t, w.URL(), authority, "127.0.0.1"))
		if err != nil {
			t.Fatal(err)
		}
		fw := foreign.Worker{Name: c.Leg.String(), Role: capacity.Role(c.Leg.String()), URL: at, Key: workerKey, KVHosts: []string{"127.0.0.1"}}
		if w == p.Decode {
			// Its own files, and a name that is not its address.
			at, _ = url.Parse(r.up.before(t, w.URL(), authority, "decode.example"))
			fw.URL = at
			fw.TLS = certs.ClientFiles{CA: authority.File, Cert: mine, Key: mineKey, ServerName: "decode.example"}
		}
		if host, port := p.Bootstrap(); w == p.Prefill {
			fw.BootstrapHost, fw.BootstrapPort = host, port
		}
		m.Fleet.Workers = append(m.Fleet.Workers, fw)
	}
	r.start(m)
	return r
}

func (r *rig) start(m *gateway.Guarded) {
	r.Helper()
	keys := filepath.Join(r.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(tenant.Line("alice", clientKey)+tenant.Line("bob", otherKey)), 0o600); err != nil {
		r.Fatal(err)
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	g, err := gateway.New(gateway.Config{
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], APIKeys: keys, AccessLog: r.access, Records: r.log, Version: "test",
		Models: []gateway.ModelConfig{{Name: "recall", Guarded: m}}, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		r.Fatal(err)
	}
	if err := g.Start(); err != nil {
		r.Fatal(err)
	}
	r.g = g
	r.Cleanup(func() { g.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := g.WaitReady(ctx); err != nil {
		r.Fatalf("%v\n%s", err, r.log)
	}
}

// ask sends a request and returns all that a client gets: status, head, body, trailers.
func (r *rig) ask(key, path, body string, headers ...string) (int, string) {
	r.Helper()
	req, err := http.NewRequest("POST", r.g.URL()+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, fmt.Sprint(resp.Header, resp.Trailer) + "\n" + string(b)
}

// operator is all that operators see.
func (r *rig) operator() string {
	out := ""
	for _, path := range []string{"/metrics", "/admin/fleet", "/admin/records", "/admin/incidents", "/admin/tenants", "/readyz"} {
		resp, err := http.Get(r.g.AdminURL() + path)
		if err != nil {
			r.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		out += path + "\n" + string(b) + "\n"
	}
	return out
}
