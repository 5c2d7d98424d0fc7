package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/finding"
)

func many(n int) Result {
	r := Result{FailOn: finding.High}
	for i := range n {
		node := &facts.Node{Name: strings.Repeat("n", 1) + string(rune('a'+i%26)) + strings.Repeat("x", i/26)}
		node.Put(facts.Pool, "1000", facts.Source{Name: "f", Line: 1}, facts.Said)
		node.Put(facts.Context, "500", facts.Source{Name: "f", Line: 1}, facts.Said)
		r.Nodes = append(r.Nodes, NodeOf(node, 0, ""))
		r.Findings = append(r.Findings, finding.New(finding.MetricsOff, finding.Medium, node.Name, "f:1", "pass --enable-metrics", "/metrics is off"))
	}
	return r
}

func TestATableOfManyNodesStaysShort(t *testing.T) {
	var b bytes.Buffer
	if err := Table(&b, many(500), TableOptions{}); err != nil {
		t.Fatal(err)
	}
	out := b.String()
	if n := strings.Count(out, "\n"); n > 60 {
		t.Errorf("%d lines", n)
	}
	for _, want := range []string{"… and 460 more", "and 499 more nodes", "500 nodes; findings: 0 high, 500 medium"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	b.Reset()
	if err := Table(&b, many(500), TableOptions{All: true}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "metrics-off"); n != 500 {
		t.Errorf("--all shows %d of 500", n)
	}
}

func TestSourcesBecomeLocations(t *testing.T) {
	for source, want := range map[string]struct {
		uri  string
		line int
	}{
		"a/b.log:12": {"a/b.log", 12}, "a.log:3, b.log:4": {"a.log", 3}, "a.log:3 to a.log:9": {"a.log", 3}, "http://h:1/x": {"http://h:1/x", 0}, "-:7": {"-", 7}, "": {"", 0}, "a.json": {"a.json", 0},
	} {
		if uri, line := location(source); uri != want.uri || line != want.line {
			t.Errorf("%q: %q %d", source, uri, line)
		}
	}
}

func TestMarkdownCellsCannotBreakTheTable(t *testing.T) {
	r := Result{Findings: []finding.Finding{finding.New(finding.MetricsOff, finding.Low, "a|b<script>", "f", "x`y", "line\nbreak | [link](x)")}}
	var b bytes.Buffer
	if err := Markdown(&b, r); err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(b.String()) {
		if strings.HasPrefix(l, "| low") && (strings.Contains(l, "<script>") || strings.Contains(l, "](x)") && !strings.Contains(l, "\\](x)") || strings.Count(l, "|")-strings.Count(l, "\\|") != 8) {
			t.Errorf("%q", l)
		}
	}
}

func TestWaivedFindingsAreNotInJSONWithoutDetails(t *testing.T) {
	f := finding.New(finding.MetricsOff, finding.Low, "n", "f", "x", "m")
	f.Waived = "because"
	for _, details := range []bool{false, true} {
		var b bytes.Buffer
		if err := JSON(&b, Result{Findings: []finding.Finding{f}}, details); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(b.String(), "metrics-off"); got != details {
			t.Errorf("details %v: %s", details, b.String())
		}
	}
}
