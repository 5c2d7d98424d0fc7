package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// results of the steps, the last of each, as they lie beside the logs.
type results struct {
	Date    string
	Start   float64 `json:",omitempty"` // seconds until both engines served
	Memory  []int64 `json:",omitempty"` // resident bytes of prefill's and decode's processes
	Misuse  []misused
	Odd     string    `json:",omitempty"`
	Late    *lateRead `json:",omitempty"`
	Traffic []travelled
	Clients []string
}

// misused is what a run of the misuse step saw. Which cases they are is the shared material's to say.
type misused struct {
	Date                       string
	Prefixes                   bool // the engines kept prefixes
	Cases, AtEngines, Passed   int  // those in which foreign text came
	EndedStraight, EndedBehind bool
	Handles, Recorded          int // bodies with a handle in them, recorded requests
}

// lateRead is what the late step saw: at the engines, and through the gateway, where prefill is asked and where first tokens are compared.
type lateRead struct {
	Date         string
	Straight     int
	Foreign      bool
	Asked, First lateOutcome
}

type lateOutcome struct {
	Status            int
	Foreign, Incident bool
}

// travelled is one piece of honest traffic.
type travelled struct {
	Date      string
	Seed      uint64
	First     bool // with the guard first-token
	Asked     int
	Fates     [numFates]int
	Kinds     map[string]*[numFates]int
	Incidents float64
	Seconds   float64
}

func (b *bed) resultsFile() string { return filepath.Join(b.dir, "results.json") }

func (b *bed) results() (r results, err error) {
	text, err := os.ReadFile(b.resultsFile())
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// note changes the results.
func (b *bed) note(change func(r *results, date string)) error {
	r, err := b.results()
	if err != nil {
		return err
	}
	r.Date = time.Now().Format(time.DateOnly)
	change(&r, r.Date)
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.resultsFile(), text, 0o644)
}

// Where the tables stand in docs/e2e.md.
const (
	page  = "docs/e2e.md"
	begin = "<!-- results of make e2e-vllm, written by it -->\n"
	end   = "<!-- end of the results of make e2e-vllm -->\n"
)

func (b *bed) report(context.Context) error {
	r, err := b.results()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	r.table(&text)
	fmt.Print(text.String())
	if !b.write {
		return nil
	}
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the results: the lines\n%s%s", page, begin, end)
	}
	return os.WriteFile(page, []byte(head+begin+text.String()+end+tail), 0o644)
}

func (r results) table(w io.Writer) {
	fmt.Fprintf(w, "vLLM 0.32.0, NIXL 1.5.1, %s. ", r.Date)
	if len(r.Memory) == 2 {
		fmt.Fprintf(w, "Start of the pair %.0f s; memory %.1f and %.1f GB.", r.Start, float64(r.Memory[0])/1e9, float64(r.Memory[1])/1e9)
	}
	fmt.Fprintf(w, "\n\n| misuse | engines keep prefixes | foreign text at the engines | through the gateway | decode ended: at the engines | behind the gateway |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, m := range r.Misuse {
		fmt.Fprintf(w, "| %s: %d cases; a handle in %d bodies; %d recorded requests | %s | %d | %d | %s | %s |\n", m.Date, m.Cases, m.Handles, m.Recorded, yes(m.Prefixes), m.AtEngines, m.Passed, yes(m.EndedStraight), yes(m.EndedBehind))
	}
	if r.Odd != "" {
		fmt.Fprintf(w, "\nOdd bodies through the gateway, %s.\n", r.Odd)
	}
	if l := r.Late; l != nil {
		fmt.Fprintf(w, "\n| decode reads after the lease, %s | status | foreign text | incident |\n| --- | --- | --- | --- |\n| at the engines | %d | %s | |\n", l.Date, l.Straight, yes(l.Foreign))
		fmt.Fprintf(w, "| through the gateway: prefill is asked | %d | %s | %s |\n", l.Asked.Status, yes(l.Asked.Foreign), yes(l.Asked.Incident))
		if l.First.Status != 0 {
			fmt.Fprintf(w, "| the same, prefill not asked, first tokens compared | %d | %s | %s |\n", l.First.Status, yes(l.First.Foreign), yes(l.First.Incident))
		}
	}
	fmt.Fprintf(w, "\n| honest traffic | asked | right | client hung up | wrong | refused | incidents | minutes |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	kinds := map[string]*[numFates]int{}
	row := func(name string, asked int, f [numFates]int, incidents, minutes string) {
		fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %s | %s |\n", name, asked, f[right], f[gone], f[wrong], f[refused], incidents, minutes)
	}
	var sum travelled
	for _, t := range r.Traffic {
		sum.Asked, sum.Incidents, sum.Seconds = sum.Asked+t.Asked, sum.Incidents+t.Incidents, sum.Seconds+t.Seconds
		for k, n := range t.Kinds {
			if kinds[k] == nil {
				kinds[k] = new([numFates]int)
			}
			for i := range n {
				kinds[k][i] += n[i]
				sum.Fates[i] += n[i]
			}
		}
	}
	names := make([]string, 0, len(kinds))
	for k := range kinds {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		asked := 0
		for _, n := range kinds[k] {
			asked += n
		}
		row(k, asked, *kinds[k], "", "")
	}
	row("all", sum.Asked, sum.Fates, fmt.Sprintf("%g", sum.Incidents), fmt.Sprintf("%.1f", sum.Seconds/60))
	if len(r.Clients) > 0 {
		fmt.Fprintf(w, "\nLoad clients: %s.\n", strings.Join(r.Clients, ". "))
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
