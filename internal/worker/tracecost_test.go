package worker

import (
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// BenchmarkTraceCost is what writing a trace costs a reply at 32k tokens of context: decode's events a token, times what one of them costs
// into a file, as a share of the time that a token takes. On one sequence, which is where the share is largest.
//
//	go test -run - -bench TraceCost -benchtime 1x ./internal/worker
func BenchmarkTraceCost(b *testing.B) {
	const context, reply = 32768, 256
	events := &tally{}
	r := newRig(b, func(_ capacity.Role, c *Config) {
		c.PageTokens, c.PoolPages, c.Context, c.Trace = 64, context/64+16, context+1024, events
	})
	d := r.door("g0")
	prompt := make([]int32, context)
	for i := range prompt {
		prompt[i] = int32('a' + i*i%7) // it goes on for ever: nothing ends the reply but its length
	}
	f := trace.NewFile(nowhere{}, 1)
	defer f.Close()
	for b.Loop() {
		c := d.call(prompt, tokens(reply), func(p *admission.Plan) { p.Limit, p.Budget = context+1024, 10*time.Minute })
		c.run()
		if _, out := c.end(); out.Completion != reply {
			b.Fatalf("%d tokens of %d: %v", out.Completion, reply, out.Verdict)
		}
		n, over := events.ofReply()
		token := over / (reply - 1)
		const many = 200_000
		th := trace.Begin(f, 7, trace.Decode, attempt.ID{1}, context, context/64, 0, 1)
		began := time.Now()
		for range many {
			th.Record(trace.Args{Step: trace.TokenReady}, 7, 1)
		}
		each := time.Since(began) / many
		b.ReportMetric(float64(n)/(reply-1), "events/token")
		b.ReportMetric(float64(each.Nanoseconds()), "ns/event")
		b.ReportMetric(float64(token.Microseconds()), "µs/token")
		b.ReportMetric(100*float64(n)/(reply-1)*float64(each)/float64(token), "%ofdecode")
	}
}

// tally counts decode's events between its first token and its last.
type tally struct {
	n           atomic.Int64
	first, last atomic.Pointer[at]
}

type at struct {
	n    int64
	when time.Time
}

func (t *tally) Record(e trace.Event) {
	n := t.n.Add(1)
	if e.Machine == trace.Decode && e.Step == trace.TokenReady {
		now := &at{n, time.Now()}
		t.first.CompareAndSwap(nil, now)
		t.last.Store(now)
	}
}

func (t *tally) ofReply() (int64, time.Duration) {
	first, last := t.first.Swap(nil), t.last.Load()
	return last.n - first.n, last.when.Sub(first.when)
}

type nowhere struct{ io.Writer }

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) Close() error                { return nil }
