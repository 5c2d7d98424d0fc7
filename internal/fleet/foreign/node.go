package foreign

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
)

var dialer = net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}

// Node is a worker and what is known of it. Exported fields do not change; the rest is under Fleet.mu. A worker that is stated
// otherwise is another Node: what began on this one ends on it.
type Node struct {
	Worker
	Header    http.Header // of requests to it
	Transport http.RoundTripper
	fleet     *Fleet
	from      string // the source that names it
	ctx       context.Context
	stop      context.CancelFunc
	kick      chan struct{} // read it now

	facts   capacity.Facts // pinned over read
	class   class
	limit   capacity.Limit
	longest int         // prompt, in tokens, by the engine's own check
	last    *facts.Node // the last reading that found an engine; nil: none
	reason  string      // why it is not used, "" if nothing of its facts is against it
	suspect string      // why its facts have to be read again before it is used, "" if they have not
	dark    string      // why the last reading reached nobody, "" if it did reach somebody
	assumed bool        // decode's pool is not known, and prefill's is pinned
	mark    mark        // of its process
	boots   int
	era     int64 // of its process, as far as can be told from here; no two are the same
	silent  int   // readings in a row that did not come in time

	drained bool // by an operator
	gone    bool // taken out
	heir    *Node
	load    *int // tokens in flight; shared with the Node that took over
	holds   int  // attempts

	failures int       // in a row
	shunned  time.Time // until then others are preferred
	trial    bool      // an attempt is under way that says whether it works again
	since    time.Time // when it came (back) into use

	watching bool
	strikes  int // watches that ended at once: something between cuts idle connections

	dp       int
	port     int    // of the bootstrap server
	engineID string // Mooncake
	late     late   // NIXL: of prefill
}

// newNode makes a worker. old is the same worker as it was stated before, if it is known. Under mu, or before Start.
func (f *Fleet) newNode(w Worker, from string, old *Node) *Node {
	n := &Node{Worker: w, fleet: f, from: from, Transport: f.road(w.TLS), kick: make(chan struct{}, 1), load: new(int), Header: http.Header{
		"Content-Type": {"application/json"}, "Accept": nil, "User-Agent": {"sluice"},
	}}
	n.ctx, n.stop = context.WithCancel(f.ctx)
	if w.Key != "" {
		n.Header.Set("Authorization", "Bearer "+w.Key)
	}
	n.dp, n.port, n.engineID, n.era = max(w.DP, 1), w.BootstrapPort, w.EngineID, eras.Add(1)
	if old != nil {
		old.heir = n
		n.load, n.last, n.mark, n.boots, n.era, n.since, n.drained, n.suspect, n.dark = old.load, old.last, old.mark, old.boots, old.era, old.since, old.drained, old.suspect, old.dark
		n.failures, n.shunned, n.late = old.failures, old.shunned, late{slices.Clone(old.late.seen)}
		if w.EngineID == "" {
			n.engineID = old.engineID
		}
	} else if f.engine == VLLMMooncake && w.Role == capacity.Prefill && w.EngineID == "" {
		n.suspect = "the id of its engine was not asked yet" // decode is told it
	}
	n.settle()
	return n
}

// now is the Node that stands for this worker today.
func (n *Node) now() *Node {
	for n.heir != nil {
		n = n.heir
	}
	return n
}

// pinned reports whether the numbers that a limit needs were stated by hand.
func (n *Node) pinned() bool {
	return n.PoolTokens > 0 || !n.fleet.two() && n.Context > 0
}

// class is what the workers of a pair must have in common. Empty parts are not known, and are no difference.
type class struct {
	page                                                       int
	dtype, version, connector, model, revision, weights, quant string
}

// crossed names the parts of a class, for people.
var crossed = []struct {
	name string
	key  facts.Key
	of   func(class) string
}{
	{"KV dtype", facts.KVDType, func(c class) string { return c.dtype }},
	{"version", facts.Version, func(c class) string { return c.version }},
	{"connector", facts.Connector, func(c class) string { return c.connector }},
	{"model", facts.Model, func(c class) string { return c.model }},
	{"revision", facts.Revision, func(c class) string { return c.revision }},
	{"weight version", facts.WeightVersion, func(c class) string { return c.weights }},
	{"quantization", facts.Quantization, func(c class) string { return c.quant }},
}

// differ says in what two workers differ that may not, "" if in nothing known.
func (a class) differ(b class) string {
	if a.page > 0 && b.page > 0 && a.page != b.page {
		return fmt.Sprintf("page size: %d and %d", a.page, b.page)
	}
	for _, x := range crossed {
		if p, d := x.of(a), x.of(b); p != "" && d != "" && !facts.Same(x.key, p, d) {
			return fmt.Sprintf("%s: %q and %q", x.name, p, d)
		}
	}
	return ""
}

