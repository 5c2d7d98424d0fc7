package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/check/finding"
)

// Waiver excuses findings of one id on the nodes of a scope, until it expires.
type Waiver struct {
	ID      string `yaml:"id"`
	Scope   string `yaml:"scope"` // a node's name or a pattern (*, ?); "*" for all and for the fleet
	Reason  string `yaml:"reason"`
	Owner   string `yaml:"owner"`
	Expires string `yaml:"expires"` // the last day on which it holds, YYYY-MM-DD, UTC

	line    int
	expires time.Time
}

// ReadWaivers reads a waivers file: waivers: [{id, scope, reason, owner, expires}]. All fields are needed.
func ReadWaivers(file string) ([]Waiver, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseWaivers(b, file)
}

func parseWaivers(b []byte, file string) ([]Waiver, error) {
	var doc struct {
		Waivers []Waiver `yaml:"waivers"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	lines := waiverLines(b)
	var errs []error
	for i := range doc.Waivers {
		w := &doc.Waivers[i]
		if i < len(lines) {
			w.line = lines[i]
		}
		bad := func(format string, a ...any) {
			errs = append(errs, fmt.Errorf("%s:%d: waiver %d: "+format, append([]any{file, w.line, i + 1}, a...)...))
		}
		for _, f := range []struct{ name, value string }{{"id", w.ID}, {"scope", w.Scope}, {"reason", w.Reason}, {"owner", w.Owner}, {"expires", w.Expires}} {
			if strings.TrimSpace(f.value) == "" {
				bad("%s is missing", f.name)
			}
		}
		t, err := time.Parse("2006-01-02", w.Expires)
		if err != nil && w.Expires != "" {
			bad("expires %q is no day (YYYY-MM-DD)", w.Expires)
		}
		w.expires = t.AddDate(0, 0, 1)
		if _, err := path.Match(w.Scope, ""); err != nil {
			bad("scope %q is no pattern", w.Scope)
		}
	}
	return doc.Waivers, errors.Join(errs...)
}

func waiverLines(b []byte) (lines []int) {
	var root yaml.Node
	if yaml.Unmarshal(b, &root) != nil || len(root.Content) == 0 {
		return nil
	}
	m := root.Content[0]
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == "waivers" {
			for _, c := range m.Content[i+1].Content {
				lines = append(lines, c.Line)
			}
		}
	}
	return lines
}

// applyWaivers marks the findings that are excused and adds a finding for each waiver that is expired or excuses nothing.
func applyWaivers(fs []finding.Finding, ws []Waiver, file string, now time.Time) []finding.Finding {
	var extra []finding.Finding
	for _, w := range ws {
		at := fmt.Sprintf("%s:%d", file, w.line)
		if !now.Before(w.expires) {
			f := finding.New(finding.WaiverExpired, finding.High, "", at, "renew it with a new day and reason, or fix what it excuses",
				"the waiver of %s for %s (%s, %s) expired after %s", w.ID, w.Scope, w.Owner, w.Reason, w.Expires)
			extra = append(extra, f)
			continue
		}
		used := false
		for i := range fs {
			f := &fs[i]
			if !strings.EqualFold(f.ID, w.ID) || !covers(w.Scope, f.Node) {
				continue
			}
			used = true
			if f.Waived == "" {
				f.Waived = fmt.Sprintf("%s, until %s (%s)", w.Reason, w.Expires, w.Owner)
			}
		}
		if !used {
			extra = append(extra, finding.New(finding.WaiverUnused, finding.Low, "", at, "delete it", "the waiver of %s for %s matches no finding", w.ID, w.Scope))
		}
	}
	fs = append(fs, extra...)
	finding.Sort(fs)
	return fs
}

func covers(scope, node string) bool {
	if scope == "*" || scope == node {
		return true
	}
	// A pattern may name a node of a folder by its last part.
	for _, n := range []string{node, path.Base(node)} {
		if ok, _ := path.Match(scope, n); ok {
			return true
		}
	}
	return false
}
