package foreign

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Resolver looks names up. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, addrs []*net.SRV, err error)
}

// DNS is a source of workers: each address of a name, or each target of a SRV record (a name that begins with _, as in
// _http._tcp.prefill.example), is one.
type DNS struct {
	Host     string
	Port     int           // of the workers; not for SRV records, which say it
	Scheme   string        // http (default) or https
	Like     Worker        // what is stated of every worker: role, pins, key; its name and URL are not read
	Interval time.Duration // between look-ups (30 s)
	Resolver Resolver      // nil: the system's
	Key      string        // tells sources with other settings apart (of Like)

	mu    sync.Mutex
	empty int // look-ups in a row that found that the name does not exist
}

// ID is the name, its kind and its role.
func (d *DNS) ID() string {
	port := ""
	if !d.srv() {
		port = ":" + strconv.Itoa(d.Port)
	}
	s := fmt.Sprintf("dns %s%s (%s)", d.Host, port, d.Like.Role)
	if d.Key != "" {
		s += " " + d.Key
	}
	return s
}

func (d *DNS) srv() bool { return strings.HasPrefix(d.Host, "_") }

// Every is the interval between look-ups.
func (d *DNS) Every() time.Duration {
	if d.Interval <= 0 {
		return 30 * time.Second
	}
	return d.Interval
}

// lookTime is how long one look-up may take.
const lookTime = 5 * time.Second

// Look resolves the name. A name that does not exist any more names nobody, once two look-ups in a row say so; a look-up that fails
// in another way says nothing.
func (d *DNS) Look(ctx context.Context) ([]Worker, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	var r Resolver = net.DefaultResolver
	if d.Resolver != nil {
		r = d.Resolver
	}
	places, err := d.places(ctx, r)
	d.mu.Lock()
	defer d.mu.Unlock()
	var no *net.DNSError
	switch {
	case errors.As(err, &no) && no.IsNotFound || err == nil && len(places) == 0:
		if d.empty++; d.empty < 2 {
			return nil, nil, fmt.Errorf("%s names no address; if the next look-up says so too, its workers end", d.Host)
		}
		return nil, []string{d.Host + " names no address"}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("%s cannot be resolved: %w", d.Host, err)
	}
	d.empty = 0
	slices.Sort(places)
	var out []Worker
	scheme := d.Scheme
	if scheme == "" {
		scheme = "http"
	}
	for _, p := range slices.Compact(places) {
		w := d.Like
		w.Name, w.URL = "", &url.URL{Scheme: scheme, Host: p}
		out = append(out, w)
	}
	return out, nil, nil
}

func (d *DNS) places(ctx context.Context, r Resolver) (out []string, err error) {
	if d.srv() {
		_, rs, err := r.LookupSRV(ctx, "", "", d.Host)
		if err != nil {
			return nil, err
		}
		for _, s := range rs {
			if t := strings.TrimSuffix(s.Target, "."); t != "" && s.Port > 0 { // a single "." says that there is no such service
				out = append(out, net.JoinHostPort(t, strconv.Itoa(int(s.Port))))
			}
		}
		return out, nil
	}
	addrs, err := r.LookupNetIP(ctx, "ip", d.Host)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a.Unmap(), uint16(d.Port)).String())
	}
	return out, nil
}
