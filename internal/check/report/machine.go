package report

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"github.com/sluicekv/sluice/internal/check/finding"
)

type jsonFinding struct {
	ID       string `json:"id"`
	Severity string `json:"severity"`
	Node     string `json:"node"`
	Message  string `json:"message"`
	Fix      string `json:"fix"`
	Source   string `json:"source"`
	*jsonDetails
}

type jsonDetails struct {
	Why       string `json:"why"`
	Reference string `json:"reference"`
	Gateway   string `json:"gateway_covers"`
	How       string `json:"gateway_how,omitempty"`
	Waived    string `json:"waived,omitempty"`
	Blind     bool   `json:"not_compared,omitempty"`
}

// JSON writes {"nodes":[…],"findings":[…],"exit":N}. details adds keys to findings; without them waived findings are
// left out, because nothing would say that they are.
func JSON(w io.Writer, r Result, details bool) error {
	out := struct {
		Nodes    []Node        `json:"nodes"`
		Findings []jsonFinding `json:"findings"`
		Exit     int           `json:"exit"`
	}{Nodes: r.Nodes, Findings: []jsonFinding{}, Exit: r.Exit}
	if out.Nodes == nil {
		out.Nodes = []Node{}
	}
	for _, f := range r.Findings {
		j := jsonFinding{ID: f.ID, Severity: f.Severity.String(), Node: f.Node, Message: f.Message, Fix: f.Fix, Source: f.Source}
		switch {
		case details:
			j.jsonDetails = &jsonDetails{f.Why, f.Link, f.Gateway, f.How, f.Waived, f.Blind}
		case f.Waived != "":
			continue
		}
		out.Findings = append(out.Findings, j)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}

// level is SARIF's word for a severity.
func level(s finding.Severity) string {
	switch s {
	case finding.High:
		return "error"
	case finding.Medium:
		return "warning"
	}
	return "note"
}

// location splits "file:line" (the first of several); a URL has no line.
func location(source string) (uri string, line int) {
	s, _, _ := strings.Cut(source, ", ")
	s, _, _ = strings.Cut(s, " to ")
	if i := strings.LastIndexByte(s, ':'); i > 0 && !strings.HasPrefix(s, "http") {
		if n, err := strconv.Atoi(s[i+1:]); err == nil && n > 0 {
			return s[:i], n
		}
	}
	return s, 0
}

// SARIF writes SARIF 2.1.0: one run, a rule for each kind of finding, a result for each finding.
func SARIF(w io.Writer, r Result) error {
	type text struct {
		Text string `json:"text"`
	}
	type rule struct {
		ID      string         `json:"id"`
		Name    string         `json:"name"`
		Short   text           `json:"shortDescription"`
		Full    text           `json:"fullDescription"`
		HelpURI string         `json:"helpUri,omitempty"`
		Default map[string]any `json:"defaultConfiguration"`
		Props   map[string]any `json:"properties"`
	}
	type region struct {
		StartLine int `json:"startLine"`
	}
	type physical struct {
		Artifact map[string]string `json:"artifactLocation"`
		Region   *region           `json:"region,omitempty"`
	}
	type loc struct {
		Physical *physical           `json:"physicalLocation,omitempty"`
		Logical  []map[string]string `json:"logicalLocations,omitempty"`
	}
	type result struct {
		RuleID       string              `json:"ruleId"`
		RuleIndex    int                 `json:"ruleIndex"`
		Level        string              `json:"level"`
		Message      text                `json:"message"`
		Locations    []loc               `json:"locations"`
		Fingerprints map[string]string   `json:"partialFingerprints"`
		Suppressions []map[string]string `json:"suppressions,omitempty"`
		Props        map[string]any      `json:"properties,omitempty"`
	}
	rules := []rule{}
	index := map[string]int{}
	results := []result{}
	byID := append([]finding.Finding(nil), r.Findings...)
	sort.SliceStable(byID, func(i, j int) bool { return byID[i].ID < byID[j].ID })
	for _, f := range byID {
		if _, ok := index[f.ID]; ok {
			continue
		}
		index[f.ID] = len(rules)
		short := f.ID
		if k, ok := finding.Lookup(f.ID); ok {
			short = k.Title
		} else if m, _, ok := strings.Cut(strings.TrimPrefix(f.Message, "possible: "), " ("); ok {
			short = m
		}
		full := f.Why
		if full == "" {
			full = short
		}
		rules = append(rules, rule{f.ID, f.ID, text{short}, text{full}, f.Link, map[string]any{"level": level(f.Severity)},
			map[string]any{"tags": []string{"security", "kv-isolation"}, "security-severity": securitySeverity(f.Severity)}})
	}
	for _, f := range r.Findings {
		l := loc{}
		uri, line := location(f.Source)
		if uri != "" && !strings.Contains(uri, " ") {
			l.Physical = &physical{Artifact: map[string]string{"uri": strings.ReplaceAll(uri, "\\", "/")}}
			if line > 0 {
				l.Physical.Region = &region{line}
			}
		}
		if f.Node != "" {
			l.Logical = []map[string]string{{"name": f.Node, "kind": "resource"}}
		}
		msg := f.Message
		if f.Fix != "" {
			msg += ". Fix: " + f.Fix
		}
		x := result{RuleID: f.ID, RuleIndex: index[f.ID], Level: level(f.Severity), Message: text{msg}, Locations: []loc{},
			Fingerprints: map[string]string{"sluice/v1": f.ID + "/" + f.Node}, Props: map[string]any{"severity": f.Severity.String(), "gatewayCovers": f.Gateway}}
		if l.Physical != nil || l.Logical != nil {
			x.Locations = append(x.Locations, l)
		}
		if f.Waived != "" {
			x.Suppressions = []map[string]string{{"kind": "external", "justification": f.Waived}}
		}
		results = append(results, x)
	}
	out := map[string]any{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0",
		"runs": []any{map[string]any{
			"tool": map[string]any{"driver": map[string]any{"name": "sluice check", "informationUri": "https://github.com/sluicekv/sluice",
				"semanticVersion": semantic(r.Program), "rules": rules}},
			"results":     results,
			"invocations": []any{map[string]any{"executionSuccessful": r.Exit != 2, "exitCode": r.Exit}},
			"columnKind":  "utf16CodeUnits",
		}},
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}

// semantic is the program's version if it is one, else 0.0.0.
func semantic(program string) string {
	v := strings.TrimPrefix(program[strings.LastIndexByte(program, ' ')+1:], "v")
	if strings.Count(v, ".") == 2 && len(v) > 4 && v[0] >= '0' && v[0] <= '9' {
		return v
	}
	return "0.0.0"
}

func securitySeverity(s finding.Severity) string {
	return [...]string{"0.0", "3.0", "5.5", "8.5"}[s]
}

// JUnit writes a test suite: a case for each node, failed by findings at or above the threshold, and one for the fleet.
func JUnit(w io.Writer, r Result) error {
	type failure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
	type skipped struct {
		Message string `xml:"message,attr"`
	}
	type tc struct {
		Class    string    `xml:"classname,attr"`
		Name     string    `xml:"name,attr"`
		Time     string    `xml:"time,attr"`
		Failures []failure `xml:"failure"`
		Errors   []failure `xml:"error"`
		Skipped  *skipped  `xml:"skipped"`
		Out      string    `xml:"system-out,omitempty"`
	}
	type suite struct {
		Name     string `xml:"name,attr"`
		Tests    int    `xml:"tests,attr"`
		Failures int    `xml:"failures,attr"`
		Errors   int    `xml:"errors,attr"`
		Skipped  int    `xml:"skipped,attr"`
		Time     string `xml:"time,attr"`
		Cases    []tc   `xml:"testcase"`
	}
	s := suite{Name: "sluice check", Time: "0"}
	cases := map[string]*tc{}
	order := []string{""}
	cases[""] = &tc{Class: "sluice.check", Name: "fleet", Time: "0"}
	for _, n := range r.Nodes {
		if cases[n.Name] == nil {
			cases[n.Name] = &tc{Class: "sluice.check", Name: n.Name, Time: "0"}
			order = append(order, n.Name)
		}
	}
	for _, f := range r.Findings {
		c := cases[f.Node]
		if c == nil {
			c = &tc{Class: "sluice.check", Name: f.Node, Time: "0"}
			cases[f.Node] = c
			order = append(order, f.Node)
		}
		body := fmt.Sprintf("%s\nwhy: %s (%s)\nfix: %s\ngateway covers: %s\nsource: %s\n", f.Message, f.Why, f.Link, f.Fix, f.Gateway, f.Source)
		x := failure{Message: f.ID + ": " + f.Message, Type: f.Severity.String(), Text: body}
		switch {
		case f.Waived != "":
			c.Out += "waived: " + f.ID + ": " + Clean(f.Waived) + "\n"
		case f.Severity >= r.FailOn && f.Severity > finding.Info:
			c.Failures = append(c.Failures, x)
		case f.Blind:
			c.Errors = append(c.Errors, x)
		default:
			c.Out += f.Severity.String() + ": " + f.ID + ": " + f.Message + "\n"
		}
	}
	for _, name := range order {
		c := cases[name]
		s.Tests++
		if len(c.Failures) > 0 {
			s.Failures++
		} else if len(c.Errors) > 0 {
			s.Errors++
		}
		s.Cases = append(s.Cases, *c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []suite  `xml:"testsuite"`
	}{Suites: []suite{s}}); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// Markdown writes the result for a pull request.
func Markdown(w io.Writer, r Result) error {
	var b strings.Builder
	b.WriteString("## sluice check\n\n")
	fmt.Fprintf(&b, "%s\n\n", verdict(r))
	if len(r.Nodes) > 0 {
		b.WriteString("| node | role | engine | version | pool | context | limit | page |\n| --- | --- | --- | --- | ---: | ---: | ---: | ---: |\n")
		for _, n := range r.Nodes {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", cell(n.Name), dash(cell(n.Role)), dash(cell(n.Engine)), dash(cell(n.Version)), num(n.PoolTokens), num(n.Context), num(n.limit.Tokens), num(n.PageSize))
		}
		b.WriteByte('\n')
	}
	if len(r.Findings) > 0 {
		b.WriteString("| severity | finding | node | what | fix | gateway covers | source |\n| --- | --- | --- | --- | --- | --- | --- |\n")
		for _, f := range r.Findings {
			id := "[" + cell(f.ID) + "](" + f.Link + ")"
			if f.Link == "" {
				id = cell(f.ID)
			}
			sev := f.Severity.String()
			if f.Waived != "" {
				sev = "waived (" + cell(f.Waived) + ")"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", sev, id, cell(f.Node), cell(f.Message), cell(f.Fix), f.Gateway, cell(f.Source))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cell makes text safe for a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;", ">", "&gt;", "`", "'", "[", "\\[", "]", "\\]").Replace(Clean(s))
}
