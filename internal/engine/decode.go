package engine

import (
	"errors"
	"slices"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// DecodeConfig of NewDecode.
type DecodeConfig struct {
	Runner     llm.Runner // the engine's goroutine alone uses it; it takes batches of MaxBatch tokens
	Vocab      int
	EOS        []int32 // any of them ends a reply
	PageTokens int
	MaxBatch   int                    // most sequences a step; 0: 128
	Queue      int                    // most sequences waiting and running; 0: 1024
	Freed      func() <-chan struct{} // pool.Freed: closed at the next return of pages
}

// Decode generates replies, one token of every live sequence a step.
type Decode struct {
	cfg  DecodeConfig
	in   *inbox[DecodeJob]
	done chan struct{}

	// The goroutine's own.
	spare   [][]float32       // logits of sequences that ended
	leaving []<-chan struct{} // Done of leases of sequences that ended: pages on their way back
}

// sequence is a job that has begun. Its live KV is positions [0, pos); the next step computes next at pos.
type sequence struct {
	DecodeJob
	next    [1]int32 // the token to compute
	pos     int
	out     int // tokens handed out
	max     int
	echoed  bool
	logits  []float32
	view    pool.View
	sampler sampler
}

// NewDecode starts the engine's goroutine. Close ends it.
func NewDecode(cfg DecodeConfig) *Decode {
	if cfg.MaxBatch <= 0 {
		cfg.MaxBatch = 128
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 1024
	}
	e := &Decode{cfg: cfg, in: newInbox[DecodeJob](cfg.Queue), done: make(chan struct{})}
	go e.run()
	return e
}

// Submit queues a job. ErrQueueFull and ErrClosed took nothing.
func (e *Decode) Submit(j DecodeJob) error {
	j.Ticket.Plan() // a zero ticket panics here, at its maker
	return e.in.put(j)
}

// Cancel ends a job with v, at the end of the step that runs. Its sink hears Done. Unknown attempts are nobody's.
func (e *Decode) Cancel(id attempt.ID, v verdict.Verdict) { e.in.cancel(id, v) }

// Depth is the number of jobs that wait or run.
func (e *Decode) Depth() int { return e.in.depth() }

// Close ends every job with ShuttingDown and waits for the goroutine.
func (e *Decode) Close() {
	e.in.close()
	<-e.done
}

func (e *Decode) run() {
	defer close(e.done)
	var live []*sequence
	for {
		jobs, cancels, closed := e.in.take(e.cfg.MaxBatch - len(live))
		for _, j := range jobs {
			live = append(live, e.begin(j))
		}
		live = e.sweep(live, cancels, closed)
		if len(live) == 0 {
			if closed {
				return
			}
			<-e.in.wake
			continue
		}
		live = e.step(live)
	}
}

// begin makes the first step the prompt's last position, recomputed from the pages that were sealed.
func (e *Decode) begin(j DecodeJob) *sequence {
	p := j.Ticket.Plan()
	s := &sequence{DecodeJob: j, next: [1]int32{p.LastToken}, pos: int(p.PromptTokens) - 1, max: int(p.MaxTokens), sampler: newSampler(p.Sampling)}
	if n := len(e.spare); n > 0 {
		s.logits, e.spare = e.spare[n-1], e.spare[:n-1]
	} else {
		s.logits = make([]float32, e.cfg.Vocab)
	}
	return s
}

// sweep ends the sequences that may not go on, and those that wait for a place in the batch and may not begin.
func (e *Decode) sweep(live []*sequence, cancels map[attempt.ID]verdict.Verdict, closed bool) []*sequence {
	end := func(t admission.Ticket, begun bool) verdict.Verdict {
		if v, ok := cancels[t.Attempt()]; ok {
			return v
		}
		if begun || !t.Valid() { // rule 1: what has a verdict does not enter
			if v, ok := t.Verdict().Get(); ok {
				return v
			}
		}
		if closed {
			return verdict.Of(verdict.ShuttingDown, verdict.Decode, "decode is shutting down")
		}
		return verdict.Verdict{}
	}
	waiting, vs := e.in.drop(func(j DecodeJob) verdict.Verdict { return end(j.Ticket, false) })
	e.in.ended(len(waiting)) // before Done: whoever hears it may submit again
	for i, j := range waiting {
		e.leave(j.Lease)
		j.Sink.Done(0, FinishNone, vs[i])
	}
	return e.keep(live, func(s *sequence) ending { return ending{v: end(s.Ticket, s.echoed)} })
}

// keep ends the sequences for which end has a verdict, and returns the others.
func (e *Decode) keep(live []*sequence, end func(*sequence) ending) []*sequence {
	n := 0
	for _, s := range live {
		x := end(s)
		if x.v.IsZero() {
			live[n] = s
			n++
			continue
		}
		e.spare = append(e.spare, s.logits)
		e.leave(s.Lease)
		e.in.ended(1)
		s.Sink.Done(s.out, x.f, x.v)
	}
	clear(live[n:])
	return live[:n]
}

// leave notes that a lease's pages are about to come back, and forgets those that have.
func (e *Decode) leave(l *pool.Lease) {
	e.leaving = append(slices.DeleteFunc(e.leaving, closed), l.Done())
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

type ending struct {
	v verdict.Verdict
	f Finish
}

// step runs one batch and returns the sequences that go on.
func (e *Decode) step(live []*sequence) []*sequence {
	ends := map[*sequence]ending{}
	freed := e.cfg.Freed() // before the tries: a page that returns in between is not missed
	batch, in := make([]llm.Chunk, 0, len(live)), make([]*sequence, 0, len(live))
	stalled := 0
	for _, s := range live {
		if err := e.room(s, stalled > 0); errors.Is(err, pool.ErrPoolFull) {
			stalled++
			continue
		} else if err != nil {
			ends[s] = ending{v: ofView(err, s.Ticket, verdict.Decode)}
			continue
		}
		if err := s.Lease.View(&s.view, s.pos+1, s.pos); err != nil {
			ends[s] = ending{v: ofView(err, s.Ticket, verdict.Decode)}
			continue
		}
		batch = append(batch, llm.Chunk{Tokens: s.next[:], Pos: s.pos, KV: &s.view, Logits: s.logits})
		in = append(in, s)
	}
	if len(batch) > 0 {
		err := e.cfg.Runner.Forward(batch)
		for _, s := range in {
			s.view.Done()
		}
		for i, s := range in {
			computed, v := outcome(err, i, verdict.Decode)
			if v.IsZero() && computed {
				ends[s] = e.advance(s)
			} else if !v.IsZero() {
				ends[s] = ending{v: v}
			}
		}
	} else if stalled > 0 && stalled == len(live) {
		if s, v := e.unstall(live, freed); s != nil {
			ends[s] = ending{v: v}
		}
	}
	return e.keep(live, func(s *sequence) ending { return ends[s] })
}

// room makes sure that the lease has a page for the next position. After an older sequence went without one in the same step, no younger
// one asks: a page that comes back in between is the oldest's.
func (e *Decode) room(s *sequence, older bool) error {
	if s.pos < s.Lease.Len()*e.cfg.PageTokens {
		return nil
	}
	if older {
		return pool.ErrPoolFull
	}
	return s.Lease.Grow(1)
}

// unstall is for when every sequence waits for a page. While pages are on their way back from sequences that ended, it waits for them. If
// none are, nobody here would ever return one: the youngest gives up its pages for the others.
func (e *Decode) unstall(live []*sequence, freed <-chan struct{}) (*sequence, verdict.Verdict) {
	e.leaving = slices.DeleteFunc(e.leaving, closed)
	switch {
	case closed(freed):
		return nil, verdict.Verdict{}
	case len(e.leaving) > 0:
		select {
		case <-freed:
		case <-e.leaving[0]:
		case <-e.in.wake: // a job, a cancel, the end
		}
		return nil, verdict.Verdict{}
	}
	s := live[len(live)-1]
	return s, verdict.Of(verdict.PoolExhausted, verdict.Decode, "no free page for token %d of the reply; %d sequences wait for pages", s.out+1, len(live))
}

// advance takes note of a computed token: the echo first, then what the sampler chooses.
func (e *Decode) advance(s *sequence) ending {
	if !s.echoed {
		own, err := wire.EchoOf(s.logits)
		if err != nil {
			return ending{v: verdict.Of(verdict.EngineFailed, verdict.Decode, "%v", err)}
		}
		if v := s.Sink.Echo(own); !v.IsZero() {
			return ending{v: v}
		}
		s.echoed = true
	}
	id := s.sampler.next(s.logits, s.out)
	if slices.Contains(e.cfg.EOS, id) {
		return ending{verdict.Served(verdict.Decode), FinishStop}
	}
	s.out++
	if !s.Sink.Token(id) {
		return ending{verdict.Served(verdict.Decode), FinishStop}
	}
	if s.out == s.max {
		return ending{verdict.Served(verdict.Decode), FinishLength}
	}
	s.next[0], s.pos = id, s.pos+1
	return ending{}
}
