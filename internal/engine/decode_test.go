package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func newDecode(t testing.TB, r llm.Runner, p *pool.Pool, batch, queue int) *Decode {
	e := NewDecode(DecodeConfig{Runner: r, Vocab: testVocab, EOS: []int32{60, 61}, PageTokens: int(p.Geometry().Tokens), MaxBatch: batch, Queue: queue, Freed: p.Freed})
	t.Cleanup(e.Close)
	return e
}

func start(t testing.TB, e *Decode, ds ...*talk) {
	t.Helper()
	for _, d := range ds {
		if err := e.Submit(d.DecodeJob); err != nil {
			t.Fatal(err)
		}
	}
}

var greedy = admission.Sampling{}

// The first step computes the prompt's last position again, from the sealed pages; its top logits are the echo, and the first
// token comes from them.
func TestFirstStepIsTheLastPosition(t *testing.T) {
	p, r := smallPool(t, 16, 8), newStepper(t)
	e := newDecode(t, r, p, 8, 0)
	d := newTalk(t, p, 5, 20, 3, greedy)
	start(t, e, d)
	for i, want := range []row{{5, 19, 1, true}, {6, 20, 1, true}, {7, 21, 1, true}} {
		if got := r.next(nil); !slices.Equal(got, []row{want}) {
			t.Errorf("step %d: %v, want %v", i, got, want)
		}
	}
	d.wait(t)
	if d.echo.IDs[0] != 6 || d.echo.Logits[0] != 9 || !slices.Equal(d.tokens, []int32{6, 7, 8}) || d.n != 3 || d.finish != FinishLength || !d.v.OK() {
		t.Errorf("echo %v, tokens %v, %d, %v, %v", d.echo, d.tokens, d.n, d.finish, d.v)
	}
}

func TestEndsOfAReply(t *testing.T) {
	p := smallPool(t, 16, 8)
	e := newDecode(t, &quick{}, p, 8, 0)
	eos := newTalk(t, p, 57, 3, 10, greedy) // 58, 59, then the end token
	first := newTalk(t, p, 60, 3, 10, greedy)
	one := newTalk(t, p, 1, 3, 1, greedy)
	stop := newTalk(t, p, 1, 3, 10, greedy)
	stop.stopAt = 2
	wrong := newTalk(t, p, 1, 3, 10, greedy)
	mismatch := verdict.Of(verdict.EchoMismatch, verdict.Echo, "they differ")
	wrong.judge = func(wire.Echo) verdict.Verdict { return mismatch }
	start(t, e, eos, first, one, stop, wrong)
	for name, c := range map[string]struct {
		d      *talk
		tokens []int32
		finish Finish
	}{
		"end token": {eos, []int32{58, 59}, FinishStop}, "end token first": {first, nil, FinishStop},
		"one token": {one, []int32{2}, FinishLength}, "stopped": {stop, []int32{2, 3}, FinishStop},
	} {
		d := c.d.wait(t)
		if !slices.Equal(d.tokens, c.tokens) || d.n != len(c.tokens) || d.finish != c.finish || !d.v.OK() {
			t.Errorf("%s: %v, %d, %v, %v", name, d.tokens, d.n, d.finish, d.v)
		}
	}
	if d := wrong.wait(t); d.v != mismatch || len(d.tokens) != 0 || d.n != 0 || d.finish != FinishNone {
		t.Errorf("echo refused: %v, %v", d.tokens, d.v)
	}
}

// Sequences join and leave between steps; those over the batch wait for a place.
func TestSequencesJoinAndLeave(t *testing.T) {
	p, r := smallPool(t, 16, 8), newStepper(t)
	e := newDecode(t, r, p, 2, 0)
	a, b, c := newTalk(t, p, 1, 4, 2, greedy), newTalk(t, p, 11, 5, 3, greedy), newTalk(t, p, 21, 6, 1, greedy)
	start(t, e, a)
	r.during(func() { start(t, e, b, c) })
	for i, want := range [][]row{{{2, 4, 1, true}, {11, 4, 1, true}}, {{12, 5, 1, true}, {21, 5, 1, true}}, {{13, 6, 1, true}}} {
		if got := r.next(nil); !slices.Equal(got, want) {
			t.Errorf("step %d: %v, want %v", i, got, want)
		}
	}
	for _, d := range []*talk{a, b, c} {
		if d.wait(t); !d.v.OK() {
			t.Error(d.v)
		}
	}
}

