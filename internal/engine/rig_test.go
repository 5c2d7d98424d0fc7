package engine

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testVocab = 64

// row is one chunk of a step: its first token (tests number their prompts by it), where it begins, its length.
type row struct {
	token  int32
	pos, n int
	logits bool
}

// stepper is a Runner that a test moves step by step. It computes nothing; the next token of a sequence is its last one plus one.
type stepper struct {
	t     testing.TB
	began chan []row
	go_   chan error
}

func newStepper(t testing.TB) *stepper {
	return &stepper{t: t, began: make(chan []row), go_: make(chan error)}
}

func (r *stepper) Forward(batch []llm.Chunk) error {
	rows := rowsOf(batch)
	answer(batch)
	// A test that has failed lets nothing step any more: what it left running ends with it.
	select {
	case r.began <- rows:
	case <-r.t.Context().Done():
		return nil
	}
	select {
	case err := <-r.go_:
		return err
	case <-r.t.Context().Done():
		return nil
	}
}

func rowsOf(batch []llm.Chunk) (rows []row) {
	for _, c := range batch {
		rows = append(rows, row{c.Tokens[0], c.Pos, len(c.Tokens), c.Logits != nil})
		for i := range c.Tokens {
			c.KV.Slot(c.Pos + i) // panics if it may not be written
		}
		if c.Pos > 0 && len(c.KV.Pages())*c.KV.PageTokens() < c.Pos {
			panic("pages are missing")
		}
	}
	return rows
}

func answer(batch []llm.Chunk) {
	for _, c := range batch {
		if c.Logits != nil {
			clear(c.Logits)
			c.Logits[(c.Tokens[len(c.Tokens)-1]+1)%testVocab] = 9
		}
	}
}

// next lets the step that began end, with err, and returns what was in it.
func (r *stepper) next(err error) []row {
	r.t.Helper()
	select {
	case rows := <-r.began:
		r.go_ <- err
		return rows
	case <-time.After(20 * time.Second):
		r.t.Fatal("no step began")
		return nil
	}
}

// during calls fn while a step runs, so that what fn does is heard before the next one.
func (r *stepper) during(fn func()) []row {
	r.t.Helper()
	rows := <-r.began
	fn()
	r.go_ <- nil
	return rows
}

// free lets all further steps run until stop is called.
func (r *stepper) free() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-r.began:
				r.go_ <- nil
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// quick is a Runner that never waits.
type quick struct{ fail func([]llm.Chunk) error }

func (r *quick) Forward(batch []llm.Chunk) (err error) {
	rowsOf(batch)
	answer(batch)
	if r.fail != nil {
		err = r.fail(batch)
	}
	return err
}

