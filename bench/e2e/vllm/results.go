package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

// results of the steps, the last of each, as they lie beside the logs.
type results struct {
	Date    string
	Began   time.Time // of the first step
	Ended   time.Time // of the last
	Start   float64   `json:",omitempty"` // seconds until both engines served
	Memory  []int64   `json:",omitempty"` // resident bytes of prefill's and decode's processes
	Misuse  []misused
	Odd     *oddRead  `json:",omitempty"`
	Late    *lateRead `json:",omitempty"`
	Traffic []travelled
	Clients []string
	Faults  []string `json:",omitempty"` // of steps that failed
}

// misused is what a run of the misuse step saw. Which cases they are is the shared material's to say.
type misused struct {
	Date                       string
	Prefixes                   bool // the engines kept prefixes
	Cases, AtEngines, Passed   int  // those in which foreign text came
	EndedStraight, EndedBehind bool
	Handles, Recorded          int // bodies with a handle in them, recorded requests
}

// lateRead is what the late step saw through the gateway, after its control had shown the fault.
type lateRead struct {
	Date string
	Ways []lateOutcome
}

type lateOutcome struct {
	Guard, Asked      string
	Status            int
	Foreign, Incident bool
	Incidents         float64 // of all guards
	Detail            string
}

// oddRead is what became of the odd bodies.
type oddRead struct {
	Date      string
	Bodies    int
	Statuses  map[int]int
	Failed    map[string]int // those over 499, by what the gateway says
	Lapsed    int            // of them: prefill's lease was over before decode had read, by prefill's own count
	Incidents map[string]float64
	Seconds   float64
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
	Lapsed    float64            `json:",omitempty"` // reads after prefill's lease, by its own count
	Compared  map[string]float64 `json:",omitempty"` // first tokens, by outcome
	Seconds   float64
}

// began is when this program did.
var began = time.Now()

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
	if r.Began.IsZero() {
		r.Began = began
	}
	r.Ended = time.Now()
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
	fmt.Fprintf(w, "vLLM 0.32.0, NIXL 1.5.1, %s, %s to %s (UTC). ", r.Date, r.Began.UTC().Format("15:04"), r.Ended.UTC().Format("15:04"))
	if len(r.Memory) == 2 {
		fmt.Fprintf(w, "Start of the pair %.0f s; memory %.1f and %.1f GB.", r.Start, float64(r.Memory[0])/1e9, float64(r.Memory[1])/1e9)
	}
	fmt.Fprintf(w, "\n\n| misuse | engines keep prefixes | foreign text at the engines | through the gateway | decode ended: at the engines | behind the gateway |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, m := range r.Misuse {
		fmt.Fprintf(w, "| %s: %d cases; a handle in %d bodies; %d recorded requests | %s | %d | %d | %s | %s |\n", m.Date, m.Cases, m.Handles, m.Recorded, yes(m.Prefixes), m.AtEngines, m.Passed, yes(m.EndedStraight), yes(m.EndedBehind))
	}
	if o := r.Odd; o != nil {
		fmt.Fprintf(w, "\nOdd bodies through the gateway, %s: %d in %.1f minutes, by status: %s; both engines compute on; incidents: %s.\n", o.Date, o.Bodies, o.Seconds/60, counted(o.Statuses), lined(o.Incidents))
		for _, k := range slices.Sorted(maps.Keys(o.Failed)) {
			fmt.Fprintf(w, "\n* %d times %s", o.Failed[k], k)
		}
		if len(o.Failed) > 0 {
			fmt.Fprintf(w, "\n* of these, prefill's lease was over before decode had read (by prefill's own count): %d\n", o.Lapsed)
		}
	}
	if l := r.Late; l != nil {
		fmt.Fprintf(w, "\n| a decode slower than prefill's lease, %s (the control at the engines shows the fault, or the run fails) | the client gets | text of others | incidents | the first says |\n| --- | --- | --- | --- | --- |\n", l.Date)
		for _, o := range l.Ways {
			how := "prefill is asked"
			if o.Guard == "first-token" {
				how = "prefill is not asked; first tokens are compared"
			}
			fmt.Fprintf(w, "| %s: %s | %d | %s | %s: %g | %s |\n", how, o.Asked, o.Status, yes(o.Foreign), o.Guard, o.Incidents, o.Detail)
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
	for _, t := range r.Traffic {
		about := "guards as they are by default"
		if t.First {
			about = "with `first-token` enforced"
		}
		fmt.Fprintf(w, "\n* %s: %d requests, %s, seed %d, %.1f minutes: %d right, %d hung up, %d wrong, %d refused, %g incidents", t.Date, t.Asked, about, t.Seed, t.Seconds/60, t.Fates[right], t.Fates[gone], t.Fates[wrong], t.Fates[refused], t.Incidents)
		if t.Lapsed > 0 {
			fmt.Fprintf(w, "; a decode was slower than prefill's lease, by prefill's count %g times", t.Lapsed)
		}
		if t.First {
			fmt.Fprintf(w, "; first tokens: %s", lined(t.Compared))
		}
	}
	fmt.Fprintln(w)
	if len(r.Clients) > 0 {
		fmt.Fprintf(w, "\nLoad clients: %s.\n", strings.Join(r.Clients, ". "))
	}
	for _, f := range r.Faults {
		fmt.Fprintf(w, "\n**Failed**: %s\n", strings.Join(strings.Fields(f), " "))
	}
}

// counted lists counts in order.
func counted(m map[int]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d: %d", k, m[k]))
	}
	return strings.Join(out, ", ")
}

// lined lists counters by their labels on one line.
func lined(m map[string]float64) string {
	if s := strings.ReplaceAll(lines(m), "\n", ", "); s != "" {
		return s
	}
	return "none"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
