package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/config"
)

func newConfigCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check configuration files", Args: cobra.NoArgs}
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
			fmt.Fprintf(c.OutOrStdout(), "%s: a good file for sluice %s\n", args[0], command)
			return nil
		},
	}
	c.Flags().StringVar(&command, "for", "", "serve, worker or gateway (default: told from the file)")
	return c
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
