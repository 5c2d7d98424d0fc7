// Command promises writes docs/promises.md: each promise of the design with the commands that show it, and what they printed now.
//
// A figure in that page is one that a command printed while the page was made, or the page says that it was not. A promise that nothing
// tests says so.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// evidence is one command, and how its figures are found in what it prints. Without a figure function the words stand alone.
type evidence struct {
	what    string
	command string
	figure  func(out string) string
	slow    bool   // minutes: run with -slow only
	read    string // a file that the command leaves, read instead of running it
}

type promise struct {
	name, text, untested string
	shown                []evidence
}

func main() {
	slow := flag.Bool("slow", false, "also what takes minutes")
	out := flag.String("o", "docs/promises.md", "the page")
	pages := flag.Int("pages", 1_000_000, "page hand-overs of the soak")
	flag.Parse()
	if err := write(*out, *slow, *pages); err != nil {
		fmt.Fprintln(os.Stderr, "promises:", err)
		os.Exit(1)
	}
}

func write(path string, slow bool, pages int) error {
	var b strings.Builder
	b.WriteString("# Promises, and how to see each\n\nMade by `make promises` on " + time.Now().UTC().Format("2006-01-02") + ", on " + machine() +
		". Every figure is what the command beside it printed then. Run any of them from a checkout after `make build build-unsafe`.\n")
	failed := 0
	for _, p := range promises(pages) {
		fmt.Fprintf(&b, "\n## %s. %s\n\n", p.name, p.text)
		if p.untested != "" {
			fmt.Fprintf(&b, "**%s**\n", p.untested)
		}
		if len(p.shown) == 0 {
			continue
		}
		b.WriteString("\n| shown by | command | last figures |\n| --- | --- | --- |\n")
		for _, e := range p.shown {
			got, ok := e.run(slow)
			if !ok {
				failed++
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s |\n", e.what, strings.ReplaceAll(e.command, "|", "\\|"), strings.ReplaceAll(got, "|", "\\|"))
		}
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d commands failed: see %s", failed, path)
	}
	return nil
}

// done remembers what a command printed: some show more than one promise.
var done = map[string]string{}

func (e evidence) run(slow bool) (string, bool) {
	if e.read != "" {
		b, err := os.ReadFile(e.read)
		if err != nil {
			return "not run: " + err.Error(), false
		}
		return e.figure(string(b)) + " (kept in " + e.read + ")", true
	}
	if e.slow && !slow {
		return "not run this time (`make promises SLOW=1`)", true
	}
	out, ran := done[e.command]
	if !ran {
		fmt.Fprintln(os.Stderr, "promises:", e.command)
		began := time.Now()
		b, err := exec.Command("bash", "-c", e.command).CombinedOutput()
		out = string(b)
		if err != nil {
			tail := strings.TrimSpace(out)
			tail = tail[strings.LastIndexByte(tail, '\n')+1:]
			return fmt.Sprintf("**FAILED**: %v: %s", err, tail), false
		}
		out += fmt.Sprintf("\n@took %.0f s", time.Since(began).Seconds())
		done[e.command] = out
	}
	return e.figure(out), true
}

func promises(pages int) []promise {
	const model = "go test -count=1 -v -run 'TestBothWays|TestEveryGuard' ./internal/handoff/model"
	quick := "bin/sluice drill --quick"
	quickUnsafe := "bin/sluice-unsafe drill --quick"
	soak := fmt.Sprintf("bin/sluice drill soak --pages %d", pages)
	return []promise{
		{name: "P1", text: "No byte that is read was written by another request, or by nobody", shown: []evidence{
			{what: "the model: the target holds under every fault at once, each load-bearing guard taken out breaks it", command: model, figure: passes("configurations")},
			{what: "the model in all its sizes", command: "make model-check", read: "spec/RESULTS.md", figure: large},
			{what: "the Spin twin, with liveness", command: "make spin", read: "spec/RESULTS.md", figure: spin},
			{what: "the incident and its relatives, on content", command: "bin/sluice drill incident --format json", figure: incident},
			{what: "the same with each guard alone, and with none", command: "bin/sluice-unsafe drill incident --format json", figure: incident},
			{what: "every fault class at every phase, in separate processes", command: quick, figure: cells},
			{what: "the same, each cell once more without its guard", command: quickUnsafe, figure: cells},
		}},
		{name: "P2", text: "The code does what the model says", shown: []evidence{
			{what: "the real machines and pools along every path and every step of the two-page model, and under seeds; every event validated", command: "go test -count=1 -v ./internal/handoff/sim", figure: lines(`\d+ seeds: .*|\w+( \w+)?: \d+ paths.*|\w+( \w+)?: all \d+ steps.*`)},
			{what: "every machine takes every event in every state within reach, and does what the table says", command: "go test -count=1 -v -run 'EveryStep' ./internal/handoff", figure: lines(`\d+ steps`)},
			{what: "every event of every process of the drill", command: quick, figure: lines(`\d+ trace events validated`)},
			{what: "edited recordings are rejected", command: "go test -count=1 -v ./internal/handoff/model/validate ./internal/drill/replay", figure: passes("tests")},
			{what: "mutants of the code are killed: by what and how fast", command: "make mutants", read: "docs/mutants.md", figure: lines(`\d+ of \d+ killed.*`)},
			{what: "writing a trace costs a reply of 32k tokens of context less than 0.5 %", command: "go test -run - -bench TraceCost -benchtime 1x ./internal/worker", figure: lines(`[\d.]+ %ofdecode.*`)},
			{what: "a validator takes less than 1 µs an event; a core simulates more than 1 M handoffs a minute", command: "go test -run - -bench 'Step|Handoffs' ./internal/handoff/model/validate ./internal/handoff/sim", figure: lines(`[\d.]+ ns/event|[\d.]+ handoffs/min|Benchmark\w+-\d+ +\d+ +[\d.]+ ns/op`)},
		}},
		{name: "P3", text: "A refusal is heard everywhere, and its status is its verdict", shown: []evidence{
			{what: "one request refused at every layer, in one process and in three, on unequal pools, streamed and not, of one page: the same bytes", command: "go test -count=1 -v -run 'OneNo|SameRoad' ./internal/drill", figure: passes("tests")},
			{what: "a prompt over the pool, refused by prefill alone", command: `bin/sluice drill --class "rejected request"`, figure: cells},
		}},
		{name: "P4", text: "Pages come back: all free, all zero, after any storm", shown: []evidence{
			{what: "a soak with abort storms, looked at from outside", command: soak, figure: soaked},
			{what: "clients that hang up at random", command: `bin/sluice drill --class "leaks"`, figure: cells},
		}},
		{name: "P5", text: "No residue: what was planted earlier is in no page and no reply", shown: []evidence{
			{what: "pools scanned from outside, replies compared with another tenant's text, after every cell", command: quick, figure: residue},
		}},
		{name: "P6", text: "A crash or a lost acknowledgement never frees a page that can still be written", shown: []evidence{
			{what: "kill -9 of each process at each step", command: `bin/sluice drill --class "kill -9"`, figure: cells},
			{what: "acknowledgements lost, early and doubled", command: `bin/sluice drill --class "acknowledgement"`, figure: cells},
			{what: "one-sided writers: revoke, then verify, then read", command: "go test -count=1 -v ./internal/transport/shm", figure: passes("tests")},
		}},
		{name: "P7", text: "A pool smaller than the context is refused at start", shown: []evidence{
			{what: "both roles", command: "go test -count=1 -v -run TestAPoolSmallerThanTheContextDoesNotStart ./internal/worker", figure: passes("tests")},
		}},
		{name: "P8", text: "Another tenant's activity cannot be read from latency beyond a stated bound", untested: "Untested. Natively no prefix is shared, so there is no cache to time; the queue and the pool can be timed, and nothing here measures by how much."},
		{name: "P9", text: "Every reply has a record that its owner can verify offline", untested: "Untested beyond the record itself: every attempt leaves one, but there is no receipt yet that a tenant could verify.", shown: []evidence{
			{what: "a record whatever happened", command: "go test -count=1 -v ./internal/record", figure: passes("tests")},
			{what: "a full disk is counted, and delays nobody", command: `bin/sluice drill --class "disk full"`, figure: cells},
		}},
		{name: "P10", text: "All of it is on by default, and costs under 1 % of throughput and tail latency", shown: []evidence{
			{what: "the share of processor time in guards, of a process that serves; for A/B and A/A see the file", command: "go run ./bench/native -part share", read: "bench/RESULTS.md", figure: lines(`\d+\.\d+ s of \d+\.\d+ s: \d+\.\d+ %`)},
		}},
	}
}

func machine() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	m := regexp.MustCompile(`model name\s*:\s*(.*)`).FindStringSubmatch(string(b))
	load, _ := os.ReadFile("/proc/loadavg")
	name := "an unknown processor"
	if m != nil {
		name = strings.TrimSpace(m[1])
	}
	return fmt.Sprintf("%d processors (%s), load average %s at the start", strings.Count(string(b), "processor\t"), name, strings.Fields(string(load) + " ?")[0])
}

