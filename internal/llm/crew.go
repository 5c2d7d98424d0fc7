package llm

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// crew is the threads of one Runner. A job is cut into items; whoever is free takes the next one by a counter. Nobody
// waits for a thread that has no processor: the caller works through all items itself if no one else comes. Idle threads
// spin for some microseconds, since the next job is near in the middle of a step, and then park.
type crew struct {
	members []*member
	current atomic.Pointer[job]
	closed  atomic.Bool
	done    sync.WaitGroup
}

// member is one thread beside the caller. Number 0 is the caller.
type member struct {
	parked atomic.Bool
	wake   chan struct{} // one slot: a wake-up is never lost and never blocks
}

// job is one kind of work. It is run again and again, by one caller at a time.
type job struct {
	do func(thread, item int)

	// Number of items and the next one to take, in one word: a thread that was late for the last run takes a legal item
	// of this one, or finds nothing, and can never mix the two.
	word     atomic.Uint64
	finished atomic.Int64
	waiting  atomic.Bool
	all      chan struct{} // one slot
}

const spins = 4000 // some microseconds

func newJob(do func(thread, item int)) *job { return &job{do: do, all: make(chan struct{}, 1)} }

func newCrew(threads int) *crew {
	c := &crew{}
	for i := 1; i < threads; i++ {
		m := &member{wake: make(chan struct{}, 1)}
		c.members = append(c.members, m)
		c.done.Add(1)
		go c.work(m, i)
	}
	return c
}

// run does all items of a job, and returns when they are done.
func (c *crew) run(j *job, items int) {
	if len(c.members) == 0 || items <= 1 {
		for i := range items {
			j.do(0, i)
		}
		return
	}
	j.finished.Store(0)
	j.word.Store(uint64(items) << 32)
	c.current.Store(j)
	for _, m := range c.members[:min(len(c.members), items-1)] {
		if m.parked.CompareAndSwap(true, false) {
			m.wake <- struct{}{}
		}
	}
	j.take(0)
	for n := 0; j.finished.Load() != int64(items); n++ {
		if n < spins {
			continue
		}
		// Say that we sleep, then look again: the last finisher does these two in the other order. A finisher that was late
		// with the last run may wake us too early; the loop looks again.
		j.waiting.Store(true)
		if j.finished.Load() == int64(items) && j.waiting.CompareAndSwap(true, false) {
			return
		}
		<-j.all
	}
}

// open reports whether an item is left.
func (j *job) open() bool {
	w := j.word.Load()
	return w&(1<<32-1) < w>>32
}

// take works until no item is left, and reports whether it got any.
func (j *job) take(thread int) (some bool) {
	for j.open() {
		w := j.word.Add(1)
		items, item := int64(w>>32), int64(w&(1<<32-1))-1
		if item >= items {
			return some
		}
		j.do(thread, int(item))
		some = true
		if j.finished.Add(1) == items && j.waiting.CompareAndSwap(true, false) {
			j.all <- struct{}{}
		}
	}
	return some
}

func (c *crew) work(m *member, thread int) {
	defer c.done.Done()
	for idle := 0; ; {
		if j := c.current.Load(); j != nil && j.take(thread) {
			idle = 0
			continue
		}
		if c.closed.Load() {
			return
		}
		if idle++; idle < spins {
			if idle%1024 == 0 {
				runtime.Gosched()
			}
			continue
		}
		m.parked.Store(true)
		// A job or the end that came between the last look and the flag did not see us parked.
		if j := c.current.Load(); j != nil && j.open() || c.closed.Load() {
			if m.parked.CompareAndSwap(true, false) {
				idle = 0
				continue
			}
		}
		<-m.wake
		idle = 0
	}
}

// close ends the threads. No job may run.
func (c *crew) close() {
	c.closed.Store(true)
	for _, m := range c.members {
		if m.parked.CompareAndSwap(true, false) {
			m.wake <- struct{}{}
		}
	}
	c.done.Wait()
}
