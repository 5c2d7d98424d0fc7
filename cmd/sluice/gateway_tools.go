package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicekv/sluice/internal/certs"
	"github.com/sluicekv/sluice/internal/config"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
)

// newDoctorCommand prints why each worker or pair is or is not in use.
func newDoctorCommand() *cobra.Command {
	var s gatewaySettings
	var file fleetFile
	c := &cobra.Command{
		Use:   "doctor --config fleet.yaml",
		Short: "Say why each worker and each pair would be used or not",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var modes guardModes
			if err := load(c, s.config, map[string]config.Section{"models": file.section, "guards": modes.section}); err != nil {
				return err
			}
			return doctor(c.Context(), c.OutOrStdout(), file.models)
		},
	}
	s.register(c.Flags())
	return c
}

func doctor(ctx context.Context, out io.Writer, models []modelEntry) error {
	if len(models) == 0 {
		return exitError{3, errors.New("no models: pass --config with a file that has a models section")}
	}
	bad := false
	for _, m := range models {
		if m.native() {
			fmt.Fprintf(out, "%s (native): its workers say of themselves who they are once a gateway runs: GET /admin/fleet\n", m.Name)
			continue
		}
		g, err := m.guarded()
		if err != nil {
			return err
		}
		if err := errors.Join(m.readKeys(g), m.readTokenizer(g)); err != nil {
			return err
		}
		f, err := foreign.New(g.Fleet)
		if err != nil {
			return err
		}
		f.ReadAll(ctx)
		bad = !printFleet(out, m, f) || bad
		f.Close()
	}
	if bad {
		return exitError{1, errors.New("a model has no pair that can serve")}
	}
	return nil
}

// doctorPairs is how many pairs are printed one by one: those that do not serve first.
const doctorPairs = 64

func printFleet(out io.Writer, m modelEntry, f *foreign.Fleet) bool {
	st := f.Status(context.Background(), false)
	if st.Ready {
		fmt.Fprintf(out, "%s (%s): %d tokens fit, set by %s\n", m.Name, m.Engine, st.Limit.Tokens, st.Limit.Setter)
	} else {
		fmt.Fprintf(out, "%s (%s): no pair can serve\n", m.Name, m.Engine)
	}
	for _, s := range st.Sources {
		if s.Workers > 0 || len(s.Problems) > 0 || len(st.Sources) > 1 {
			fmt.Fprintf(out, "  from %s: %d workers\n", s.Name, s.Workers)
		}
		for _, p := range s.Problems {
			fmt.Fprintf(out, "    problem: %s\n", p)
		}
	}
	if n := len(m.Aliases); n > 0 {
		fmt.Fprintf(out, "  clients may also ask for: %s\n", strings.Join(m.Aliases, ", "))
	}
	tw := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, w := range st.Workers {
		why := w.Reason
		if why == "" {
			why = "used"
		}
		fmt.Fprintf(tw, "  %s\t%s\tpool %d\tpage %d\tcontext %d\t%s\t%s\n", w.Role, w.Addr, w.Facts.PoolTokens, w.Facts.PageSize, w.Facts.Context, w.Facts.Version, why)
	}
	told, quiet := 0, 0
	for _, p := range st.Pairs {
		switch {
		case told == doctorPairs:
			quiet++
		case p.State == "usable":
			fmt.Fprintf(tw, "  pair\t%s + %s\t%s\t%d tokens, set by %s\n", p.Prefill, p.Decode, p.State, p.Limit.Tokens, p.Limit.Setter)
			told++
		default:
			fmt.Fprintf(tw, "  pair\t%s + %s\t%s\t%s\n", p.Prefill, p.Decode, p.State, p.Reason)
			told++
		}
	}
	tw.Flush()
	if n := quiet + st.MorePairs; n > 0 {
		fmt.Fprintf(out, "  %d more pairs: of all, %d are usable, %d down, %d refused\n", n, st.Counts["usable"], st.Counts["down"], st.Counts["refused"])
	}
	return st.Ready
}

// newGatewayIncidentCommand prints an incident's bundle, or a list of the last ones.
func newGatewayIncidentCommand() *cobra.Command {
	var admin string
	var files certs.ClientFiles
	c := &cobra.Command{
		Use:   "incident [ID]",
		Short: "Print an incident of a running gateway, to attach to a report; without an ID, all that are kept",
		Long:  "Prints what is known of an incident as JSON: the guard, both legs' numbers, the pair's facts, the attempt's record. No content is in it.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			u := strings.TrimRight(admin, "/") + "/admin/incidents"
			if !strings.Contains(admin, "://") {
				u = "http://" + u
			}
			if len(args) == 1 {
				u += "/" + args[0]
			}
			req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, u, nil)
			if err != nil {
				return exitError{3, fmt.Errorf("--admin %s: %w", admin, err)}
			}
			road, err := certs.LoadClient(files)
			if err != nil {
				return exitError{3, err}
			}
			client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: road.For(req.URL.Hostname())}}
			resp, err := client.Do(req)
			if err != nil {
				return fmt.Errorf("the gateway's admin listener did not answer: %w", err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("the gateway answers %s: it keeps the last incidents only", resp.Status)
			}
			_, err = io.Copy(c.OutOrStdout(), resp.Body)
			return err
		},
	}
	c.Flags().StringVar(&admin, "admin", "127.0.0.1:8081", "admin listener of the gateway, `host:port` or https://host:port")
	c.Flags().StringVar(&files.CA, "ca", "", "PEM `FILE` of the authorities of its certificate (default: the system's)")
	c.Flags().StringVar(&files.Cert, "cert", "", "PEM `FILE` of an operator's certificate, where it asks for one")
	c.Flags().StringVar(&files.Key, "key", "", "PEM `FILE` with its key")
	return c
}
