package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/drill"
)

// newSoakCommand is sluice drill soak.
func newSoakCommand() *cobra.Command {
	var opt drill.SoakOptions
	var record string
	c := &cobra.Command{
		Use:   "soak",
		Short: "Hand over millions of pages under clients that hang up; every page must come back, zero",
		Long: `A gateway, a prefill and a decode worker as separate processes with pages of 16 tokens, and clients of which four in five hang up at
a random moment. Every event of every process is validated against the protocol's model as it comes; every reply that comes whole is
compared with its request's own text. At the end every page of both pools must be free, and zero, seen from outside the processes,
and no attempt may have ended in anything but a reply, a client that hung up, or want of pages or time.

Interrupted (SIGINT, SIGTERM), it hands out no more pages, judges what it has handed out, and says how far it came.
Exit code 0: it held. 1: it did not. 130 or 143: it held, until it was interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			opt.Progress = progress(c.ErrOrStderr())
			if record != "" {
				f, err := os.Create(record)
				if err != nil {
					return exitError{3, err}
				}
				defer f.Close()
				opt.Trace = f
			}
			r, err := drill.RunSoak(c.Context(), opt)
			if err != nil {
				return err
			}
			e := json.NewEncoder(c.OutOrStdout())
			e.SetIndent("", " ")
			if err := e.Encode(r); err != nil {
				return err
			}
			if len(r.Wrong) > 0 {
				return exitError{1, fmt.Errorf("the soak did not hold: %s", strings.Join(r.Wrong[:min(3, len(r.Wrong))], "; "))}
			}
			if r.Cut {
				return fmt.Errorf("%w after %d of %d page hand-overs; those held", context.Cause(c.Context()), r.Pages, opt.Pages)
			}
			return nil
		},
	}
	c.Flags().Uint64Var(&opt.Pages, "pages", 10_000_000, "page hand-overs")
	c.Flags().Uint64Var(&opt.Seed, "seed", 1, "of the prompts and of when clients hang up")
	c.Flags().IntVar(&opt.Clients, "clients", 24, "at once")
	c.Flags().StringVar(&record, "trace", "", "write every event to `FILE`, for sluice drill replay (200 bytes an event, one event for two pages)")
	return c
}