// A sequence without a page waits while others go on, and goes on when one comes back.
func TestASequenceWaitsForAPage(t *testing.T) {
	p, r := smallPool(t, 16, 3), newStepper(t)
	e := newDecode(t, r, p, 8, 0)
	a, b := newTalk(t, p, 1, 16, 2, greedy), newTalk(t, p, 11, 10, 4, greedy) // a needs a page for its first token's KV
	hog, err := p.Reserve(ticket(t, []int32{1}, 1, greedy), 1)
	if err != nil {
		t.Fatal(err)
	}
	start(t, e, a)
	r.during(func() { start(t, e, b) }) // a at 15
	for i := range 2 {
		if got := r.next(nil); len(got) != 1 || got[0].token != int32(11+i) {
			t.Fatalf("step %d: %v", i, got)
		}
	}
	r.during(func() { hog.Release(); <-hog.Done() })
	if got := r.next(nil); !slices.Equal(got, []row{{2, 16, 1, true}, {14, 12, 1, true}}) {
		t.Errorf("after the page came back: %v", got)
	}
	a.wait(t)
	b.wait(t)
	if !a.v.OK() || !b.v.OK() || len(a.tokens) != 2 || len(b.tokens) != 4 {
		t.Errorf("%v %v, %v %v", a.tokens, a.v, b.tokens, b.v)
	}
}

// When all wait, the youngest gives up its pages, and while pages are on their way back nobody else does.
func TestAllWaitForPages(t *testing.T) {
	p, r := smallPool(t, 16, 4), newStepper(t)
	e := newDecode(t, r, p, 8, 0)
	var ds []*talk
	for i := range 4 {
		ds = append(ds, newTalk(t, p, int32(10*i), 16, 3, greedy))
	}
	ds[3].keep = true
	start(t, e, ds[0])
	r.during(func() { start(t, e, ds[1:]...) })
	if got := r.next(nil); len(got) != 3 { // the others' first step; ds[0] waits for its second page
		t.Fatalf("%v", got)
	}
	ds[3].wait(t)
	if v := ds[3].v; v.Code != verdict.PoolExhausted || !strings.Contains(v.Reason, "token 2") || !strings.Contains(v.Reason, "4 sequences") {
		t.Errorf("the youngest: %v", v)
	}
	for range 3 { // its pages are not back: being woken changes nothing
		e.Cancel(ds[3].Ticket.Attempt(), ds[3].v)
		settle(t, func() bool { e.in.mu.Lock(); defer e.in.mu.Unlock(); return len(e.in.cancels) == 0 })
	}
	for i, d := range ds[:3] {
		if !running(d.ended) {
			t.Fatalf("%d was ended too: %v", i, d.v)
		}
	}
	ds[3].Lease.Release()
	if got := r.next(nil); !slices.Equal(got, []row{{1, 16, 1, true}}) {
		t.Errorf("the oldest goes on first: %v", got)
	}
	stop := r.free()
	for i, d := range ds[:3] {
		if d.wait(t); !d.v.OK() || len(d.tokens) != 3 {
			t.Errorf("%d: %v, %v", i, d.tokens, d.v)
		}
	}
	stop()
}

// A page that returns after a try failed and before the waiting begins is not missed, and ends nobody.
func TestAPageThatReturnsMeanwhile(t *testing.T) {
	p := smallPool(t, 16, 2)
	hog, err := p.Reserve(ticket(t, []int32{1}, 1, greedy), 1)
	if err != nil {
		t.Fatal(err)
	}
	d := newTalk(t, p, 1, 16, 3, greedy)
	again := make(chan struct{})
	close(again)
	calls := 0
	e := NewDecode(DecodeConfig{Runner: &quick{}, Vocab: testVocab, PageTokens: 16, Freed: func() <-chan struct{} {
		if calls++; calls == 5 {
			hog.Release()
			<-hog.Done()
		}
		return again // as if one had returned since
	}})
	t.Cleanup(e.Close)
	start(t, e, d)
	if d.wait(t); !d.v.OK() || len(d.tokens) != 3 {
		t.Errorf("%v, %v", d.tokens, d.v)
	}
	hog.Release()
}

// A page that comes back in the middle of a step, after the oldest went without, is not taken by a younger sequence.
func TestAPageThatReturnsIsTheOldest(t *testing.T) {
	p := smallPool(t, 16, 2)
	d := newTalk(t, p, 1, 16, 3, greedy)
	e := &Decode{cfg: DecodeConfig{Vocab: testVocab, PageTokens: 16}}
	s := e.begin(d.DecodeJob)
	s.pos = 16
	if err := e.room(s, true); !errors.Is(err, pool.ErrPoolFull) || d.Lease.Len() != 1 || p.Stats().Free != 1 {
		t.Errorf("after an older one went without: %v, %d pages, %d free", err, d.Lease.Len(), p.Stats().Free)
	}
	if err := e.room(s, false); err != nil || d.Lease.Len() != 2 {
		t.Errorf("alone: %v, %d pages", err, d.Lease.Len())
	}
	s.pos = 31
	if err := e.room(s, true); err != nil {
		t.Errorf("one that has its page goes on: %v", err)
	}
	d.Lease.Release()
	<-d.Lease.Done()
}