// took is how long the command ran.
func took(out string) string {
	if m := regexp.MustCompile(`@took (.*)`).FindStringSubmatch(out); m != nil {
		return ", in " + m[1]
	}
	return ""
}

// passes counts the tests that passed and have none below them.
func passes(what string) func(string) string {
	return func(out string) string {
		n := 0
		names := regexp.MustCompile(`--- PASS: (\S+)`).FindAllStringSubmatch(out, -1)
		for _, a := range names {
			leaf := true
			for _, b := range names {
				leaf = leaf && !strings.HasPrefix(b[1], a[1]+"/")
			}
			if leaf {
				n++
			}
		}
		return fmt.Sprintf("%d %s pass%s", n, what, took(out))
	}
}

// lines are what matches, joined.
func lines(pattern string) func(string) string {
	re := regexp.MustCompile(pattern)
	return func(out string) string {
		found := re.FindAllString(out, -1)
		if len(found) == 0 {
			return "nothing was printed that this page knows" + took(out)
		}
		return strings.Join(found, "; ") + took(out)
	}
}

func cells(out string) string {
	return strings.Replace(lines(`\d+ cells: .*`)(out), took(out), "", 1)
}

func residue(out string) string {
	foreign, rows := 0, 0
	for _, m := range regexp.MustCompile(`(?m)\s(\d+)\s+(\d+)/(\d+)\s`).FindAllStringSubmatch(out, -1) {
		rows++
		if m[1] != "0" || m[2] != m[3] {
			foreign++
		}
	}
	return fmt.Sprintf("%d cells, %d of them with foreign bytes or pages missing", rows, foreign)
}

