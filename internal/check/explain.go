package check

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/finding"
)

// ErrorExit is the exit code of an error of this package.
func ErrorExit(err error) int {
	if errors.Is(err, ErrUsage) {
		return ExitUsage
	}
	return ExitBlind
}

// Explain writes what an id means: a kind of finding or an advisory (also by its CVE or GHSA number). "list" names all.
func Explain(w io.Writer, id string) error {
	es, err := advisory.Embedded()
	if err != nil {
		return err
	}
	if id == "list" {
		for _, k := range finding.Kinds() {
			fmt.Fprintf(w, "%-28s %s\n", k.ID, k.Title)
		}
		for _, e := range es {
			fmt.Fprintf(w, "%-28s %s\n", e.ID, e.Summary)
		}
		return nil
	}
	if k, ok := finding.Lookup(strings.ToLower(id)); ok {
		fmt.Fprintf(w, "%s\n%s\n\nwhy:     %s\nsource:  %s\ngateway: %s\n", k.ID, k.Title, k.Why, k.Link, covered(k.Gateway, k.How))
		if k.Explain != "" {
			fmt.Fprintf(w, "\n%s\n", k.Explain)
		}
		return nil
	}
	e, ok := advisory.Find(es, id)
	if !ok {
		return fmt.Errorf("nothing is called %q; sluice check explain list names all", id)
	}
	s := e.Specific.Sluice
	name := e.ID
	if len(e.Aliases) > 0 {
		name += " (" + strings.Join(e.Aliases, ", ") + ")"
	}
	fmt.Fprintf(w, "%s\n%s\n\n%s\n\n", name, e.Summary, e.Details)
	fmt.Fprintf(w, "engine:      %s\naffected:    %s (confidence: %s)\nreachable:   %s\nseverity:    %s\nfix:         %s\ngateway:     %s\n",
		s.Engine, e.Ranges(), s.Confidence, s.Predicate, s.Severity, s.Fix, covered(s.Gateway, s.Note))
	for _, r := range e.References {
		fmt.Fprintf(w, "source:      %s\n", r.URL)
	}
	return nil
}

func covered(gateway, how string) string {
	if how != "" && gateway != "no" {
		return gateway + ", " + how
	}
	return gateway
}

// ListAdvisories writes a line for each entry.
func ListAdvisories(w io.Writer, file, key, engine string, asJSON bool) error {
	es, err := entries(file, key)
	if err != nil {
		return err
	}
	for _, e := range es {
		s := e.Specific.Sluice
		if engine != "" && s.Engine != engine {
			continue
		}
		if asJSON {
			b, err := json.Marshal(e)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s\n", b)
			continue
		}
		fmt.Fprintf(w, "%-26s %-6s %-13s %-6s %-44s %s\n", e.ID, s.Severity, s.Engine, s.Confidence, e.Ranges(), e.Summary)
	}
	return nil
}

// ShowAdvisory writes one entry as OSV.
func ShowAdvisory(w io.Writer, file, key, id string) error {
	es, err := entries(file, key)
	if err != nil {
		return err
	}
	e, ok := advisory.Find(es, id)
	if !ok {
		return usage("no entry is called %q", id)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(e)
}

// VerifyAdvisories checks all entries and says what they are.
func VerifyAdvisories(w io.Writer, file, key string) error {
	es, err := advisory.Embedded()
	if err != nil {
		return err
	}
	newest := time.Time{}
	for _, e := range es {
		if e.Modified.After(newest) {
			newest = e.Modified
		}
	}
	fmt.Fprintf(w, "this build: %d entries, newest of %s, sha256 %s: ok\n", len(es), newest.Format("2006-01-02"), advisory.Digest(es))
	if file == "" {
		return nil
	}
	update, err := OpenBundle(file, key)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: signature and %d entries: ok, sha256 %s\n", file, len(update), advisory.Digest(update))
	return nil
}

// SignAdvisories writes a signed file of the records in files, and the public key.
func SignAdvisories(w io.Writer, private, out string, serial int64, files []string) error {
	if private == "" || len(files) == 0 {
		return usage("sign needs --private-key and at least one file of a record")
	}
	seed, err := readSeed(private)
	if err != nil {
		return err
	}
	b := advisory.Bundle{Serial: serial, Created: time.Now().UTC()}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return usage("%v", err)
		}
		if _, err := advisory.Parse(raw); err != nil {
			return usage("%s: %v", f, err)
		}
		b.Entries = append(b.Entries, raw)
	}
	k := ed25519.NewKeyFromSeed(seed)
	signed, err := advisory.Sign(b, k)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, append(signed, '\n'), 0o644); err != nil { //nolint:gosec // meant to be handed out
		return err
	}
	fmt.Fprintf(w, "%s: %d entries, verify with --key %s\n", out, len(files), base64.StdEncoding.EncodeToString(k.Public().(ed25519.PublicKey)))
	return nil
}

func readSeed(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		seed := make([]byte, ed25519.SeedSize)
		rand.Read(seed)
		return seed, os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(seed)+"\n"), 0o600)
	}
	if err != nil {
		return nil, err
	}
	seed, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, usage("%s is no Ed25519 seed (base64 of 32 bytes)", file)
	}
	return seed, nil
}
