package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sluicekv/sluice/internal/check"
)

func newCheckCommand() *cobra.Command {
	var o check.Options
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "check [FILE|DIR|URL|-]...",
		Short: "Can this fleet, as it is configured now, leak or corrupt?",
		Long: `check compares the KV pool of every node with its context, the legs of every pair with each other, and the releases
and settings with known faults. It only reads. A saved start-up log is enough.

Sources: start-up logs of SGLang and vLLM, saved /server_info, /model_info, /v1/models and /metrics answers, launch
commands, Kubernetes manifests and Helm output, a gateway's fleet.yaml, folders of these, URLs of live workers,
dns:NAME:PORT (an address a worker), - for standard input, NAME=SOURCE to name a node.

Exit codes: 0 nothing at or above --fail-on, 1 findings at or above it, 2 something could not be compared, 3 bad usage.`,
		Example: `  sluice check prefill.log decode.log
  kubectl logs -l app=sglang --prefix --tail=-1 | sluice check -
  helm template ./chart | sluice check - --format sarif --fail-on medium
  sluice check http://prefill-0:30000 http://decode-0:30000 --probe-live
  sluice check prefill.log --fit --model config.json --context 1048576
  sluice check explain SGL-KV-01`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.Args = args
			o.Program = "sluice " + versionString()
			o.Terminal = isatty.IsTerminal(os.Stderr.Fd())
			if isatty.IsTerminal(os.Stdout.Fd()) {
				o.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
				if ws, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ); err == nil {
					o.Width = int(ws.Col)
				}
			}
			if watch {
				o.Watch = max(interval, time.Nanosecond) // none at all is refused as too short
			}
			if code := check.Run(c.Context(), o, c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()); code != 0 {
				return exitError{code: code}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Format, "format", "table", "table, json, sarif, junit or md")
	f.StringVar(&o.FailOn, "fail-on", "high", "exit 1 on findings of this severity or above: low, medium or high")
	f.IntVar(&o.Context, "context", 0, "the context to check for, in tokens; also stands in for one that no source names")
	f.StringVar(&o.Version, "engine-version", "", "release of engines whose sources name none")
	f.StringVar(&o.Waivers, "waivers", "", "YAML file of waivers (id, scope, reason, owner, expires)")
	f.BoolVar(&o.Details, "details", false, "JSON: add why, reference, gateway_covers and waivers to each finding")
	f.BoolVar(&o.All, "all", false, "table: a row for each finding of each node, also when many nodes share it")
	f.BoolVar(&o.Fit, "fit", false, "derive the largest safe context, or what would make --context fit, with the arithmetic")
	f.StringVar(&o.Model, "model", "", "--fit: the model's config.json or GGUF file")
	f.BoolVar(&o.Probe, "probe-live", false, "send each live worker one over-limit request with one token of output; the answer decides instead of the version")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Second, "for all questions to one worker")
	f.IntVar(&o.Parallel, "parallel", 64, "workers asked at once")
	f.BoolVar(&o.NoPorts, "no-ports", false, "do not try to connect to bootstrap and side-channel ports")
	f.StringVar(&o.APIKeyFile, "api-key-file", "", "file with the key that workers ask for")
	f.StringVar(&o.CAFile, "ca", "", "PEM file of the authority that signs the workers' certificates")
	f.BoolVar(&o.Insecure, "insecure-tls", false, "read from workers whose certificate cannot be verified")
	f.StringVar(&o.Advisories, "advisories", "", "signed file of advisories, added to those of this build")
	f.StringVar(&o.AdvisoriesKey, "advisories-key", "", "Ed25519 key (base64, or a file) that verifies --advisories")
	f.BoolVar(&watch, "watch", false, "check again every --interval and at every restart, and export metrics")
	f.DurationVar(&interval, "interval", 30*time.Second, "--watch: how often")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:9464", "--watch: address of /metrics")
	cmd.SetFlagErrorFunc(usageError)
	cmd.AddCommand(newExplainCommand())
	return cmd
}

// usageError makes a mistake in the flags exit 3.
func usageError(c *cobra.Command, err error) error {
	return exitError{3, fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
}

func newExplainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain ID",
		Short: "Say what a finding or an advisory means, where it comes from and what to change",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exitError{3, fmt.Errorf("explain takes one id; sluice check explain list names them all")}
			}
			if err := check.Explain(c.OutOrStdout(), strings.TrimSpace(args[0])); err != nil {
				return exitError{3, err}
			}
			return nil
		},
	}
}
