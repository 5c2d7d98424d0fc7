package main

import (
	"fmt"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/config"
)

// fleetFile is the models section of a gateway's file.
type fleetFile struct{ models []modelEntry }

// modelEntry is one model and its workers. What a worker says of itself is read from it; what is given here is pinned.
type modelEntry struct {
	Name    string        `yaml:"name"`
	Engine  string        `yaml:"engine"`
	Model   string        `yaml:"model"` // native: recall, or the GGUF file whose tokenizer and template encode prompts
	Workers []workerEntry `yaml:"workers"`
}

type workerEntry struct {
	Role string `yaml:"role"`
	URL  string `yaml:"url"`
	Name string `yaml:"name"` // native: the node's name in the fleet's keys; default: the role
}

// section reads models:.
func (f *fleetFile) section(n *yaml.Node) error {
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
		switch {
		case m.Name == "":
			return fail("a model needs a name")
		case seen[m.Name]:
			return fail("two models are called %q", m.Name)
		case m.Engine != "native":
			return fail("engine %q: this build knows native", m.Engine)
		}
		seen[m.Name] = true
		if m.Model == "" {
			m.Model = "recall"
		}
		roles := map[string]int{}
		for j := range m.Workers {
			w := &m.Workers[j]
			if w.Role != "prefill" && w.Role != "decode" {
				return fail("worker %d of %s: role %q must be prefill or decode", j, m.Name, w.Role)
			}
			roles[w.Role]++
			if w.Name == "" {
				w.Name = w.Role
			}
			addr, err := nativeAddr(w.URL)
			if err != nil {
				return fail("worker %d of %s: %v", j, m.Name, err)
			}
			w.URL = addr
		}
		if roles["prefill"] == 0 || roles["decode"] == 0 {
			return fail("%s needs at least one prefill and one decode worker", m.Name)
		}
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
