package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/prompt"
)

// maxDNS bounds the names of one model.
const maxDNS = 64

// sources are where more workers come from.
func (m *modelEntry) sources(g *gateway.Guarded, roles map[capacity.Role]int) error {
	if m.WorkersDir != "" {
		every, err := duration("workers_dir_every", m.WorkersDirEvery, 2*time.Second, 10*time.Millisecond)
		if err != nil {
			return err
		}
		g.Fleet.Sources = append(g.Fleet.Sources, newFleetDir(m.WorkersDir, m.Engine, every))
	} else if m.WorkersDirEvery != "" {
		return fmt.Errorf("workers_dir_every needs workers_dir")
	}
	if len(m.WorkersDNS) > maxDNS {
		return fmt.Errorf("workers_dns: more than %d names", maxDNS)
	}
	for i, d := range m.WorkersDNS {
		s, err := d.source(m.Engine)
		if err != nil {
			return fmt.Errorf("workers_dns %d: %w", i, err)
		}
		roles[s.Like.Role]++
		g.Fleet.Sources = append(g.Fleet.Sources, s)
	}
	return nil
}

// routing are the settings of how a pair is chosen, and how it comes back.
func (m *modelEntry) routing(g *gateway.Guarded) (err error) {
	if g.Fleet.Every, err = duration("read_every", m.ReadEvery, 0, 10*time.Millisecond); err != nil {
		return err
	}
	if g.Fleet.SlowStart, err = duration("slow_start", m.SlowStart, 0, 0); err != nil {
		return err
	}
	if m.SlowStart != "" && g.Fleet.SlowStart == 0 {
		g.Fleet.SlowStart = -1
	}
	if m.Canaries != nil {
		switch n := *m.Canaries; {
		case n < 0 || n > 100:
			return fmt.Errorf("canaries: %d is not a number from 0 to 100", n)
		case n == 0:
			g.Fleet.Proofs = -1
		default:
			g.Fleet.Proofs = n
		}
	}
	if m.MaxEjected < 0 || m.MaxEjected > 1 {
		return fmt.Errorf("max_ejected: %v is not a share from 0 to 1", m.MaxEjected)
	}
	if m.BudgetTokens < 0 {
		return fmt.Errorf("budget_tokens is negative")
	}
	if s := m.Session; s != "" {
		if strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || strings.EqualFold(s, "Authorization") || strings.EqualFold(s, "Cookie") {
			return fmt.Errorf("session_header %q is not a header's name, or one that holds secrets", s)
		}
		g.Session = s
	}
	switch m.Affinity {
	case "", "on":
	case "off":
		g.Anywhere = true
	default:
		return fmt.Errorf("prefix_affinity must be on or off, not %q", m.Affinity)
	}
	return nil
}

func duration(key, s string, def, least time.Duration) (time.Duration, error) {
	if s == "" {
		return def, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < least {
		return 0, fmt.Errorf("%s %q is not a duration of at least %v", key, s, least)
	}
	return d, nil
}

func (d dnsEntry) source(engine string) (*foreign.DNS, error) {
	srv := strings.HasPrefix(d.Name, "_")
	switch {
	case d.Name == "" || len(d.Name) > 253 || strings.ContainsAny(d.Name, " /:@"):
		return nil, fmt.Errorf("name %q is not a name of the DNS", d.Name)
	case d.URL != "":
		return nil, fmt.Errorf("url: a name of the DNS has a port and a scheme instead")
	case !srv && (d.Port < 1 || d.Port > 65535):
		return nil, fmt.Errorf("port: %d is not a port; a name without SRV records needs one", d.Port)
	case srv && d.Port != 0:
		return nil, fmt.Errorf("port: SRV records say it themselves")
	case d.Scheme != "" && d.Scheme != "http" && d.Scheme != "https":
		return nil, fmt.Errorf("scheme must be http or https, not %q", d.Scheme)
	case d.BootstrapHost != "" || d.EngineID != "":
		return nil, fmt.Errorf("bootstrap_host and engine_id are one worker's, and a name may have many")
	}
	every, err := duration("interval", d.Interval, 30*time.Second, 100*time.Millisecond)
	if err != nil {
		return nil, err
	}
	pins := d.workerEntry
	pins.Name, pins.URL = "", cmp.Or(d.Scheme, "http")+"://any:1"
	like, err := pins.guarded(engine)
	if err != nil {
		return nil, err
	}
	out := &foreign.DNS{Host: d.Name, Port: d.Port, Scheme: d.Scheme, Like: like, Interval: every, Resolver: dnsResolver}
	out.Key = pinsOf(d)
	return out, nil
}

// pinsOf tells apart two statements about one name.
func pinsOf(d dnsEntry) string {
	d.Name, d.Role, d.Port = "", "", 0
	if s := diffStruct("", dnsEntry{}, d); len(s) > 0 {
		return strings.Join(s, ", ")
	}
	return ""
}

// dnsResolver is how names are looked up; nil: the system's. Tests put another here.
var dnsResolver foreign.Resolver

// readTokenizer reads the model's tokenizer.
func (m *modelEntry) readTokenizer(g *gateway.Guarded) error {
	if m.Tokenizer == "" {
		return nil
	}
	b, err := os.ReadFile(m.Tokenizer)
	if err == nil {
		g.Tokenizer, err = prompt.NewCounter(b)
	}
	if err != nil {
		return fmt.Errorf("tokenizer of %s: %w (leave it out, and the workers are asked to count)", m.Name, err)
	}
	return nil
}

// readKeys reads the workers' keys.
func (m *modelEntry) readKeys(g *gateway.Guarded) error {
	for j, w := range m.Workers {
		key, err := readKey(w.KeyFile)
		if err != nil {
			return fmt.Errorf("worker %d of %s: %w", j, m.Name, err)
		}
		g.Fleet.Workers[j].Key = key
	}
	for i, d := range m.WorkersDNS {
		key, err := readKey(d.KeyFile)
		if err != nil {
			return fmt.Errorf("workers_dns %d of %s: %w", i, m.Name, err)
		}
		for _, s := range g.Fleet.Sources {
			if s, ok := s.(*foreign.DNS); ok && s.Host == d.Name && s.Like.Role == capacity.Role(d.Role) && s.Key == pinsOf(d) {
				s.Like.Key = key
			}
		}
	}
	return nil
}

func readKey(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(b))
	if key == "" || strings.ContainsAny(key, " \t\r\n") {
		return "", fmt.Errorf("%s does not hold one key", path)
	}
	return key, nil
}
