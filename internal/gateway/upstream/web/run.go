package web

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
)

// Run is an attempt under way.
type Run struct {
	plan   Plan
	cancel [2]context.CancelFunc // by legs.Leg
	ctx    [2]context.Context
	wake   chan struct{}
	unsent atomic.Int32 // legs that may still read the client's body

	mu       sync.Mutex
	space    sync.Cond // on mu: held has shrunk, or over
	items    []item    // those from taken on were not taken yet
	taken    int
	slab     []byte   // where chunks are put; decode's goroutine's alone
	ready    [][]byte // of events that were taken
	held     int      // bytes in items and ready
	full     bool     // HeldFull was said
	over     bool     // nobody waits for output
	end      Ending
	grace    time.Duration
	spoke    bool      // decode sent content
	handed   bool      // decode was asked
	handedAt time.Time // prefill's answer was there; of decode's goroutine alone
	topped   bool      // decode's first token was heard of; of decode's goroutine alone
	begun    bool      // decode's first chunk was heard; of the same
	owed     []byte    // the usage at the end that the client asked for, while decode has said it beside a finish only; of the same
	model    string    // of the leg that answered first
	live     int       // legs whose goroutine runs
	quiet    func()
	settle   *time.Timer
	overdue  bool // the legs had their time; decode alone may still be written to
	reading  bool // decode's leg runs
	report   Report
	began    time.Time
}

// keptItems is the longest queue whose memory is kept.
const keptItems = 64

type item struct {
	event legs.Event
	bytes []byte
}

// Report is what is known of an attempt. It is for the record.
type Report struct {
	Prompt, DecodePrompt, Completion int           // tokens, as the legs said; -1: nothing
	Prefill, Decode                  time.Duration // to prefill's answer; from there (or the start) to decode's end
	Cached                           int           // tokens of the prompt that prefill says it had already; -1: nothing
	Bytes                            int64         // of decode's output
	Unsent                           bool          // a leg could not be reached: nothing was sent to it
	Cut                              bool          // a leg had not ended in the time that it was given
	Settled                          bool          // every leg ended by itself, or was cut where no transfer could be under way
}

// Start sends the first leg or both, and does not wait. quiet is called once, when nothing of the attempt moves any more.
func Start(p Plan, quiet func()) *Run {
	r := &Run{plan: p, wake: make(chan struct{}, 1), quiet: quiet, grace: grace, began: time.Now()}
	r.space.L = &r.mu
	r.report = Report{Prompt: -1, DecodePrompt: -1, Completion: -1, Cached: -1, Settled: true}
	for l := range r.ctx {
		r.ctx[l], r.cancel[l] = context.WithCancel(context.Background())
	}
	decode := p.Decode
	r.handed = decode != nil
	r.unsent.Store(1)
	if p.Prefill != nil {
		r.unsent.Store(2)
	}
	if p.Prefill != nil {
		r.live++
	}
	if decode != nil {
		r.live++
		r.reading = true
		start(func() { r.runDecode(decode) })
	}
	if p.Prefill != nil {
		start(r.runPrefill)
	}
	return r
}

// sent notes that one leg has the client's body, or will never ask for it.
func (r *Run) sent() {
	if r.unsent.Add(-1) == 0 && r.plan.Sent != nil {
		r.plan.Sent()
	}
}

// done ends a leg's goroutine.
func (r *Run) done() {
	r.mu.Lock()
	r.live--
	var quiet func()
	if r.live == 0 {
		quiet, r.quiet = r.quiet, nil
		if r.settle != nil {
			r.settle.Stop()
		}
	}
	r.mu.Unlock()
	if quiet != nil {
		for _, c := range r.cancel {
			c()
		}
		r.signal()
		quiet()
	}
}

func (r *Run) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// tell queues an event, and the bytes that it announces. It waits while too much of a stream is held.
func (r *Run) tell(e legs.Event, bytes []byte) { r.tellBoth(nil, e, bytes) }

// tellBoth queues an event without bytes, if there is one, and then one with.
func (r *Run) tellBoth(first, e legs.Event, bytes []byte) {
	r.mu.Lock()
	b, content := e.(legs.LegBytes)
	content = content && b.Leg == legs.Decode
	if r.over {
		bytes = nil
	}
	if content {
		r.report.Bytes += int64(len(bytes))
	}
	if first != nil {
		r.queue(item{first, nil})
		if u, ok := first.(legs.LegUsage); ok && content {
			r.report.DecodePrompt, r.report.Completion = u.Prompt, max(u.Completion, r.report.Completion)
		}
	}
	r.queue(item{e, bytes})
	r.held += len(bytes)
	cut, overdue := false, false
	if content && b.N > 0 && !r.spoke {
		r.spoke = true
		overdue = r.overdue
		cut = r.over && r.end == Unheard
	}
	if len(bytes) > 0 && r.plan.Stream && r.held > r.plan.Hold && !r.over {
		if !r.full {
			r.full = true
			r.queue(item{legs.HeldFull{}, nil})
		}
		r.mu.Unlock()
		r.signal()
		r.mu.Lock()
		for r.held > r.plan.Hold && !r.over {
			r.space.Wait()
		}
	}
	r.mu.Unlock()
	r.signal()
	if cut {
		r.cancel[legs.Decode]()
	}
	if overdue {
		r.giveUp()
	}
}

// queue appends an item. Under mu.
func (r *Run) queue(it item) {
	if r.taken > 0 && len(r.items) == cap(r.items) {
		// What was taken makes room, before more is allocated.
		n := copy(r.items, r.items[r.taken:])
		clear(r.items[n:])
		r.items, r.taken = r.items[:n], 0
	}
	r.items = append(r.items, it)
}

