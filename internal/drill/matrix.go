package drill

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// Matrix is every fault class at every phase, as it was run.
type Matrix struct {
	Cells  []Cell `json:"cells"`
	Unsafe bool   `json:"-"`
	Seed   uint64 `json:"-"`
	Quick  bool   `json:"-"`
	Events int    `json:"-"` // trace events that were validated
	Fleets int    `json:"-"`
	Took   time.Duration
}

// MatrixOptions of a run.
type MatrixOptions struct {
	Seed     uint64
	Quick    bool
	Only     string   // classes whose name has it; empty: all
	Program  []string // that runs a node; nil: this binary
	Trace    string   // a directory for the trace of each fleet, for drill replay --unfinished; empty: none
	Progress func(done, total int, now string)
}

// Red reports whether a cell failed with all guards on.
func (m Matrix) Red() (red []Cell) {
	for _, c := range m.Cells {
		if c.Red() {
			red = append(red, c)
		}
	}
	return red
}

func faults() (all []fault) {
	for _, list := range [][]fault{lies(), frames(), networks(), namespaces(), clients(), storms(), disks(), clocks(), kills()} {
		all = append(all, list...)
	}
	return all
}

// budget of a fleet, in milliseconds: a request ends soon when what it waits for is lost.
var budget = limits{deadline: 3000, settle: 2000, silence: 1500}

// RunMatrix runs the matrix. An error means that the drill itself could not be held; a cell that fails is in the result.
func RunMatrix(ctx context.Context, o MatrixOptions) (m Matrix, err error) {
	began := time.Now()
	m = Matrix{Unsafe: guard.Unsafe, Seed: o.Seed, Quick: o.Quick}
	if o.Program == nil {
		if o.Program, err = program(); err != nil {
			return m, err
		}
	}
	var todo []fault
	for _, f := range faults() {
		if (f.quick || !o.Quick) && containsFold(f.class, o.Only) {
			todo = append(todo, f)
		}
	}
	if len(todo) == 0 {
		return m, fmt.Errorf("drill: no class has %q in its name", o.Only)
	}
	if o.Trace != "" { // now: at the end it would be too late
		if err := os.MkdirAll(o.Trace, 0o755); err != nil {
			return m, err
		}
	}
	r := &runner{program: o.Program, m: &m, trace: o.Trace}
	defer func() { err = errors.Join(err, r.drop()) }()
	for i, f := range todo {
		if o.Progress != nil {
			o.Progress(i, len(todo), f.class+" at "+f.phase)
		}
		c, err := r.cell(ctx, f, o.Seed)
		if err != nil {
			return m, err
		}
		m.Cells = append(m.Cells, c)
	}
	if o.Progress != nil {
		o.Progress(len(todo), len(todo), "done")
	}
	m.Took = time.Since(began)
	return m, nil
}

// runner keeps a fleet for as long as it is worth keeping.
type runner struct {
	program []string
	m       *Matrix
	x       *trio
	trace   string // directory
}

func (r *runner) fleet(ctx context.Context, without guard.Guard) (*trio, error) {
	if r.x != nil && r.x.without == without {
		return r.x, nil
	}
	if err := r.drop(); err != nil {
		return nil, err
	}
	x, err := startTrio(ctx, r.program, without, budget, usual)
	if err == nil {
		r.x = x
		r.m.Fleets++
	}
	return x, err
}

// drop ends the fleet, and leaves its trace.
func (r *runner) drop() error {
	x := r.x
	r.x = nil
	if x == nil {
		return nil
	}
	x.close()
	if r.trace == "" || x.without != 0 {
		return nil
	}
	f, err := os.Create(filepath.Join(r.trace, fmt.Sprintf("fleet-%02d.trace", r.m.Fleets)))
	if err != nil {
		return err
	}
	return errors.Join(trace.Write(f, x.events.since(0)), f.Close())
}

// cell runs a fault, and in the unsafe build once more with its guard taken out.
func (r *runner) cell(ctx context.Context, f fault, seed uint64) (Cell, error) {
	if f.needs != nil {
		if why := f.needs(); why != "" {
			return Cell{Class: f.class, Phase: f.phase, Injected: f.what, Skipped: why, Guard: "not run: " + why}, nil
		}
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%d", f.class, f.phase, f.what, seed)
	c, err := r.once(ctx, f, 0, h.Sum64())
	if err == nil && c.unheld() {
		c, err = r.once(ctx, f, 0, h.Sum64())
	}
	if err != nil || !guard.Unsafe || f.out == 0 {
		return c, err
	}
	bad, err := r.once(ctx, f, f.out, h.Sum64())
	red := err == nil && bad.Red()
	c.RedWithoutGuard, c.Removed, c.Without = &red, f.out.String(), bad.Why
	if !red {
		c.CaughtNextBy = bad.Guard
		if f.next != "" && bad.Guard == c.Guard {
			c.CaughtNextBy = f.next
		}
		if err != nil {
			c.CaughtNextBy = err.Error()
		}
	}
	return c, errors.Join(r.drop(), ctx.Err()) // what ran without a guard is not worth keeping
}

// notActed and ownFailure are why a cell shows nothing, one way or the other.
const (
	notActed   = "the fault did not act"
	ownFailure = "drill: "
)

// unheld reports whether a cell is red for reasons of the drill's own: on a busy machine a phase can be over before the fault is there. It is
// held once more. A cell that says anything of the fleet is not.
func (c Cell) unheld() bool {
	for _, why := range c.Why {
		if why != notActed && !strings.HasPrefix(why, ownFailure) {
			return false
		}
	}
	return c.Red() && c.ForeignBytes == 0
}

// once runs a fault once. A drill that fails on a fleet of its own making is a red cell, not an end of the matrix.
func (r *runner) once(ctx context.Context, f fault, without guard.Guard, seed uint64) (Cell, error) {
	x, err := r.fleet(ctx, without)
	if err != nil {
		return Cell{}, err
	}
	c, err := x.judge(ctx, f, seed)
	if err != nil {
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
		c.Why = append(c.Why, err.Error())
	}
	r.m.Events += c.Events
	if f.ends || c.Red() {
		return c, r.drop()
	}
	return c, nil
}

func containsFold(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}
