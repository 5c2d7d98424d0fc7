package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/wire"
	"github.com/sluicekv/sluice/internal/worker"
)

type workerSettings struct {
	modelSettings
	runSettings
	traceSettings
	guardSettings
	role, name, listen, data, advertise, keys string
	encrypt                                   bool
}

func newWorkerCommand() *cobra.Command {
	var s workerSettings
	c := &cobra.Command{
		Use:   "worker --role prefill|decode",
		Short: "Run one leg: prefill computes prompts, decode generates from their pages",
		Long: `Runs one leg of a pair. A gateway finds it at --listen (TLS 1.3 with pinned keys); decode's --data is the socket on which
prefill's pages land.

Without --keys, processes that listen on loopback share keys made at first use. On a network, make a fleet's keys with
'sluice keys' and give each node its own.

A worker whose pool cannot hold its context does not start.`,
		Example: `  sluice worker --role prefill --listen 127.0.0.1:9101
  sluice worker --role decode --listen 127.0.0.1:9103 --data 127.0.0.1:9104
  sluice worker --role decode --listen 10.0.0.7:9103 --data 10.0.0.7:9104 --keys keys --name decode-0 --model m.gguf`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := load(c, s.config, nil); err != nil {
				return err
			}
			return s.run(c.Context(), c.OutOrStdout())
		},
	}
	fs := c.Flags()
	flagVar(fs, &s.role, "role", "", oneOf("prefill", "decode"), "prefill or decode")
	fs.StringVar(&s.name, "name", "", "the node's `name` in the fleet's keys (default: the role)")
	flagVar(fs, &s.listen, "listen", "127.0.0.1:0", address, "control socket, `host:port`, for gateways")
	flagVar(fs, &s.data, "data", "", address, "decode: data socket, `host:port`, for prefill's pages (default: --listen's host, any port)")
	flagVar(fs, &s.advertise, "advertise-data", "", address, "decode: `host:port` at which prefill workers reach --data, when it differs")
	fs.StringVar(&s.keys, "keys", "", "`DIR` with NAME.key and fleet.pub, made by sluice keys")
	fs.BoolVar(&s.encrypt, "encrypt-data", false, "encrypt the data links too (TLS 1.3); every worker of a fleet must agree")
	s.modelSettings.register(fs)
	s.runSettings.register(fs)
	s.traceSettings.register(fs)
	s.guardSettings.register(fs)
	return c
}

func (s *workerSettings) run(ctx context.Context, out io.Writer) error {
	role, wireRole := capacity.Role(s.role), wire.RolePrefill
	switch role {
	case capacity.Prefill:
		if s.data != "" || s.advertise != "" {
			return exitError{3, fmt.Errorf("--data and --advertise-data are decode's: prefill dials")}
		}
	case capacity.Decode:
		wireRole = wire.RoleDecode
		if s.data == "" {
			host, _, err := net.SplitHostPort(s.listen)
			if err != nil {
				return exitError{3, fmt.Errorf("--listen: %w", err)}
			}
			s.data = net.JoinHostPort(host, "0")
		}
	default:
		return exitError{3, fmt.Errorf("--role %q: must be prefill or decode", s.role)}
	}
	if s.name == "" {
		s.name = s.role
	}
	log, err := s.logger()
	if err != nil {
		return err
	}
	if err := s.guardSettings.apply(s.listen, s.data); err != nil {
		return err
	}
	id, fleet, err := identity(s.keys, s.name, wireRole, s.listen, s.data)
	if err != nil {
		return err
	}
	began := time.Now()
	m, f, err := s.loadModel()
	if err != nil {
		return err
	}
	f.Close() // the weights were copied: what of the file is mapped need not stay resident
	cfg, err := s.workerConfig(m, role, 1)
	if err != nil {
		return err
	}
	cfg.Name, cfg.Listen, cfg.Data, cfg.Advertise = s.name, s.listen, s.data, s.advertise
	cfg.Identity, cfg.Fleet, cfg.EncryptData, cfg.Log = id, fleet, s.encrypt, log
	recorder, closeTrace, err := s.recorder()
	if err != nil {
		return err
	}
	defer closeTrace()
	cfg.Trace = recorder
	w, err := worker.New(cfg)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Start(); err != nil {
		return err
	}
	fmt.Fprintf(out, "sluice worker %s (%s): control on %s", s.name, role, w.Addr())
	if d := w.DataAddr(); d != nil {
		fmt.Fprintf(out, ", data on %s", d)
	}
	fmt.Fprintln(out)
	printLeg(out, m, w, began)
	return untilDone(ctx, log, s.drain, w.Drain)
}

// loadModel opens, checks and loads the model. The file is returned open, for the tokenizer.
func (s *modelSettings) loadModel() (*llm.Model, modelFile, error) {
	f, err := openModel(s.model, s.minMatch)
	if err != nil {
		return nil, f, err
	}
	m, err := llm.Load(f.File)
	if err != nil {
		return nil, f, fmt.Errorf("%s: %w", s.model, err)
	}
	return m, f, nil
}

// workerConfig sizes one leg; sharing is the number of legs that share this process's memory budget.
func (s *modelSettings) workerConfig(m *llm.Model, role capacity.Role, sharing int) (worker.Config, error) {
	g := m.Geometry(s.pageTokens)
	if err := g.Validate(); err != nil {
		return worker.Config{}, exitError{3, fmt.Errorf("--page-tokens: %w", err)}
	}
	one := *s
	if sharing == 1 { // the other leg's pool is another process's business
		if role == capacity.Prefill {
			one.decodeTokens = 1
		} else {
			one.prefillTokens = 1
		}
	}
	prefill, decode, err := one.pools(m.WeightBytes(), g.BytesPerToken(), sharing)
	if err != nil {
		return worker.Config{}, err
	}
	context, err := s.contextFor(m.Config().Context)
	if err != nil {
		return worker.Config{}, err
	}
	tokens := decode
	if role == capacity.Prefill {
		tokens = prefill
	}
	return worker.Config{Role: role, Version: versionString(), Model: m, PageTokens: s.pageTokens, KVTokens: tokens, Context: context,
		ServeSmaller: s.smallerContext, Chunk: s.chunk, Threads: s.threads}, nil
}

// printLeg says what a leg holds.
func printLeg(out io.Writer, m *llm.Model, w *worker.Worker, began time.Time) {
	f := w.Facts()
	st := w.Pool().Stats()
	fmt.Fprintf(out, "  model   %s, %s of weights, kernels %s, MACs %s\n", m.Config().Name, capacity.Bytes(m.WeightBytes()), kernel.Path(), mac.Path())
	fmt.Fprintf(out, "  %-7s pool %d tokens (%d pages of %d, %s), context %d\n", f.Role, f.PoolTokens, st.Total, f.PageSize,
		capacity.Bytes(int64(st.Total)*int64(st.PageBytes)), f.Context)
	fmt.Fprintf(out, "  ready   in %s\n", time.Since(began).Round(time.Millisecond))
}

// untilDone waits for the first signal and drains.
func untilDone(ctx context.Context, log *slog.Logger, patience time.Duration, drain func(context.Context) error) error {
	<-ctx.Done()
	log.Info("draining; a second signal stops at once", "deadline", patience)
	d, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := drain(d); err != nil {
		log.Warn("some requests had to be ended", "reason", err)
	}
	return nil
}
