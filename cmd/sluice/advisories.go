package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/check"
)

func newAdvisoriesCommand() *cobra.Command {
	var file, key, engine string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "advisories",
		Short: "The database of known faults that sluice check matches",
		Long: `The database is in this binary; nothing is fetched. A signed file may add to it (--file, or check's --advisories).
Each entry is an OSV 1.7 record whose predicate says in which configuration the fault can be reached.`,
	}
	cmd.PersistentFlags().StringVar(&file, "file", "", "a signed file of advisories")
	cmd.PersistentFlags().StringVar(&key, "key", "", "Ed25519 key (base64, or a file) that verifies --file")
	list := &cobra.Command{
		Use: "list", Short: "List all entries", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return coded(check.ListAdvisories(c.OutOrStdout(), file, key, engine, asJSON))
		},
	}
	list.Flags().StringVar(&engine, "engine", "", "only those of an engine: sglang, vllm, …")
	list.Flags().BoolVar(&asJSON, "json", false, "print OSV records, one a line")
	show := &cobra.Command{
		Use: "show ID", Short: "Print one entry as OSV",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exitError{3, fmt.Errorf("show takes one id")}
			}
			return coded(check.ShowAdvisory(c.OutOrStdout(), file, key, args[0]))
		},
	}
	verify := &cobra.Command{
		Use: "verify", Short: "Check every entry of this build, and the signature and entries of --file", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return coded(check.VerifyAdvisories(c.OutOrStdout(), file, key))
		},
	}
	var private, out string
	var serial int64
	sign := &cobra.Command{
		Use: "sign FILE.json...", Short: "Make a signed file of OSV records, for a fleet of one's own",
		RunE: func(c *cobra.Command, args []string) error {
			return coded(check.SignAdvisories(c.OutOrStdout(), private, out, serial, args))
		},
	}
	sign.Flags().StringVar(&private, "private-key", "", "file with the Ed25519 seed (base64 of 32 bytes); made if it is not there")
	sign.Flags().StringVar(&out, "out", "advisories.signed.json", "where the signed file goes")
	sign.Flags().Int64Var(&serial, "serial", 1, "grows with every issue of the file")
	cmd.AddCommand(list, show, verify, sign)
	for _, c := range append(cmd.Commands(), cmd) {
		c.SetFlagErrorFunc(usageError)
	}
	return cmd
}

// coded gives the errors of check their exit codes: 3 for bad usage, 2 for the rest.
func coded(err error) error {
	if err == nil {
		return nil
	}
	return exitError{check.ErrorExit(err), err}
}
