// Package fake is a test kit: workers that speak the wire of SGLang and vLLM, are strict about what they are sent, and can lie.
//
//	pair := fake.NewPair(t, fake.Options{Engine: "sglang", Version: "0.5.19", Prefill: fake.Leg{Pool: 1024}})
//	... put a gateway in front of pair.Prefill.URL() and pair.Decode.URL() ...
//	pair.Tell(fake.Lie{Kind: actor.CountOne, Leg: actor.Prefill, Stale: true})
//
// A request that breaks a rule of the wire fails the test by itself (a control field of a client's, a room or a handle used twice,
// legs that differ). A lie with Stale makes decode answer from pages that nobody wrote for the request, so that a gateway which lets
// it pass hands out another request's text. docs/fakes.md is the manual; package actor holds the rules, the lies and the model.
package fake

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/fake/sglang"
	"github.com/sluicekv/sluice/internal/fake/vllm"
)

// The engines that can be played.
const (
	SGLang       = "sglang"
	VLLMNixl     = "vllm-nixl"
	VLLMMooncake = "vllm-mooncake"
	Plain        = "plain"        // a vLLM server without a connector
	PlainSGLang  = "plain-sglang" // an SGLang server that is not disaggregated
)

// Engines lists them.
func Engines() []string { return []string{SGLang, VLLMNixl, VLLMMooncake, Plain, PlainSGLang} }

// Words of package actor that every test needs.
type (
	Lie       = actor.Lie
	Facts     = actor.Facts
	Violation = actor.Violation
	Leak      = actor.Leak
)

// Leg is one worker of a pair.
type Leg struct {
	Name      string // default prefill or decode, or both
	Addr      string // default any port of loopback
	Pool      int    // slots, default 8192
	Context   int    // tokens, default Options.Context
	PageSize  int    // default Options.PageSize
	Bootstrap string // address of a prefill's bootstrap server (SGLang, Mooncake), default any port of loopback
	Version   string // default Options.Version
	Facts     Facts  // lies about itself
}

// Options of a pair. The zero value is an honest SGLang 0.5.19 pair on loopback.
type Options struct {
	Engine   string // default sglang
	Version  string // default 0.5.19, or 0.32.0
	Model    string // default recall
	PageSize int    // default 16, of vLLM 32
	Context  int    // default 8192
	Prefill  Leg
	Decode   Leg // of a plain worker: the worker
	Ranks    int // data-parallel ranks of SGLang
	APIKey   string
	AdminKey string // SGLang: that /abort_request needs
	Salted   bool   // vLLM: each request must carry a cache_salt
	AnyID    bool   // vLLM: request ids may be missing or differ between the legs, as engines have it: for other gateways
	Cached   bool   // vLLM: say prompt_tokens_details
	SideHost string // vLLM NIXL: the host that handles name, default 127.0.0.1
	SidePort int    // and the port, default 5600
	Lease    time.Duration
	Light    bool // for load: prompts are counted, replies are a fixed text
	// How long things take. Zero is at once; Patience, for which a leg waits for the other, is 5 s.
	FirstWait, TokenWait, Transfer, Patience time.Duration
}

// TB is what NewPair needs of a *testing.T.
type TB interface {
	actor.Reporter
	Fatal(args ...any)
	Cleanup(func())
	Helper()
}

// Fleet is pairs that know of each other: a handle or a room of one is noticed at another.
type Fleet struct {
	*actor.Stage
	sglang *sglang.Fleet
	vllm   *vllm.Fleet
}

// NewFleet makes an empty fleet. Violations are told to r; nil only records them.
func NewFleet(r actor.Reporter) *Fleet {
	s := actor.NewStage(r)
	return &Fleet{Stage: s, sglang: sglang.NewFleet(s), vllm: vllm.NewFleet(s)}
}

// Pair is a prefill and a decode worker, or one plain worker.
type Pair struct {
	*actor.Stage
	Engine  string
	Prefill *actor.Worker // nil if plain
	Decode  *actor.Worker
	boot    func() (string, int)
	close   []func()
}

