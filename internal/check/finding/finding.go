// Package finding holds what is wrong with a fleet, and the rules that find it.
//
// A rule is a pure function of the facts: it neither reads nor waits, so the same facts give the same findings in the
// same order. THE comparison, pool against context, is capacity.Node and capacity.Pair and nothing else.
package finding

import (
	"fmt"
	"slices"
	"strings"
)

// Severity of a finding. Info never fails a check.
type Severity uint8

const (
	Info   Severity = iota
	Low             // worth knowing; nothing leaks by it alone
	Medium          // can corrupt or leak under conditions that are not shown to hold here, or a fact is missing
	High            // by its facts this fleet can leak or corrupt, or has
)

var severities = [...]string{"info", "low", "medium", "high"}

func (s Severity) String() string { return severities[s] }

// ParseSeverity reads a severity's name.
func ParseSeverity(s string) (Severity, error) {
	for i, n := range severities {
		if s == n {
			return Severity(i), nil
		}
	}
	return 0, fmt.Errorf("severity %q is not one of low, medium, high", s)
}

// Finding is one thing that is wrong.
type Finding struct {
	ID       string
	Severity Severity
	Node     string // name, "" for the fleet
	Message  string // the numbers or values compared
	Fix      string // what to change: the flag and the value
	Source   string // where the facts that decide were read
	Why      string // one sentence
	Link     string // public source of the why
	Gateway  string // yes | partly | no: whether a sluice gateway in front covers it
	How      string // how the gateway does
	// Blind says that a comparison could not be made because of it: the check is not complete.
	Blind bool
	// Waived is the reason of the waiver that covers the finding, "" if none does.
	Waived string
}

// Kind is what all findings of one ID have in common.
type Kind struct {
	ID      string
	Title   string
	Why     string
	Link    string
	Gateway string
	How     string
	Explain string // more, for `sluice check explain`
}

// add makes a finding of kind id.
func (c *collector) add(id string, s Severity, node, source, fix, format string, a ...any) *Finding {
	k, ok := kinds[id]
	if !ok {
		panic("finding: no kind " + id)
	}
	c.fs = append(c.fs, Finding{ID: id, Severity: s, Node: node, Message: fmt.Sprintf(format, a...), Fix: fix, Source: source,
		Why: k.Why, Link: k.Link, Gateway: k.Gateway, How: k.How})
	return &c.fs[len(c.fs)-1]
}

type collector struct{ fs []Finding }

// Sort puts findings in the order of reports: severity, then those about this fleet before advisories, then id, node,
// message.
func Sort(fs []Finding) {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		if a.Severity != b.Severity {
			return int(b.Severity) - int(a.Severity)
		}
		if x, y := rank(a.ID), rank(b.ID); x != y {
			return x - y
		}
		for _, d := range []int{strings.Compare(a.ID, b.ID), strings.Compare(a.Node, b.Node), strings.Compare(a.Message, b.Message)} {
			if d != 0 {
				return d
			}
		}
		return strings.Compare(a.Source, b.Source)
	})
}

// rank puts THE comparison first and advisories after what was seen here.
func rank(id string) int {
	switch _, own := kinds[id]; {
	case id == PoolBelowContext || id == RefusedToStart:
		return 0
	case own:
		return 1
	}
	return 2
}

// Exit is a check's exit code: 1 if a finding that is not waived is at or above failOn, else 2 if a comparison could not
// be made, else 0.
func Exit(fs []Finding, failOn Severity) int {
	exit := 0
	for _, f := range fs {
		switch {
		case f.Waived != "":
		case f.Severity >= failOn && f.Severity > Info:
			return 1
		case f.Blind:
			exit = 2
		}
	}
	return exit
}

// New makes a finding of kind id outside the rules.
func New(id string, s Severity, node, source, fix, format string, a ...any) Finding {
	var c collector
	return *c.add(id, s, node, source, fix, format, a...)
}
