package engine

import (
	"errors"
	"slices"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
)

func newPrefill(t testing.TB, r llm.Runner, pageTokens, chunk, queue int) *Prefill {
	e := NewPrefill(PrefillConfig{Runner: r, Vocab: testVocab, PageTokens: pageTokens, Chunk: chunk, Queue: queue})
	t.Cleanup(e.Close)
	return e
}

func submit(t testing.TB, e *Prefill, js ...*job) {
	t.Helper()
	for _, j := range js {
		if err := e.Submit(j.PrefillJob); err != nil {
			t.Fatal(err)
		}
	}
}

// Pages are sealed as soon as they are complete, in order, the tail last; the MACs are those of their bytes.
func TestPagesAreSealedAsTheyComplete(t *testing.T) {
	p, r := smallPool(t, 16, 8), newStepper(t)
	e := newPrefill(t, r, 16, 24, 0)
	j := newJob(t, p, 5, 75)
	var sealed [][2]int
	j.onSeal = func(from, n int) { sealed = append(sealed, [2]int{from, n}) }
	submit(t, e, j)
	for i, want := range []row{{5, 0, 24, false}, {5, 24, 24, false}, {5, 48, 24, false}, {5, 72, 3, true}} {
		if got := r.next(nil); !slices.Equal(got, []row{want}) {
			t.Errorf("step %d: %v, want %v", i, got, want)
		}
	}
	end := j.wait(t)
	if want := [][2]int{{0, 1}, {1, 2}, {3, 1}, {4, 1}}; !slices.Equal(sealed, want) {
		t.Errorf("sealed %v, want %v", sealed, want)
	}
	if end.computed != 75 || end.sealed != 5 || !end.v.IsZero() || end.echo.IDs[0] != 6 || end.echo.Logits[0] != 9 {
		t.Errorf("%+v", end)
	}
	frame := make([]byte, p.Geometry().Bytes())
	for o, m := range j.macs {
		if _, err := j.Lease.CopyOut(frame, o); err != nil {
			t.Fatal(err)
		}
		if testKey.Sum(1, uint64(o), frame) != m {
			t.Errorf("the MAC of page %d is not that of its bytes", o)
		}
	}
	if got, want := j.Computed.Sum(), admission.Digest(j.Ticket.Plan().Scope, j.Tokens); got != want || j.Computed.Tokens() != 75 {
		t.Errorf("digest of %d tokens", j.Computed.Tokens())
	}
}

// The digest and the count are of what was computed, not of what was asked for.
func TestWhatWasNotComputedIsNotClaimed(t *testing.T) {
	p, r := smallPool(t, 16, 8), newStepper(t)
	e := newPrefill(t, r, 16, 16, 0)
	j := newJob(t, p, 5, 64)
	submit(t, e, j)
	r.next(nil)
	r.during(func() { e.Cancel(j.Ticket.Attempt(), verdict.Of(verdict.ClientGone, verdict.Stream, "gone")) })
	end := j.wait(t)
	if end.computed != 32 || end.sealed != 2 || end.v.Code != verdict.ClientGone || j.Computed.Tokens() != 32 {
		t.Errorf("%+v, digest of %d tokens", end, j.Computed.Tokens())
	}
	if got := j.Computed.Sum(); got != admission.Digest(j.Ticket.Plan().Scope, j.Tokens[:32]) {
		t.Error("the digest is not that of the first 32 tokens")
	}
}

func TestShortPromptsShareAStep(t *testing.T) {
	p, r := smallPool(t, 16, 16), newStepper(t)
	e := newPrefill(t, r, 16, 64, 0)
	first := newJob(t, p, 1, 20)
	js := []*job{newJob(t, p, 2, 20), newJob(t, p, 3, 10), newJob(t, p, 4, 30), newJob(t, p, 5, 1)}
	submit(t, e, first)
	r.during(func() { submit(t, e, js...) })
	// The oldest has a quarter, then the fewest tokens left: 5 (1), 3 (10), what is left of 2 (4 of 20), 4 gets the rest.
	want := []row{{2, 0, 20, true}, {5, 0, 1, true}, {3, 0, 10, true}, {4, 0, 30, true}}
	if got := r.next(nil); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, j := range append(js, first) {
		if end := j.wait(t); !end.v.IsZero() || end.computed != len(j.Tokens) {
			t.Errorf("%+v", end)
		}
	}
}