// A reply with a seed is the same alone and in company that comes and goes.
func TestASampledReplyDoesNotDependOnCompany(t *testing.T) {
	p := smallPool(t, 16, 64)
	sampling := func(i int) admission.Sampling {
		return admission.Sampling{Temperature: 4, TopP: []float32{0, 0.9}[i%2], Seed: uint64(i)}
	}
	var alone [][]int32
	for i := range 8 {
		e := newDecode(t, &quick{}, p, 8, 0)
		d := newTalk(t, p, int32(i), 5+i, 30, sampling(i))
		start(t, e, d)
		alone = append(alone, d.wait(t).tokens)
	}
	r := newStepper(t)
	e := newDecode(t, r, p, 8, 0)
	var ds []*talk
	for i := range 8 {
		ds = append(ds, newTalk(t, p, int32(i), 5+i, 30, sampling(i)))
	}
	start(t, e, ds[0])
	for i := range 7 {
		r.during(func() { start(t, e, ds[i+1]) })
	}
	stop := r.free()
	distinct := map[int]bool{}
	for i, d := range ds {
		if d.wait(t); !slices.Equal(d.tokens, alone[i]) {
			t.Errorf("%d: %v, alone %v", i, d.tokens, alone[i])
		}
		distinct[len(d.tokens)] = true
	}
	stop()
	if len(distinct) < 2 {
		t.Error("all replies have one length: the test draws nothing")
	}
}

// Alone, a sequence without a page ends: nobody would return one.
func TestAloneWithoutAPage(t *testing.T) {
	p := smallPool(t, 16, 1)
	e := newDecode(t, &quick{}, p, 8, 0)
	d := newTalk(t, p, 1, 16, 3, greedy)
	start(t, e, d)
	if d.wait(t); d.v.Code != verdict.PoolExhausted || len(d.tokens) != 1 {
		t.Errorf("%v, %v", d.tokens, d.v)
	}
}

// Sequences that wait in the queue hear of their cancels, verdicts and the end, though they never had a place.
func TestWaitingSequencesEnd(t *testing.T) {
	p, r := smallPool(t, 16, 32), newStepper(t)
	e := NewDecode(DecodeConfig{Runner: r, Vocab: testVocab, PageTokens: 16, MaxBatch: 1, Freed: p.Freed})
	var ds []*talk
	for i := range 10 {
		ds = append(ds, newTalk(t, p, int32(i), 4, 8, greedy))
	}
	start(t, e, ds...)
	gone := verdict.Of(verdict.ClientGone, verdict.Stream, "gone")
	late := verdict.Of(verdict.Deadline, verdict.Decode, "late")
	r.during(func() {
		e.Cancel(ds[5].Ticket.Attempt(), gone)
		ds[6].Ticket.Verdict().Set(late)
	})
	ds[5].wait(t)
	ds[6].wait(t)
	if ds[5].v != gone || ds[6].v != late || ds[5].n != 0 || ds[5].echo != nil || e.Depth() != 8 {
		t.Errorf("%v, %v, depth %d", ds[5].v, ds[6].v, e.Depth())
	}
	r.during(func() {
		go e.Close()
		settle(t, e.in.isClosed)
	})
	e.Close()
	for i, d := range ds {
		if d.wait(t); i != 5 && i != 6 && d.v.Code != verdict.ShuttingDown {
			t.Errorf("%d: %v", i, d.v)
		}
	}
	if err := e.Submit(ds[0].DecodeJob); !errors.Is(err, ErrClosed) || e.Depth() != 0 {
		t.Errorf("%v, depth %d", err, e.Depth())
	}
}

func TestDecodeQueueIsBounded(t *testing.T) {
	p, r := smallPool(t, 16, 8), newStepper(t)
	e := newDecode(t, r, p, 1, 2)
	a, b, c := newTalk(t, p, 1, 4, 1, greedy), newTalk(t, p, 2, 4, 1, greedy), newTalk(t, p, 3, 4, 1, greedy)
	start(t, e, a, b)
	if err := e.Submit(c.DecodeJob); !errors.Is(err, ErrQueueFull) {
		t.Error(err)
	}
	stop := r.free()
	a.wait(t)
	b.wait(t)
	stop()
}

