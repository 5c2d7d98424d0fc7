package source

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// maxAnswer bounds an answer of a worker, in bytes. A metrics page of a busy worker has 2 MB.
const maxAnswer = 32 << 20

// target is a worker to ask.
type target struct {
	url, name string
	worker    *fleetWorker
}

// resolve turns NAME:PORT into a target for each address, and _service._proto.NAME into one for each SRV record.
func resolve(ctx context.Context, s string, timeout time.Duration) (ts []target, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if strings.HasPrefix(s, "_") {
		_, srvs, err := net.DefaultResolver.LookupSRV(ctx, "", "", s)
		if err != nil {
			return nil, err
		}
		for _, r := range srvs {
			ts = append(ts, target{url: "http://" + net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))})
		}
		return ts, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return nil, fmt.Errorf("dns: needs NAME:PORT or a SRV name: %w", err)
	}
	addrs, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	sort.Strings(addrs)
	for _, a := range addrs {
		ts = append(ts, target{url: "http://" + net.JoinHostPort(a, port)})
	}
	return ts, nil
}

// Client is an HTTP client that follows no redirect and keeps few connections, for questions to engines.
func Client(o Options) *http.Client {
	t := &http.Transport{
		Proxy:                  nil,
		TLSClientConfig:        o.TLS,
		DialContext:            (&net.Dialer{Timeout: o.Timeout}).DialContext,
		TLSHandshakeTimeout:    o.Timeout,
		ResponseHeaderTimeout:  o.Timeout,
		MaxIdleConns:           2 * o.Parallel,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        5 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// ask asks all targets, o.Parallel at a time, and returns a node for each in the order given.
func ask(ctx context.Context, ts []target, o Options) []*facts.Node {
	if len(ts) == 0 {
		return nil
	}
	out := make([]*facts.Node, len(ts))
	client := o.Client
	if client == nil {
		client = Client(o)
		defer client.CloseIdleConnections()
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	next := make(chan int)
	for range min(max(o.Parallel, 1), len(ts)) {
		wg.Go(func() {
			for i := range next {
				out[i] = askOne(ctx, client, ts[i], o)
				mu.Lock()
				done++
				if o.Progress != nil {
					o.Progress(done, len(ts))
				}
				mu.Unlock()
			}
		})
	}
	for i := range ts {
		next <- i
	}
	close(next)
	wg.Wait()
	return out
}

// Ask reads what the worker at url says of itself. The node's Live facts are empty where nothing answered as an engine does.
func Ask(ctx context.Context, url string, o Options) *facts.Node {
	o.Parallel = 1
	return ask(ctx, []target{{url: url}}, o)[0]
}

// answer is one answer: status 0 with an error when there was none.
type answer struct {
	url    string
	status int
	body   []byte
	typ    string
	err    error
}

func get(ctx context.Context, c *http.Client, base, path, key string) answer {
	a := answer{url: base + path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		a.err = err
		return a
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Header.Set("User-Agent", "sluice-check")
	resp, err := c.Do(req)
	if err != nil {
		a.err = reason(err)
		return a
	}
	defer resp.Body.Close()
	a.status, a.typ = resp.StatusCode, resp.Header.Get("Content-Type")
	if a.status >= 300 && a.status < 400 {
		a.err = fmt.Errorf("redirects to %s; redirects are not followed, name that address instead", location(resp))
		return a
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		a.err = reason(err)
	case len(b) > maxAnswer:
		a.err = fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)
	}
	a.body = b
	return a
}

func location(r *http.Response) string {
	u, err := r.Location()
	if err != nil {
		return "an address that cannot be read"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// reason says in plain words why there was no answer.
func reason(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var ne net.Error
	switch {
	case errors.As(err, &unknown):
		return errors.New("its TLS certificate is signed by an authority that is not known here (self-signed?); give the authority with --ca FILE, or --insecure-tls to read all the same")
	case errors.As(err, &host):
		return fmt.Errorf("its TLS certificate is for another name: %w", host)
	case errors.As(err, &invalid):
		return fmt.Errorf("its TLS certificate is not valid: %w", invalid)
	case errors.As(err, &record), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return errors.New("speaks no TLS on this port; try http://")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return errors.New("gave no whole answer in time")
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// askOne reads what one worker says of itself. The whole visit is bounded by o.Timeout.
func askOne(ctx context.Context, c *http.Client, t target, o Options) *facts.Node {
	u, err := url.Parse(t.url)
	if err != nil || u.Host == "" {
		n := &facts.Node{Name: t.url, ID: t.url, Live: true}
		n.Note(facts.Source{Name: t.url}, true, "is no URL of a worker")
		return n
	}
	base := u.Scheme + "://" + u.Host + strings.TrimRight(u.Path, "/")
	name := t.name
	if name == "" {
		name = u.Host
	}
	n := &facts.Node{Name: name, ID: base, Live: true}
	if t.worker != nil {
		pin(n, *t.worker)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()

	var unreached error
	read := func(path string, into func(answer) error) bool {
		if unreached != nil {
			return false
		}
		a := get(ctx, c, base, path, o.APIKey)
		at := facts.Source{Name: a.url}
		switch {
		case a.err != nil && a.status == 0:
			unreached = a.err
			n.Note(at, true, "%v", a.err)
			return false
		case a.err != nil:
			n.Note(at, true, "%v", a.err)
			return false
		case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
			n.Note(at, false, "asks for a key (HTTP %d); give one with --api-key-file", a.status)
			n.Put(facts.APIKey, "true", at, facts.Part)
			return false
		case a.status == http.StatusNotFound || a.status == http.StatusMethodNotAllowed:
			return false
		case a.status != http.StatusOK:
			n.Note(at, false, "answers HTTP %d", a.status)
			return false
		}
		if err := into(a); err != nil {
			what := strings.TrimSpace(a.typ)
			if what == "" {
				what = "no content type"
			}
			n.Note(at, false, "answers %d bytes (%s) that cannot be read: %v", len(a.body), what, err)
			return false
		}
		return true
	}
	body := func(a answer) error { return readBody(n, a.body, facts.Source{Name: a.url}) }
	info := read("/server_info", body) || read("/get_server_info", body)
	models := read("/v1/models", body)
	read("/model_info", func(a answer) error {
		err := body(a)
		if errors.Is(err, errNoFacts) {
			return nil
		}
		return err
	})
	metrics := read("/metrics", func(a answer) error {
		lines, err := readMetrics(n, bytes.NewReader(a.body), a.url)
		if err == nil && lines == 0 {
			err = errors.New("no metric of SGLang or vLLM is in it")
		}
		return err
	})
	if !info && n.Text(facts.Engine) != "sglang" {
		read("/version", func(a answer) error {
			err := body(a)
			if errors.Is(err, errNoFacts) {
				return nil
			}
			return err
		})
	}
	switch {
	case unreached != nil:
		return n
	case !info && !models && !metrics:
		n.Note(facts.Source{Name: base}, true, "answers none of /server_info, /v1/models and /metrics as an engine does")
		return n
	}
	if !metrics && n.Text(facts.Metrics) == "" {
		n.Put(facts.Metrics, "false", facts.Source{Name: base + "/metrics"}, facts.Said)
	}
	if info && o.APIKey == "" {
		n.Put(facts.Unauthenticated, "true", facts.Source{Name: base + "/server_info"}, facts.Said)
	}
	if o.Ports {
		complete(n)
		knock(ctx, n, u.Hostname())
	}
	return n
}

// pin takes over what fleet.yaml states by hand.
func pin(n *facts.Node, w fleetWorker) {
	for k, v := range w.pinned {
		// What the worker says of itself weighs more; that the two differ is a finding.
		n.Put(k, v, w.at, facts.Args)
	}
	if w.engine != "" && w.engine != "plain" {
		n.Put(facts.Engine, w.engine, w.at, facts.Asked)
	}
	n.Put(facts.Role, w.role, w.at, facts.Asked)
	if w.role == "prefill" || w.role == "decode" {
		n.Put(facts.PD, "true", w.at, facts.Asked)
	}
	n.Put(facts.Served, w.model, w.at, facts.Asked)
}

// knock tries to connect to the ports on which the fleet's own processes talk. Nothing is sent.
func knock(ctx context.Context, n *facts.Node, host string) {
	try := func(port int, key facts.Key) {
		if port <= 0 || port > 65535 {
			return
		}
		addr := net.JoinHostPort(host, strconv.Itoa(port))
		d := net.Dialer{Timeout: time.Second}
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return
		}
		c.Close()
		n.Put(key, addr, facts.Source{Name: "tcp://" + addr}, facts.Said)
	}
	if n.Text(facts.Engine) == "sglang" && n.Text(facts.Role) == "prefill" {
		try(n.Int(facts.BootstrapPort), facts.BootstrapOpen)
	}
	if strings.Contains(n.Text(facts.Connector), "Nixl") {
		port := n.Int(facts.SideChannelPort)
		if port == 0 {
			port = 5600
		}
		try(port, facts.SideChannelOpen)
	}
}
