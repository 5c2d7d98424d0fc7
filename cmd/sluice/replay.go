package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/drill/replay"
)

// newReplayCommand is sluice drill replay.
func newReplayCommand() *cobra.Command {
	var unfinished bool
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Check a recorded trace against the protocol's model; name the line that is wrong",
		Long: `FILE is what --trace wrote; - is standard input. Every transition in it is taken again by the model, and must come to
the same state. Prints "valid N/N", or the line that is wrong and why, and exits with 1.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			in := c.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return exitError{3, err}
				}
				defer f.Close()
				in = f
			}
			res, err := replay.File(in, unfinished)
			replay.Print(c.OutOrStdout(), res, err)
			if err != nil {
				return exitError{code: 1}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&unfinished, "unfinished", false, "the file may end in the middle: its process was killed, or still runs")
	return cmd
}