// settle computes facts and limit from the last reading and what is pinned. Under mu.
func (n *Node) settle() {
	f, read := capacity.Facts{}, n.last
	n.class = class{}
	most := 0
	if read != nil {
		f = read.Capacity(0)
		most = read.Int(facts.MaxPrompt)
		if n.DP == 0 {
			n.dp = max(read.Int(facts.DP), 1)
		}
		if n.BootstrapPort == 0 {
			n.port = read.Int(facts.BootstrapPort)
		}
		n.class.weights, n.class.quant = read.Text(facts.WeightVersion), read.Text(facts.Quantization)
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
	for _, p := range []struct {
		to *string
		by string
	}{{&f.Version, n.Version}, {&f.DType, n.DType}, {&f.Model, n.Model}} {
		if p.by != "" {
			*p.to = p.by
		}
	}
	one := !n.fleet.two()
	if one && f.PoolTokens == 0 {
		// One leg refuses by itself what it cannot hold; there is nobody to hand it to.
		f.PoolTokens, f.Reserved = f.Context, 0
	} else {
		f.Reserved = capacity.Reserve(n.fleet.engine, f.PageSize)
	}
	if f.Context == 0 && n.PoolTokens > 0 {
		f.Context = f.PoolTokens
	}
	f.Boot = n.mark.text()
	n.facts, n.reason, n.assumed = f, "", false
	n.class.page, n.class.dtype, n.class.version, n.class.connector = f.PageSize, f.DType, f.Version, f.Connector
	n.class.model, n.class.revision = f.Model, f.Revision
	switch {
	case read != nil && !one && said != "" && said != capacity.Both && said != n.Role:
		n.reason = fmt.Sprintf("it says that it is a %s worker, and the configuration says %s", said, n.Role)
	case n.pinned() || f.PoolTokens > 0 && f.Context > 0:
	case read != nil || n.Role == capacity.Decode:
		n.reason = "its pool or its context cannot be read; pin pool_tokens and context to use it"
	default:
		n.reason = "its facts cannot be read"
	}
	n.limit = capacity.Node(n.facts)
	n.longest = capacity.LongestPrompt(n.fleet.engine, n.facts.PoolTokens, n.facts.Context)
	if most > 0 && n.PoolTokens == 0 && n.Context == 0 && strings.HasPrefix(n.fleet.engine, capacity.SGLang) {
		n.longest = min(n.longest, most-1) // its own bound, which it tests with >=
	}
	if n.limit.Tokens == 0 && n.reason == "" {
		n.reason = "nothing fits its pool"
	}
}

// assume lets a decode worker of which nothing can be read stand where prefill's pool was pinned by hand: prefill's is the pool that
// must not be smaller than what decode reserves, and decode refuses by itself what it cannot hold. Under mu.
func (f *Fleet) assume(n *Node) {
	if !f.two() || n.Role != capacity.Decode || n.facts.PoolTokens > 0 || n.last != nil && n.facts.Context > 0 {
		return
	}
	for _, p := range f.workers {
		if p.Role == capacity.Prefill && p.PoolTokens > 0 {
			n.reason, n.assumed = "", true
			n.limit = capacity.Limit{Tokens: 1 << 31, Node: n.Name, Setter: "nothing known of decode " + n.Name}
			n.longest = n.limit.Tokens
			return
		}
	}
}

// why a worker gets no new attempt, "" if it may. Under mu.
func (n *Node) why() string {
	switch {
	case n.gone:
		return "it is no longer named"
	case n.drained:
		return "it is drained by an operator"
	case n.reason != "" && n.dark != "":
		return n.dark // that nothing is known of it follows
	case n.reason != "":
		return n.reason
	case n.suspect != "":
		return n.suspect + ": its facts are read again before it is used"
	case n.limit.Tokens == 0:
		return "nothing fits it"
	}
	return ""
}

// usable reports whether a worker may be asked. Under mu.
func (n *Node) usable() bool { return n.why() == "" }

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

// eras are counted over all workers, so that one which is taken out and comes back is in another.
var eras atomic.Int64

// Era changes whenever the worker's process may have become another: what it said of itself in one is of no worth in the next.
func (n *Node) Era() int64 {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	return n.now().era
}

// Reread asks the worker at once what it is, for as long as a reading may take: it may have restarted, and nobody has noticed yet.
func (n *Node) Reread() {
	n.fleet.mu.Lock()
	n = n.now()
	n.fleet.mu.Unlock()
	n.fleet.readSoon(n)
}

// At is the URL of a path of the worker.
func (n *Node) At(path string) *url.URL {
	u := *n.URL
	u.Path = strings.TrimRight(u.Path, "/") + path
	return &u
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
