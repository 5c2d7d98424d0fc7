// Command mutants takes guards out of the real code, one at a time, and runs the tests: each mutant must be killed.
//
// A mutant is a textual patch in a copy of the module. One that does not apply, or does not build, is an error: the list has to follow
// the code. The table says which test killed it, and how fast. A mutant that lives is a hole in the tests.
package main

import (
	"context"
	"flag"
	"fmt"
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
	flag.Parse()
	if err := run(*only, *list); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(only string, list bool) error {
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
	killed, total := 0, 0
	for _, m := range mutants {
		if !want.MatchString(m.name) {
			continue
		}
		total++
		undo, err := m.apply(dir)
		if err != nil {
			return err
		}
		if list {
			undo()
			continue
		}
		began := time.Now()
		by, err := m.test(dir)
		undo()
		if err != nil {
			return err
		}
		took := time.Since(began).Round(100 * time.Millisecond)
		if by == "" {
			fmt.Printf("LIVES   %-44s %8s\n", m.name, took)
			continue
		}
		killed++
		fmt.Printf("killed  %-44s %8s  %s\n", m.name, took, by)
	}
	if list {
		fmt.Printf("%d patches apply\n", total)
		return nil
	}
	fmt.Printf("%d of %d killed\n", killed, total)
	if killed < total {
		return fmt.Errorf("%d mutants live", total-killed)
	}
	return nil
}

// copyModule copies what the tests of the mutants need: the module's files, of the working tree.
func copyModule(dir string) error {
	out, err := exec.Command("git", "ls-files", "go.mod", "go.sum", "internal", "cmd").Output()
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
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		c := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-failfast", "-timeout=100s", "./internal/"+pkg)
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