// The chunk at fault ends alone.
func TestTheSequenceAtFaultEndsAlone(t *testing.T) {
	for _, kind := range []error{llm.ErrToken, llm.ErrNotFinite} {
		p := smallPool(t, 16, 8)
		r := &quick{fail: func(batch []llm.Chunk) error {
			for i, c := range batch {
				if c.Tokens[0] == 23 {
					return &llm.ChunkError{Chunks: []int{i}, Err: kind}
				}
			}
			return nil
		}}
		e := newDecode(t, r, p, 8, 0)
		ds := []*talk{newTalk(t, p, 1, 4, 6, greedy), newTalk(t, p, 21, 4, 6, greedy), newTalk(t, p, 31, 4, 6, greedy)}
		start(t, e, ds...)
		for i, d := range ds {
			d.wait(t)
			want := []int32{d.Ticket.Plan().LastToken + 1, d.Ticket.Plan().LastToken + 2, d.Ticket.Plan().LastToken + 3,
				d.Ticket.Plan().LastToken + 4, d.Ticket.Plan().LastToken + 5, d.Ticket.Plan().LastToken + 6}
			if i == 1 {
				if d.v.Code != verdict.EngineFailed || !slices.Equal(d.tokens, want[:2]) || d.n != 2 {
					t.Errorf("%v: the one at fault: %v, %v", kind, d.tokens, d.v)
				}
			} else if !d.v.OK() || !slices.Equal(d.tokens, want) {
				t.Errorf("%v: another: %v, %v", kind, d.tokens, d.v)
			}
		}
	}
}

func TestAFailedStepEndsItsSequences(t *testing.T) {
	p, r := smallPool(t, 16, 8), newStepper(t)
	e := newDecode(t, r, p, 8, 0)
	a := newTalk(t, p, 1, 4, 6, greedy)
	start(t, e, a)
	r.next(errors.New("broken"))
	if a.wait(t); a.v.Code != verdict.EngineFailed || a.n != 0 || a.echo != nil {
		t.Errorf("%v", a.v)
	}
	b := newTalk(t, p, 1, 4, 2, greedy)
	start(t, e, b)
	r.next(nil)
	r.next(nil)
	if b.wait(t); !b.v.OK() {
		t.Error(b.v)
	}
}

// Cancel, verdict, fence and release each end a reply between two steps, with what was handed out.
func TestRepliesAreCutShort(t *testing.T) {
	gone := verdict.Of(verdict.ClientGone, verdict.Stream, "gone")
	for name, c := range map[string]struct {
		cut  func(*Decode, *talk)
		want verdict.Code
	}{
		"cancel":  {func(e *Decode, d *talk) { e.Cancel(d.Ticket.Attempt(), gone) }, verdict.ClientGone},
		"verdict": {func(e *Decode, d *talk) { d.Ticket.Verdict().Set(gone) }, verdict.ClientGone},
		"fence":   {func(e *Decode, d *talk) { d.Lease.Fence() }, verdict.Internal},
		"release": {func(e *Decode, d *talk) { d.Lease.Release() }, verdict.Internal},
	} {
		p, r := smallPool(t, 16, 8), newStepper(t)
		e := newDecode(t, r, p, 8, 0)
		d, other := newTalk(t, p, 1, 4, 9, greedy), newTalk(t, p, 11, 4, 3, greedy)
		start(t, e, d)
		r.during(func() { start(t, e, other) })
		r.during(func() { c.cut(e, d) })
		stop := r.free()
		if d.wait(t); d.v.Code != c.want || d.n != 2 || len(d.tokens) != 2 {
			t.Errorf("%s: %v, %d tokens", name, d.v, d.n)
		}
		if other.wait(t); !other.v.OK() || other.n != 3 {
			t.Errorf("%s: the other: %v", name, other.v)
		}
		stop()
	}
}

func TestCancelOfAStrangerIsNothing(t *testing.T) {
	p, r := smallPool(t, 16, 8), newStepper(t)
	e := newDecode(t, r, p, 8, 0)
	a, b := newTalk(t, p, 1, 4, 1, greedy), newTalk(t, p, 2, 4, 1, greedy)
	e.Cancel(b.Ticket.Attempt(), verdict.Of(verdict.ClientGone, verdict.Stream, "gone"))
	start(t, e, a)
	r.during(func() { e.Cancel(b.Ticket.Attempt(), verdict.Of(verdict.ClientGone, verdict.Stream, "gone")) })
	a.wait(t)
	settle(t, func() bool { e.in.mu.Lock(); defer e.in.mu.Unlock(); return len(e.in.cancels) == 0 })
	start(t, e, b)
	r.next(nil)
	if b.wait(t); !b.v.OK() {
		t.Error(b.v)
	}
}
