package pool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/invariant"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
)

// content is what the page of an attempt at an ordinal holds: every 8 bytes name both.
func content(n int, attempt uint32, ordinal int) []byte {
	var word [8]byte
	binary.LittleEndian.PutUint32(word[:], attempt|1<<31)
	binary.LittleEndian.PutUint32(word[4:], uint32(ordinal)|1<<30)
	return bytes.Repeat(word[:], n/8)
}

// TestAbortStorm: many attempts at once on few pages, each with a peer that sends and an owner who seals, reads, grows and, in
// most cases, lets go in the middle of it. At every moment Total = Free + Reserved + Fenced; whoever reads, reads its
// own; late frames are refused; at the end all is free and zero (newPool), and the trace is legal.
func TestAbortStorm(t *testing.T) {
	attempts := 3000
	if invariant.Enabled {
		attempts = 600
	}
	p := newPool(t, 24, func(c *Config) { c.ReuseLast = true })
	var next, served, late atomic.Int64
	var wg sync.WaitGroup
	for worker := range 8 {
		rng := rand.New(rand.NewPCG(1, uint64(worker)))
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(attempts) || t.Failed() {
					return
				}
				ok, refused, err := runAttempt(p, rng, uint32(n))
				if err != nil {
					t.Errorf("attempt %d: %v", n, err)
				}
				if ok {
					served.Add(1)
				}
				late.Add(int64(refused))
			}
		})
	}
	stop := make(chan struct{})
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		for {
			if s := p.Stats(); s.Total != s.Free+s.Reserved+s.Fenced || s.Free < 0 || s.Reserved < 0 || s.Fenced < 0 || s.Pins < 0 {
				t.Errorf("the accounting does not add up: %+v", s)
				return
			}
			if n := p.ScanFree(); n != 0 {
				t.Errorf("%d bytes of free pages are not zero", n)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-checked
	awaitFree(p, 24)
	if served.Load() == 0 || late.Load() == 0 {
		t.Fatalf("%d attempts were served, %d frames came late: the storm blew past", served.Load(), late.Load())
	}
	t.Logf("%d attempts, %d served, %d frames refused: %+v", attempts, served.Load(), late.Load(), p.Stats())
}

// runAttempt is one attempt of the storm. refused counts the frames that met a fence.
func runAttempt(p *Pool, rng *rand.Rand, n uint32) (served bool, refused int, err error) {
	tk, _ := admission.Admit(plan(), capacity.Limit{Tokens: 1 << 20})
	pages := 1 + rng.IntN(6)
	var l *Lease
	for l == nil {
		freed := p.Freed()
		if l, err = p.Reserve(tk, pages); errors.Is(err, ErrPoolFull) {
			await(freed)
		} else if err != nil {
			return false, 0, err
		}
	}
	abortAt := rng.IntN(2*pages + 6) // frames landed before somebody lets go; at the end or later: nobody does
	key, tags := mac.New([32]byte{byte(n), byte(n >> 8)}), l.Tags()
	order := rng.Perm(pages)
	results := make(chan error, pages)
	progress := make(chan struct{}) // unbuffered: the owner acts while the next frame lands
	go func() {                     // the peer
		for _, i := range order {
			frame := content(p.pageBytes, n, i)
			results <- l.Land(i, tags[i], frame, key, key.Sum(mac.Page, uint64(i), frame))
			progress <- struct{}{}
		}
		close(results)
		close(progress)
	}()
	landed := 0
	for range progress {
		if landed == abortAt {
			if rng.IntN(2) == 0 {
				l.Fence()
			}
			l.Release()
		}
		landed++
	}
	for r := range results {
		switch {
		case errors.Is(r, ErrFenced) && abortAt < pages:
			refused++
		case r != nil:
			err = r
		}
	}
	if abortAt >= pages && err == nil {
		served, err = read(p, l, rng, n, pages)
	}
	l.Release()
	return served, refused, err
}

// read seals and reads a lease step by step as decode does, and lets go under the last step half of the time.
func read(p *Pool, l *Lease, rng *rand.Rand, n uint32, pages int) (bool, error) {
	tokens := pages*p.pageTokens - rng.IntN(p.pageTokens)
	if err := l.SealPrompt(tokens); err != nil {
		return false, err
	}
	var v View
	for step := range 1 + rng.IntN(6) {
		if err := l.View(&v, tokens, tokens-1); err != nil {
			return false, err
		}
		if step == 5 || rng.IntN(3) == 0 {
			l.Release() // under the step
		}
		for i, tag := range v.tags {
			if got := p.arena.bytes(tag.ID); i < pages && !bytes.Equal(got, content(p.pageBytes, n, i)) {
				v.Done()
				return false, fmt.Errorf("step %d read another's page at ordinal %d: %x", step, i, got[:8])
			}
		}
		v.Done()
		switch err := l.Grow(1); {
		case errors.Is(err, ErrFenced):
			return true, nil
		case errors.Is(err, ErrPoolFull):
		case err != nil:
			return false, err
		}
		if tokens < l.Len()*p.pageTokens {
			tokens++
		}
	}
	return true, nil
}

// TestHeldCopiesStorm holds every copy at its pin until the lease is gone and somebody else wants the pages.
func TestHeldCopiesStorm(t *testing.T) {
	const pages = 4
	p := newPool(t, pages, func(c *Config) { c.ReuseLast = true })
	for round := range 50 {
		inside, goOn := make(chan struct{}, pages), make(chan struct{})
		p.midCopy = func(page.Tag) { inside <- struct{}{}; <-goOn }
		a, s := reserve(t, p, pages), newSender(1)
		done := make(chan error, pages)
		for i := range pages {
			go func() { done <- s.land(a, i, 0xaa) }()
		}
		for range pages {
			await(inside)
		}
		a.Release()
		if _, err := p.Reserve(ticket(t), 1); !errors.Is(err, ErrPoolFull) {
			t.Fatalf("round %d: a page under a copy was granted: %v", round, err)
		}
		close(goOn)
		for range pages {
			wantErr(t, <-done, ErrFenced)
		}
		await(a.Done())
		p.midCopy = nil
		b := filled(t, p, pages, 0xbb)
		for id := range page.ID(pages) {
			want(t, p, id, 0xbb)
		}
		free(b)
	}
}
