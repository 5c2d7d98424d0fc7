// Package check answers one question before traffic: can this fleet, as it is configured now, leak or corrupt?
//
// It reads sources (check/source), holds the facts against rules and advisories (check/finding, check/advisory) and
// writes a report (check/report). It changes nothing.
package check

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/check/advisory"
	"github.com/sluicekv/sluice/internal/check/facts"
	"github.com/sluicekv/sluice/internal/check/finding"
	"github.com/sluicekv/sluice/internal/check/report"
	"github.com/sluicekv/sluice/internal/check/source"
)

// Exit codes.
const (
	ExitClean    = 0
	ExitFindings = 1
	ExitBlind    = 2 // could not check
	ExitUsage    = 3
)

// Options are what `sluice check` was asked.
type Options struct {
	Args     []string // FILE, DIR, URL, dns:NAME:PORT, - or NAME=SOURCE
	Format   string
	FailOn   string
	Context  int
	Version  string // of engines whose sources name none
	Waivers  string // file
	Details  bool   // more keys in JSON
	All      bool   // every node in the table
	Fit      bool
	Model    string // config.json or GGUF, for Fit
	Probe    bool   // --probe-live
	Timeout  time.Duration
	Parallel int
	NoPorts  bool

	APIKeyFile    string
	CAFile        string
	Insecure      bool
	Advisories    string // signed bundle
	AdvisoriesKey string

	Watch    time.Duration // 0: once
	Listen   string        // of Watch's metrics
	Program  string        // name and version of this program
	Terminal bool          // stderr shows progress, stdout is one for Color
	Color    bool
	Width    int
	Now      func() time.Time
}

// ErrUsage wraps every mistake in how the check was asked.
var ErrUsage = errors.New("usage")

func usage(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUsage}, a...)...)
}

// Run checks and writes the report. The result is the exit code.
func Run(ctx context.Context, o Options, stdin io.Reader, stdout, stderr io.Writer) int {
	if o.Watch > 0 {
		return watch(ctx, o, stdin, stdout, stderr)
	}
	r, inv, err := examine(ctx, o, stdin, stderr)
	if err != nil {
		return fail(err, stderr)
	}
	if err := report.Write(stdout, o.Format, r, report.TableOptions{Color: o.Color, Width: o.Width, All: o.All}, o.Details); err != nil {
		fmt.Fprintln(stderr, "sluice check:", err)
		return ExitBlind
	}
	if o.Fit {
		out := stdout
		if o.Format != "" && o.Format != "table" { // the machine's answer stays whole
			out = stderr
		}
		if err := writeFit(out, o, inv); err != nil {
			return fail(err, stderr)
		}
	}
	return r.Exit
}

func fail(err error, stderr io.Writer) int {
	if errors.Is(err, ErrUsage) {
		fmt.Fprintln(stderr, "sluice check:", strings.TrimPrefix(err.Error(), "usage: "))
		return ExitUsage
	}
	fmt.Fprintln(stderr, "sluice check:", err)
	return ExitBlind
}

