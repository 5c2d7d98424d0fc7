package foreign

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/source"
)

var dialer = net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}

// Node is a worker and what is known of it. Exported fields do not change after New; the rest is under Fleet.mu.
type Node struct {
	Worker
	Header    http.Header // of requests to it
	Transport http.RoundTripper
	fleet     *Fleet

	facts    capacity.Facts // pinned over read
	limit    capacity.Limit
	read     bool   // the last reading found an engine
	reason   string // why it is not used, "" if it is
	assumed  bool   // decode's pool is not known, and prefill's is pinned
	boots    int
	load     int
	failures int       // in a row
	shunned  time.Time // until then others are preferred
	dp       int
	port     int    // of the bootstrap server
	engineID string // Mooncake
	late     late   // NIXL: of prefill
}

func newNode(f *Fleet, w Worker) *Node {
	n := &Node{Worker: w, fleet: f, Transport: f.transport, Header: http.Header{
		"Content-Type": {"application/json"}, "Accept": nil, "User-Agent": {"sluice"},
	}}
	if w.Key != "" {
		n.Header.Set("Authorization", "Bearer "+w.Key)
	}
	n.dp, n.port, n.engineID = max(w.DP, 1), w.BootstrapPort, w.EngineID
	n.settle(nil)
	return n
}

// pinned reports whether the numbers that a limit needs were stated by hand.
func (n *Node) pinned() bool {
	return n.PoolTokens > 0 || n.fleet.cfg.Engine == Plain && n.Context > 0
}

// settle computes facts and limit from what was read (nil: nothing) and what is pinned. Under mu.
func (n *Node) settle(read *facts.Node) {
	f := capacity.Facts{}
	if read != nil {
		f = read.Capacity(0)
		if n.dp == max(n.DP, 1) && n.DP == 0 {
			n.dp = max(read.Int(facts.DP), 1)
		}
		if n.BootstrapPort == 0 {
			n.port = read.Int(facts.BootstrapPort)
		}
	}
	said := f.Role
	f.Name, f.Role, f.Engine = n.Name, n.Role, n.fleet.engine
	for _, p := range []struct {
		to *int
		by int
	}{{&f.PoolTokens, n.PoolTokens}, {&f.Context, n.Context}, {&f.PageSize, n.PageSize}} {
		if p.by > 0 {
			*p.to = p.by
		}
	}
	if n.Version != "" {
		f.Version = n.Version
	}
	if n.DType != "" {
		f.DType = n.DType
	}
	plain := n.fleet.cfg.Engine == Plain
	if plain && f.PoolTokens == 0 {
		// One leg refuses by itself what it cannot hold; there is nobody to hand it to.
		f.PoolTokens, f.Reserved = f.Context, 0
	} else {
		f.Reserved = capacity.Reserve(n.fleet.engine, f.PageSize)
	}
	if f.Context == 0 && n.PoolTokens > 0 {
		f.Context = f.PoolTokens
	}
	n.facts, n.reason, n.assumed = f, "", false
	switch {
	case read != nil && !plain && said != "" && said != capacity.Both && said != n.Role:
		n.reason = fmt.Sprintf("it says that it is a %s worker, and the configuration says %s", said, n.Role)
	case n.pinned() || f.PoolTokens > 0 && f.Context > 0:
	case n.read || read != nil || n.Role == capacity.Decode:
		n.reason = "its pool or its context cannot be read; pin pool_tokens and context to use it"
	default:
		n.reason = "its facts cannot be read"
	}
	n.limit = capacity.Node(n.facts)
	if n.limit.Tokens == 0 && n.reason == "" {
		n.reason = "nothing fits its pool"
	}
}

// assume lets a decode worker of which nothing can be read stand where prefill's pool was pinned by hand: prefill's is the pool that
// must not be smaller than what decode reserves, and decode refuses by itself what it cannot hold.
func (f *Fleet) assume(n *Node) {
	if !f.two() || n.Role != capacity.Decode || n.facts.PoolTokens > 0 || n.read && n.facts.Context > 0 {
		return
	}
	for _, p := range f.workers {
		if p.Role == capacity.Prefill && p.PoolTokens > 0 {
			n.reason, n.assumed = "", true
			n.limit = capacity.Limit{Tokens: 1 << 31, Node: n.Name, Setter: "nothing known of decode " + n.Name}
			return
		}
	}
}

// keep reads one worker's facts until the fleet ends.
func (f *Fleet) keep(n *Node) {
	wait := time.Duration(0)
	quick := 100 * time.Millisecond
	for {
		select {
		case <-time.After(wait):
		case <-f.ctx.Done():
			return
		}
		ok := f.readOnce(n)
		wait = f.cfg.Every
		if !ok {
			wait = min(quick, f.cfg.Every)
			quick *= 2
		} else {
			quick = 100 * time.Millisecond
		}
	}
}

