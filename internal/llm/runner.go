package llm

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/sluicekv/sluice/internal/kernel"
)

// Errors of Forward, wrapped by ChunkError.
var (
	ErrToken     = errors.New("llm: a token is not in the vocabulary")  // nothing was computed
	ErrNotFinite = errors.New("llm: the logits are not finite numbers") // the other chunks' results stand
)

// ChunkError names the chunks of a batch that failed.
type ChunkError struct {
	Chunks []int // indexes in the batch, ascending
	Err    error // ErrToken or ErrNotFinite
}

func (e *ChunkError) Error() string {
	return fmt.Sprintf("%v (chunks %v of the batch)", e.Err, e.Chunks)
}
func (e *ChunkError) Unwrap() error { return e.Err }

// RunnerOptions of NewRunner.
type RunnerOptions struct {
	Threads int // 0: one for each processor
	MaxRows int // tokens of a batch, all chunks together; 0: 512
}

const defaultRows = 512

// logitRows is how many rows the output matrix is applied to at a time: the staging for it is Vocab wide.
const logitRows = 16

// attnRows is how many queries of a chunk one thread takes at a time; a divisor of kernel.Tile.
const attnRows = 32

// CPU runs a model on this machine's processors. All its memory is taken by NewRunner; a step allocates nothing once
// each thread has seen its largest piece of work. It is for one goroutine at a time.
type CPU struct {
	m    *Model
	crew *crew
	busy atomic.Bool

	// Work below alone is not worth waking a thread for; grain is what one item should cost. In multiply-adds.
	alone, grain int

	// Activations, row after row.
	x          []float32 // [Dim] the residual
	h          []float32 // [Dim] the input of a product, then its output
	q, a       []float32 // [Heads*HeadDim] queries; what attention read
	k, v       []float32 // [KVHeads*HeadDim]
	gate, up   []float32 // [FF]
	turn       []float32 // [HeadDim] cosines and sines of the row's position
	stage      []float32 // [Vocab], logitRows of them
	hActs      kernel.Acts
	aActs      kernel.Acts
	gateActs   kernel.Acts
	matScratch []kernel.Scratch
	attScratch []kernel.AttnScratch

	step step
	jobs jobs
}

// step is the work of one Forward. Nothing of it outlives the call.
type step struct {
	rows   int           // rows that go through the current layer
	tokens []int32       // of each row
	pos    []int         // of each row
	slots  []kernel.Slot // where each row's KV goes
	shapes []kernel.Shape
	outs   []int // rows whose logits are wanted
	dst    []int // and their chunks
	all    []attnBlock
	last   []attnBlock // of the last layer: rows of outs only

	// What the jobs of the moment read.
	layer    int
	block    *block
	norm     []float32
	add      bool
	quantize bool
	ropeQ    bool
	ropeK    bool
	reads    []attnBlock
	perItem  int // rows
	products [3]product
	n        int // products
}

// attnBlock is some queries of one chunk: rows [row, row+rows), the first at position pos.
type attnBlock struct {
	pages          []kernel.Page
	shape          kernel.Shape
	row, rows, pos int
}

// product is one matrix applied to the activations of the moment, its outputs shared out in items of outputs.
type product struct {
	dst            []float32
	acts           *kernel.Acts
	mat            *kernel.Mat
	items, perItem int
}

type jobs struct{ embed, norm, store, attend, quantA, swiglu, multiply *job }

// NewRunner takes the memory of a runner and starts its threads. Close ends them.
func NewRunner(m *Model, opt RunnerOptions) *CPU {
	if opt.Threads <= 0 {
		opt.Threads = runtime.GOMAXPROCS(0)
	}
	if opt.MaxRows <= 0 {
		opt.MaxRows = defaultRows
	}
	c, n := m.cfg, opt.MaxRows
	row := func(width int) []float32 { return make([]float32, n*width) }
	r := &CPU{
		m: m, crew: newCrew(opt.Threads), alone: 1 << 17, grain: 1 << 16,
		x: row(c.Dim), h: row(c.Dim), q: row(c.Heads * c.HeadDim), a: row(c.Heads * c.HeadDim),
		k: row(c.KVHeads * c.HeadDim), v: row(c.KVHeads * c.HeadDim), gate: row(c.FF), up: row(c.FF), turn: row(c.HeadDim),
		stage:      make([]float32, min(n, logitRows)*c.Vocab),
		matScratch: make([]kernel.Scratch, opt.Threads),
		attScratch: make([]kernel.AttnScratch, opt.Threads),
		step: step{
			tokens: make([]int32, n), pos: make([]int, n), slots: make([]kernel.Slot, n), shapes: make([]kernel.Shape, n),
			outs: make([]int, 0, n), dst: make([]int, 0, n), all: make([]attnBlock, 0, n), last: make([]attnBlock, 0, n),
		},
	}
	r.hActs.Set(r.h, n, c.Dim)
	r.aActs.Set(r.a, n, c.Heads*c.HeadDim)
	r.gateActs.Set(r.gate, n, c.FF)
	r.jobs = jobs{
		embed: newJob(r.doEmbed), norm: newJob(r.doNorm), store: newJob(r.doStore), attend: newJob(r.doAttend),
		quantA: newJob(r.doQuantA), swiglu: newJob(r.doSwiGLU), multiply: newJob(r.doMultiply),
	}
	return r
}

