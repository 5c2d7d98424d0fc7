package main

import (
	"strings"
	"testing"
	"time"
)

// What went wrong stands in the page beside what went right.
func TestTheReportSaysWhatFailed(t *testing.T) {
	r := results{
		Date: "2026-01-02", Began: time.Unix(0, 0), Ended: time.Unix(1800, 0), Start: 61, Memory: []int64{2e9, 1e9},
		Misuse: []misused{{Date: "2026-01-02", Cases: 11, AtEngines: 4, EndedStraight: true, Handles: 64, Recorded: 55}},
		Odd: &oddRead{Date: "2026-01-02", Bodies: 9, Statuses: map[int]int{502: 2, 200: 7}, Failed: map[string]int{"502 engine_failed": 2}, Lapsed: 1,
			Incidents: map[string]float64{`{guard="answered"}`: 1}},
		Late: &lateRead{"2026-01-02", []lateOutcome{{Guard: "first-token", Asked: "chat, stream", Status: 502, Incident: true, Incidents: 1, Detail: "they differ"}}},
		Traffic: []travelled{
			{Date: "2026-01-02", Asked: 5, Fates: [numFates]int{3, 1, 1, 0}, Kinds: map[string]*[numFates]int{"chat": {3, 1, 1, 0}}, Incidents: 2, Lapsed: 1},
			{Date: "2026-01-02", First: true, Asked: 2, Fates: [numFates]int{2}, Kinds: map[string]*[numFates]int{"tool": {2}}, Compared: map[string]float64{`{outcome="compared"}`: 2}},
		},
		Clients: []string{"one: 40 served"}, Faults: []string{"traffic: 1 replies\nwere wrong"},
	}
	var b strings.Builder
	r.table(&b)
	for _, want := range []string{
		"00:00 to 00:30 (UTC)", "Start of the pair 61 s; memory 2.0 and 1.0 GB", "| 2026-01-02: 11 cases; a handle in 64 bodies; 55 recorded requests | no | 4 | 0 | yes | no |",
		"9 in 0.0 minutes, by status: 200: 7, 502: 2", "* 2 times 502 engine_failed", "(by prefill's own count): 1",
		"| prefill is not asked; first tokens are compared: chat, stream | 502 | no | first-token: 1 | they differ |",
		"| chat | 5 | 3 | 1 | 1 | 0 |", "| all | 7 | 5 | 1 | 1 | 0 | 2 |", "prefill's lease, by prefill's count 1 times", `first tokens: {outcome="compared"} 2`, "one: 40 served", "**Failed**: traffic: 1 replies were wrong",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
}
