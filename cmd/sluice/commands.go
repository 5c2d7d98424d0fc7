package main

import "github.com/spf13/cobra"

// commands are the subcommands, in the order that help shows them.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newServeCommand(),
		newWorkerCommand(),
		newGatewayCommand(),
		newCheckCommand(),
		newAdvisoriesCommand(),
		newDrillCommand(),
		newFakeCommand(),
		newKeysCommand(),
		newConfigCommand(),
		newVersionCommand(),
	}
}
