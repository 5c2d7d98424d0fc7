package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/certs"
	"github.com/sluicekv/sluice/internal/config"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
)

// fleetFile is the models section of a gateway's file.
type fleetFile struct{ models []modelEntry }

// modelEntry is one model and its workers. What a worker says of itself is read from it; what is given here is pinned.
type modelEntry struct {
	Name   string `yaml:"name"`
	Engine string `yaml:"engine"` // sglang, vllm-nixl, vllm-mooncake, plain or native
	Model  string `yaml:"model"`  // native: recall, or the GGUF file whose tokenizer and template encode prompts
	// Native, recall: the same as the workers' --recall-min-match, which is part of the model (1).
	MinMatch int           `yaml:"recall_min_match"`
	Workers  []workerEntry `yaml:"workers"`

	// More workers of other engines, that come and go.
	WorkersDir      string     `yaml:"workers_dir"`       // a directory with a YAML file for a worker, or for a list of them
	WorkersDirEvery string     `yaml:"workers_dir_every"` // how often it is looked at (2s)
	WorkersDNS      []dnsEntry `yaml:"workers_dns"`       // names whose addresses are workers
	ReadEvery       string     `yaml:"read_every"`        // how often a worker's facts are read (10s), beside at once when it may have restarted

	// Other engines.
	Aliases      []string        `yaml:"aliases"`       // names that clients may use too: adapters (LoRA), which the workers know by these names
	Served       string          `yaml:"served_as"`     // the workers' name for the model, if it is another
	Version      string          `yaml:"version"`       // of the engine: which fields of a body it reads; default: the newest known
	Unknown      string          `yaml:"unknown"`       // fields that the engine's table does not have: reject, strip or pass
	Tokenizer    string          `yaml:"tokenizer"`     // the tokenizer.json of the workers' model: prompts are counted here
	Uncounted    string          `yaml:"uncounted"`     // prompts that may be over the limit and that no worker counts: refuse (default) or pass
	BudgetTokens int             `yaml:"budget_tokens"` // in flight on one worker; over it: 429
	Hold         holdEntry       `yaml:"hold"`
	FirstToken   firstTokenEntry `yaml:"first_token"`
	MaxEjected   float64         `yaml:"max_ejected"`     // share of the pairs that may rest at once
	RestFor      string          `yaml:"rest_for"`        // how long a pair rests after its legs contradicted each other, before it may prove itself
	Canaries     *int            `yaml:"canaries"`        // that an ejected pair must answer right in a row before it serves again (3); 0: time alone
	SlowStart    string          `yaml:"slow_start"`      // how long a worker that came (back) gets less than its share (30s); 0s: none
	Session      string          `yaml:"session_header"`  // of clients: requests with the same value go to the same pair while that serves
	SaltAs       string          `yaml:"salt_as"`         // plain: cache_salt (vLLM) or extra_key (SGLang) parts their prefix caches by tenant; default: nothing does
	TLS          tlsEntry        `yaml:"tls"`             // to workers with https URLs that name none of their own
	Messages     bool            `yaml:"messages"`        // plain: the workers answer POST /v1/messages (Anthropic's API) themselves
	Affinity     string          `yaml:"prefix_affinity"` // on (default): what begins alike goes to the same prefill worker while that is not loaded; off
}

// holdEntry is how replies are held until the legs agree.
type holdEntry struct {
	Headers     string `yaml:"headers"`      // strict (default): the status waits; commit-after: 200 and comments after commit_after
	CommitAfter string `yaml:"commit_after"` // 30s
	Bytes       int    `yaml:"bytes"`        // of a stream; beyond them decode is not read on
	Lease       string `yaml:"lease"`        // vllm-nixl: 20s; of a decode that speaks first later than that after prefill, prefill is asked
	Usage       string `yaml:"usage"`        // first (default): decode's count is known before a stream begins; end: compared at its end
}

// firstTokenEntry is how the guard first-token compares the legs (vLLM).
type firstTokenEntry struct {
	Top       int     `yaml:"top"`       // likeliest tokens that each leg says: 1 to 8
	Tolerance float64 `yaml:"tolerance"` // nats by which they may differ
}

// tlsEntry is how workers with https URLs are reached. Files are PEM, and are read again when they change.
type tlsEntry struct {
	CA         string `yaml:"ca_file"`     // of the worker's certificate; default: the system's
	Cert       string `yaml:"cert_file"`   // shown to the worker
	Key        string `yaml:"key_file"`    // its key
	ServerName string `yaml:"server_name"` // in the worker's certificate; default: the URL's host
}

func (t tlsEntry) files() (certs.ClientFiles, error) {
	if (t.Cert == "") != (t.Key == "") {
		return certs.ClientFiles{}, errors.New("tls: cert_file and key_file go together")
	}
	return certs.ClientFiles{CA: t.CA, Cert: t.Cert, Key: t.Key, ServerName: t.ServerName}, nil
}