// readOnce asks a worker what it is. It reports whether an engine answered.
func (f *Fleet) readOnce(n *Node) bool {
	ctx, cancel := context.WithTimeout(f.ctx, f.cfg.Patient)
	defer cancel()
	inv, err := source.Read(ctx, []string{n.URL.String()}, source.Options{Timeout: f.cfg.Patient, Parallel: 1, APIKey: n.Key, TLS: f.cfg.TLS})
	if err != nil {
		return false
	}
	var read *facts.Node
	for _, x := range inv.Nodes {
		if x.Live && len(x.Facts) > 0 && (x.Int(facts.Pool) > 0 || x.Int(facts.Context) > 0 || x.Text(facts.Version) != "") {
			read = x
		}
	}
	id := ""
	if f.cfg.Engine == VLLMMooncake && n.Role == capacity.Prefill && n.EngineID == "" {
		id = f.askEngineID(ctx, n)
	}
	if f.cfg.Engine == VLLMNixl && n.Role == capacity.Prefill {
		f.noteLate(ctx, n)
	}
	f.mu.Lock()
	before, beforeReason, was := n.facts, n.reason, n.read
	n.read = read != nil
	if id != "" {
		n.engineID = id
	}
	n.settle(read)
	f.assume(n)
	after, reason := n.facts, n.reason
	if n.read && (!was || before != after) {
		n.boots++
	}
	differs := before != after || beforeReason != reason || was != n.read
	if differs {
		f.change()
	}
	f.mu.Unlock()
	switch {
	case !differs:
	case reason != "":
		f.cfg.Log.Warn("worker is not used", "model", f.cfg.Model, "worker", n.Name, "reason", reason)
	default:
		f.cfg.Log.Info("worker's facts", "model", f.cfg.Model, "worker", n.Name, "engine", after.Engine, "version", after.Version,
			"pool_tokens", after.PoolTokens, "page_size", after.PageSize, "context", after.Context, "dtype", after.DType, "read", n.read)
	}
	return read != nil
}

// bootstrap is the address of prefill's bootstrap server.
func (n *Node) bootstrap() (host string, port int) {
	host = n.BootstrapHost
	if host == "" {
		host = n.URL.Hostname()
	}
	return host, n.port
}

// Handover is what decode is told of a prefill worker where both legs run at once.
type Handover struct {
	Host     string
	Port     int // 0: not known
	DP       int // ranks of prefill
	EngineID string
}

// Handover of a prefill worker.
func (n *Node) Handover() Handover {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	h, p := n.bootstrap()
	return Handover{h, p, n.dp, n.engineID}
}

// Facts of a worker as they are known now.
func (n *Node) Facts() capacity.Facts {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.facts
}

// At is the URL of a path of the worker.
func (n *Node) At(path string) *url.URL {
	u := *n.URL
	u.Path = strings.TrimRight(u.Path, "/") + path
	return &u
}

// askEngineID asks Mooncake's bootstrap server of prefill who it is.
func (f *Fleet) askEngineID(ctx context.Context, n *Node) string {
	host, port := n.bootstrap()
	if port == 0 {
		return ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, strconv.Itoa(port))+"/query", nil)
	if err != nil {
		return ""
	}
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return ""
	}
	var ranks map[string]struct {
		EngineID string `json:"engine_id"`
	}
	if json.Unmarshal(b, &ranks) != nil {
		return ""
	}
	return ranks["0"].EngineID
}

// Addresses of a host, looked up at most once a minute and never for long: who waits for this holds a request.
func (n *Node) Addresses(host string) []net.IP {
	if ip := net.ParseIP(host); ip != nil {
		return []net.IP{ip}
	}
	f := n.fleet
	f.mu.Lock()
	known, ok := f.names[host]
	f.mu.Unlock()
	if ok && time.Since(known.at) < time.Minute {
		return known.ips
	}
	ctx, cancel := context.WithTimeout(f.ctx, 2*time.Second)
	defer cancel()
	ips, _ := net.DefaultResolver.LookupIP(ctx, "ip", host)
	f.mu.Lock()
	if len(f.names) > maxNames {
		clear(f.names)
	}
	f.names[host] = named{ips, time.Now()}
	f.mu.Unlock()
	return ips
}

type named struct {
	ips []net.IP
	at  time.Time
}

const maxNames = 1024

// ReadAll reads every worker's facts once, and returns when all have answered or not.
func (f *Fleet) ReadAll(ctx context.Context) {
	done := make(chan struct{})
	for _, n := range f.workers {
		f.wg.Go(func() {
			f.readOnce(n)
			select {
			case done <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}
	for range f.workers {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}
