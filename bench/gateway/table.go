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

// table prints one engine's cells: CPU ms per request; added p50; added p99; share of direct requests/s. Ours says by how much it is
// ahead of the best of the others in processor time.
func table(w io.Writer, engine string, rows []row) {
	var names []string
	for _, r := range rows {
		if !slices.Contains(names, r.Gateway) && r.Gateway != "direct" {
			names = append(names, r.Gateway)
		}
	}
	fmt.Fprintf(w, "\n%s: processor ms a request; added p50, p99 in ms; share of direct requests/s\n\n", engine)
	fmt.Fprintf(w, "| body, at a time | direct: p50, p99 ms; requests/s | %s | ahead? |\n|%s\n", strings.Join(names, " | "), strings.Repeat(" --- |", len(names)+3))
	for i := 0; i < len(rows); {
		d := rows[i]
		fmt.Fprintf(w, "| %s | %.2f, %.2f; %.0f |", load{d.Size, d.At, d.Stream}, d.P50, d.P99, d.Rate)
		j := i + 1
		for ; j < len(rows) && rows[j].Gateway != "direct"; j++ {
			r := rows[j]
			if r.Failed != "" {
				fmt.Fprintf(w, " failed |")
				fmt.Fprintf(os.Stderr, "%s %s %s: %.300s\n", engine, r.Gateway, load{r.Size, r.At, r.Stream}, r.Failed)
				continue
			}
			fmt.Fprintf(w, " %.3f; %.2f, %.2f; %.2f |", r.CPU, r.P50-d.P50, r.P99-d.P99, r.Rate/d.Rate)
		}
		fmt.Fprintf(w, " %s |\n", ahead(rows[i:j]))
		i = j
	}
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
	for _, r := range old {
		if !slices.ContainsFunc(rows, func(x row) bool { return x.Engine == r.Engine }) {
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
