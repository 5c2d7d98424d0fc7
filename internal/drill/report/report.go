// Package report writes a drill's matrix as people, programs and continuous integration want it.
package report

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluicekv/sluice/internal/drill"
)

// Formats that Write knows.
var Formats = []string{"table", "json", "junit", "html"}

// Write writes a matrix in a format.
func Write(w io.Writer, format string, m drill.Matrix) error {
	switch format {
	case "table":
		return table(w, m)
	case "json":
		return asJSON(w, m)
	case "junit":
		return junit(w, m)
	case "html":
		return html(w, m)
	}
	return fmt.Errorf("drill: no format is named %q; there are %s", format, strings.Join(Formats, ", "))
}

func asJSON(w io.Writer, m drill.Matrix) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(struct {
		Cells []drill.Cell `json:"cells"`
	}{m.Cells})
}

// state is a cell in a word.
func state(c drill.Cell) string {
	switch {
	case c.Skipped != "":
		return "not run"
	case c.Red():
		return "RED"
	}
	return "green"
}

// without is what a cell shows without its guard.
func without(c drill.Cell) string {
	switch {
	case c.RedWithoutGuard == nil:
		return "-"
	case *c.RedWithoutGuard:
		return "red without " + c.Removed + ": " + strings.Join(c.Without, "; ")
	case c.CaughtNextBy == "":
		return "without " + c.Removed + ": harmless here"
	}
	return "without " + c.Removed + ": " + c.CaughtNextBy
}

func table(w io.Writer, m drill.Matrix) error {
	if m.Unsafe {
		fmt.Fprintln(w, "UNSAFE build: cells that name a guard were run again without it.")
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CLASS\tPHASE\tFIRED\tMET BY\tSTATUS\tFOREIGN\tPOOL FREE\tWITHOUT ITS GUARD\tCELL\tINJECTED")
	for _, c := range m.Cells {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%d/%d\t%s\t%s\t%s\n", c.Class, c.Phase, c.Fired, dash(c.Guard), c.Status, c.ForeignBytes,
			c.PoolFree, c.PoolTotal, short(without(c)), state(c), c.Injected)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, c := range m.Red() {
		fmt.Fprintf(w, "RED: %s at %s (%s): %s\n", c.Class, c.Phase, c.Injected, strings.Join(c.Why, "; "))
	}
	_, err := fmt.Fprintln(w, summary(m))
	return err
}

func summary(m drill.Matrix) string {
	fired, skipped, red, without, next := 0, 0, len(m.Red()), 0, 0
	for _, c := range m.Cells {
		fired += c.Fired
		if c.Skipped != "" {
			skipped++
		}
		if c.RedWithoutGuard != nil {
			if *c.RedWithoutGuard {
				without++
			} else {
				next++
			}
		}
	}
	s := fmt.Sprintf("%d cells: %d green, %d red, %d not run; faults fired %d times; %d trace events validated; %d fleets; seed %d; %s",
		len(m.Cells), len(m.Cells)-red-skipped, red, skipped, fired, m.Events, m.Fleets, m.Seed, m.Took.Round(time.Second/10))
	if m.Unsafe {
		s += fmt.Sprintf("; without their guard %d cells are red, %d are caught by the next", without, next)
	}
	return s
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func short(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

type suite struct {
	XMLName  xml.Name   `xml:"testsuite"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Skipped  int        `xml:"skipped,attr"`
	Time     string     `xml:"time,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Time    string   `xml:"time,attr"`
	Failure *failure `xml:"failure,omitempty"`
	Skipped *skipped `xml:"skipped,omitempty"`
	Out     string   `xml:"system-out,omitempty"`
}

type failure struct {
	Message string `xml:"message,attr"`
}

type skipped struct {
	Message string `xml:"message,attr"`
}

func junit(w io.Writer, m drill.Matrix) error {
	s := suite{Name: "sluice drill", Tests: len(m.Cells), Failures: len(m.Red()), Time: fmt.Sprintf("%.3f", m.Took.Seconds())}
	for _, c := range m.Cells {
		t := testCase{Class: "sluice.drill." + c.Class, Name: c.Phase + ": " + c.Injected, Time: fmt.Sprintf("%.3f", c.Took.Seconds())}
		t.Out = fmt.Sprintf("fired %d, met by %s, status %d, foreign bytes %d, pool %d/%d, %s", c.Fired, dash(c.Guard), c.Status, c.ForeignBytes, c.PoolFree, c.PoolTotal, without(c))
		if c.Red() {
			t.Failure = &failure{strings.Join(c.Why, "; ")}
		}
		if c.Skipped != "" {
			t.Skipped = &skipped{c.Skipped}
			s.Skipped++
		}
		s.Cases = append(s.Cases, t)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", " ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
