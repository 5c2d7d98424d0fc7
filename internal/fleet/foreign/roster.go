package foreign

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/sluicekv/sluice/internal/certs"
	"time"
)

// settleRoster makes the workers those that the sources name now. Two sources may name one worker: the first counts, in the order of
// the configuration, so that what is pinned by hand stands over what is discovered. It says what changed. Under mu.
func (f *Fleet) settleRoster() (diff []string) {
	type claim struct {
		w    Worker
		from string
	}
	var want []claim
	names, places := map[string]string{}, map[string]bool{}
	for _, s := range f.sources {
		ws, err := named2(s.workers)
		if err != nil {
			panic("foreign: workers of " + s.id + " were not checked: " + err.Error())
		}
		s.clash = nil
		for _, w := range ws {
			place := string(w.Role) + " " + w.URL.String()
			switch from, taken := names[w.Name]; {
			case places[place]:
				continue
			case taken:
				s.clash = append(s.clash, fmt.Sprintf("worker %s is named by %s already, at another address", w.Name, from))
				continue
			}
			names[w.Name], places[place] = s.id, true
			want = append(want, claim{w, s.id})
		}
	}
	var now []*Node
	byName := map[string]*Node{}
	for _, c := range want {
		n := f.byName[c.w.Name]
		switch {
		case n == nil:
			n = f.newNode(c.w, c.from, nil)
			diff = append(diff, fmt.Sprintf("worker %s added: %s%s", c.w.Name, c.w.URL.Redacted(), pins(c.w)))
			f.begin(n)
		case same(n.Worker, c.w):
			n.from = c.from
		default:
			diff = append(diff, differences(n.Worker, c.w)...)
			n = f.repinned(n, c.w, c.from)
		}
		now = append(now, n)
		byName[n.Name] = n
	}
	for _, n := range f.workers {
		if byName[n.Name] == nil {
			diff = append(diff, fmt.Sprintf("worker %s removed: it ends what it has (%d tokens in flight)", n.Name, *n.load))
		}
		if byName[n.Name] != n {
			f.retire(n)
		}
	}
	f.workers, f.byName = now, byName
	for _, n := range f.workers {
		f.assume(n)
	}
	f.change()
	return diff
}

// begin reads a worker that came.
func (f *Fleet) begin(n *Node) {
	if f.started {
		f.keep(n)
	}
}

// repinned is the worker of another statement. If it is the same process at the same place, what was read of it and what it has in
// flight stay known, so that it serves on.
func (f *Fleet) repinned(old *Node, w Worker, from string) *Node {
	if old.URL.String() != w.URL.String() || old.Role != w.Role {
		n := f.newNode(w, from, nil)
		n.drained = old.drained
		f.begin(n)
		return n
	}
	n := f.newNode(w, from, old)
	f.begin(n)
	return n
}

// retire takes a worker out: no attempt begins on it any more.
func (f *Fleet) retire(n *Node) {
	n.gone = true
	n.stop()
	if n.heir == nil && *n.load > 0 {
		f.leaving = append(f.leaving, n)
	}
}

// left forgets workers that were taken out once nothing is in flight on them. Under mu.
func (f *Fleet) left() {
	f.leaving = slices.DeleteFunc(f.leaving, func(n *Node) bool { return *n.load == 0 })
}

func same(a, b Worker) bool {
	if a.URL.String() != b.URL.String() {
		return false
	}
	a.URL, b.URL = nil, nil
	return reflect.DeepEqual(a, b)
}

// pins are the facts that are stated by hand, for the log.
func pins(w Worker) string {
	s := ""
	for _, p := range pinned(w) {
		if p[1] != "" {
			s += ", " + p[0] + " " + p[1]
		}
	}
	return s
}

func tlsPin(f certs.ClientFiles) string {
	return strings.TrimSpace(strings.Join([]string{f.CA, f.Cert, f.Key, f.ServerName}, " "))
}

// pinned lists what can be stated of a worker, by the names of the configuration; the key's value is not among it.
func pinned(w Worker) [][2]string {
	n := func(v int) string {
		if v == 0 {
			return ""
		}
		return fmt.Sprint(v)
	}
	return [][2]string{
		{"role", string(w.Role)}, {"url", w.URL.Redacted()}, {"pool_tokens", n(w.PoolTokens)}, {"context", n(w.Context)}, {"page_size", n(w.PageSize)},
		{"version", w.Version}, {"dtype", w.DType}, {"model", w.Model}, {"dp_size", n(w.DP)}, {"bootstrap_host", w.BootstrapHost}, {"bootstrap_port", n(w.BootstrapPort)},
		{"engine_id", w.EngineID}, {"tls", tlsPin(w.TLS)}, {"kv_hosts", strings.Join(w.KVHosts, " ")}, {"kv_port", n(w.KVPort)},
	}
}

// differences says in which statements a worker changes.
func differences(a, b Worker) (out []string) {
	pa, pb := pinned(a), pinned(b)
	for i, p := range pa {
		if q := pb[i]; p[1] != q[1] {
			out = append(out, fmt.Sprintf("worker %s: %s was %s, now %s", b.Name, p[0], or(p[1]), or(q[1])))
		}
	}
	if a.Key != b.Key {
		out = append(out, fmt.Sprintf("worker %s: its key changed", b.Name))
	}
	if len(out) == 0 {
		out = append(out, fmt.Sprintf("worker %s changed", b.Name))
	}
	return out
}

func or(s string) string {
	if s == "" {
		return "not pinned"
	}
	return s
}

// Drain keeps new attempts from a worker, or lets it serve again; what it has in flight ends. It reports whether there is such a
// worker. A drained worker stays drained over reloads, as long as it is named.
func (f *Fleet) Drain(name string, on bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.byName[name]
	if n == nil {
		return false
	}
	if n.drained != on {
		n.drained = on
		if !on {
			n.since = time.Now()
		}
		f.change()
	}
	return true
}
