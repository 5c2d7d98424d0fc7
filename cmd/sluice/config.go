package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/config"
)

func newConfigCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check configuration files"}
	c.AddCommand(newConfigCheckCommand())
	return c
}

func newConfigCheckCommand() *cobra.Command {
	var command string
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Read a configuration file as its command would, and start nothing",
		Long: `Reads FILE as the command it is for would, and says every mistake with its line. A file with models is a gateway's, one with role a
worker's, any other is for serve; --for says otherwise. Exit code 3 when the file has a mistake.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			root, err := config.Parse(args[0])
			if err != nil {
				return exitError{3, err}
			}
			if command == "" {
				command = kindOf(root)
			}
			var file fleetFile
			sections := map[string]config.Section{}
			var of *cobra.Command
			switch command {
			case "serve":
				of = newServeCommand()
			case "worker":
				of = newWorkerCommand()
			case "gateway":
				of = newGatewayCommand()
				sections["models"] = file.section
			default:
				return exitError{3, fmt.Errorf("--for %q: must be serve, worker or gateway", command)}
			}
			if err := config.Load(of.Flags(), args[0], sections, "config"); err != nil {
				return exitError{3, err}
			}
			if command == "gateway" && len(file.models) == 0 {
				return exitError{3, errors.New(args[0] + ": a gateway needs models")}
			}
			if err := shortfall(of.Flags(), command); err != nil {
				return exitError{3, fmt.Errorf("%s: %w", args[0], err)}
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: a good file for sluice %s\n", args[0], command)
			return nil
		},
	}
	c.Flags().StringVar(&command, "for", "", "serve, worker or gateway (default: told from the file)")
	return c
}

// shortfall is what a worker of these settings would not start with, as far as they alone tell: a pool that cannot hold the context.
func shortfall(fs *pflag.FlagSet, command string) error {
	number := func(name string) int { n, _ := fs.GetInt(name); return n }
	smaller, _ := fs.GetBool("serve-smaller-context")
	role, _ := fs.GetString("role")
	for _, r := range []capacity.Role{capacity.Prefill, capacity.Decode} {
		f := capacity.Facts{Role: r, PoolTokens: number(string(r) + "-kv-tokens"), PageSize: number("page-tokens"), Context: number("context")}
		if f.PoolTokens == 0 || f.Context == 0 || command == "worker" && role != string(r) {
			continue
		}
		if _, err := capacity.CheckStart(f, smaller); err != nil {
			return err
		}
	}
	return nil
}

// kindOf tells from its keys which command a file is for.
func kindOf(root *yaml.Node) string {
	if root != nil {
		for i := 0; i+1 < len(root.Content); i += 2 {
			switch root.Content[i].Value {
			case "models":
				return "gateway"
			case "role":
				return "worker"
			}
		}
	}
	return "serve"
}