// Model of the runner.
func (r *CPU) Model() *Model { return r.m }

// MaxRows is the most tokens of one batch.
func (r *CPU) MaxRows() int { return len(r.step.pos) }

// Close ends the threads. No Forward may run or follow.
func (r *CPU) Close() {
	r.enter()
	r.crew.close()
}

func (r *CPU) enter() {
	if !r.busy.CompareAndSwap(false, true) {
		panic("llm: a runner is used by two goroutines, or after Close")
	}
}

// Forward implements Runner. It panics if the batch has more than MaxRows tokens, a chunk has none, or its logits are
// not Vocab wide. A *ChunkError names the chunks that failed.
func (r *CPU) Forward(batch []Chunk) error {
	r.enter()
	defer r.busy.Store(false)
	if err := r.begin(batch); err != nil || r.step.rows == 0 {
		return err
	}
	r.rows(r.jobs.embed, r.m.cfg.Dim)
	for l := range r.m.blocks {
		r.layer(l)
	}
	err := r.logits(batch)
	r.forget()
	return err
}

// begin lays out the batch's rows.
func (r *CPU) begin(batch []Chunk) error {
	s, vocab := &r.step, r.m.cfg.Vocab
	rows := 0
	var bad []int
	for i, c := range batch {
		rows += len(c.Tokens)
		if len(c.Tokens) == 0 || c.Pos < 0 || c.KV == nil || (c.Logits != nil && len(c.Logits) != vocab) {
			panic(fmt.Sprintf("llm: chunk %d of %d: %d tokens at %d, room for %d logits of %d", i, len(batch), len(c.Tokens), c.Pos, len(c.Logits), vocab))
		}
		for _, t := range c.Tokens {
			if t < 0 || int(t) >= vocab {
				bad = append(bad, i)
				break
			}
		}
	}
	if rows > r.MaxRows() {
		panic(fmt.Sprintf("llm: a batch of %d rows in a runner of %d", rows, r.MaxRows()))
	}
	if bad != nil {
		return &ChunkError{bad, ErrToken}
	}
	s.rows, s.outs, s.dst, s.all, s.last = rows, s.outs[:0], s.dst[:0], s.all[:0], s.last[:0]
	row := 0
	for i, c := range batch {
		pages, n := c.KV.Pages(), len(c.Tokens)
		shape := kernel.Shape{Tokens: c.KV.PageTokens(), Layers: r.m.cfg.Layers, KVHeads: r.m.cfg.KVHeads, HeadDim: r.m.cfg.HeadDim}
		for j, t := range c.Tokens {
			s.tokens[row+j], s.pos[row+j], s.shapes[row+j] = t, c.Pos+j, shape
			s.slots[row+j] = c.KV.Slot(c.Pos + j)
		}
		for j := 0; j < n; {
			k := min(n, j+attnRows-(c.Pos+j)%attnRows)
			s.all = append(s.all, attnBlock{pages, shape, row + j, k - j, c.Pos + j})
			j = k
		}
		if c.Logits != nil {
			s.last = append(s.last, attnBlock{pages, shape, len(s.outs), 1, c.Pos + n - 1})
			s.outs = append(s.outs, row+n-1)
			s.dst = append(s.dst, i)
		}
		row += n
	}
	return nil
}

// forget drops every reference into pages: they are the step's alone.
func (r *CPU) forget() {
	s := &r.step
	clear(s.slots)
	clear(s.all)
	clear(s.last)
	s.reads = nil
}

// share runs a job's items, on this thread alone if they cost little together.
func (r *CPU) share(j *job, items, cost int) {
	if cost < r.alone {
		for i := range items {
			j.do(0, i)
		}
		return
	}
	r.crew.run(j, items)
}

// rows runs a job over the current rows, each of which costs about cost.
func (r *CPU) rows(j *job, cost int) {
	s := &r.step
	s.perItem = max(1, r.grain/4/cost) // what is done to single rows is dearer than a multiply-add
	r.share(j, (s.rows+s.perItem-1)/s.perItem, s.rows*cost*4)
}

// span is the rows of an item.
func (s *step) span(item int) (from, to int) {
	from = item * s.perItem
	return from, min(s.rows, from+s.perItem)
}

// multiply applies up to three matrices to the same activations.
func (r *CPU) multiply(ps ...product) {
	s := &r.step
	items, cost := 0, 0
	for i := range ps {
		p := &ps[i]
		each := s.rows * p.mat.Cols()
		p.perItem = max(1, r.grain/(each*kernel.Panel)) * kernel.Panel
		p.items = (p.mat.Rows() + p.perItem - 1) / p.perItem
		items += p.items
		cost += each * p.mat.Rows()
		s.products[i] = *p
	}
	s.n = len(ps)
	r.share(r.jobs.multiply, items, cost)
}

func (r *CPU) doMultiply(thread, item int) {
	for i := range r.step.products[:r.step.n] {
		p := &r.step.products[i]
		if item < p.items {
			from := item * p.perItem
			kernel.MatMul(p.dst, p.acts, p.mat, from, min(p.mat.Rows(), from+p.perItem), &r.matScratch[thread])
			return
		}
		item -= p.items
	}
}
