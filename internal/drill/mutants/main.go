// Command mutants takes guards out of the real code, one at a time, and runs the tests: each mutant must be killed.
//
// A mutant is a textual patch in a copy of the module. One that does not apply, or does not build, is an error: the list has to follow
// the code. The table says which test killed it, and how fast. A mutant that lives is a hole in the tests.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	only := flag.String("run", "", "regular expression of the mutants to run")
	list := flag.Bool("list", false, "check that every patch applies, and run nothing")
	resume := flag.String("resume", "", "keep results in this `FILE`, and do not run again what is in it: for a run in pieces")
	table := flag.String("table", "", "write the results as a table in Markdown to this `FILE`")
	most := flag.Duration("for", 0, "begin no mutant after this time; 0: run all")
	flag.Parse()
	if err := run(*only, *list, *resume, *table, *most); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// result of a mutant.
type result struct {
	Name string  `json:"mutant"`
	File string  `json:"file"`
	By   string  `json:"killed_by"` // "": it lives
	Took float64 `json:"seconds"`
}

func run(only string, list bool, resume, table string, most time.Duration) error {
	want, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyModule(dir); err != nil {
		return err
	}
	before, err := results(resume)
	if err != nil {
		return err
	}
	if !list {
		if err := sound(dir, want); err != nil {
			return err
		}
	}
	var all []result
	began, left := time.Now(), 0
	var broken error // patches that do not build: the list has to follow the code
	for _, m := range mutants {
		if !want.MatchString(m.name) {
			continue
		}
		undo, err := m.apply(dir)
		if err != nil {
			return err
		}
		r, known := before[m.name]
		switch {
		case list:
			all = append(all, r)
		case known && r.By != "":
			all = append(all, r)
		case most > 0 && time.Since(began) > most: // also what lived, and has a test now
			left++
		default:
			if r, err = m.result(dir); err != nil {
				broken = errors.Join(broken, err)
				break
			}
			all = append(all, r)
			if err := keep(resume, r); err != nil {
				undo()
				return err
			}
		}
		undo()
	}
	if list {
		fmt.Printf("%d patches apply\n", len(all))
		return nil
	}
	killed := 0
	for _, r := range all {
		if r.By != "" {
			killed++
		}
	}
	fmt.Printf("%d of %d killed\n", killed, len(all))
	if table != "" {
		if err := os.WriteFile(table, markdown(all, left), 0o644); err != nil {
			return err
		}
	}
	switch {
	case broken != nil:
		return broken
	case killed < len(all):
		return fmt.Errorf("%d mutants live", len(all)-killed)
	case left > 0:
		return fmt.Errorf("%d mutants are left for the next piece: run it again with -resume", left)
	}
	return nil
}

// result runs a mutant that was applied.
func (m mutant) result(dir string) (result, error) {
	began := time.Now()
	by, err := m.test(dir)
	if err != nil {
		return result{}, err
	}
	r := result{m.name, m.file, by, math.Round(10*time.Since(began).Seconds()) / 10}
	word := "killed"
	if by == "" {
		word = "LIVES "
	}
	fmt.Printf("%s  %-56s %7.1fs  %s\n", word, r.Name, r.Took, r.By)
	return r, nil
}

// within is how long a package's tests may take on this machine, as it is now: some mutants hang.
var within = map[string]time.Duration{}

// sound runs the tests of every package without a patch: where they fail by themselves they would kill each mutant.
func sound(dir string, want *regexp.Regexp) error {
	for _, m := range mutants {
		for _, pkg := range m.packages {
			if !want.MatchString(m.name) || within[pkg] != 0 {
				continue
			}
			within[pkg] = 15 * time.Minute
			began := time.Now()
			by, err := mutant{packages: []string{pkg}}.test(dir)
			if err != nil {
				return err
			}
			if by != "" {
				return fmt.Errorf("%s fails without any patch: nothing can be learned of mutants", by)
			}
			within[pkg] = max(100*time.Second, 3*time.Since(began)).Round(time.Second)
		}
	}
	return nil
}

// results reads what earlier pieces of a run kept.
func results(path string) (map[string]result, error) {
	all := map[string]result{}
	b, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(b) {
		var r result
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[r.Name] = r
	}
	return all, nil
}

func keep(path string, r result) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(r), f.Close())
}

// markdown is the table that docs/mutants.md holds.
func markdown(all []result, left int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Mutants\n\nWhat `make mutants` printed last: each guard taken out of the real code, the test that saw it first, and the seconds from the patch to\nits failure, with building (a busy machine of 2 processors).\n\n| guard, and what was done to it | in | killed by | s |\n| --- | --- | --- | ---: |\n")
	killed := 0
	for _, r := range all {
		by := "`" + r.By + "`"
		if r.By == "" {
			by = "**lives**"
		} else {
			killed++
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.1f |\n", r.Name, r.File, strings.ReplaceAll(by, "|", "\\|"), r.Took)
	}
	fmt.Fprintf(&b, "\n%d of %d killed", killed, len(all))
	if left > 0 {
		fmt.Fprintf(&b, "; %d more are in the list and were not run this time", left)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// copyModule copies the module's files, of the working tree. All of them: tests compare the code with its docs, too.
func copyModule(dir string) error {
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for _, name := range strings.Fields(string(out)) {
		b, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// apply patches the copy, and returns how to take the patch back.
func (m mutant) apply(dir string) (undo func(), err error) {
	file := filepath.Join(dir, "internal", m.file)
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if n := strings.Count(string(b), m.old); n != 1 {
		return nil, fmt.Errorf("%s does not apply: its text is in %s %d times", m.name, m.file, n)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), m.old, m.new, 1)), 0o644); err != nil {
		return nil, err
	}
	return func() { _ = os.WriteFile(file, b, 0o644) }, nil
}

var (
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	panicked   = regexp.MustCompile(`(?m)^panic: (.*)$`)
)

// test runs the mutant's packages, the most specific first, and says what killed it; "": nothing.
func (m mutant) test(dir string) (by string, err error) {
	for _, pkg := range m.packages {
		ctx, cancel := context.WithTimeout(context.Background(), within[pkg]+2*time.Minute) // and to build it
		c := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-failfast", "-timeout="+within[pkg].String(), "./internal/"+pkg)
		c.Dir = dir
		out, err := c.CombinedOutput()
		cancel()
		if err == nil {
			continue
		}
		s := string(out)
		if strings.Contains(s, "[build failed]") || strings.Contains(s, "[setup failed]") {
			return "", fmt.Errorf("%s does not build:\n%s", m.name, s)
		}
		all := failedTest.FindAllStringSubmatch(s, -1)
		switch {
		case len(all) > 0:
			return pkg + " " + all[len(all)-1][1], nil
		case panicked.MatchString(s):
			return pkg + " panic: " + panicked.FindStringSubmatch(s)[1], nil
		}
		return pkg, nil
	}
	return "", nil
}