func spin(out string) string {
	rows := regexp.MustCompile(`(?m)^\|.*\| (ok|WRONG)[^|]*\|$`).FindAllStringSubmatch(out, -1)
	ok := 0
	for _, r := range rows {
		if r[1] == "ok" {
			ok++
		}
	}
	return fmt.Sprintf("%d of %d configurations as they should be", ok, len(rows))
}

// large sums up what make model-check printed.
func large(out string) string {
	most, n := 0, 0
	for _, m := range regexp.MustCompile(`(?m)^(?:transfer|one-sided) .* (\d+) states .*<nil>$`).FindAllStringSubmatch(out, -1) {
		n++
		states, _ := strconv.Atoi(m[1]) // digits
		most = max(most, states)
	}
	return fmt.Sprintf("%d sizes hold under every fault at once, the largest has %d states", n, most)
}

func incident(out string) string {
	var r struct {
		Rows []struct {
			On      []string `json:"guards_on"`
			Foreign int      `json:"foreign_bytes"`
		} `json:"rows"`
	}
	if i := strings.IndexByte(out, '{'); i < 0 || json.NewDecoder(strings.NewReader(out[i:])).Decode(&r) != nil {
		return "its output is not JSON"
	}
	all, leaks, none := 0, 0, 0
	for _, row := range r.Rows {
		switch {
		case len(row.On) > 1:
			all++
			if row.Foreign > 0 {
				leaks++
			}
		case len(row.On) == 0 && row.Foreign > 0:
			none++
		}
	}
	s := fmt.Sprintf("%d rows; %d lies with all guards on: %d leak", len(r.Rows), all, leaks)
	if len(r.Rows) > all {
		s += fmt.Sprintf("; with none on %d put another tenant's text into a reply", none)
	}
	return s + took(out)
}

func soaked(out string) string {
	var r struct {
		Pages    uint64  `json:"pages_handed_over"`
		Requests int     `json:"requests"`
		Exact    int     `json:"exact"`
		HungUp   int     `json:"hung_up"`
		Events   uint64  `json:"trace_events_validated"`
		Free     int     `json:"pool_free"`
		Total    int     `json:"pool_total"`
		Nonzero  uint64  `json:"nonzero_bytes_from_outside"`
		Seconds  float64 `json:"seconds"`
	}
	if i := strings.IndexByte(out, '{'); i < 0 || json.NewDecoder(strings.NewReader(out[i:])).Decode(&r) != nil {
		return "its output is not JSON"
	}
	return fmt.Sprintf("%d page hand-overs, %d requests (%d hung up, %d exact), %d trace events valid, %d of %d pages free, %d bytes not zero, %.0f s",
		r.Pages, r.Requests, r.HungUp, r.Exact, r.Events, r.Free, r.Total, r.Nonzero, r.Seconds)
}
