package worker

import (
	"sync"

	"github.com/sluicekv/sluice/internal/engine"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// plainEngine computes one job at a time: the shortest thing that keeps the engine's promises, for tests of what surrounds it.
type plainEngine struct {
	run  *llm.CPU
	jobs chan func()
	wg   sync.WaitGroup
}

func newPlain() *plainEngine {
	e := &plainEngine{run: llm.NewRunner(copier(), llm.RunnerOptions{Threads: 1, MaxRows: 64}), jobs: make(chan func(), 1024)}
	e.wg.Go(func() {
		for j := range e.jobs {
			j()
		}
	})
	return e
}

func (e *plainEngine) Close() {
	close(e.jobs)
	e.wg.Wait()
	e.run.Close()
}

type plainPrefill struct{ *plainEngine }

func (e plainPrefill) Submit(j engine.PrefillJob) error {
	e.jobs <- func() {
		n, echo, v := e.prefill(j)
		j.Sink.Done(n, echo, v)
	}
	return nil
}

func failed(err error) verdict.Verdict {
	return verdict.Of(verdict.EngineFailed, verdict.Prefill, "%v", err)
}

func (e plainPrefill) prefill(j engine.PrefillJob) (int, wire.Echo, verdict.Verdict) {
	logits := make([]float32, copier().Config().Vocab)
	sealed := 0
	for at := 0; at < len(j.Tokens); {
		to := min(at+64, len(j.Tokens))
		var v pool.View
		if err := j.Lease.View(&v, to, at); err != nil {
			return at, wire.Echo{}, failed(err)
		}
		err := e.run.Forward([]llm.Chunk{{Tokens: j.Tokens[at:to], Pos: at, KV: &v, Logits: logits}})
		v.Done()
		if err != nil {
			return at, wire.Echo{}, failed(err)
		}
		at = to
		whole := to / pageTokens
		if to == len(j.Tokens) {
			whole = (to + pageTokens - 1) / pageTokens
		}
		var macs []mac.Tag
		from := sealed
		for ; sealed < whole; sealed++ {
			m, err := j.Lease.SealOwn(sealed, j.Key)
			if err != nil {
				return at, wire.Echo{}, failed(err)
			}
			macs = append(macs, m)
		}
		if len(macs) > 0 {
			j.Sink.Sealed(from, macs)
		}
	}
	echo, err := wire.EchoOf(logits)
	if err != nil {
		return len(j.Tokens), echo, failed(err)
	}
	return len(j.Tokens), echo, verdict.Verdict{}
}

type plainDecode struct{ *plainEngine }

func (e plainDecode) Submit(j engine.DecodeJob) error {
	e.jobs <- func() {
		n, f, v := e.decode(j)
		j.Sink.Done(n, f, v)
	}
	return nil
}

func (e plainDecode) decode(j engine.DecodeJob) (int, engine.Finish, verdict.Verdict) {
	p := j.Ticket.Plan()
	logits := make([]float32, copier().Config().Vocab)
	next := p.LastToken
	made := 0
	for pos := int(p.PromptTokens) - 1; ; pos++ {
		if need := (pos + pageTokens) / pageTokens; need > j.Lease.Len() {
			if err := j.Lease.Grow(need - j.Lease.Len()); err != nil {
				return made, engine.FinishNone, failed(err)
			}
		}
		var v pool.View
		if err := j.Lease.View(&v, pos+1, pos); err != nil {
			return made, engine.FinishNone, failed(err)
		}
		err := e.run.Forward([]llm.Chunk{{Tokens: []int32{next}, Pos: pos, KV: &v, Logits: logits}})
		v.Done()
		if err != nil {
			return made, engine.FinishNone, failed(err)
		}
		echo, err := wire.EchoOf(logits)
		if err != nil {
			return made, engine.FinishNone, failed(err)
		}
		if pos == int(p.PromptTokens)-1 {
			if v := j.Sink.Echo(echo); !v.IsZero() {
				return 0, engine.FinishNone, v
			}
		}
		next = echo.IDs[0]
		for _, end := range copier().Config().EOS {
			if next == end {
				return made, engine.FinishStop, verdict.Verdict{}
			}
		}
		made++
		if !j.Sink.Token(next) {
			return made, engine.FinishStop, verdict.Verdict{}
		}
		if made == int(p.MaxTokens) {
			return made, engine.FinishLength, verdict.Verdict{}
		}
	}
}
