package engine

import (
	"errors"
	"slices"

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
	var spare [][]float32 // logits of sequences that ended
	for {
		jobs, cancels, closed := e.in.take(e.cfg.MaxBatch - len(live))
		for _, j := range jobs {
			live = append(live, e.begin(j, &spare))
		}
		live = e.sweep(live, cancels, closed, &spare)
		if len(live) == 0 {
			if closed {
				return
			}
			<-e.in.wake
			continue
		}
		live = e.step(live, &spare)
	}
}

// begin makes the first step the prompt's last position, recomputed from the pages that were sealed.
func (e *Decode) begin(j DecodeJob, spare *[][]float32) *sequence {
	p := j.Ticket.Plan()
	s := &sequence{DecodeJob: j, next: [1]int32{p.LastToken}, pos: int(p.PromptTokens) - 1, max: int(p.MaxTokens), sampler: newSampler(p.Sampling)}
	if n := len(*spare); n > 0 {
		s.logits, *spare = (*spare)[n-1], (*spare)[:n-1]
	} else {
		s.logits = make([]float32, e.cfg.Vocab)
	}
	return s
}

// sweep ends the sequences that may not go on.
func (e *Decode) sweep(live []*sequence, cancels map[attempt.ID]verdict.Verdict, closed bool, spare *[][]float32) []*sequence {
	if len(cancels) > 0 { // also those that still wait for a place in the batch
		for id, v := range cancels {
			if !slices.ContainsFunc(live, func(s *sequence) bool { return s.Ticket.Attempt() == id }) {
				e.endWaiting(id, v)
			}
		}
	}
	return e.keep(live, spare, func(s *sequence) (verdict.Verdict, Finish) {
		if v, ok := cancels[s.Ticket.Attempt()]; ok {
			return v, FinishNone
		}
		if s.echoed || !s.Ticket.Valid() { // rule 1: what has a verdict does not enter
			if v, ok := s.Ticket.Verdict().Get(); ok {
				return v, FinishNone
			}
		}
		if closed {
			return verdict.Of(verdict.ShuttingDown, verdict.Decode, "decode is shutting down"), FinishNone
		}
		return verdict.Verdict{}, FinishNone
	})
}

// endWaiting ends a job that has no place in the batch yet.
func (e *Decode) endWaiting(id attempt.ID, v verdict.Verdict) {
	e.in.mu.Lock()
	i := slices.IndexFunc(e.in.waiting, func(j DecodeJob) bool { return j.Ticket.Attempt() == id })
	var sink DecodeSink
	if i >= 0 {
		sink = e.in.waiting[i].Sink
		e.in.waiting = slices.Delete(e.in.waiting, i, i+1)
		e.in.held--
	}
	e.in.mu.Unlock()
	if sink != nil {
		sink.Done(0, FinishNone, v)
	}
}

// keep ends the sequences for which end has a verdict, and returns the others.
func (e *Decode) keep(live []*sequence, spare *[][]float32, end func(*sequence) (verdict.Verdict, Finish)) []*sequence {
	n := 0
	for _, s := range live {
		v, f := end(s)
		if v.IsZero() {
			live[n] = s
			n++
			continue
		}
		*spare = append(*spare, s.logits)
		s.Sink.Done(s.out, f, v)
		e.in.ended(1)
	}
	clear(live[n:])
	return live[:n]
}

type ending struct {
	v verdict.Verdict
	f Finish
}

// step runs one batch and returns the sequences that go on.
func (e *Decode) step(live []*sequence, spare *[][]float32) []*sequence {
	ends := map[*sequence]ending{}
	freed := e.cfg.Freed() // before the tries: a page that returns in between is not missed
	batch, in := make([]llm.Chunk, 0, len(live)), make([]*sequence, 0, len(live))
	stalled := 0
	for _, s := range live {
		if err := e.room(s); errors.Is(err, pool.ErrPoolFull) {
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
		e.unstall(live, freed, ends)
	}
	return e.keep(live, spare, func(s *sequence) (verdict.Verdict, Finish) { return ends[s].v, ends[s].f })
}

// room makes sure that the lease has a page for the next position.
func (e *Decode) room(s *sequence) error {
	if s.pos < s.Lease.Len()*e.cfg.PageTokens {
		return nil
	}
	return s.Lease.Grow(1)
}

// unstall is for when every sequence waits for a page: if none has returned meanwhile, nobody here would ever return
// one, so the youngest gives up its pages for the others.
func (e *Decode) unstall(live []*sequence, freed <-chan struct{}, ends map[*sequence]ending) {
	select {
	case <-freed:
		return
	default:
	}
	s := live[len(live)-1]
	ends[s] = ending{v: verdict.Of(verdict.PoolExhausted, verdict.Decode,
		"no free page for token %d of the reply; %d sequences wait for pages", s.out+1, len(live))}
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
