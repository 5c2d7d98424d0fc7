package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/sluicekv/sluice/internal/check/finding"
)

// TableOptions say what a terminal can show.
type TableOptions struct {
	Color bool
	Width int // 0: 120
	// All shows each finding of each node, remarks, and the whole of low findings; else equal findings of many nodes are one
	// row.
	All bool
}

const (
	red, yellow, cyan, grey, bold, plain = "\x1b[31m", "\x1b[33m", "\x1b[36m", "\x1b[90m", "\x1b[1m", "\x1b[0m"
)

func colorOf(s finding.Severity) string {
	switch s {
	case finding.High:
		return red
	case finding.Medium:
		return yellow
	case finding.Low:
		return cyan
	}
	return grey
}

// maxRows is how many nodes a table lists before it says only how many more there are.
const maxRows = 40

// Table writes the result for people.
func Table(out io.Writer, r Result, o TableOptions) error {
	w := bufio.NewWriter(out)
	paint := func(c, s string) string {
		if !o.Color {
			return s
		}
		return c + s + plain
	}
	width := o.Width
	if width <= 0 {
		width = 120
	}
	rows := [][]string{{"NODE", "ROLE", "ENGINE", "VERSION", "POOL", "CONTEXT", "LIMIT", "PAGE"}}
	for i, n := range r.Nodes {
		if i == maxRows && len(r.Nodes) > maxRows+5 && !o.All {
			rows = append(rows, []string{fmt.Sprintf("… and %d more", len(r.Nodes)-maxRows)})
			break
		}
		rows = append(rows, []string{n.Name, dash(n.Role), dash(n.Engine), dash(n.Version), num(n.PoolTokens), num(n.Context), num(n.limit.Tokens), num(n.PageSize)})
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows[:] {
		for i, c := range row {
			if len(row) > 1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(c))
			}
		}
	}
	if len(r.Nodes) > 0 {
		for i, row := range rows {
			var b strings.Builder
			for j, c := range row {
				pad := strings.Repeat(" ", max(widths[j]-utf8.RuneCountInString(c), 0))
				if j >= 4 {
					b.WriteString(pad + c)
				} else {
					b.WriteString(c + pad)
				}
				b.WriteString("  ")
			}
			line := strings.TrimRight(b.String(), " ")
			if i == 0 {
				line = paint(bold, line)
			}
			fmt.Fprintln(w, line)
		}
		fmt.Fprintln(w)
	}
	hidden := 0
	var low [][]finding.Finding
	for _, g := range grouped(r.Findings, o.All) {
		f := g[0]
		switch {
		case f.Severity == finding.Info && !o.All:
			hidden += len(g)
			continue
		case f.Severity == finding.Low && !o.All && f.Waived == "":
			low = append(low, g)
			continue
		}
		where := f.Node
		if len(g) > 1 {
			where = fmt.Sprintf("%s and %d more nodes", f.Node, len(g)-1)
		}
		head := paint(colorOf(f.Severity), pad(strings.ToUpper(f.Severity.String()), 6)) + "  " + paint(bold, f.ID)
		if where != "" {
			head += "  " + where
		}
		if f.Waived != "" {
			head += paint(grey, "  waived: "+Clean(f.Waived))
		}
		fmt.Fprintln(w, head)
		para(w, width, "", f.Message)
		if f.Severity == finding.Info || f.Waived != "" {
			continue
		}
		if f.Why != "" {
			para(w, width, "why:     ", f.Why+" ("+f.Link+")")
		}
		if f.Fix != "" {
			para(w, width, "fix:     ", f.Fix)
		}
		gw := f.Gateway
		if f.How != "" && gw != "no" {
			gw += ", " + f.How
		}
		para(w, width, "gateway: ", gw)
		if f.Source != "" {
			para(w, width, "source:  ", f.Source)
		}
	}
	lowLines(w, width, low, func(s string) string { return paint(colorOf(finding.Low), s) })
	if len(r.Findings) > 0 {
		fmt.Fprintln(w)
	}
	if hidden > 0 {
		fmt.Fprintf(w, "%d remarks are not shown; --all shows them\n", hidden)
	}
	if k := len(r.Passed); k > 0 {
		fmt.Fprintf(w, "%d files of the folders say nothing about an engine and were passed over\n", k)
	}
	fmt.Fprintln(w, verdict(r))
	return w.Flush()
}

// lowLines writes low findings as a line each: the same one on several nodes is one line.
func lowLines(w io.Writer, width int, gs [][]finding.Finding, paint func(string) string) {
	byID := map[string][]finding.Finding{}
	var order []string
	wide := 0
	for _, g := range gs {
		id := g[0].ID
		if byID[id] == nil {
			order = append(order, id)
			wide = max(wide, len(id))
		}
		byID[id] = append(byID[id], g...)
	}
	for _, id := range order {
		fs := byID[id]
		where := []string{}
		for i, f := range fs {
			if i == 2 && len(fs) > 3 {
				where = append(where, fmt.Sprintf("and %d more", len(fs)-2))
				break
			}
			if f.Node != "" && (len(where) == 0 || where[len(where)-1] != f.Node) {
				where = append(where, f.Node)
			}
		}
		text := fs[0].Message
		if len(where) > 0 {
			text = strings.Join(where, ", ") + ": " + text
		}
		label := pad(id, wide) + "  "
		for i, line := range wrap(text, max(width-8-len(label), 40)) {
			head := paint("LOW") + "     " + label
			if i > 0 {
				head = strings.Repeat(" ", 8+len(label))
			}
			fmt.Fprintln(w, head+line)
		}
	}
	if len(order) > 0 {
		fmt.Fprintln(w, "        what to change: --all, or sluice check explain ID")
	}
}

// grouped puts findings that differ in the node only into one row when there are many.
func grouped(fs []finding.Finding, all bool) (gs [][]finding.Finding) {
	const many = 3
	type key struct {
		id, fix string
		s       finding.Severity
		waived  bool
	}
	count := map[key]int{}
	k := func(f finding.Finding) key {
		fix := f.Fix
		if f.Node == "" {
			fix += "\x00" + f.Message
		}
		return key{f.ID, fix, f.Severity, f.Waived != ""}
	}
	for _, f := range fs {
		count[k(f)]++
	}
	at := map[key]int{}
	for _, f := range fs {
		x := k(f)
		if all || count[x] <= many {
			gs = append(gs, []finding.Finding{f})
			continue
		}
		if i, ok := at[x]; ok {
			gs[i] = append(gs[i], f)
			continue
		}
		at[x] = len(gs)
		gs = append(gs, []finding.Finding{f})
	}
	return gs
}

// para writes a paragraph with a label, wrapped and indented.
func para(w io.Writer, width int, label, text string) {
	const indent = "        "
	room := max(width-len(indent)-len(label), 40)
	first := true
	for _, line := range wrap(text, room) {
		l := label
		if !first {
			l = strings.Repeat(" ", len(label))
		}
		first = false
		fmt.Fprintf(w, "%s%s%s\n", indent, l, line)
	}
}

func wrap(s string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = word
			continue
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(n-len(s), 0)) }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func num(n int) string {
	if n == 0 {
		return "-"
	}
	return finding.Thousands(n)
}