// slab is how much room for chunks is allocated at a time.
const slab = 4 << 10

// room is an empty slice for n bytes that a chunk of a stream may fill. For the goroutine of decode's leg alone.
func (r *Run) room(n int) []byte {
	if cap(r.slab)-len(r.slab) < n {
		r.slab = make([]byte, 0, max(slab, n))
	}
	at := len(r.slab)
	r.slab = r.slab[:at+n]
	return r.slab[at : at : at+n]
}

// Next returns the next event, and waits for it until ctx is done. io.EOF is after the last one.
func (r *Run) Next(ctx context.Context) (legs.Event, error) {
	for {
		r.mu.Lock()
		if len(r.items) > r.taken {
			it := r.items[r.taken]
			r.items[r.taken] = item{}
			if r.taken++; r.taken == len(r.items) {
				if r.items, r.taken = r.items[:0], 0; cap(r.items) > keptItems {
					r.items = nil
				}
			}
			if len(it.bytes) > 0 {
				r.ready = append(r.ready, it.bytes)
			}
			r.mu.Unlock()
			return it.event, nil
		}
		ended := r.live == 0
		r.mu.Unlock()
		if ended {
			return nil, io.EOF
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Take moves the bytes of the events that Next returned to dst.
func (r *Run) Take(dst [][]byte) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, b := range r.ready {
		dst = append(dst, b)
		r.held -= len(b)
		r.ready[i] = nil
	}
	r.ready = r.ready[:0]
	r.space.Broadcast()
	return dst
}

// Ending says how legs that still run are ended.
type Ending uint8

const (
	Good    Ending = iota // the reply is complete: what still comes is read
	Unheard               // nobody waits any more: cut once no transfer can be under way, and nothing is left standing for one
	Refused               // prefill gives no pages: decode is ended, soon
	Swallow               // the legs contradict each other: nothing is cut until it ends by itself
)

// grace is how long after prefill's refusal decode may show that it speaks all the same, and how long a prefill whose client has left may
// go on before it is cut.
const grace = 200 * time.Millisecond

// End lets go of the output and ends the legs that still run. settle is the longest that they may take.
func (r *Run) End(how Ending, settle time.Duration) {
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.over, r.end = true, how
	r.ready, r.held = nil, 0
	for i := range r.items {
		r.items[i].bytes = nil
	}
	r.space.Broadcast()
	one := r.plan.Prefill == nil
	serial := !one && r.plan.Decode == nil
	var cut []legs.Leg
	var later func()
	switch {
	case r.live == 0:
	case how == Unheard:
		if one || r.spoke {
			cut = append(cut, legs.Decode)
		}
		if serial && !r.handed {
			later = r.leave
		}
	case how == Refused:
		if one || r.spoke {
			cut = append(cut, legs.Decode)
		} else {
			later = r.abandon
		}
	}
	if r.live > 0 {
		r.settle = time.AfterFunc(settle, func() { r.late(settle) })
	}
	r.mu.Unlock()
	for _, l := range cut {
		r.cancel[l]()
	}
	if later != nil {
		time.AfterFunc(r.grace, later)
	}
}

// leave cuts a prefill that has handed nothing over yet. The engine frees what it has of a prompt that it works on. Of one that it is done
// with it keeps the pages until somebody reads them, or their lease ends, whether its answer was heard or not: so prefill is given a
// moment, in which short prompts end in order, and what is cut is long, and seldom cut between its end and its answer.
func (r *Run) leave() {
	r.mu.Lock()
	handed := r.handed
	r.mu.Unlock()
	if !handed {
		r.cancel[legs.Prefill]()
	}
}

// abandon ends decode's request, which prefill gives no pages.
func (r *Run) abandon() {
	r.mu.Lock()
	live := r.live > 0
	r.mu.Unlock()
	if !live {
		return
	}
	if r.plan.Abandon != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		r.plan.Abandon(ctx)
		cancel()
	}
	r.cancel[legs.Decode]()
}

// transferTime is the longest that an engine waits for a transfer before it gives up by itself: vLLM 480 s, SGLang 300 s.
const transferTime = 10 * time.Minute

// late is when the legs had the time that they were given. A decode that was asked and has not spoken may have pages that are written
// to, or will be: until the engine itself gives up neither leg is cut.
func (r *Run) late(had time.Duration) {
	r.mu.Lock()
	wait := r.plan.Prefill != nil && r.reading && !r.spoke && had < transferTime
	if wait {
		r.overdue = true
		r.settle = time.AfterFunc(transferTime-had, r.giveUp)
	}
	r.mu.Unlock()
	if !wait {
		r.giveUp()
	}
}

// Cut ends all legs at once: the gateway goes.
func (r *Run) Cut() { r.giveUp() }

// giveUp cuts legs that did not end in time.
func (r *Run) giveUp() {
	r.mu.Lock()
	if r.live > 0 && r.plan.Prefill != nil {
		r.report.Cut = true
		r.report.Settled = r.report.Settled && (r.spoke || r.overdue && !r.reading)
	}
	r.mu.Unlock()
	for _, c := range r.cancel {
		c()
	}
}

// Report of the attempt so far.
func (r *Run) Report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report
}

// Spoke reports whether decode sent content.
func (r *Run) Spoke() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spoke
}

// More reports whether another event is there already.
func (r *Run) More() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.items) > r.taken
}

// Held is the bytes of decode's output that lie here.
func (r *Run) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// Ended reports whether nothing moves any more and nothing is left to be heard.
func (r *Run) Ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live == 0 && len(r.items) == r.taken
}
