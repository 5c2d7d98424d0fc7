package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/certs"
	"github.com/sluicekv/sluice/internal/follow"
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
)

// TLS of the listeners. The zero value is none.
type TLS struct {
	Cert, Key string // PEM files, of both listeners
	ClientCA  string // of clients' certificates; empty: clients need none
	// AdminClientCA is of operators' certificates. Empty: ClientCA's; where clients and operators have one issuer, a client could be an
	// operator.
	AdminClientCA string
	AdminPlain    bool // the admin listener speaks no TLS
}

func (t TLS) check(admin string) error {
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return errors.New("gateway: --tls-cert and --tls-key go together")
	case t.Cert == "" && (t.ClientCA != "" || t.AdminClientCA != "" || t.AdminPlain):
		return errors.New("gateway: --tls-client-ca, --admin-client-ca and --admin-plain need --tls-cert and --tls-key")
	case t.AdminPlain && t.AdminClientCA != "":
		return errors.New("gateway: --admin-client-ca needs TLS, and --admin-plain says that there is none")
	case t.AdminPlain && admin != "" && !loopback(admin):
		return fmt.Errorf("gateway: --admin-plain is for loopback only, not for %s", admin)
	}
	return nil
}

// listeners are the certificates of both.
type listeners struct{ door, admin *certs.Server }

func (t TLS) load() (l listeners, err error) {
	if t.Cert == "" {
		return l, nil
	}
	if l.door, err = certs.LoadServer(certs.ServerFiles{Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA}); err != nil {
		return l, fmt.Errorf("gateway: %w", err)
	}
	if t.AdminPlain {
		return l, nil
	}
	ca := t.AdminClientCA
	if ca == "" {
		ca = t.ClientCA
	}
	if l.admin, err = certs.LoadServer(certs.ServerFiles{Cert: t.Cert, Key: t.Key, ClientCA: ca}); err != nil {
		return l, fmt.Errorf("gateway: %w", err)
	}
	return l, nil
}

func secured(ln net.Listener, s *certs.Server) net.Listener {
	if s == nil {
		return ln
	}
	return tls.NewListener(ln, s.Config())
}

// URL of the API, AdminURL of the admin listener: empty before Start.
func (g *Gateway) URL() string      { return urlOf(g.apiLn, g.listeners.door) }
func (g *Gateway) AdminURL() string { return urlOf(g.admLn, g.listeners.admin) }

func urlOf(ln net.Listener, s *certs.Server) string {
	switch {
	case ln == nil:
		return ""
	case s != nil:
		return "https://" + addr(ln)
	}
	return "http://" + addr(ln)
}

// renewal is something that is read from files, and read again when they change.
type renewal struct {
	what  string // keys, door, admin or workers
	paths []string
	read  func() error
}

// renewals of this gateway, as of now.
func (g *Gateway) renewals() (out []renewal) {
	if p := g.tenants.Path(); p != "" {
		out = append(out, renewal{"keys", []string{p}, g.renewKeys})
	}
	if s := g.listeners.door; s != nil {
		out = append(out, renewal{"door", s.Paths(), s.Reload})
	}
	if s := g.listeners.admin; s != nil {
		out = append(out, renewal{"admin", s.Paths(), s.Reload})
	}
	clients := g.workerCerts()
	var paths []string
	for _, c := range clients {
		paths = append(paths, c.Paths()...)
	}
	if len(paths) > 0 {
		out = append(out, renewal{"workers", paths, func() (err error) {
			for _, c := range clients {
				err = errors.Join(err, c.Reload())
			}
			return err
		}})
	}
	return out
}

// renew reads one thing again; a failure changes nothing, and is logged and counted.
func (g *Gateway) renew(r renewal) error {
	err := r.read()
	ok := 1.0
	if err != nil {
		ok = 0
		g.metrics.renewFailures.WithLabelValues(r.what).Inc()
		g.log.Error("files changed and are not taken; what was before still counts", "what", r.what, "error", err)
	} else {
		g.log.Info("files were read", "what", r.what)
	}
	g.metrics.renewed.WithLabelValues(r.what).Set(ok)
	return err
}

// Renew reads the key file and all certificates again, and begins the access log's file anew. What cannot be read stays as it is.
func (g *Gateway) Renew() (err error) {
	for _, r := range g.renewals() {
		err = errors.Join(err, g.renew(r))
	}
	if g.access != nil {
		again := g.access.reopen()
		if again != nil {
			g.log.Error("the access log goes on where it was", "error", again)
		}
		err = errors.Join(err, again)
	}
	return err
}

// followRound is how long the same list of files is followed.
const followRound = time.Minute

// follow renews what changes on disk until the gateway closes. What there is to follow may change with a reload.
func (g *Gateway) follow(ctx context.Context) {
	known := map[string]bool{}
	for {
		rs := g.renewals()
		round, cancel := context.WithTimeout(ctx, followRound)
		var wg sync.WaitGroup
		for _, r := range rs {
			if !known[r.what] { // what was read at the start was good
				known[r.what] = true
				g.metrics.renewFailures.WithLabelValues(r.what).Add(0)
				g.metrics.renewed.WithLabelValues(r.what).Set(1)
			}
			wg.Go(func() { follow.Files(round, g.cfg.Follow, r.paths, func() { _ = g.renew(r) }) })
		}
		<-round.Done()
		wg.Wait()
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

// renewKeys reads the tenants again.
func (g *Gateway) renewKeys() error {
	c, err := g.tenants.Reload()
	if err != nil {
		return err
	}
	g.metrics.forget(c.Removed)
	slices.Sort(c.Removed)
	if n := len(c.Added) + len(c.Removed) + len(c.Altered); n > 0 {
		g.log.Info("tenants", "added", c.Added, "removed", c.Removed, "changed", c.Altered)
	}
	g.warnOfModels()
	return nil
}

// warnOfModels says which models tenants may use that do not exist: most likely their names are misspelt.
func (g *Gateway) warnOfModels() {
	var none []string
	c := g.catalog()
	for _, m := range g.tenants.Models() {
		if c.find(m) == nil {
			none = append(none, m)
		}
	}
	if len(none) > 0 {
		g.log.Warn("the key file names models that there are not", "models", strings.Join(none, ","))
	}
}

// certificates that are shown, and when they end.
func (g *Gateway) certificates() map[string]time.Time {
	out := map[string]time.Time{}
	if g.listeners.door != nil {
		out["door"] = g.listeners.door.NotAfter()
	}
	for _, c := range g.workerCerts() {
		at := c.NotAfter()
		if before, ok := out["workers"]; !at.IsZero() && (!ok || at.Before(before)) {
			out["workers"] = at
		}
	}
	return out
}

// workerCerts are what workers are reached with.
func (g *Gateway) workerCerts() (out []*certs.Client) {
	for m := range g.catalog().primaries {
		if m.guarded != nil {
			out = append(out, m.guarded.fleet.Certs()...)
		}
	}
	return out
}

// runs are the attempts on other engines that are under way, for what they hold.
type runs struct {
	mu  sync.Mutex
	all map[*web.Run]struct{}
}

func (r *runs) add(x *web.Run) {
	r.mu.Lock()
	if r.all == nil {
		r.all = map[*web.Run]struct{}{}
	}
	r.all[x] = struct{}{}
	r.mu.Unlock()
}

func (r *runs) drop(x *web.Run) {
	r.mu.Lock()
	delete(r.all, x)
	r.mu.Unlock()
}

// held is the bytes of replies that lie in the gateway.
func (r *runs) held() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := range r.all {
		n += x.Held()
	}
	return n
}
