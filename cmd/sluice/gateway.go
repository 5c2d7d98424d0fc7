package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/config"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/wire"
)

// doorSettings are the front door's; serve and gateway share them.
type doorSettings struct {
	listen, admin, records, apiKeys string
	access                          string
	tls                             gateway.TLS
	timeout                         time.Duration
	maxBody                         string
}

func (s *doorSettings) register(fs *pflag.FlagSet) {
	flagVar(fs, &s.listen, "listen", "127.0.0.1:8080", address, "API, `host:port`")
	flagVar(fs, &s.admin, "admin", "127.0.0.1:8081", address, "metrics, fleet, records and profiles, `host:port`; keep it from clients")
	fs.StringVar(&s.records, "records", "", "append the record of every attempt to `FILE`, a JSON line each, without content")
	fs.StringVar(&s.access, "access-log", "", "append a JSON line a request to `FILE`, without content; - is standard output; SIGHUP begins it anew")
	fs.StringVar(&s.apiKeys, "api-keys", "", "`FILE` of hashed API keys, made by sluice keys tenant add and read again when it changes; without it everybody is one tenant")
	fs.StringVar(&s.tls.Cert, "tls-cert", "", "PEM `FILE` with the certificate of both listeners, read again when it changes")
	fs.StringVar(&s.tls.Key, "tls-key", "", "PEM `FILE` with its key")
	fs.StringVar(&s.tls.ClientCA, "tls-client-ca", "", "PEM `FILE` of authorities: clients must show a certificate of theirs")
	fs.StringVar(&s.tls.AdminClientCA, "admin-client-ca", "", "PEM `FILE` of authorities of operators, on the admin listener (default: those of --tls-client-ca)")
	fs.BoolVar(&s.tls.AdminPlain, "admin-plain", false, "no TLS on the admin listener; loopback only")
	flagVar(fs, &s.timeout, "request-timeout", 10*time.Minute, patience, "deadline of a request; clients may ask for less with X-Request-Timeout")
	flagVar(fs, &s.maxBody, "max-body", "32MiB", byteSize, "largest request `body`")
}

func (s *doorSettings) door() (gateway.Config, error) {
	body, err := capacity.ParseBytes(s.maxBody)
	if err != nil {
		return gateway.Config{}, exitError{3, fmt.Errorf("--max-body: %w", err)}
	}
	return gateway.Config{Listen: s.listen, Admin: s.admin, APIKeys: s.apiKeys, TLS: s.tls, AccessLog: s.access, RecordsFile: s.records, Version: versionString(),
		Limits: gateway.Limits{Body: body, Deadline: s.timeout}}, nil
}

type gatewaySettings struct {
	doorSettings
	runSettings
	traceSettings
	guardSettings
	name, keys string
	mode       string
	webhook    string
	explain    bool
	guards     guardModes
}

