package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/drill"
	"github.com/sluicekv/sluice/internal/drill/report"
	"github.com/sluicekv/sluice/internal/guard"
)

func newDrillCommand() *cobra.Command {
	var opt drill.MatrixOptions
	var format, out string
	c := &cobra.Command{
		Use:   "drill",
		Short: "Inject what went wrong in the field into a fleet made for it, and see which guard meets it",
		Long: `Every fault class of the field at every phase of the handoff, in a fleet of separate processes with keys of its own: a gateway, a
prefill and a decode worker, and a prefill worker that lies. Each cell says what was injected and how often it really acted, which
guard met it, what the client saw, how many bytes of another request's text were in the reply, and whether every page came back,
zero, seen from outside the processes. Every step of every process is validated against the protocol's model.

In a binary built with -tags unsafe_guards each cell that names a guard is run again without it: it goes red, or names what
caught it next.

Exit code 1 when a cell is red with all guards on.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains(report.Formats, format) {
				return exitError{3, fmt.Errorf("--format %q: must be one of %s", format, strings.Join(report.Formats, ", "))}
			}
			opt.Progress = progress(c.ErrOrStderr())
			m, err := drill.RunMatrix(c.Context(), opt)
			if err != nil {
				return err
			}
			w := c.OutOrStdout()
			if out != "" {
				f, err := os.Create(out)
				if err != nil {
					return err
				}
				defer f.Close()
				w = f
			}
			if err := report.Write(w, format, m); err != nil {
				return err
			}
			if red := m.Red(); len(red) > 0 {
				return exitError{1, fmt.Errorf("%d of %d cells are red, the first is %s at %s", len(red), len(m.Cells), red[0].Class, red[0].Phase)}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&opt.Quick, "quick", false, "the cells that matter most, in less than three minutes")
	c.Flags().Uint64Var(&opt.Seed, "seed", 1, "of the codes, prompts and storms")
	c.Flags().StringVar(&opt.Only, "class", "", "only classes whose name has this `TEXT`")
	c.Flags().StringVar(&format, "format", "table", strings.Join(report.Formats, ", "))
	c.Flags().StringVar(&opt.Trace, "trace", "", "leave each fleet's trace in `DIR`, for sluice drill replay --unfinished (nodes are killed)")
	c.Flags().StringVar(&out, "output", "", "write the report to `FILE`")
	c.AddCommand(newIncidentCommand(), newReplayCommand(), newSoakCommand(), newDrillNodeCommand())
	return c
}

func newIncidentCommand() *cobra.Command {
	var format string
	var seed uint64
	c := &cobra.Command{
		Use:   "incident",
		Short: "Replay the incident on content: tenant A's text, a lying prefill, tenant B's reply",
		Long: `Tenant A's long prompt with a planted code is served. Then tenant B asks through a prefill worker that lies: it refuses the prompt
but ships a placeholder page and reports success (the incident), and eleven other ways. Each row says what B got, which guard
stopped the lie, how many bytes of A's text were in B's reply, and what is left in the pool.

In a binary built with -tags unsafe_guards each guard is also left on alone, and then none.

Exit code 1 when a byte of A's text reached B with all guards on.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return exitError{3, fmt.Errorf("--format %q: must be table or json", format)}
			}
			r, err := drill.Incident(c.Context(), drill.Options{Seed: seed, Progress: progress(c.ErrOrStderr())})
			if err != nil {
				return err
			}
			if format == "json" {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				if err := enc.Encode(r); err != nil {
					return err
				}
			} else {
				printIncident(c.OutOrStdout(), r)
			}
			for _, row := range r.Rows {
				if len(row.GuardsOn) == len(guard.Names()) && (row.ForeignBytes > 0 || row.Nonzero > 0 || row.PoolFree != row.PoolTotal || row.Guard == "") {
					return exitError{1, fmt.Errorf("%s was not stopped", row.Lie)}
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&format, "format", "table", "table or json")
	c.Flags().Uint64Var(&seed, "seed", 1, "of the codes and prompts")
	return c
}

// progress draws one line on a terminal, and nothing elsewhere.
func progress(w io.Writer) func(done, total int, now string) {
	f, ok := w.(*os.File)
	if !ok || !isatty.IsTerminal(f.Fd()) {
		return nil
	}
	return func(done, total int, now string) {
		fmt.Fprintf(f, "\r\x1b[K%d of %d  %s", done, total, now)
		if done == total {
			fmt.Fprint(f, "\r\x1b[K")
		}
	}
}

func printIncident(w io.Writer, r drill.Report) {
	if r.Unsafe {
		fmt.Fprintln(w, "UNSAFE build: guards are taken out below.")
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LIE\tGUARDS ON\tSTATUS\tSTOPPED BY\tBYTES OF A\tPOOL FREE\tLEFT IN IT\tWHAT B GOT")
	for _, row := range r.Rows {
		on := strings.Join(row.GuardsOn, ",")
		switch len(row.GuardsOn) {
		case 0:
			on = "none"
		case len(guard.Names()):
			on = "all"
		}
		by := row.Guard
		if by == "" {
			by = "-"
		}
		said := strings.ReplaceAll(row.Said, "\n", " ")
		if len(said) > 72 {
			said = said[:72] + "..."
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d/%d\t%d\t%s\n", row.Lie, on, row.Status, by, row.ForeignBytes, row.PoolFree, row.PoolTotal, row.Nonzero, said)
	}
	t.Flush()
}
