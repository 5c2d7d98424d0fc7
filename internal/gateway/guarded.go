package gateway

import (
	"fmt"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	single "github.com/sluicekv/sluice/internal/gateway/upstream/plain"
	"github.com/sluicekv/sluice/internal/gateway/upstream/sglang"
	"github.com/sluicekv/sluice/internal/gateway/upstream/vllm"
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/prompt"
)

// Guarded is a model whose workers run another engine.
type Guarded struct {
	Fleet   foreign.Config
	Served  string                 // the model's name at the workers, where it is another
	Unknown jsonedit.UnknownFields // fields that the engine's table does not have
	Version string                 // of the engine, for the table; empty: the newest
	Hold    Hold
	// Uncounted lets prompts pass that may be over the limit and that no worker counts; else they are refused.
	Uncounted bool
	// Session is a header of clients: requests of one tenant with the same value go to the same pair while that serves; empty: none.
	Session string
	// Anywhere lets requests that begin alike go anywhere; else they go near what is cached.
	Anywhere bool
	// Tokenizer counts prompts as the engine does; nil: the engine is asked.
	Tokenizer *prompt.Counter
	// SaltAs is the field of a body that plain workers read a cache salt from; empty: they get none, and tenants share their prefix cache.
	SaltAs string
	// Messages says that the workers, plain ones, answer POST /v1/messages themselves; else no request for it is taken.
	Messages bool
	// FirstToken is how the legs' logprobs of the token after the prompt are compared, where that guard is on (vLLM).
	FirstToken FirstToken
}

// FirstToken settings.
type FirstToken struct {
	Top       int     // likeliest tokens that each leg says; the engine's own bound is its --max-logprobs (5)
	Tolerance float64 // nats (legs.DefaultFirstToken)
}

// Hold is how decode's output is held until the legs agree.
type Hold struct {
	Bytes int // of a stream; beyond them decode is not read on (1 MiB)
	Whole int // of a reply that is no stream (64 MiB)
	// CommitAfter is how long a stream may wait before its status is sent, 200, and comments that keep the connection alive. A refusal
	// after that is an error event. 0: the status waits, and tells the truth.
	CommitAfter time.Duration
	// UsageAtEnd lets a stream begin before decode's count is known, where an engine says it only at the end.
	UsageAtEnd bool
	// Lease is how long after prefill's answer a decode that speaks first is taken to have read in time; later, prefill is asked. It has to
	// be less than the lease of the engine's handles (NIXL; 20 s, where the engine's is 30 s).
	Lease time.Duration
}

func (h Hold) filled() Hold {
	h.Bytes = or(h.Bytes, 1<<20)
	h.Whole = or(h.Whole, 64<<20)
	h.Lease = or(h.Lease, 20*time.Second)
	return h
}

// guarded is a model of another engine.
type guarded struct {
	cfg      Guarded
	fleet    *foreign.Fleet
	row      legs.Engine
	policies [openai.NumEndpoints]*jsonedit.Policy // by openai.Endpoint; nil: not served there
	plan     func(web.Asked) web.Plan
	*memories
}

// memories are what is learnt while a model runs. They outlive reloads.
type memories struct {
	count  counter
	floor  floors
	handed vllm.Engine // which handles were used
}

// guardedModels makes the models of an entry for another engine. old is the one that it takes the place of, with its fleet and all that it
// learnt; nil: none.
func (g *Gateway) guardedModels(m ModelConfig, old *model) ([]*model, error) {
	who := new(users)
	c := *m.Guarded
	c.Hold = c.Hold.filled()
	c.FirstToken.Top = min(or(c.FirstToken.Top, 5), legs.TopMost)
	c.FirstToken.Tolerance = or(c.FirstToken.Tolerance, legs.DefaultFirstToken)
	c.Fleet.Model, c.Fleet.Log = m.Name, g.cfg.Log
	x := &guarded{cfg: c, memories: new(memories)}
	if old != nil {
		x.memories = old.guarded.memories
	}
	switch c.Fleet.Engine {
	case foreign.SGLang:
		x.row, x.plan = legs.SGLang, sglang.Plan
	case foreign.VLLMNixl:
		x.row, x.plan = legs.VLLMNixl, x.handed.Nixl
	case foreign.VLLMMooncake:
		x.row, x.plan = legs.VLLMMooncake, x.handed.Mooncake
	case foreign.Plain:
		x.row, x.plan = legs.Plain, single.Plan
	default:
		return nil, fmt.Errorf("gateway: model %s: engine %q is not known", m.Name, c.Fleet.Engine)
	}
	for e := range x.policies {
		at := jsonedit.Chat
		switch openai.Endpoint(e) {
		case openai.Completions:
			at = jsonedit.Completions
		case openai.Messages:
			if !c.Messages || c.Fleet.Engine != foreign.Plain {
				continue
			}
			at = jsonedit.AnthropicAPI
		}
		x.policies[e] = jsonedit.NewPolicy(jsonedit.Config{Engine: jsonedit.Engine(c.Fleet.Engine), Version: c.Version, Endpoint: at, Unknown: c.Unknown})
	}
	if old != nil {
		x.fleet, who = old.guarded.fleet, old.users
	} else {
		f, err := foreign.New(c.Fleet)
		if err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
		x.fleet = f
	}
	one := func(name, served string) *model {
		return &model{name: name, cfg: m, fleet: x.fleet, guarded: x, served: served, power: newPower(g.ctx, name), users: who}
	}
	out := []*model{one(m.Name, c.Served)}
	for _, n := range m.Aliases {
		a := one(n, "")
		a.alias = true
		out = append(out, a)
	}
	return out, nil
}

// samePolicy reports whether two models read bodies alike.
func (x *guarded) samePolicy(y *guarded) bool {
	return x.cfg.Fleet.Engine == y.cfg.Fleet.Engine && x.cfg.Unknown == y.cfg.Unknown && x.cfg.Version == y.cfg.Version
}

// guardedModel finds the model of another engine that a body is for, and reads the body under that engine's policy. All are nil for
// a native model, and for a body that no model can be found in: the native parser says what is wrong with it.
func (x *walk) guardedModel(e openai.Endpoint, body []byte) (*model, *jsonedit.Doc, *jsonedit.Refusal) {
	c := x.catalog
	if c.sole != nil {
		// One policy serves whatever model is named: the body is read once.
		doc, no := jsonedit.Read(body, c.sole.guarded.policies[e])
		if no != nil {
			return nil, nil, no
		}
		if m := x.modelIn(doc); m != nil {
			return m, doc, nil
		}
		return nil, nil, nil
	}
	if !c.mixed {
		return nil, nil, nil
	}
	doc, no := jsonedit.Read(body, nil)
	if no != nil {
		return nil, nil, nil
	}
	m := x.modelIn(doc)
	if m == nil || m.guarded == nil {
		return nil, nil, nil
	}
	doc, no = jsonedit.Read(body, m.guarded.policies[e])
	return m, doc, no
}

func (x *walk) modelIn(doc *jsonedit.Doc) *model {
	name, _ := doc.Get("model").Text()
	return x.find(string(name))
}
