package tenant

import (
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Directory is the tenants as they are now. Safe for concurrent use.
type Directory struct {
	path   string // empty: there is no file
	secret []byte
	now    atomic.Pointer[Keys]

	mu       sync.Mutex // of readings
	accounts map[string]*account
}

// Open makes everybody the one default tenant, without limits.
func Open(secret []byte) *Directory {
	d := &Directory{secret: secret}
	d.now.Store(&Keys{everyone: &Tenant{ID: "default", label: "default", Scope: scopeOf(secret, "default"), account: &account{}}})
	return d
}

// Load reads a key file.
func Load(path string, secret []byte) (*Directory, error) {
	d := &Directory{path: path, secret: secret}
	_, err := d.Reload()
	return d, err
}

// Changed names what a reading changed: tenants, by their names.
type Changed struct{ Added, Removed, Altered []string }

// Reload reads the file again. On an error everything stays as it is.
func (d *Directory) Reload() (c Changed, err error) {
	if d.path == "" {
		return c, nil
	}
	f, err := os.Open(d.path)
	if err != nil {
		return c, fmt.Errorf("tenant: %w", err)
	}
	defer f.Close()
	next, err := Read(f, d.secret)
	if err != nil {
		return c, fmt.Errorf("%w in %s", err, d.path)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	before := map[string]*holder{}
	if k := d.now.Load(); k != nil {
		for _, h := range k.tenants {
			before[h.name] = h
		}
	}
	accounts := map[string]*account{}
	for _, h := range next.tenants {
		a := d.accounts[h.name]
		if a == nil {
			a = &account{}
		}
		a.limit(h.limits, now)
		accounts[h.name], h.tenant.account = a, a
		switch old := before[h.name]; {
		case old == nil:
			c.Added = append(c.Added, h.name)
		case old.fingerprint() != h.fingerprint():
			c.Altered = append(c.Altered, h.name)
		}
		delete(before, h.name)
	}
	for name := range before {
		c.Removed = append(c.Removed, name)
	}
	d.accounts = accounts
	d.now.Store(next)
	return c, nil
}

// Authenticate finds the tenant of a request.
func (d *Directory) Authenticate(h http.Header) (Tenant, verdict.Verdict) {
	return d.now.Load().authenticate(h, time.Now())
}

// Path of the file; empty without one.
func (d *Directory) Path() string { return d.path }

// Names of the tenants, in the order of the file.
func (d *Directory) Names() (out []string) {
	k := d.now.Load()
	if k.everyone != nil {
		return []string{k.everyone.ID}
	}
	for _, h := range k.tenants {
		out = append(out, h.name)
	}
	return out
}

// Models that tenants may use by name, sorted: to tell an operator of those that do not exist.
func (d *Directory) Models() []string {
	all := map[string]bool{}
	for _, h := range d.now.Load().tenants {
		for m := range h.models {
			all[m] = true
		}
	}
	return sorted(all)
}

// Status is one tenant as /admin/tenants shows it. Keys are named by their ids alone.
type Status struct {
	Tenant      string   `json:"tenant"`
	Keys        []Key    `json:"keys"`
	Models      []string `json:"models,omitempty"` // none: all
	InFlight    int64    `json:"inflight"`
	Concurrency int      `json:"concurrency,omitzero"`
	Requests    *Left    `json:"requests,omitempty"`
	Tokens      *Left    `json:"tokens,omitempty"`
}

// Key is one key of a tenant.
type Key struct {
	ID      string    `json:"id"`
	Off     bool      `json:"off,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
}

// Left is what is left of a rate: negative is a debt.
type Left struct {
	Rate  string `json:"rate"`
	Burst int    `json:"burst"`
	Left  int    `json:"left"`
}

// Status of all tenants.
func (d *Directory) Status() []Status {
	out := []Status{}
	now := time.Now()
	for _, h := range d.now.Load().tenants {
		a := h.tenant.account
		s := Status{Tenant: h.name, Models: sorted(h.models), InFlight: a.inFlight.Load(), Concurrency: h.limits.Concurrency}
		for _, k := range h.keys {
			s.Keys = append(s.Keys, Key{k.id, k.off, k.expires})
		}
		if l := a.requests.Load(); l != nil {
			s.Requests = &Left{h.limits.Requests.String(), l.Burst(), int(l.TokensAt(now))}
		}
		if l := a.tokens.Load(); l != nil {
			s.Tokens = &Left{h.limits.Tokens.String(), l.Burst(), int(l.TokensAt(now))}
		}
		out = append(out, s)
	}
	return out
}
