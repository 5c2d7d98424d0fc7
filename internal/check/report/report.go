// Package report writes a check's result for people and for machines: table, JSON, SARIF 2.1.0, JUnit and Markdown.
// The same result gives the same bytes.
package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/finding"
)

// Node is a node as reports show it.
type Node struct {
	Name       string   `json:"name"`
	Role       string   `json:"role"`
	Engine     string   `json:"engine"`
	Version    string   `json:"version"`
	PoolTokens int      `json:"pool_tokens"`
	Context    int      `json:"context"`
	PageSize   int      `json:"page_size"`
	Sources    []string `json:"sources"`

	limit capacity.Limit
}

// Result is what a check found.
type Result struct {
	Nodes    []Node
	Findings []finding.Finding
	Exit     int
	FailOn   finding.Severity
	Passed   []string // files without facts
	Program  string   // name and version of this program
}

// NodeOf turns the facts of a node into its row. context stands in for one that is not known.
func NodeOf(n *facts.Node, context int, version string) Node {
	cf := n.Capacity(context)
	r := Node{Name: Clean(n.Name), Role: Clean(n.Text(facts.Role)), Engine: Clean(n.Text(facts.Engine)), Version: Clean(n.Text(facts.Version)),
		PoolTokens: cf.PoolTokens, Context: cf.Context, PageSize: cf.PageSize, Sources: []string{}}
	if r.Version == "" {
		r.Version = version
	}
	for _, s := range n.Sources() {
		r.Sources = append(r.Sources, Clean(s))
	}
	if n.Int(facts.Context) == 0 && context > 0 {
		r.Sources = append(r.Sources, fmt.Sprintf("--context context=%d", context))
	}
	if cf.PoolTokens > 0 && cf.Context > 0 {
		r.limit = capacity.Node(cf)
	}
	return r
}

// Clean takes control characters out of text that came from outside: a log must not drive a terminal.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r < 0x20, r == 0x7f, r >= 0x80 && r < 0xa0, r == 0x202e, r == 0x202d, r == 0x2066, r == 0x2067, r == 0x2068, r == 0x2069:
			return '?'
		}
		return r
	}, s)
}

// Formats are the names of --format.
var Formats = []string{"table", "json", "sarif", "junit", "md"}

// Write writes r in a format.
func Write(w io.Writer, format string, r Result, o TableOptions, details bool) error {
	for i := range r.Findings {
		f := &r.Findings[i]
		f.Node, f.Message, f.Fix, f.Source = Clean(f.Node), Clean(f.Message), Clean(f.Fix), Clean(f.Source)
	}
	switch format {
	case "json":
		return JSON(w, r, details)
	case "sarif":
		return SARIF(w, r)
	case "junit":
		return JUnit(w, r)
	case "md":
		return Markdown(w, r)
	}
	return Table(w, r, o)
}

// verdict is the last line for people.
func verdict(r Result) string {
	var n [4]int
	waived, blind := 0, 0
	for _, f := range r.Findings {
		if f.Waived != "" {
			waived++
			continue
		}
		n[f.Severity]++
		if f.Blind {
			blind++
		}
	}
	s := fmt.Sprintf("%s; findings: %d high, %d medium, %d low", plural(len(r.Nodes), "node"), n[finding.High], n[finding.Medium], n[finding.Low])
	if waived > 0 {
		s += fmt.Sprintf(", %d waived", waived)
	}
	switch r.Exit {
	case 0:
		s += fmt.Sprintf("; none at or above %s: exit 0", r.FailOn)
	case 1:
		s += fmt.Sprintf("; some at or above %s: exit 1", r.FailOn)
	case 2:
		s += fmt.Sprintf("; %s could not be made: exit 2", plural(max(blind, 1), "comparison"))
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
