package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/gateway/tenant"
)

// newKeysTenantCommand keeps the file of --api-keys.
func newKeysTenantCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "tenant",
		Short: "Make, list and remove the API keys of clients",
		Long: `Keeps the file that gateways and sluice serve read with --api-keys: one key a line, by its SHA-256, with its tenant's limits.

  ID HASH [tenant=NAME] [models=A,B] [concurrency=8] [requests=600/m] [tokens=200000/m] [scope=NAME] [expires=2027-06-30] [off]

A running gateway reads the file again when it changes. A file with a mistake changes nothing, and is an error in its log.`,
	}
	c.PersistentFlags().StringVar(&file, "file", "api-keys", "`FILE` of keys")
	c.AddCommand(newTenantAddCommand(&file), newTenantListCommand(&file), newTenantRemoveCommand(&file))
	return c
}

func newTenantAddCommand(file *string) *cobra.Command {
	var of, models, scope, requests, tokens, expires string
	var concurrency, requestsBurst, tokensBurst int
	c := &cobra.Command{
		Use:   "add ID",
		Short: "Make a key: print it, this once, and add its hash to the file",
		Example: `  sluice keys tenant add alice --models recall --concurrency 8 --requests 600/m --tokens 200000/m
  sluice keys tenant add alice-2027 --tenant alice     # a second key of the same tenant, to replace the first`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var options []string
			for _, o := range [][2]string{
				{"tenant", of}, {"models", models}, {"concurrency", given(concurrency)}, {"requests", requests}, {"requests_burst", given(requestsBurst)},
				{"tokens", tokens}, {"tokens_burst", given(tokensBurst)}, {"scope", scope}, {"expires", expires},
			} {
				if o[1] != "" {
					options = append(options, o[0]+"="+o[1])
				}
			}
			for _, word := range append(options, args[0]) {
				if strings.ContainsAny(word, " \t\r\n") {
					return exitError{3, fmt.Errorf("%q: no blanks", word)}
				}
			}
			key := tenant.NewKey()
			if err := tenant.Add(*file, tenant.Line(args[0], key, options...)); err != nil {
				return exitError{3, err}
			}
			fmt.Fprintln(c.OutOrStdout(), key)
			fmt.Fprintf(c.ErrOrStderr(), "added to %s, which holds its hash alone: keep the key now\n", *file)
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&of, "tenant", "", "`NAME` of the tenant (default: ID)")
	fs.StringVar(&models, "models", "", "`NAMES`, with commas, that the tenant may use; others do not exist for it (default: all)")
	fs.IntVar(&concurrency, "concurrency", 0, "requests in flight (default: no limit)")
	fs.StringVar(&requests, "requests", "", "requests a time, as `10/s`, 600/m, 5000/h or 100000/d")
	fs.IntVar(&requestsBurst, "requests-burst", 0, "requests at once (default: the number of --requests)")
	fs.StringVar(&tokens, "tokens", "", "tokens of prompts and replies a time, as `200000/m`, settled by what was computed")
	fs.IntVar(&tokensBurst, "tokens-burst", 0, "tokens at once (default: the number of --tokens)")
	fs.StringVar(&scope, "scope", "", "`NAME` that caches and digests are parted by (default: the tenant); a new one forgets what was cached")
	fs.StringVar(&expires, "expires", "", "last `day` of the key, as 2027-06-30, or a moment")
	return c
}

// given is a number that was given; 0 is none.
func given(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func newTenantListCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Check the file, and list its keys",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := tenant.Load(*file, nil)
			if err != nil {
				return exitError{3, err}
			}
			tw := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			fmt.Fprintln(tw, "KEY\tTENANT\tMODELS\tCONCURRENCY\tREQUESTS\tTOKENS\t")
			rate := func(l *tenant.Left) string {
				if l == nil {
					return "-"
				}
				return l.Rate
			}
			for _, t := range d.Status() {
				models := strings.Join(t.Models, ",")
				if models == "" {
					models = "all"
				}
				most := given(t.Concurrency)
				if most == "" {
					most = "-"
				}
				for _, k := range t.Keys {
					state := ""
					if k.Off {
						state = "off"
					} else if !k.Expires.IsZero() {
						state = "until " + k.Expires.Format("2006-01-02 15:04 MST")
					}
					fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, t.Tenant, models, most, rate(t.Requests), rate(t.Tokens), state)
				}
			}
			return tw.Flush()
		},
	}
}

func newTenantRemoveCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use:   "remove ID",
		Short: "Remove a key; a running gateway refuses it within seconds",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := tenant.Remove(*file, args[0]); err != nil {
				return exitError{3, err}
			}
			return nil
		},
	}
}
