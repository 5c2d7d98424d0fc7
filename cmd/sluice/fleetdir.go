package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/config"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
)

// fleetDir is a directory with a YAML file for a worker, or for a list of workers. A file that cannot be read, or that says what no
// worker is, changes nothing: what it said before stands, and the other files go on. A file that is being written is waited for.
type fleetDir struct {
	path, engine string
	every        time.Duration
	now          func() time.Time

	mu    sync.Mutex
	files map[string]*workerFile
}

// workerFile is what is known of one file.
type workerFile struct {
	size    int64
	written time.Time
	settled bool // it was read as it is
	workers []foreign.Worker
	problem string
}

// Bounds of a directory.
const (
	maxDirFiles   = 4096
	maxWorkerFile = 1 << 20
	settleTime    = time.Second // a file that did not change for so long is whole
)

func newFleetDir(path, engine string, every time.Duration) *fleetDir {
	return &fleetDir{path: path, engine: engine, every: every, now: time.Now, files: map[string]*workerFile{}}
}

func (d *fleetDir) ID() string           { return fmt.Sprintf("directory %s every %v", d.path, d.every) }
func (d *fleetDir) Every() time.Duration { return d.every }

// Look reads what changed.
func (d *fleetDir) Look(context.Context) ([]foreign.Worker, []string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	there := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); name[0] == '.' || ext != ".yaml" && ext != ".yml" {
			continue
		}
		if len(there) == maxDirFiles {
			return nil, nil, fmt.Errorf("%s holds more than %d files", d.path, maxDirFiles)
		}
		there[name] = true
		d.look(name)
	}
	var names []string
	for name := range d.files {
		if !there[name] {
			delete(d.files, name)
			continue
		}
		names = append(names, name)
	}
	sort.Strings(names)
	return d.workers(names)
}

// look reads one file if it changed and is whole.
func (d *fleetDir) look(name string) {
	f := d.files[name]
	if f == nil {
		f = &workerFile{size: -1}
		d.files[name] = f
	}
	st, err := os.Stat(filepath.Join(d.path, name)) // a link counts as what it names: that is how mounted configuration changes
	switch {
	case err != nil:
		f.problem = name + ": " + err.Error()
		return
	case !st.Mode().IsRegular():
		f.problem = name + ": is not a file"
		return
	}
	same := f.size == st.Size() && f.written.Equal(st.ModTime())
	if same && f.settled {
		return
	}
	f.size, f.written, f.settled = st.Size(), st.ModTime(), false
	if !same && d.now().Sub(st.ModTime()) < settleTime {
		return // it may be half of what is being written: the next look says whether it stands still
	}
	ws, err := d.read(name)
	if again, serr := os.Stat(filepath.Join(d.path, name)); serr != nil || again.Size() != f.size || !again.ModTime().Equal(f.written) {
		return // it changed under our hands
	}
	f.settled = true
	if err != nil {
		f.problem = err.Error()
		return
	}
	f.problem, f.workers = "", ws
}

// read parses a file.
func (d *fleetDir) read(name string) ([]foreign.Worker, error) {
	f, err := os.Open(filepath.Join(d.path, name))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxWorkerFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return readWorkers(name, b, d.engine)
}

// readWorkers reads a worker, or a list of them. Errors name the file and the line.
func readWorkers(name string, b []byte, engine string) ([]foreign.Worker, error) {
	if len(b) > maxWorkerFile {
		return nil, fmt.Errorf("%s: has more than %d bytes", name, maxWorkerFile)
	}
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if err.Error() == "EOF" {
			return nil, fmt.Errorf("%s: is empty; remove the file to remove its workers", name)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := dec.Decode(new(yaml.Node)); err == nil {
		return nil, fmt.Errorf("%s: has more than one document", name)
	}
	if len(doc.Content) == 0 {
		return nil, fmt.Errorf("%s: is empty; remove the file to remove its workers", name)
	}
	root := doc.Content[0]
	list := root
	switch root.Kind {
	case yaml.MappingNode:
		list = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: root.Line, Content: []*yaml.Node{root}}
	case yaml.SequenceNode:
	default:
		return nil, fmt.Errorf("%s:%d: must be a worker, or a list of workers", name, root.Line)
	}
	var entries []workerEntry
	if err := config.Strict(list, &entries); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var out []foreign.Worker
	for i, w := range entries {
		fw, err := w.guarded(engine)
		if err == nil {
			fw.Key, err = readKey(w.KeyFile)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: worker %d: %w", name, list.Content[i].Line, i, err)
		}
		if fw.Name == "" {
			fw.Name = string(fw.Role) + " " + fw.URL.Host
		}
		out = append(out, fw)
	}
	return out, nil
}

// workers joins the files, in the order of their names. One that names a worker of another file is a problem; the other counts.
func (d *fleetDir) workers(names []string) (out []foreign.Worker, problems []string, err error) {
	by := map[string]string{} // worker -> file
	for _, name := range names {
		f := d.files[name]
		if f.problem != "" {
			problems = append(problems, f.problem)
		}
		at := slices.IndexFunc(f.workers, func(w foreign.Worker) bool { return by[w.Name] != "" })
		if at >= 0 {
			problems = append(problems, fmt.Sprintf("%s: worker %s is in %s already: none of the file counts", name, f.workers[at].Name, by[f.workers[at].Name]))
			continue
		}
		for _, w := range f.workers {
			if by[w.Name] != "" {
				problems = append(problems, fmt.Sprintf("%s: names worker %s twice", name, w.Name))
				continue
			}
			by[w.Name] = name
			out = append(out, w)
		}
	}
	return out, problems, nil
}