func smallPool(t testing.TB, pageTokens, pages int) *pool.Pool {
	t.Helper()
	p, err := pool.New(pool.Config{Role: "test", Boot: page.NewBoot(), Pages: pages,
		Geometry: page.Geometry{Tokens: uint32(pageTokens), Layers: 1, KVHeads: 1, HeadDim: 8, Layout: page.LayoutPairs16}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if st := p.Stats(); st.Free != st.Total || st.Pins != 0 || p.ScanFree() != 0 {
			t.Errorf("the pool at the end: %+v, %d bytes not zero", st, p.ScanFree())
		} else if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

var testKey = mac.New([32]byte{1})

// job is a prompt of n tokens, all of them label, on its way through prefill.
type job struct {
	PrefillJob
	end     prefillEnd
	ended   chan struct{}
	sealed  int
	macs    []mac.Tag
	times   int
	onSeal  func(from, n int)
	release bool
}

func newJob(t testing.TB, p *pool.Pool, label int32, n int) *job {
	t.Helper()
	ids := slices.Repeat([]int32{label}, n)
	tk := ticket(t, ids, 8, admission.Sampling{})
	l, err := p.Reserve(tk, p.Geometry().Pages(n))
	if err != nil {
		t.Fatal(err)
	}
	j := &job{ended: make(chan struct{})}
	j.PrefillJob = PrefillJob{Ticket: tk, Lease: l, Tokens: ids, Key: testKey, Computed: admission.NewDigester(tk.Plan().Scope), Sink: j}
	t.Cleanup(func() { l.Release(); <-l.Done() })
	return j
}

func (j *job) Sealed(from int, macs []mac.Tag) {
	if from != j.sealed || len(macs) == 0 || j.times > 0 {
		panic("pages out of order, none, or after the end")
	}
	j.sealed += len(macs)
	j.macs = append(j.macs, macs...)
	if j.onSeal != nil {
		j.onSeal(from, len(macs))
	}
}

func (j *job) Done(n int, e wire.Echo, v verdict.Verdict) {
	if j.times++; j.times > 1 {
		panic("Done twice")
	}
	j.end = prefillEnd{n, e, v, j.sealed}
	if j.release {
		j.Lease.Release()
	}
	close(j.ended)
}

func (j *job) wait(t testing.TB) prefillEnd {
	t.Helper()
	wait(t, j.ended)
	return j.end
}

// running reports whether Done has not been heard.
func running(ended chan struct{}) bool {
	select {
	case <-ended:
		return false
	default:
		return true
	}
}

// talk is a reply on its way through decode.
type talk struct {
	DecodeJob
	ended  chan struct{}
	echo   *wire.Echo
	tokens []int32
	finish Finish
	n      int
	v      verdict.Verdict
	times  int
	judge  func(wire.Echo) verdict.Verdict
	stopAt int  // Token says no to this one, counted from 1
	keep   bool // the lease is not released at Done
}

// newTalk makes a sealed prompt of n tokens whose last is label.
func newTalk(t testing.TB, p *pool.Pool, label int32, n, maxTokens int, s admission.Sampling) *talk {
	t.Helper()
	tk, v := admission.Admit(admission.Plan{Attempt: attempt.New(), PromptTokens: uint32(n), LastToken: label, MaxTokens: uint32(maxTokens), Sampling: s},
		capacity.Limit{Tokens: 1 << 20})
	if !v.IsZero() {
		t.Fatal(v)
	}
	source, err := pool.New(pool.Config{Role: "source", Boot: page.NewBoot(), Pages: p.Geometry().Pages(n), Geometry: p.Geometry()})
	if err != nil {
		t.Fatal(err)
	}
	from, err := source.Reserve(tk, p.Geometry().Pages(n))
	if err != nil {
		t.Fatal(err)
	}
	var view pool.View
	if err := from.View(&view, n, 0); err != nil {
		t.Fatal(err)
	}
	view.Done()
	var macs []mac.Tag
	for o := range from.Len() {
		m, err := from.SealOwn(o, testKey)
		if err != nil {
			t.Fatal(err)
		}
		macs = append(macs, m)
	}
	l := handOver(t, p, tk, from, macs, n)
	from.Release()
	<-from.Done()
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	d := &talk{ended: make(chan struct{})}
	d.DecodeJob = DecodeJob{Ticket: tk, Lease: l, Sink: d}
	t.Cleanup(func() { l.Release(); <-l.Done() })
	return d
}

func (d *talk) Echo(own wire.Echo) verdict.Verdict {
	if d.echo != nil || len(d.tokens) > 0 {
		panic("the echo is not first")
	}
	d.echo = &own
	if d.judge != nil {
		return d.judge(own)
	}
	return verdict.Verdict{}
}

func (d *talk) Token(id int32) bool {
	if d.echo == nil || d.times > 0 {
		panic("a token before the echo or after the end")
	}
	d.tokens = append(d.tokens, id)
	return len(d.tokens) != d.stopAt
}

func (d *talk) Done(n int, f Finish, v verdict.Verdict) {
	if d.times++; d.times > 1 {
		panic("Done twice")
	}
	d.n, d.finish, d.v = n, f, v
	if !d.keep {
		d.Lease.Release()
	}
	close(d.ended)
}

func (d *talk) wait(t testing.TB) *talk {
	t.Helper()
	wait(t, d.ended)
	return d
}

// settle waits until cond holds; it is for what follows from what already happened, on another goroutine.
func settle(t testing.TB, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it did not settle")
		}
	}
}

func (b *inbox[J]) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}
