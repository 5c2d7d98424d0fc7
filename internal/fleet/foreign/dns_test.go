package foreign

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
)

// names is a resolver that a test answers for.
type names struct {
	mu    sync.Mutex
	addrs []string
	srv   []*net.SRV
	err   error
}

func (n *names) LookupNetIP(context.Context, string, string) (out []netip.Addr, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.addrs {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, n.err
}

func (n *names) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return "", n.srv, n.err
}

func (n *names) say(err error, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addrs, n.err = addrs, err
}

// looked looks at every source once, as the fleet does by itself.
func looked(f *Fleet) (names []string) {
	f.mu.Lock()
	sources := f.sources
	f.mu.Unlock()
	for _, s := range sources[1:] {
		f.look(s)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.workers {
		names = append(names, n.Name)
	}
	return names
}

// The addresses of a name are workers, and those that vanish end what they have; a look-up that fails says nothing.
func TestWorkersFromDNS(t *testing.T) {
	r := &names{}
	d := &DNS{Host: "prefill.example", Port: 30000, Like: Worker{Role: capacity.Prefill, PoolTokens: 4096, Context: 8192, PageSize: 16}, Resolver: r, Interval: time.Hour}
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(0, 1, nil), Sources: []Source{d}})
	if f.Ready() {
		t.Fatal("a fleet without a prefill serves")
	}
	r.say(nil, "10.1.0.2", "10.1.0.1", "10.1.0.2", "fd00::1", "::ffff:10.1.0.1")
	if got, want := looked(f), []string{"d0", "prefill 10.1.0.1:30000", "prefill 10.1.0.2:30000", "prefill [fd00::1]:30000"}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	if l := f.Limit(); l.Tokens != 4064 { // what is pinned for all of them
		t.Errorf("limit %d", l.Tokens)
	}
	p := pick(t, f, Need{Tokens: 10, Load: 10})
	for range 5 {
		r.say(&net.DNSError{Err: "server misbehaving", IsTemporary: true})
		if got := looked(f); len(got) != 4 {
			t.Fatalf("a look-up that failed took workers out: %v", got)
		}
	}
	if st := f.Status(t.Context(), false); len(st.Sources[1].Problems) != 1 || !strings.Contains(st.Sources[1].Problems[0], "cannot be resolved") {
		t.Errorf("%+v", st.Sources)
	}
	r.say(nil, "10.1.0.9")
	if got := looked(f); !slices.Equal(got, []string{"d0", "prefill 10.1.0.9:30000"}) {
		t.Fatal(got)
	}
	if st := f.Status(t.Context(), false); len(st.Workers) != 3 || st.Workers[2].State != "draining" || st.Workers[2].Load != 10 {
		t.Errorf("what a worker has that vanished: %+v", st.Workers)
	}
	f.Done(p)
	if st := f.Status(t.Context(), false); len(st.Workers) != 2 {
		t.Errorf("it is still there: %+v", st.Workers)
	}
	gone := &net.DNSError{Err: "no such host", IsNotFound: true}
	r.say(gone)
	if got := looked(f); len(got) != 2 {
		t.Fatal("one look-up took all workers out")
	}
	if got := looked(f); len(got) != 1 || f.Ready() {
		t.Fatal("a name that vanished still has workers: ", got)
	}
	r.say(nil, "10.1.0.9")
	if got := looked(f); len(got) != 2 || !f.Ready() {
		t.Fatal(got)
	}
	r.say(errors.New("boom"))
	looked(f)
}

// SRV records name hosts and ports; the configuration's own worker at one of them counts, with its pins.
func TestWorkersFromSRV(t *testing.T) {
	r := &names{srv: []*net.SRV{{Target: "b.example.", Port: 8002}, {Target: "a.example.", Port: 8001}, {Target: ".", Port: 0}}}
	d := &DNS{Host: "_http._tcp.plain.example", Like: Worker{Role: capacity.Both, Context: 4096}, Resolver: r}
	ws := pinnedWorkers(0, 1, func(_ int, w *Worker) {
		w.Role, w.Name, w.PoolTokens, w.Context = capacity.Both, "mine", 0, 512
		u := *w.URL
		u.Host = "a.example:8001"
		w.URL = &u
	})
	f := pinnedFleet(t, Config{Engine: Plain, Workers: ws, Sources: []Source{d}})
	if got := looked(f); !slices.Equal(got, []string{"mine", "both b.example:8002"}) {
		t.Fatal(got)
	}
	if c := f.byName["mine"].facts.Context; c != 512 {
		t.Errorf("its context is %d", c)
	}
}
