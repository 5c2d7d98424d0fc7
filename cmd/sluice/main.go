// Command sluice serves large language models with prefill and decode apart, and guards fleets that already do.
//
// One file per subcommand, thin: each reads its settings, builds the parts and runs them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// exitError carries an exit code other than 1. A nil err prints nothing: the command has said it already.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signals(context.Background())
	defer stop()
	root := rootCommand()
	root.SetArgs(args)
	err := causeOf(ctx, root.ExecuteContext(ctx))
	var exit exitError
	if silent := errors.As(err, &exit) && exit.err == nil; err != nil && !silent {
		fmt.Fprintln(os.Stderr, "sluice:", err)
	}
	return exitCode(err)
}

// exitCode is what the process ends with: as its command says, as a shell says of one that a signal ended, or 1.
func exitCode(err error) int {
	var exit exitError
	var signal errSignal
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &signal):
		return signal.exitCode()
	}
	return 1
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Serve language models with prefill and decode apart, and guard fleets that do",
		Long: `sluice serves large language models with prefill and decode on separate machines.
A reply is computed only from KV cache that its own request wrote, or it is an error.

  sluice serve            a gateway, a prefill and a decode worker, and a model, in one process
  sluice worker           one leg, on its own machine
  sluice gateway          the front door of a fleet
  sluice check            can this fleet, as configured, leak or corrupt?
  sluice drill incident   replay the incident, on content

Every flag can also be set in the environment (--decode-kv-tokens is SLUICE_DECODE_KV_TOKENS) and in the YAML file
given by --config (decode_kv_tokens). A flag beats the environment, which beats the file.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return exitError{3, fmt.Errorf("%w\nRun '%s --help' for the flags", err, c.CommandPath())}
	})
	root.AddCommand(commands()...)
	refuseUnknown(root)
	return root
}

// refuseUnknown makes every command that only holds others refuse a word that is none of them: a deploy script with `sluice chekc` must
// fail. It gives them a RunE, because cobra shows help, and ends well, for a command that cannot run.
func refuseUnknown(c *cobra.Command) {
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
	}
	if !c.Runnable() {
		c.Args, c.RunE = knownCommand, func(c *cobra.Command, _ []string) error { return c.Help() }
	}
}

func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	meant := ""
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		meant = fmt.Sprintf("; did you mean %q?", near[0])
	}
	return exitError{3, fmt.Errorf("%s has no command %q%s", c.CommandPath(), args[0], meant)}
}
