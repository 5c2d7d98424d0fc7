package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/drill"
	"github.com/sluicekv/sluice/internal/drill/node"
)

// newDrillNodeCommand is one process of a drill's fleet. It is hidden: what it is comes from its parent, and its keys fit no other fleet.
func newDrillNodeCommand() *cobra.Command {
	return &cobra.Command{
		Use: drill.NodeCommand, Hidden: true, Args: cobra.NoArgs,
		Short: "One process of a drill's fleet; sluice drill starts it",
		RunE: func(c *cobra.Command, _ []string) error {
			return node.Run(os.Stdin, c.OutOrStdout(), os.NewFile(3, "events"))
		},
	}
}
