package engine

import (
	"fmt"
	"slices"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// PrefillConfig of NewPrefill.
type PrefillConfig struct {
	Runner     llm.Runner // the engine's goroutine alone uses it; it takes batches of Chunk tokens
	Vocab      int
	PageTokens int
	Chunk      int // most tokens a step; 0: 512
	Queue      int // most prompts waiting and running; 0: 1024
}

// Prefill computes prompts, chunk by chunk, in turn.
type Prefill struct {
	cfg  PrefillConfig
	in   *inbox[PrefillJob]
	done chan struct{}
}

// prompt is a job that has begun.
type prompt struct {
	PrefillJob
	at     int // tokens computed
	sealed int // pages sealed
	take   int // tokens of the step
	logits []float32
	view   pool.View
}

// NewPrefill starts the engine's goroutine. Close ends it.
func NewPrefill(cfg PrefillConfig) *Prefill {
	if cfg.Chunk <= 0 {
		cfg.Chunk = 512
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 1024
	}
	e := &Prefill{cfg: cfg, in: newInbox[PrefillJob](cfg.Queue), done: make(chan struct{})}
	go e.run()
	return e
}

// Submit queues a job. ErrQueueFull and ErrClosed took nothing.
func (e *Prefill) Submit(j PrefillJob) error {
	j.Ticket.Plan() // a zero ticket panics here, at its maker
	if len(j.Tokens) == 0 {
		panic(fmt.Sprintf("engine: attempt %s has a prompt of no tokens", j.Ticket.Attempt()))
	}
	return e.in.put(j)
}

// Cancel ends a job with v, at the end of the step that runs. Its sink hears Done. Unknown attempts are nobody's.
func (e *Prefill) Cancel(id attempt.ID, v verdict.Verdict) { e.in.cancel(id, v) }

// Depth is the number of jobs that wait or run.
func (e *Prefill) Depth() int { return e.in.depth() }

// Close ends every job with ShuttingDown and waits for the goroutine.
func (e *Prefill) Close() {
	e.in.close()
	<-e.done
}

func (e *Prefill) run() {
	defer close(e.done)
	var live []*prompt
	for {
		jobs, cancels, closed := e.in.take(e.cfg.Queue)
		for _, j := range jobs {
			live = append(live, &prompt{PrefillJob: j})
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

// sweep ends the jobs that may not go on.
func (e *Prefill) sweep(live []*prompt, cancels map[attempt.ID]verdict.Verdict, closed bool) []*prompt {
	return e.keep(live, func(p *prompt) verdict.Verdict {
		if v, ok := cancels[p.Ticket.Attempt()]; ok {
			return v
		}
		if p.at > 0 || !p.Ticket.Valid() { // rule 1: what has a verdict does not enter
			if v, ok := p.Ticket.Verdict().Get(); ok {
				return v
			}
		}
		if closed {
			return verdict.Of(verdict.ShuttingDown, verdict.Prefill, "prefill is shutting down")
		}
		return verdict.Verdict{}
	})
}

// keep ends the prompts for which end has a verdict, and returns the others.
func (e *Prefill) keep(live []*prompt, end func(*prompt) verdict.Verdict) []*prompt {
	n := 0
	for _, p := range live {
		v := end(p)
		if v.IsZero() {
			live[n] = p
			n++
			continue
		}
		e.in.ended(1) // before Done: whoever hears it may submit again
		p.Sink.Done(p.at, wire.Echo{}, v)
	}
	clear(live[n:])
	return live[:n]
}

// schedule shares a step's tokens out: a quarter to the oldest prompt, so that none waits for ever, the rest to those with the fewest left,
// of equals the older, so that a long prompt does not hold up short ones. Each is given what is left of its prompt, or of the step.
func (e *Prefill) schedule(live []*prompt) (chosen []*prompt) {
	left := e.cfg.Chunk
	give := func(p *prompt, n int) {
		if n = min(n, left, len(p.Tokens)-p.at-p.take); n <= 0 {
			return
		}
		if p.take == 0 {
			chosen = append(chosen, p)
		}
		p.take += n
		left -= n
	}
	for _, p := range live {
		p.take = 0
	}
	give(live[0], max(e.cfg.Chunk/4, 1))
	order := slices.Clone(live)
	slices.SortStableFunc(order, func(a, b *prompt) int { return (len(a.Tokens) - a.at) - (len(b.Tokens) - b.at) })
	for _, p := range order {
		give(p, left)
	}
	return chosen
}

// step runs one batch and returns the jobs that go on.
func (e *Prefill) step(live []*prompt) []*prompt {
	ends := map[*prompt]verdict.Verdict{}
	var batch []llm.Chunk
	var in []*prompt
	for _, p := range e.schedule(live) {
		if err := p.Lease.View(&p.view, p.at+p.take, p.at); err != nil {
			ends[p] = ofView(err, p.Ticket, verdict.Prefill)
			continue
		}
		c := llm.Chunk{Tokens: p.Tokens[p.at : p.at+p.take], Pos: p.at, KV: &p.view}
		if p.at+p.take == len(p.Tokens) {
			p.logits = make([]float32, e.cfg.Vocab)
			c.Logits = p.logits
		}
		batch, in = append(batch, c), append(in, p)
	}
	if len(batch) > 0 {
		err := e.cfg.Runner.Forward(batch)
		for _, p := range in {
			p.view.Done()
		}
		for i, p := range in {
			if computed, v := outcome(err, i, verdict.Prefill); !v.IsZero() {
				ends[p] = v
			} else if !computed {
				continue
			} else if done, v := e.advance(p); done {
				live = slices.DeleteFunc(live, func(q *prompt) bool { return q == p })
			} else if !v.IsZero() {
				ends[p] = v
			}
		}
	}
	return e.keep(live, func(p *prompt) verdict.Verdict { return ends[p] })
}

// advance takes note of a computed chunk: it seals what is complete and, at the end of the prompt, says so.
func (e *Prefill) advance(p *prompt) (done bool, v verdict.Verdict) {
	if p.Computed != nil {
		p.Computed.Add(p.Tokens[p.at : p.at+p.take])
	}
	p.at += p.take
	whole := p.at == len(p.Tokens)
	until := p.at / e.cfg.PageTokens
	if whole {
		until = (p.at + e.cfg.PageTokens - 1) / e.cfg.PageTokens
	}
	if until > p.sealed {
		macs := make([]mac.Tag, 0, until-p.sealed)
		for o := p.sealed; o < until; o++ {
			m, err := p.Lease.SealOwn(o, p.Key)
			if err != nil {
				return false, ofView(err, p.Ticket, verdict.Prefill)
			}
			macs = append(macs, m)
		}
		from := p.sealed
		p.sealed = until
		p.Sink.Sealed(from, macs)
	}
	if !whole {
		return false, verdict.Verdict{}
	}
	echo, err := wire.EchoOf(p.logits)
	p.logits = nil
	if err != nil {
		return false, verdict.Of(verdict.EngineFailed, verdict.Prefill, "%v", err)
	}
	e.in.ended(1)
	p.Sink.Done(p.at, echo, verdict.Verdict{})
	return true, verdict.Verdict{}
}
