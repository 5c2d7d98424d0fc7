// Package advisory is the database of known faults that a fleet's configuration can make reachable.
//
// Each entry is an OSV 1.7 record. Versions alone mis-state this class of fault (a leak needs a pool smaller than the
// context, not only a release), so each carries a predicate over facts in database_specific. The embedded database is
// read at start and checked whole; a signed file may add to it. Nothing is fetched. Identifiers (SGL-KV-01) are this
// project's own; a record's aliases are its public ones.
package advisory

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// SchemaVersion is the OSV schema that entries follow.
const SchemaVersion = "1.7.5"

// Entry is one OSV record, as far as it is used here.
type Entry struct {
	SchemaVersion string      `json:"schema_version"`
	ID            string      `json:"id"`
	Modified      time.Time   `json:"modified"`
	Published     time.Time   `json:"published"`
	Aliases       []string    `json:"aliases,omitempty"`
	Summary       string      `json:"summary"`
	Details       string      `json:"details"`
	Affected      []Affected  `json:"affected"`
	References    []Reference `json:"references"`
	Specific      struct {
		Sluice Specific `json:"sluice"`
	} `json:"database_specific"`

	predicate Predicate
}

// Affected is a package and the ranges of its releases.
type Affected struct {
	Package Package `json:"package,omitzero"`
	Ranges  []Range `json:"ranges"`
}

// Package names a package in its ecosystem.
type Package struct {
	Ecosystem string `json:"ecosystem"`
	Name      string `json:"name"`
}

// Range is a list of events in order of release.
type Range struct {
	Type   string  `json:"type"`
	Events []Event `json:"events"`
}

// Event is where a fault came or went. Exactly one field is set.
type Event struct {
	Introduced   string `json:"introduced,omitempty"`
	Fixed        string `json:"fixed,omitempty"`
	LastAffected string `json:"last_affected,omitempty"`
}

// Reference is a public link.
type Reference struct {
	Type string `json:"type"`
	URL  string `json:"url"`
}

// Specific is what this program needs beside OSV.
type Specific struct {
	Engine     string  `json:"engine"`              // sglang | vllm | … | any
	Scope      string  `json:"scope"`               // node | pair
	Predicate  string  `json:"predicate"`           // over facts
	Severity   string  `json:"severity"`            // low | medium | high: what it does to isolation, not a CVSS score
	Confidence string  `json:"confidence"`          // high | medium | low: how sure the ranges are
	Uncertain  []Range `json:"uncertain,omitempty"` // releases that may or may not be affected
	Fix        string  `json:"fix"`                 // what to change
	Gateway    string  `json:"gateway"`             // yes | partly | no: whether a sluice gateway in front covers it
	Note       string  `json:"gateway_note,omitempty"`
}

// Newest is the newest release of each engine that the embedded database was made for.
var Newest = map[string]string{"sglang": "0.5.23", "vllm": "0.32.0"}

//go:embed db/*.json
var embedded embed.FS

var load = sync.OnceValues(func() ([]*Entry, error) {
	var es []*Entry
	err := fs.WalkDir(embedded, "db", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := embedded.ReadFile(path)
		if err != nil {
			return err
		}
		e, err := Parse(b)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if want := "db/" + e.ID + ".json"; want != path {
			return fmt.Errorf("%s holds %s", path, e.ID)
		}
		es = append(es, e)
		return nil
	})
	sortEntries(es)
	return es, err
})

// Embedded is the database in this binary, in order of id.
func Embedded() ([]*Entry, error) { return load() }

// Parse reads and checks one record.
func Parse(b []byte) (*Entry, error) {
	var e Entry
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, err
	}
	return &e, e.check()
}