func newGatewayCommand() *cobra.Command {
	var s gatewaySettings
	var file fleetFile
	c := &cobra.Command{
		Use:   "gateway --config fleet.yaml",
		Short: "Run the front door of a fleet of workers",
		Long: `Runs the front door: an OpenAI-compatible API in front of the workers that the file names.

  models:
    - name: recall
      engine: native                # or sglang, vllm-nixl, vllm-mooncake, plain
      model: recall                 # native: or the GGUF file that the workers run
      workers:
        - {role: prefill, url: "sluice://127.0.0.1:9101"}
        - {role: decode,  url: "sluice://127.0.0.1:9103"}
    - name: big
      engine: sglang
      workers:                      # what is given is pinned, everything else is read from the workers
        - {role: prefill, url: "http://127.0.0.1:9201", bootstrap_port: 9202, pool_tokens: 4096, context: 8192}
        - {role: decode,  url: "http://127.0.0.1:9203"}

Limits are read from the workers, pair by pair, and again whenever one restarts; GET /v1/models shows what fits now.
The other settings of the file are the flags below, with _ for -.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			given := commandLine(c.Flags())
			if s.explain && s.config == "" {
				return s.explainGuards(c.OutOrStdout())
			}
			if err := load(c, s.config, map[string]config.Section{"models": file.section, "guards": s.guards.section}); err != nil {
				return err
			}
			if s.explain {
				return s.explainGuards(c.OutOrStdout())
			}
			if len(file.models) == 0 {
				return exitError{3, fmt.Errorf("no models: pass --config with a file that has a models section (see --help)")}
			}
			return s.run(c.Context(), c.OutOrStdout(), &running{settings: &s, flags: c.Flags(), given: given, models: file.models})
		},
	}
	s.register(c.Flags())
	c.AddCommand(newDoctorCommand(), newGatewayIncidentCommand())
	return c
}

func (s *gatewaySettings) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.name, "name", "gateway", "the node's `name` in the fleet's keys")
	fs.StringVar(&s.keys, "keys", "", "`DIR` with NAME.key and fleet.pub, made by sluice keys")
	fs.StringVar(&s.mode, "mode", "enforce", "of the guards over other engines: enforce, or observe (count and report, let the bytes pass); single guards: the file's guards section")
	fs.StringVar(&s.webhook, "webhook", "", "`URL` that incidents are posted to")
	fs.BoolVar(&s.explain, "explain-guards", false, "print what each guard compares, on which engine, at what cost, in which mode (of --config, if given), and what stays unseen; then exit")
	s.doorSettings.register(fs)
	s.runSettings.register(fs)
	s.traceSettings.register(fs)
	s.guardSettings.register(fs)
}

// explainGuards prints what the guards do, in the modes that the flags and the file give them.
func (s *gatewaySettings) explainGuards(w io.Writer) error {
	modes, err := s.modes()
	if err != nil {
		return err
	}
	if err := gateway.ExplainGuards(w, modes); err != nil {
		return exitError{3, err}
	}
	return nil
}

// modes of the guards: one for all, and those that the file names.
func (s *gatewaySettings) modes() (gateway.Modes, error) {
	all, err := gateway.ParseMode(s.mode)
	if err != nil {
		return gateway.Modes{}, exitError{3, fmt.Errorf("--mode: %w", err)}
	}
	return gateway.Modes{All: all, Each: s.guards}, nil
}

// ballast is memory that is never touched, so it is not resident: the collector counts it, and comes after tens of megabytes of garbage
// and not after four, while what a full gateway holds stays near twice of what lives.
const ballast = 16 << 20

func (s *gatewaySettings) run(ctx context.Context, out io.Writer, now *running) error {
	weight := make([]byte, ballast)
	defer runtime.KeepAlive(weight)
	models := now.models
	log, err := s.logger()
	if err != nil {
		return err
	}
	if err := s.apply(s.listen, s.admin); err != nil {
		return err
	}
	cfg, err := s.door()
	if err != nil {
		return err
	}
	if cfg.Modes, err = s.modes(); err != nil {
		return err
	}
	cfg.Webhook = s.webhook
	if cfg.Identity, cfg.Keys, err = s.identityFor(models); err != nil {
		return err
	}
	cfg.Log = log
	for _, m := range models {
		mc, err := m.open()
		if err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		cfg.Models = append(cfg.Models, mc)
		now.opened = append(now.opened, mc)
	}
	recorder, closeTrace, err := s.recorder()
	if err != nil {
		return err
	}
	defer closeTrace()
	cfg.Trace = recorder
	g, err := gateway.New(cfg)
	if err != nil {
		return err
	}
	if err := g.Start(); err != nil {
		return err
	}
	defer g.Close()
	printDoor(out, g)
	for _, m := range models {
		fmt.Fprintf(out, "  model   %s, %s, %d workers; GET /v1/models has its limit once a pair is up\n", m.Name, m.Engine, len(m.Workers))
	}
	defer onHangup(func() {
		now.reload(g)
		_ = g.Renew() // it logs what it cannot read
	})()
	return untilDone(ctx, log, s.drain, g.Drain)
}

// identityFor is the gateway's own. Only native workers ask for it; without them and without keys it is made for this run.
func (s *gatewaySettings) identityFor(models []modelEntry) (keyring.Identity, *keyring.Fleet, error) {
	var controls []string
	for _, m := range models {
		if m.native() {
			for _, w := range m.Workers {
				controls = append(controls, w.URL)
			}
		}
	}
	if len(controls) == 0 && s.keys == "" {
		fleet, ids := keyring.Ephemeral(keyring.Node{Name: s.name, Role: wire.RoleGateway})
		return ids[s.name], fleet, nil
	}
	return identity(s.keys, s.name, wire.RoleGateway, controls...)
}

// open makes the gateway's configuration of a model.
func (m *modelEntry) open() (gateway.ModelConfig, error) {
	if !m.native() {
		g, err := m.guarded()
		if err != nil {
			return gateway.ModelConfig{}, err
		}
		if err := errors.Join(m.readKeys(g), m.readTokenizer(g)); err != nil {
			return gateway.ModelConfig{}, err
		}
		return gateway.ModelConfig{Name: m.Name, Aliases: m.Aliases, Guarded: g}, nil
	}
	f, err := openModel(m.Model, m.MinMatch)
	if err != nil {
		return gateway.ModelConfig{}, err
	}
	defer f.Close()
	mc, err := encoderOf(f)
	if err != nil {
		return gateway.ModelConfig{}, err
	}
	mc.Name = m.Name
	for _, w := range m.Workers {
		mc.Workers = append(mc.Workers, gateway.WorkerAddr{Name: w.Name, Role: capacity.Role(w.Role), Addr: w.URL})
	}
	return mc, nil
}

// encoderOf makes what a gateway needs of a model: its tokenizer, template and fingerprint.
func encoderOf(f modelFile) (gateway.ModelConfig, error) {
	enc, err := prompt.New(f.File)
	if err != nil {
		return gateway.ModelConfig{}, err
	}
	fp, err := f.Fingerprint()
	return gateway.ModelConfig{Name: f.name, Encoder: enc, Fingerprint: fp}, err
}

func printDoor(out io.Writer, g *gateway.Gateway) {
	fmt.Fprintf(out, "sluice gateway: API on %s\n", g.URL())
	if a := g.AdminURL(); a != "" {
		fmt.Fprintf(out, "sluice gateway: admin on %s (/metrics /admin/fleet /admin/records)\n", a)
	}
}