func TestALongPromptDoesNotHoldUpShortOnes(t *testing.T) {
	p, r := smallPool(t, 16, 140), newStepper(t)
	e := newPrefill(t, r, 16, 16, 0)
	long := newJob(t, p, 1, 1600)
	submit(t, e, long)
	r.next(nil)
	short := newJob(t, p, 2, 24)
	r.during(func() { submit(t, e, short) })
	steps := 0
	for done := false; !done && steps < 20; steps++ {
		r.during(func() { done = !running(short.ended) })
	}
	if steps > 4 { // two at best, and one to notice
		t.Errorf("a prompt of 24 tokens took %d steps of 16 beside one of 1600", steps)
	}
	e.Cancel(long.Ticket.Attempt(), verdict.Of(verdict.ClientGone, verdict.Stream, "gone"))
	stop := r.free()
	long.wait(t)
	stop()
}

// However many short prompts keep coming, a long one has a quarter of every step once it is the oldest.
func TestAStreamOfShortPromptsDoesNotStarveALongOne(t *testing.T) {
	p, r := smallPool(t, 16, 40), newStepper(t)
	e := newPrefill(t, r, 16, 16, 0)
	long := newJob(t, p, 1, 160)
	submit(t, e, long)
	var shorts []*job
	steps := 0
	for done := false; !done && steps < 100; steps++ {
		settle(t, func() bool { return p.Stats().Free > 0 })
		r.during(func() {
			if done = !running(long.ended); !done {
				j := newJob(t, p, 2, 16)
				j.release = true
				shorts = append(shorts, j)
				submit(t, e, j)
			}
		})
	}
	if end := long.wait(t); !end.v.IsZero() || end.computed != 160 {
		t.Errorf("%+v", end)
	}
	if steps > 42 { // 10 alone, 40 at a quarter
		t.Errorf("160 tokens took %d steps of 16 beside a stream of 16s", steps)
	}
	stop := r.free()
	for _, j := range shorts {
		j.wait(t)
	}
	stop()
}

// Of a batch, the chunk at fault ends alone; the others are computed again, or stand, as the error says.
func TestTheChunkAtFaultEndsAlone(t *testing.T) {
	for _, c := range []struct {
		err       error
		recompute bool
	}{
		{&llm.ChunkError{Chunks: []int{1}, Err: llm.ErrToken}, true},
		{&llm.ChunkError{Chunks: []int{1}, Err: llm.ErrNotFinite}, false},
	} {
		p, r := smallPool(t, 16, 16), newStepper(t)
		e := newPrefill(t, r, 16, 64, 0)
		block := newJob(t, p, 9, 64)
		js := []*job{newJob(t, p, 1, 8), newJob(t, p, 2, 8), newJob(t, p, 3, 8)}
		submit(t, e, block)
		r.during(func() { submit(t, e, js...) })
		if rows := r.next(c.err); len(rows) != 3 || rows[1].token != 2 {
			t.Fatalf("%v", rows)
		}
		if c.recompute {
			if rows := r.next(nil); !slices.Equal(rows, []row{{1, 0, 8, true}, {3, 0, 8, true}}) {
				t.Errorf("then %v", rows)
			}
		}
		for i, j := range js {
			end := j.wait(t)
			if bad := i == 1; bad != (end.v.Code == verdict.EngineFailed) || !bad && (end.computed != 8 || !end.v.IsZero()) || bad && (end.computed != 0 || end.sealed != 0) {
				t.Errorf("%v: prompt %d: %+v", c.err, i+1, end)
			}
		}
	}
}

// An error that names no chunk ends the batch; prompts that were not in it go on.
func TestAFailedBatchEndsItsJobsOnly(t *testing.T) {
	p, r := smallPool(t, 16, 16), newStepper(t)
	e := newPrefill(t, r, 16, 16, 0)
	a, b, c := newJob(t, p, 1, 16), newJob(t, p, 2, 16), newJob(t, p, 3, 64)
	submit(t, e, a)
	r.during(func() { submit(t, e, b, c) })
	if rows := r.next(errors.New("broken")); !slices.Equal(rows, []row{{2, 0, 16, true}}) {
		t.Fatalf("%v", rows)
	}
	if end := b.wait(t); end.v.Code != verdict.EngineFailed || end.computed != 0 {
		t.Errorf("%+v", end)
	}
	for range 4 {
		r.next(nil)
	}
	if end := c.wait(t); !end.v.IsZero() || end.computed != 64 {
		t.Errorf("%+v", end)
	}
}