// NewPair starts a pair on a fleet of its own, for a test: violations fail it, and the pair ends with it.
func NewPair(t TB, o Options) *Pair {
	t.Helper()
	p, err := NewFleet(t).Pair(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Pair starts a pair of the fleet.
func (f *Fleet) Pair(o Options) (*Pair, error) {
	if o.Engine == "" {
		o.Engine = SGLang
	}
	p := &Pair{Stage: f.Stage, Engine: o.Engine}
	var err error
	if o.Engine != Plain && o.Engine != PlainSGLang {
		err = f.start(p, o, o.Prefill, actor.Prefill)
	}
	if err == nil {
		leg := actor.Decode
		if p.Prefill == nil {
			leg = actor.Both
		}
		err = f.start(p, o, o.Decode, leg)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (f *Fleet) start(p *Pair, o Options, l Leg, leg actor.Leg) error {
	cfg := actor.Config{
		Name: l.Name, Version: first(l.Version, o.Version), Leg: leg, Model: o.Model, Addr: l.Addr, Pool: l.Pool, PageSize: l.PageSize,
		Context: l.Context, Ranks: o.Ranks, APIKey: o.APIKey, AdminKey: o.AdminKey, Light: o.Light, FirstWait: o.FirstWait,
		TokenWait: o.TokenWait, Transfer: o.Transfer, Patience: o.Patience, Facts: l.Facts,
	}
	if cfg.PageSize == 0 {
		cfg.PageSize = o.PageSize
	}
	if cfg.Context == 0 {
		cfg.Context = o.Context
	}
	var base *actor.Worker
	switch o.Engine {
	case SGLang, PlainSGLang:
		w, err := sglang.New(f.sglang, cfg, l.Bootstrap)
		if err != nil {
			return err
		}
		base = w.Worker
		p.close = append(p.close, w.Close)
		if leg == actor.Prefill {
			p.boot = w.Bootstrap
		}
	case VLLMNixl, VLLMMooncake, Plain:
		if cfg.PageSize == 0 {
			cfg.PageSize = 32
		}
		con := map[string]vllm.Connector{VLLMNixl: vllm.Nixl, VLLMMooncake: vllm.Mooncake, Plain: vllm.None}[o.Engine]
		w, err := vllm.New(f.vllm, cfg, vllm.Options{Connector: con, SideHost: o.SideHost, SidePort: o.SidePort, Lease: o.Lease, Cached: o.Cached,
			Salted: o.Salted, AnyID: o.AnyID, Bootstrap: l.Bootstrap})
		if err != nil {
			return err
		}
		base = w.Worker
		p.close = append(p.close, w.Close)
		if leg == actor.Prefill && con == vllm.Mooncake {
			p.boot = func() (string, int) {
				host, port, _ := net.SplitHostPort(strings.TrimPrefix(w.Bootstrap(), "http://"))
				n, _ := strconv.Atoi(port)
				return host, n
			}
		}
	default:
		return fmt.Errorf("fake: an engine is one of %s, not %q", strings.Join(Engines(), ", "), o.Engine)
	}
	if leg == actor.Prefill {
		p.Prefill = base
	} else {
		p.Decode = base
	}
	return nil
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Bootstrap is where the legs meet: SGLang's and Mooncake's; 0 elsewhere.
func (p *Pair) Bootstrap() (host string, port int) {
	if p.boot == nil {
		return "", 0
	}
	return p.boot()
}

// Workers of the pair.
func (p *Pair) Workers() []*actor.Worker {
	if p.Prefill == nil {
		return []*actor.Worker{p.Decode}
	}
	return []*actor.Worker{p.Prefill, p.Decode}
}

// Tell has a lie told by its leg.
func (p *Pair) Tell(l Lie) {
	if l.Leg == actor.Prefill && p.Prefill != nil {
		p.Prefill.Tell(l)
		return
	}
	p.Decode.Tell(l)
}

// Honest ends all lies.
func (p *Pair) Honest() {
	for _, w := range p.Workers() {
		w.Honest()
	}
}

// Close ends the pair.
func (p *Pair) Close() {
	for _, c := range p.close {
		c()
	}
}

// YAML is the pair as an entry of a gateway's fleet.yaml, under models.
func (p *Pair) YAML(pinned bool) string {
	engine := p.Engine
	if engine == PlainSGLang {
		engine = Plain
	}
	cfg := p.Decode.Config()
	var b strings.Builder
	fmt.Fprintf(&b, "  - name: %s\n    engine: %s\n", cfg.Model, engine)
	if engine == Plain {
		b.WriteString("    messages: true\n")
	}
	b.WriteString("    workers:\n")
	for _, w := range p.Workers() {
		c := w.Config()
		fmt.Fprintf(&b, "      - {role: %s, url: %q", c.Leg, w.URL())
		if _, port := p.Bootstrap(); port != 0 && c.Leg == actor.Prefill {
			fmt.Fprintf(&b, ", bootstrap_port: %d", port)
		}
		if pinned {
			fmt.Fprintf(&b, ", pool_tokens: %d, context: %d", c.Pool, c.Context)
		}
		b.WriteString("}\n")
	}
	return b.String()
}
