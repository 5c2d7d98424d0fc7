package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/sluicekv/sluice/bench/peer"
)

// heading begins one engine's table: CPU ms per request; added p50; added p99; share of direct requests/s. The last column says in what
// ours is not ahead of the best of the others.
func heading(w io.Writer, engine string, targets []*target) {
	fmt.Fprintf(w, "\n%s: processor ms a request; added p50, p99 in ms; share of direct requests/s\n\n| body, at a time | direct: p50, p99 ms; requests/s |", engine)
	for _, t := range targets[1:] {
		fmt.Fprintf(w, " %s |", t.name)
	}
	fmt.Fprintf(w, " ahead? |\n|%s\n", strings.Repeat(" --- |", len(targets)+2))
}

// line is one load.
func line(w io.Writer, cell []row) {
	if len(cell) == 0 {
		return
	}
	d := cell[0]
	fmt.Fprintf(w, "| %s | %.2f, %.2f; %.0f |", load{d.Size, d.At, d.Stream}, d.P50, d.P99, d.Rate)
	for _, r := range cell[1:] {
		if r.Failed != "" {
			fmt.Fprintf(w, " failed |")
			fmt.Fprintf(os.Stderr, "%s %s %s: %.300s\n", r.Engine, r.Gateway, load{r.Size, r.At, r.Stream}, r.Failed)
			continue
		}
		fmt.Fprintf(w, " %.3f; %.2f, %.2f; %.2f |", r.CPU, r.P50-d.P50, r.P99-d.P99, r.Rate/d.Rate)
	}
	fmt.Fprintf(w, " %s |\n", ahead(cell))
}

// ahead compares ours with the best of the others: processor time, median, requests/s.
func ahead(cell []row) string {
	var us *row
	best := [4]float64{}
	for i := range cell {
		r := &cell[i]
		if r.Gateway == peer.Sluice {
			us = r
			continue
		}
		if r.Gateway == "direct" || r.Failed != "" {
			continue
		}
		for k, v := range r.figures() {
			if best[k] == 0 || v < best[k] {
				best[k] = v
			}
		}
	}
	if us == nil || best[0] == 0 || us.Failed != "" {
		return ""
	}
	var behind []string
	for k, v := range us.figures() {
		if v > best[k] {
			behind = append(behind, fmt.Sprintf("%s %.2fx", []string{"cpu", "p50", "p99", "rate"}[k], v/best[k]))
		}
	}
	if len(behind) > 0 {
		return "behind: " + strings.Join(behind, ", ")
	}
	return fmt.Sprintf("yes; cpu %.2fx", best[0]/us.figures()[0])
}

// figures are better the lower they are.
func (r *row) figures() [4]float64 { return [4]float64{r.CPU, r.P50, r.P99, 1 / r.Rate} }

// keep joins rows with those of other engines that were kept before.
func (s *settings) keep(rows []row) ([]row, error) {
	if s.save == "" {
		return rows, nil
	}
	var old []row
	b, err := os.ReadFile(s.save)
	if err == nil {
		err = json.Unmarshal(b, &old)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	fresh := rows
	for _, r := range old {
		if !slices.ContainsFunc(fresh, func(x row) bool { return x.Engine == r.Engine }) {
			rows = append(rows, r)
		}
	}
	b, err = json.MarshalIndent(rows, "", " ")
	if err != nil {
		return nil, err
	}
	return rows, os.WriteFile(s.save, b, 0o644)
}

// startProfile asks sluice's admin port for a profile of ten seconds from now on.
func (s *settings) startProfile(targets []*target) func() error {
	none := func() error { return nil }
	if s.profile == "" {
		return none
	}
	for _, t := range targets {
		if t.gateway == nil || t.gateway.Admin == "" {
			continue
		}
		var wg sync.WaitGroup
		var err error
		wg.Go(func() {
			var resp *http.Response
			if resp, err = http.Get(t.gateway.Admin + "/debug/pprof/profile?seconds=10"); err != nil {
				return
			}
			defer resp.Body.Close()
			var b []byte
			if b, err = io.ReadAll(resp.Body); err == nil {
				err = os.WriteFile(s.profile, b, 0o644)
			}
		})
		return func() error { wg.Wait(); return err }
	}
	return none
}