// check holds a record to the OSV rules that matter and to this database's own.
func (e *Entry) check() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(e.ID+": "+format, a...)) }
	if !strings.HasPrefix(e.SchemaVersion, "1.7") {
		bad("schema_version %q is not 1.7", e.SchemaVersion)
	}
	if e.ID == "" || strings.ContainsAny(e.ID, " /\\") {
		bad("id is not usable")
	}
	if e.Modified.IsZero() || e.Published.IsZero() || e.Modified.Before(e.Published) {
		bad("modified and published are missing or out of order")
	}
	if e.Summary == "" || e.Details == "" || len(e.Summary) > 160 {
		bad("summary (at most 160 characters) and details are needed")
	}
	if len(e.Affected) == 0 {
		bad("affected is empty")
	}
	for _, a := range e.Affected {
		for _, r := range a.Ranges {
			if err := r.check(); err != nil {
				bad("%v", err)
			}
		}
	}
	if len(e.References) == 0 {
		bad("no public link")
	}
	for _, r := range e.References {
		u, err := url.Parse(r.URL)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			bad("reference %q is no https link", r.URL)
		}
		if !slices.Contains([]string{"ADVISORY", "ARTICLE", "DETECTION", "DISCUSSION", "REPORT", "FIX", "INTRODUCED", "GIT", "PACKAGE", "EVIDENCE", "WEB"}, r.Type) {
			bad("reference type %q", r.Type)
		}
	}
	s := e.Specific.Sluice
	for _, r := range s.Uncertain {
		if err := r.check(); err != nil {
			bad("uncertain: %v", err)
		}
	}
	for _, c := range []struct {
		name, value string
		of          []string
	}{
		{"scope", s.Scope, []string{"node", "pair"}},
		{"severity", s.Severity, []string{"low", "medium", "high"}},
		{"confidence", s.Confidence, []string{"low", "medium", "high"}},
		{"gateway", s.Gateway, []string{"yes", "partly", "no"}},
	} {
		if !slices.Contains(c.of, c.value) {
			bad("%s is %q, not one of %s", c.name, c.value, strings.Join(c.of, ", "))
		}
	}
	if s.Engine == "" || s.Fix == "" {
		bad("engine and fix are needed")
	}
	p, err := ParsePredicate(s.Predicate, s.Scope == "pair")
	if err != nil {
		bad("%v", err)
	}
	e.predicate = p
	return errors.Join(errs...)
}

func (r Range) check() error {
	if r.Type != "ECOSYSTEM" && r.Type != "SEMVER" {
		return fmt.Errorf("range type %q", r.Type)
	}
	if len(r.Events) == 0 || r.Events[0].Introduced == "" {
		return errors.New("a range begins with introduced")
	}
	last := ""
	for i, ev := range r.Events {
		set := 0
		for _, v := range []string{ev.Introduced, ev.Fixed, ev.LastAffected} {
			if v == "" {
				continue
			}
			set++
			if _, ok := ParseVersion(v); !ok && v != "0" {
				return fmt.Errorf("%q is no release", v)
			}
			if last != "" && last != "0" && Compare(v, last) < 0 {
				return fmt.Errorf("%q comes before %q", v, last)
			}
			last = v
		}
		if set != 1 || (i%2 == 0) != (ev.Introduced != "") {
			return errors.New("events must alternate: introduced, then fixed or last_affected")
		}
	}
	return nil
}

// Predicate is the parsed predicate of a checked entry.
func (e *Entry) Predicate() Predicate { return e.predicate }

// Link is the first public link.
func (e *Entry) Link() string { return e.References[0].URL }

// Ranges is all ranges as text: ">=0.5.4 <0.5.20".
func (e *Entry) Ranges() string {
	var out []string
	for _, a := range e.Affected {
		for _, r := range a.Ranges {
			out = append(out, r.String())
		}
	}
	if len(out) == 0 {
		return "no release is named"
	}
	s := strings.Join(out, ", ")
	for _, r := range e.Specific.Sluice.Uncertain {
		s += "; uncertain " + r.String()
	}
	return s
}

func (r Range) String() string {
	var b strings.Builder
	for i, ev := range r.Events {
		if i > 0 {
			b.WriteByte(' ')
		}
		switch {
		case ev.Introduced == "0":
			b.WriteString("all")
		case ev.Introduced != "":
			b.WriteString(">=" + ev.Introduced)
		case ev.Fixed != "":
			b.WriteString("<" + ev.Fixed)
		default:
			b.WriteString("<=" + ev.LastAffected)
		}
	}
	return b.String()
}

// Find looks an entry up by id or alias, letters of either case.
func Find(es []*Entry, id string) (*Entry, bool) {
	for _, e := range es {
		if strings.EqualFold(e.ID, id) {
			return e, true
		}
		for _, a := range e.Aliases {
			if strings.EqualFold(a, id) {
				return e, true
			}
		}
	}
	return nil, false
}

func sortEntries(es []*Entry) {
	slices.SortFunc(es, func(a, b *Entry) int { return strings.Compare(a.ID, b.ID) })
}

func sortStrings(s []string) { sort.Strings(s) }
