package engine

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/verdict"
)

// cut ends a job in one of the ways that the world has, at some moment.
func cut(r *rand.Rand, id attempt.ID, tk admission.Ticket, release func(), cancel func(attempt.ID, verdict.Verdict)) {
	gone := verdict.Of(verdict.ClientGone, verdict.Stream, "gone")
	switch r.IntN(6) {
	case 0:
		cancel(id, gone)
	case 1:
		tk.Verdict().TrySet(gone)
		cancel(id, gone)
	case 2:
		tk.Verdict().TrySet(gone)
		release()
	case 3:
		release()
	}
}

// Prompts by the hundred, cut short at any moment and in every way: each hears its end once, and all pages come back (smallPool looks).
func TestPrefillStorm(t *testing.T) {
	p := smallPool(t, 16, 64)
	r := &quick{fail: func(batch []llm.Chunk) error {
		for i, c := range batch {
			if c.Tokens[0] == 13 {
				return &llm.ChunkError{Chunks: []int{i}, Err: llm.ErrToken}
			}
		}
		return nil
	}}
	e := newPrefill(t, r, 16, 32, 24)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 3))
			for range 60 {
				n := 1 + r.IntN(120)
				ids := make([]int32, n)
				for i := range ids {
					ids[i] = int32(r.IntN(16))
				}
				tk, v := admission.Admit(admission.Plan{Attempt: attempt.New(), PromptTokens: uint32(n), MaxTokens: 1}, capacity.Limit{Tokens: 1 << 20})
				if !v.IsZero() {
					panic(v)
				}
				freed := p.Freed()
				l, err := p.Reserve(tk, p.Geometry().Pages(n))
				if err != nil {
					<-freed
					continue
				}
				j := &job{ended: make(chan struct{})}
				j.PrefillJob = PrefillJob{Ticket: tk, Lease: l, Tokens: ids, Key: testKey, Sink: j}
				switch err := e.Submit(j.PrefillJob); {
				case errors.Is(err, ErrQueueFull):
				case err != nil:
					t.Error(err)
				default:
					cut(r, tk.Attempt(), tk, l.Release, e.Cancel)
					<-j.ended
					if v := j.end.v; v.IsZero() && j.end.computed != n || v.OK() {
						t.Errorf("%+v", j.end)
					}
				}
				l.Release()
				<-l.Done()
			}
		})
	}
	wg.Wait()
	if e.Depth() != 0 {
		t.Errorf("depth %d", e.Depth())
	}
}

// Replies by the hundred on a pool that is too small for them.
func TestDecodeStorm(t *testing.T) {
	p := smallPool(t, 16, 40)
	r := &quick{fail: func(batch []llm.Chunk) error {
		for i, c := range batch {
			if c.Tokens[0] == 50 {
				return &llm.ChunkError{Chunks: []int{i}, Err: llm.ErrNotFinite}
			}
		}
		return nil
	}}
	e := newDecode(t, r, p, 6, 64)
	codes := make([]int, 256)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 4))
			for i := range 40 {
				n := 1 + r.IntN(40)
				freed := p.Freed()
				if p.Stats().Free < 24 { // room for every worker's three pages: newTalk must not fail
					<-freed
					continue
				}
				s := greedy
				if i%2 == 0 {
					s = admission.Sampling{Temperature: 1, TopP: 0.9, Seed: uint64(i)}
				}
				d := newTalk(t, p, int32(r.IntN(testVocab-4)), n, 1+r.IntN(40), s)
				if r.IntN(8) == 0 {
					d.stopAt = 1 + r.IntN(4)
				}
				switch err := e.Submit(d.DecodeJob); {
				case errors.Is(err, ErrQueueFull):
					d.Lease.Release()
				case err != nil:
					t.Error(err)
				default:
					cut(r, d.Ticket.Attempt(), d.Ticket, d.Lease.Release, e.Cancel)
					<-d.ended
					if d.n != len(d.tokens) || d.v.IsZero() {
						t.Errorf("%d of %d tokens, %v", d.n, len(d.tokens), d.v)
					}
					mu.Lock()
					codes[d.v.Code]++
					mu.Unlock()
				}
				<-d.Lease.Done()
			}
		})
	}
	wg.Wait()
	if e.Depth() != 0 || codes[verdict.OK] == 0 || codes[verdict.ClientGone] == 0 || codes[verdict.EngineFailed] == 0 {
		t.Errorf("depth %d, codes %v", e.Depth(), codes)
	}
}