type workerEntry struct {
	Role string `yaml:"role"`
	URL  string `yaml:"url"`
	Name string `yaml:"name"` // native: the node's name in the fleet's keys; default: the role

	// Other engines: pinned.
	PoolTokens    int      `yaml:"pool_tokens"`
	Context       int      `yaml:"context"`
	PageSize      int      `yaml:"page_size"`
	Version       string   `yaml:"version"`
	DType         string   `yaml:"dtype"`
	Model         string   `yaml:"model"` // of its weights, where workers name the same ones differently
	DP            int      `yaml:"dp_size"`
	BootstrapHost string   `yaml:"bootstrap_host"` // default: the URL's
	BootstrapPort int      `yaml:"bootstrap_port"`
	EngineID      string   `yaml:"engine_id"` // vllm-mooncake; default: asked at the bootstrap port
	KVHosts       []string `yaml:"kv_hosts"`  // vllm-nixl: hosts that handles may name; default: the URL's
	KVPort        int      `yaml:"kv_port"`   // vllm-nixl: the port that handles must name
	KeyFile       string   `yaml:"api_key_file"`
	TLS           tlsEntry `yaml:"tls"`
}

// dnsEntry is a name whose addresses, or SRV targets if it begins with _, are workers. Pins are those of every one.
type dnsEntry struct {
	workerEntry `yaml:",inline"` // name: the DNS name; no url
	Port        int              `yaml:"port"`     // not for SRV records
	Scheme      string           `yaml:"scheme"`   // http (default) or https
	Interval    string           `yaml:"interval"` // between look-ups (30s)
}

const foreignEngines = "sglang, vllm-nixl, vllm-mooncake, plain"

func (m *modelEntry) native() bool { return m.Engine == "native" }

// section reads models:.
func (f *fleetFile) section(n *yaml.Node) error {
	alone(n, "workers_dns")
	if err := config.Strict(n, &f.models); err != nil {
		return err
	}
	if len(f.models) == 0 {
		return fmt.Errorf("models: at least one")
	}
	seen := map[string]bool{}
	for i := range f.models {
		m, node := &f.models[i], n.Content[i]
		fail := func(format string, args ...any) error {
			return &config.Error{Line: node.Line, Msg: fmt.Sprintf(format, args...)}
		}
		if m.Engine == "" {
			m.Engine = "native"
		}
		if m.Name == "" {
			return fail("a model needs a name")
		}
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if seen[name] {
				return fail("two models are called %q", name)
			}
			seen[name] = true
		}
		var err error
		switch m.Engine {
		case "native":
			err = m.checkNative()
		case foreign.SGLang, foreign.VLLMNixl, foreign.VLLMMooncake, foreign.Plain:
			_, err = m.guarded()
		default:
			err = fmt.Errorf("engine %q: this build knows native, %s", m.Engine, foreignEngines)
		}
		if err != nil {
			return fail("%s: %v", m.Name, err)
		}
	}
	return nil
}

// alone lets a key of every model that takes a list also take one element of it.
func alone(models *yaml.Node, key string) {
	for _, m := range models.Content {
		for i := 0; i+1 < len(m.Content); i += 2 {
			if v := m.Content[i+1]; m.Content[i].Value == key && v.Kind == yaml.MappingNode {
				m.Content[i+1] = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: v.Line, Column: v.Column, Content: []*yaml.Node{v}}
			}
		}
	}
}

func (m *modelEntry) checkNative() error {
	if m.WorkersDir != "" || len(m.WorkersDNS) > 0 {
		return fmt.Errorf("workers_dir and workers_dns are for other engines: a native worker is one that the fleet's keys name")
	}
	if m.Messages {
		return fmt.Errorf("messages: is for plain workers")
	}
	if m.Model == "" {
		m.Model = "recall"
	}
	if m.MinMatch != 0 && m.Model != "recall" {
		return fmt.Errorf("recall_min_match is the built-in model's, and the model is %s", m.Model)
	}
	roles := map[string]int{}
	for j := range m.Workers {
		w := &m.Workers[j]
		if w.Role != "prefill" && w.Role != "decode" {
			return fmt.Errorf("worker %d: role %q must be prefill or decode", j, w.Role)
		}
		roles[w.Role]++
		if w.Name == "" {
			w.Name = w.Role
		}
		addr, err := nativeAddr(w.URL)
		if err != nil {
			return fmt.Errorf("worker %d: %w", j, err)
		}
		w.URL = addr
	}
	if roles["prefill"] == 0 || roles["decode"] == 0 {
		return fmt.Errorf("needs at least one prefill and one decode worker")
	}
	return nil
}

// nativeAddr reads host:port, or sluice://host:port.
func nativeAddr(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "sluice://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Port() == "" || (u.Path != "" && u.Path != "/") || u.User != nil || u.RawQuery != "" {
		return "", fmt.Errorf("url %q: must be host:port or sluice://host:port", strings.TrimPrefix(s, "sluice://"))
	}
	if u.Scheme != "sluice" && u.Scheme != "tcp" {
		return "", fmt.Errorf("url %q: a native worker is sluice://host:port", s)
	}
	return u.Host, nil
}
