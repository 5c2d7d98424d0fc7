package llm

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every item is done once, run after run, whoever is late.
func TestCrewDoesEachItemOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 5} {
		c := newCrew(threads)
		var counts [64]int64
		state := 0 // written by the caller between runs, read by items: the race detector watches
		jobs := [2]*job{}
		for k := range jobs {
			jobs[k] = newJob(func(thread, item int) {
				if thread < 0 || thread >= threads {
					t.Errorf("thread %d of %d", thread, threads)
				}
				atomic.AddInt64(&counts[item], int64(state))
			})
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for n := range 12000 {
			items := rng.IntN(len(counts))
			if n%4 > 0 {
				items = 2 + rng.IntN(2) // most runs are a scramble for few items
			}
			state = 1 + rng.IntN(3)
			c.run(jobs[rng.IntN(2)], items)
			for i := range counts {
				want := int64(0)
				if i < items {
					want = int64(state)
				}
				if counts[i] != want {
					t.Fatalf("%d threads, %d items: item %d was done %d times of %d", threads, items, i, counts[i]/int64(state), 1)
				}
			}
			clear(counts[:])
		}
		c.close()
	}
}

// A parked thread is woken by a job, every time: each of two items waits for the other.
func TestCrewWakesTheParked(t *testing.T) {
	c := newCrew(2)
	defer c.close()
	var both atomic.Int32
	meet := newJob(func(_, _ int) {
		both.Add(1)
		for both.Load() < 2 {
			runtime.Gosched()
		}
	})
	for range 300 {
		for !c.members[0].parked.Load() {
			runtime.Gosched()
		}
		both.Store(0)
		c.run(meet, 2)
	}
}

// The caller does all the work itself while the other threads have no processor.
func TestCrewNeedsNobody(t *testing.T) {
	c := &crew{members: []*member{{wake: make(chan struct{}, 1)}, {wake: make(chan struct{}, 1)}}} // that never run
	n := 0
	c.run(newJob(func(_, _ int) { n++ }), 100)
	if n != 100 {
		t.Errorf("%d items of 100", n)
	}
}

func TestRunnerIsForOneGoroutine(t *testing.T) {
	m := load(t, tiny.file(t, 1))
	r := NewRunner(m, RunnerOptions{Threads: 3, MaxRows: 8})
	r.Close()
	defer func() {
		if recover() == nil {
			t.Error("Forward after Close ran")
		}
	}()
	r.Forward(nil)
}