// Rule 1: what has a verdict is not computed, however it got here.
func TestAJobWithAVerdictDoesNotStart(t *testing.T) {
	p, r := smallPool(t, 16, 16), newStepper(t)
	e := newPrefill(t, r, 16, 16, 0)
	a, b := newJob(t, p, 1, 16), newJob(t, p, 2, 16)
	refused := verdict.Of(verdict.Deadline, verdict.Reserve, "out of time")
	b.Ticket.Verdict().Set(refused)
	submit(t, e, a)
	r.during(func() { submit(t, e, b) })
	end := b.wait(t)
	if end.v != refused || end.computed != 0 {
		t.Errorf("%+v", end)
	}
	if guard.Off(guard.Verdict) {
		t.Error("the guard is off")
	}
}

// A verdict that comes later ends a prompt between two steps; so does a lease that was taken back.
func TestAVerdictEndsAPrompt(t *testing.T) {
	p, r := smallPool(t, 16, 16), newStepper(t)
	e := newPrefill(t, r, 16, 16, 0)
	a := newJob(t, p, 1, 64)
	submit(t, e, a)
	gone := verdict.Of(verdict.PeerLost, verdict.Prefill, "lost")
	r.during(func() { a.Ticket.Verdict().Set(gone) })
	if end := a.wait(t); end.v != gone || end.computed != 16 {
		t.Errorf("%+v", end)
	}
	b := newJob(t, p, 2, 64)
	submit(t, e, b)
	r.during(func() { b.Lease.Fence() })
	if end := b.wait(t); end.v.Code != verdict.Internal {
		t.Errorf("%+v", end)
	}
	c := newJob(t, p, 3, 64)
	submit(t, e, c)
	r.during(func() { c.Lease.Release(); c.Ticket.Verdict().Set(gone) })
	if end := c.wait(t); end.v != gone {
		t.Errorf("%+v", end)
	}
}

func TestQueueIsBounded(t *testing.T) {
	p, r := smallPool(t, 16, 16), newStepper(t)
	e := newPrefill(t, r, 16, 16, 2)
	a, b, c := newJob(t, p, 1, 16), newJob(t, p, 2, 16), newJob(t, p, 3, 16)
	submit(t, e, a, b)
	if err := e.Submit(c.PrefillJob); !errors.Is(err, ErrQueueFull) || e.Depth() != 2 {
		t.Errorf("%v, depth %d", err, e.Depth())
	}
	r.next(nil)
	a.wait(t)
	settle(t, func() bool { return e.Depth() == 1 })
	submit(t, e, c)
	r.next(nil)
	r.next(nil)
	b.wait(t)
	c.wait(t)
}

func TestCloseEndsEveryPrompt(t *testing.T) {
	p, r := smallPool(t, 16, 64), newStepper(t)
	e := NewPrefill(PrefillConfig{Runner: r, Vocab: testVocab, PageTokens: 16, Chunk: 16})
	var js []*job
	for i := range 20 {
		js = append(js, newJob(t, p, int32(i+1), 32))
	}
	submit(t, e, js...)
	r.during(func() {
		go e.Close()
		settle(t, e.in.isClosed)
	})
	e.Close()
	for i, j := range js {
		if end := j.wait(t); end.v.Code != verdict.ShuttingDown {
			t.Errorf("prompt %d: %+v", i, end)
		}
	}
	if err := e.Submit(js[0].PrefillJob); e.Depth() != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("depth %d, then %v", e.Depth(), err)
	}
}

func TestZeroTicketsAndEmptyPromptsPanic(t *testing.T) {
	p := smallPool(t, 16, 4)
	e := newPrefill(t, &quick{}, 16, 16, 0)
	j := newJob(t, p, 1, 1)
	for _, bad := range []PrefillJob{{}, {Ticket: j.Ticket, Lease: j.Lease, Sink: j}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("it was taken")
				}
			}()
			e.Submit(bad)
		}()
	}
}

var _ llm.KV = (*pool.View)(nil)