// examine reads all sources once and holds them against the rules.
func examine(ctx context.Context, o Options, stdin io.Reader, stderr io.Writer) (report.Result, source.Inventory, error) {
	var r report.Result
	var inv source.Inventory
	failOn, waivers, entries, so, err := o.prepare(stdin, stderr)
	if err != nil {
		return r, inv, err
	}
	inv, err = source.Read(ctx, o.Args, so)
	if err != nil {
		return r, inv, err
	}
	f := &finding.Fleet{Inventory: inv, Advisories: entries, Context: o.Context, Version: o.Version}
	if o.Probe {
		f.Probed, f.Probes = probe(ctx, inv.Nodes, so)
	}
	fs := f.Check()
	if len(inv.Nodes) == 0 && len(inv.Exposed) == 0 && len(inv.Problems) == 0 {
		x := finding.New(finding.Unreadable, finding.Medium, "", strings.Join(o.Args, " "), "give logs, answers, manifests or URLs", "no source says anything about an engine")
		x.Blind = true
		fs = append(fs, x)
	}
	if o.Waivers != "" {
		fs = applyWaivers(fs, waivers, o.Waivers, o.now())
	}
	r = report.Result{Findings: fs, FailOn: failOn, Exit: finding.Exit(fs, failOn), Passed: inv.Passed, Program: o.Program}
	for _, n := range inv.Nodes {
		if len(n.Facts) > 0 || n.Live {
			r.Nodes = append(r.Nodes, report.NodeOf(n, o.Context, o.Version))
		}
	}
	return r, inv, nil
}

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// prepare reads everything beside the sources; mistakes in it are usage.
func (o *Options) prepare(stdin io.Reader, stderr io.Writer) (failOn finding.Severity, ws []Waiver, es []*advisory.Entry, so source.Options, err error) {
	if len(o.Args) == 0 {
		err = usage("name at least one FILE, DIR, URL or - (see sluice check --help)")
		return
	}
	if o.Format == "" {
		o.Format = "table"
	}
	if !contains(report.Formats, o.Format) {
		err = usage("--format %q is not one of %s", o.Format, strings.Join(report.Formats, ", "))
		return
	}
	if o.FailOn == "" {
		o.FailOn = "high"
	}
	if failOn, err = finding.ParseSeverity(o.FailOn); err != nil || failOn == finding.Info {
		err = usage("--fail-on %q is not one of low, medium, high", o.FailOn)
		return
	}
	if o.Context < 0 {
		err = usage("--context %d is negative", o.Context)
		return
	}
	if o.Version != "" {
		if _, ok := advisory.ParseVersion(o.Version); !ok {
			err = usage("--engine-version %q is no release number", o.Version)
			return
		}
	}
	if o.Waivers != "" {
		if ws, err = ReadWaivers(o.Waivers); err != nil {
			err = usage("%v", err)
			return
		}
	}
	if es, err = entries(o.Advisories, o.AdvisoriesKey); err != nil {
		return
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Parallel <= 0 {
		o.Parallel = 64
	}
	so = source.Options{Stdin: stdin, Timeout: o.Timeout, Parallel: o.Parallel, Ports: !o.NoPorts}
	if o.APIKeyFile != "" {
		b, e := os.ReadFile(o.APIKeyFile)
		if e != nil {
			err = usage("--api-key-file: %v", e)
			return
		}
		so.APIKey = strings.TrimSpace(string(b))
	}
	if so.TLS, err = o.tls(); err != nil {
		return
	}
	if o.Terminal {
		so.Progress = progress(stderr)
	}
	return
}

func contains(s []string, x string) bool {
	for _, y := range s {
		if x == y {
			return true
		}
	}
	return false
}

func (o *Options) tls() (*tls.Config, error) {
	if o.CAFile == "" && !o.Insecure {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.Insecure} //nolint:gosec // --insecure-tls: read all the same, by an operator's word
	if o.CAFile != "" {
		b, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, usage("--ca: %v", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, usage("--ca: %s holds no certificate in PEM", o.CAFile)
		}
	}
	return c, nil
}

// entries is the embedded database, with a signed file's entries over it if one is given.
func entries(file, key string) ([]*advisory.Entry, error) {
	es, err := advisory.Embedded()
	if err != nil {
		return nil, err
	}
	if file == "" {
		return es, nil
	}
	update, err := OpenBundle(file, key)
	if err != nil {
		return nil, err
	}
	return advisory.Merge(es, update), nil
}

// OpenBundle verifies a signed file of advisories with the key given, or with the one that this build carries.
func OpenBundle(file, key string) ([]*advisory.Entry, error) {
	if key == "" {
		key = advisory.ReleaseKey
	}
	if key == "" {
		return nil, usage("this build carries no verification key: give one with --advisories-key")
	}
	k, err := advisory.ParseKey(key)
	if err != nil {
		if b, e := os.ReadFile(key); e == nil {
			k, err = advisory.ParseKey(string(b))
		}
		if err != nil {
			return nil, usage("--advisories-key: %v", err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, usage("%v", err)
	}
	_, es, err := advisory.Open(b, []ed25519.PublicKey{k}...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return es, nil
}

// progress shows on a terminal how many workers have answered.
func progress(w io.Writer) func(done, total int) {
	last := time.Now()
	return func(done, total int) {
		if total < 10 || done < total && time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		fmt.Fprintf(w, "\r%d of %d workers asked", done, total)
		if done == total {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
}

// nodesOf is used by fit: nodes with facts.
func nodesOf(inv source.Inventory) (ns []*facts.Node) {
	for _, n := range inv.Nodes {
		if len(n.Facts) > 0 {
			ns = append(ns, n)
		}
	}
	return ns
}
