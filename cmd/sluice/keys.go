package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/keyring"
)

func newKeysCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "keys [NAME=ROLE]...",
		Short: "Make the keys of a fleet: one private key a node, and the list of public ones",
		Long: `Makes DIR with NAME.key for each node (readable by you alone) and fleet.pub, the public keys that every node trusts.
ROLE is gateway, prefill or decode; a NAME that is a role, or begins with one and a dash, needs no ROLE. Without
arguments the nodes are gateway, prefill and decode. Nodes are added to a DIR that exists; keys are never written over.

Copy to each machine its own NAME.key and fleet.pub, and nothing else.

The API keys of clients are made by sluice keys tenant.`,
		Example: `  sluice keys --dir keys
  sluice keys --dir keys gateway prefill-0 prefill-1 decode-0
  sluice keys --dir keys edge=gateway`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"gateway", "prefill", "decode"}
			}
			var nodes []keyring.Node
			for _, a := range args {
				n, err := keyring.ParseNode(a)
				if err != nil {
					return exitError{3, err}
				}
				nodes = append(nodes, n)
			}
			err := keyring.Create(dir, nodes...)
			if errors.Is(err, fs.ErrExist) {
				err = keyring.Add(dir, nodes...)
			}
			if err != nil {
				return err
			}
			for _, n := range nodes {
				fmt.Fprintf(c.OutOrStdout(), "%s/%s.key\n", dir, n.Name)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s/fleet.pub\n", dir)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "keys", "`DIR` to make, or to add nodes to")
	c.AddCommand(newKeysTenantCommand())
	return c
}
