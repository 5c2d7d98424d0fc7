package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/config"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// guarded makes the gateway's configuration of a model of another engine. Key files are read when the gateway starts (readKeys).
func (m *modelEntry) guarded() (*gateway.Guarded, error) {
	g := &gateway.Guarded{Version: m.Version, Served: m.Served}
	g.Fleet = foreign.Config{Model: m.Name, Engine: m.Engine, Budget: m.BudgetTokens}
	g.Fleet.Rests.MaxShare = m.MaxEjected
	var err error
	if g.Unknown, err = jsonedit.ParseUnknown(m.Unknown); err != nil {
		return nil, err
	}
	if m.RestFor != "" {
		if g.Fleet.Rests.For, err = time.ParseDuration(m.RestFor); err != nil || g.Fleet.Rests.For <= 0 {
			return nil, fmt.Errorf("rest_for %q is not a duration", m.RestFor)
		}
	}
	switch m.Uncounted {
	case "", "refuse":
	case "pass":
		g.Uncounted = true
	default:
		return nil, fmt.Errorf("uncounted must be refuse or pass, not %q", m.Uncounted)
	}
	if g.Hold, err = m.Hold.hold(); err != nil {
		return nil, err
	}
	if f := m.FirstToken; f != (firstTokenEntry{}) {
		switch {
		case m.Engine != foreign.VLLMNixl && m.Engine != foreign.VLLMMooncake:
			return nil, errors.New("first_token: only vLLM's decode computes the prompt's last position again")
		case f.Top < 0 || f.Top > legs.TopMost:
			return nil, fmt.Errorf("first_token: top must be 1 to %d, not %d", legs.TopMost, f.Top)
		case f.Tolerance < 0:
			return nil, errors.New("first_token: tolerance is negative")
		}
		g.FirstToken = gateway.FirstToken{Top: f.Top, Tolerance: f.Tolerance}
	}
	if m.Model != "" {
		return nil, errors.New("model: is for native workers, which the gateway encodes for; other engines count by themselves")
	}
	switch {
	case m.SaltAs == "":
	case m.Engine != foreign.Plain:
		return nil, errors.New("salt_as: is for plain workers; the others' field is known")
	case m.SaltAs != "cache_salt" && m.SaltAs != "extra_key":
		return nil, fmt.Errorf("salt_as must be cache_salt or extra_key, not %q", m.SaltAs)
	}
	g.SaltAs = m.SaltAs
	if m.Messages && m.Engine != foreign.Plain {
		return nil, errors.New("messages: is for plain workers; what two legs say is compared in the other API's words")
	}
	g.Messages = m.Messages
	if g.Fleet.TLS, err = m.TLS.files(); err != nil {
		return nil, err
	}
	roles := map[capacity.Role]int{}
	for j, w := range m.Workers {
		fw, err := w.guarded(m.Engine)
		if err != nil {
			return nil, fmt.Errorf("worker %d: %w", j, err)
		}
		roles[fw.Role]++
		g.Fleet.Workers = append(g.Fleet.Workers, fw)
	}
	if err := m.sources(g, roles); err != nil {
		return nil, err
	}
	if err := m.routing(g); err != nil {
		return nil, err
	}
	switch {
	case m.WorkersDir != "":
		// Who is there may all be in the directory, now or later.
	case m.Engine == foreign.Plain && roles[capacity.Both] == 0:
		return nil, errors.New("needs at least one worker")
	case m.Engine != foreign.Plain && (roles[capacity.Prefill] == 0 || roles[capacity.Decode] == 0):
		return nil, errors.New("needs at least one prefill and one decode worker")
	}
	return g, nil
}

func (h holdEntry) hold() (out gateway.Hold, err error) {
	out.Bytes = h.Bytes
	if h.Bytes < 0 {
		return out, errors.New("hold: bytes is negative")
	}
	after := 30 * time.Second
	if h.CommitAfter != "" {
		if after, err = time.ParseDuration(h.CommitAfter); err != nil || after <= 0 {
			return out, fmt.Errorf("hold: commit_after %q is not a duration", h.CommitAfter)
		}
	}
	switch h.Headers {
	case "", "strict":
		if h.CommitAfter != "" {
			return out, errors.New("hold: commit_after needs headers: commit-after")
		}
	case "commit-after":
		out.CommitAfter = after
	default:
		return out, fmt.Errorf("hold: headers must be strict or commit-after, not %q", h.Headers)
	}
	if h.Lease != "" {
		if out.Lease, err = time.ParseDuration(h.Lease); err != nil || out.Lease <= 0 {
			return out, fmt.Errorf("hold: lease %q is not a duration", h.Lease)
		}
	}
	switch h.Usage {
	case "", "first":
	case "end":
		out.UsageAtEnd = true
	default:
		return out, fmt.Errorf("hold: usage must be first or end, not %q", h.Usage)
	}
	return out, nil
}

func (w workerEntry) guarded(engine string) (foreign.Worker, error) {
	out := foreign.Worker{
		Name: w.Name, Role: capacity.Role(w.Role), PoolTokens: w.PoolTokens, Context: w.Context, PageSize: w.PageSize, Version: w.Version, DType: w.DType, Model: w.Model,
		DP: w.DP, BootstrapHost: w.BootstrapHost, BootstrapPort: w.BootstrapPort, EngineID: w.EngineID, KVHosts: w.KVHosts, KVPort: w.KVPort,
	}
	u, err := url.Parse(w.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return out, fmt.Errorf("url %q: must be http://host:port or https://host:port, without a user or a query", w.URL)
	}
	out.URL = u
	if out.TLS, err = w.TLS.files(); err != nil {
		return out, err
	}
	if w.TLS != (tlsEntry{}) && u.Scheme != "https" {
		return out, fmt.Errorf("url %q: tls is for https://host:port", w.URL)
	}
	if engine == foreign.Plain {
		if w.Role != "" && w.Role != string(capacity.Both) {
			return out, fmt.Errorf("role %q: a plain worker is both", w.Role)
		}
		out.Role = capacity.Both
	} else if out.Role != capacity.Prefill && out.Role != capacity.Decode {
		return out, fmt.Errorf("role %q must be prefill or decode", w.Role)
	}
	for _, n := range []int{w.PoolTokens, w.Context, w.PageSize, w.DP} {
		if n < 0 {
			return out, errors.New("a number is negative")
		}
	}
	for _, p := range []int{w.BootstrapPort, w.KVPort} {
		if p < 0 || p > 65535 {
			return out, fmt.Errorf("%d is not a port", p)
		}
	}
	return out, nil
}

// guardModes is the guards section: a mode for single guards.
type guardModes map[string]gateway.Mode

func (g *guardModes) section(n *yaml.Node) error {
	var raw map[string]string
	if err := config.Strict(n, &raw); err != nil {
		return err
	}
	*g = guardModes{}
	for name, s := range raw {
		mode, err := gateway.ParseMode(s)
		if err != nil {
			return &config.Error{Line: n.Line, Msg: fmt.Sprintf("guards: %s: %v", name, err)}
		}
		(*g)[strings.ReplaceAll(name, "_", "-")] = mode
	}
	return nil
}
