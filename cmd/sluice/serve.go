package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/wire"
	"github.com/sluicekv/sluice/internal/worker"
)

type serveSettings struct {
	doorSettings
	modelSettings
	runSettings
	traceSettings
	guardSettings
	encrypt bool
}

func newServeCommand() *cobra.Command {
	var s serveSettings
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model: a gateway, a prefill and a decode worker, in one process",
		Long: `Serves a model with an OpenAI-compatible API. The gateway, the prefill worker and the decode worker are the same parts that
'sluice gateway' and 'sluice worker' run as processes; here they are composed in one, on the same kinds of sockets,
with keys made for this run.

The first Ctrl-C drains: streams in flight finish, new requests get 503. A second one stops at once.`,
		Example: `  sluice serve
  sluice serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf
  sluice serve --context 262144 --kv-memory 1GiB`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := load(c, s.config, nil); err != nil {
				return err
			}
			return s.run(c.Context(), c.OutOrStdout())
		},
	}
	fs := c.Flags()
	s.doorSettings.register(fs)
	s.modelSettings.register(fs)
	fs.BoolVar(&s.encrypt, "encrypt-data", false, "encrypt the data link too (TLS 1.3)")
	s.runSettings.register(fs)
	s.traceSettings.register(fs)
	s.guardSettings.register(fs)
	return c
}

func (s *serveSettings) run(ctx context.Context, out io.Writer) error {
	began := time.Now()
	log, err := s.logger()
	if err != nil {
		return err
	}
	if err := s.apply(s.listen, s.admin); err != nil {
		return err
	}
	door, err := s.door()
	if err != nil {
		return err
	}
	m, f, err := s.loadModel()
	if err != nil {
		return err
	}
	mc, err := encoderOf(f)
	f.Close()
	if err != nil {
		return err
	}

	recorder, closeTrace, err := s.recorder()
	if err != nil {
		return err
	}
	defer closeTrace()

	const prefillName, decodeName, gatewayName = "prefill", "decode", "gateway"
	fleet, ids := keyring.Ephemeral(keyring.Node{Name: prefillName, Role: wire.RolePrefill},
		keyring.Node{Name: decodeName, Role: wire.RoleDecode}, keyring.Node{Name: gatewayName, Role: wire.RoleGateway})
	legs := map[capacity.Role]*worker.Worker{}
	defer func() {
		for _, w := range legs {
			w.Close()
		}
	}()
	for role, name := range map[capacity.Role]string{capacity.Prefill: prefillName, capacity.Decode: decodeName} {
		cfg, err := s.workerConfig(m, role, 2)
		if err != nil {
			return err
		}
		cfg.Name, cfg.Listen, cfg.Identity, cfg.Fleet = name, "127.0.0.1:0", ids[name], fleet
		cfg.EncryptData, cfg.Log, cfg.Trace = s.encrypt, log, recorder
		if role == capacity.Decode {
			cfg.Data = "127.0.0.1:0"
		}
		w, err := worker.New(cfg)
		if err != nil {
			return err
		}
		legs[role] = w
		if err := w.Start(); err != nil {
			return err
		}
		mc.Workers = append(mc.Workers, gateway.WorkerAddr{Name: name, Role: role, Addr: w.Addr().String()})
	}
	door.Trace = recorder
	door.Models, door.Identity, door.Keys, door.Log = []gateway.ModelConfig{mc}, ids[gatewayName], fleet, log
	g, err := gateway.New(door)
	if err != nil {
		return err
	}
	if err := g.Start(); err != nil {
		return err
	}
	defer g.Close()
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	err = g.WaitReady(ready)
	cancel()
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		return err
	}

	printDoor(out, g)
	fmt.Fprintf(out, "  model   %s (%s of weights), kernels %s, MACs %s\n", mc.Name, capacity.Bytes(m.WeightBytes()), kernel.Path(), mac.Path())
	for _, role := range []capacity.Role{capacity.Prefill, capacity.Decode} {
		w := legs[role]
		facts, st := w.Facts(), w.Pool().Stats()
		fmt.Fprintf(out, "  %-7s control %s", role, w.Addr())
		if d := w.DataAddr(); d != nil {
			fmt.Fprintf(out, ", data %s", d)
		}
		fmt.Fprintf(out, "; KV pool %d tokens (%d pages, %s)\n", facts.PoolTokens, st.Total, capacity.Bytes(int64(st.Total)*int64(st.PageBytes)))
	}
	l := g.Limit(mc.Name)
	fmt.Fprintf(out, "  context %d tokens (set by %s)\n", l.Tokens, l.Setter)
	fmt.Fprintf(out, "  ready   in %s; Ctrl-C drains, twice stops\n\n", time.Since(began).Round(time.Millisecond))
	fmt.Fprintln(out, "Try:")
	fmt.Fprintln(out, tryLine(g.URL(), mc.Name))
	defer onHangup(func() { _ = g.Renew() })() // it logs what it cannot read
	return untilDone(ctx, log, s.drain, g.Drain)
}

// tryLine is a command that works when pasted.
func tryLine(url, model string) string {
	if model == "recall" {
		return fmt.Sprintf(`  curl -s %s/v1/completions -H 'Content-Type: application/json' \
    -d '{"model":"recall","prompt":"The code of tenant 4711 is bPlNFGdSC2wd8f2Q.\nThe code of tenant 4711 is","max_tokens":18}'`, url)
	}
	return fmt.Sprintf(`  curl -s %s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"%s","temperature":0,"messages":[{"role":"user","content":"What is gravity?"}]}'`, url, model)
}
