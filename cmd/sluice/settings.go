package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/config"
)

// modelSettings say which model runs and in how much memory; serve and worker share them.
type modelSettings struct {
	model          string
	minMatch       int
	context        int
	prefillTokens  int
	decodeTokens   int
	memory         string
	smallerContext bool
	pageTokens     int
	chunk          int
	threads        int
}

func (s *modelSettings) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.model, "model", "recall", "`FILE`.gguf, or recall: the built-in model, which continues the longest match of the prompt's last words")
	fs.IntVar(&s.minMatch, "recall-min-match", 1, "recall: a match shorter than this many tokens ends the reply; -1 never ends it")
	flagVar(fs, &s.context, "context", 0, count, "longest prompt and reply together, in `tokens` (default: the model's, at most 131072)")
	flagVar(fs, &s.prefillTokens, "prefill-kv-tokens", 0, count, "size of prefill's KV pool in `tokens` (default: from --kv-memory)")
	flagVar(fs, &s.decodeTokens, "decode-kv-tokens", 0, count, "size of decode's KV pool in `tokens` (default: from --kv-memory)")
	flagVar(fs, &s.memory, "kv-memory", "2GiB", byteSize, "memory `budget` for weights and KV pools in this process; pools get what the weights leave")
	fs.BoolVar(&s.smallerContext, "serve-smaller-context", false, "when a pool cannot hold the context, advertise the smaller limit instead of refusing to start")
	flagVar(fs, &s.pageTokens, "page-tokens", 64, pageSize, "`tokens` a KV page: 16, 32, 64 or a multiple of 64; both legs need the same")
	flagVar(fs, &s.chunk, "prefill-chunk", 512, count, "most prompt `tokens` computed in one step, so that a long prompt does not starve short ones")
	flagVar(fs, &s.threads, "threads", 0, count, "threads a leg computes with (default: the number of processors)")
}

// pools returns the sizes of the pools in tokens.
func (s *modelSettings) pools(weights int64, bytesPerToken, sharing int) (prefill, decode int, err error) {
	prefill, decode = s.prefillTokens, s.decodeTokens
	if prefill > 0 && decode > 0 {
		return prefill, decode, nil
	}
	memory, err := capacity.ParseBytes(s.memory)
	if err != nil {
		return 0, 0, exitError{3, fmt.Errorf("--kv-memory: %w", err)}
	}
	n, err := capacity.Budget{Memory: memory, Weights: weights, Pools: sharing, BytesPerToken: bytesPerToken, PageSize: s.pageTokens}.Tokens()
	if err != nil {
		return 0, 0, fmt.Errorf("--kv-memory: %w", err)
	}
	if prefill == 0 {
		prefill = n
	}
	if decode == 0 {
		decode = n
	}
	return prefill, decode, nil
}

// defaultContext is the context when none is given.
const defaultContext = 131072

func (s *modelSettings) contextFor(model int) (int, error) {
	switch {
	case s.context > model:
		return 0, exitError{3, fmt.Errorf("--context %d is more than the model's %d tokens", s.context, model)}
	case s.context > 0:
		return s.context, nil
	}
	return min(model, defaultContext), nil
}

// runSettings are how a process runs: configuration, logs, deadlines.
type runSettings struct {
	config   string
	logLevel string
	logJSON  bool
	drain    time.Duration
}

func (s *runSettings) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.config, "config", "", "YAML `FILE` with the same settings as the flags; an unknown key is an error")
	flagVar(fs, &s.logLevel, "log-level", "info", oneOf("debug", "info", "warn", "error"), "debug, info, warn or error")
	fs.BoolVar(&s.logJSON, "log-json", false, "log JSON lines")
	flagVar(fs, &s.drain, "drain-timeout", 30*time.Second, patience, "on the first Ctrl-C or SIGTERM, how long streams in flight may take to finish")
}

func (s *runSettings) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(strings.ToUpper(s.logLevel))); err != nil {
		return nil, exitError{3, fmt.Errorf("--log-level %q: must be debug, info, warn or error", s.logLevel)}
	}
	opt := &slog.HandlerOptions{Level: level}
	if s.logJSON {
		return slog.New(slog.NewJSONHandler(os.Stderr, opt)), nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opt)), nil
}

// load fills the flags from the environment and the file.
func load(c *cobra.Command, file string, sections map[string]config.Section) error {
	// --config itself may come from the environment
	if f := c.Flags().Lookup("config"); f != nil && !f.Changed {
		if v, ok := os.LookupEnv(config.EnvName("config")); ok {
			file = v
		}
	}
	if err := config.Load(c.Flags(), file, sections, "config"); err != nil {
		return exitError{3, err}
	}
	return nil
}
