package drill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// SoakOptions of a soak.
type SoakOptions struct {
	Pages    uint64 // to be handed over, of both pools together
	Seed     uint64
	Clients  int           // at once; 0: 24
	At       time.Duration // most time until a client hangs up; 0: 40 ms
	Program  []string      // that runs a node; nil: this binary
	Trace    io.Writer     // takes every event, for drill replay; nil: none. It is not closed
	Progress func(done, total int, now string)
}

// Soak is what came of one.
type Soak struct {
	Pages     uint64            `json:"pages_handed_over"`
	Requests  int               `json:"requests"`
	Exact     int               `json:"exact"`   // served, with the request's own text
	HungUp    int               `json:"hung_up"` // by their clients, on purpose
	Busy      int               `json:"busy"`    // refused for want of pages or time
	Events    uint64            `json:"trace_events_validated"`
	Attempts  uint64            `json:"attempts_validated"`
	PoolFree  int               `json:"pool_free"`
	PoolTotal int               `json:"pool_total"`
	Nonzero   uint64            `json:"nonzero_bytes_from_outside"`
	Verdicts  map[string]uint64 `json:"verdicts"` // of both workers
	Seconds   float64           `json:"seconds"`
	Wrong     []string          `json:"wrong"`       // what a soak must not show; empty: it held
	Cut       bool              `json:"interrupted"` // before Pages; all that was handed over was looked at all the same
}

// expected are the verdicts that a storm of hanging up may end in. Any other is a false alarm.
var expected = map[string]bool{"ok": true, "client_closed_request": true, "kv_pool_exhausted": true, "overloaded": true, "deadline_exceeded": true}

// RunSoak hands pages over until there were so many, in a fleet of separate processes with small pages, under clients of which four in five
// hang up at a random moment. Every event is validated as it comes. At the end every page must be free, and zero, seen from outside.
//
// When ctx ends it hands out nothing more, and judges what it has handed out: hours of it are not thrown away.
func RunSoak(ctx context.Context, o SoakOptions) (r Soak, err error) {
	began := time.Now()
	if o.Program == nil {
		if o.Program, err = program(); err != nil {
			return r, err
		}
	}
	if o.Clients == 0 {
		o.Clients = 24
	}
	if o.At == 0 {
		o.At = 40 * time.Millisecond
	}
	x, err := startTrio(ctx, o.Program, 0, limits{deadline: 20_000, settle: 10_000, silence: 10_000},
		sizes{prefill: 65536, decode: 131072, liar: 1024, context: contextLen, decodeContext: contextLen, page: 16})
	if err != nil {
		return r, err
	}
	defer x.close()
	if o.Trace != nil {
		x.record = &recording{to: bufio.NewWriterSize(o.Trace, 1<<20)}
		x.record.head()
	}

	storm, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var clients sync.WaitGroup
	for i := range o.Clients {
		rng := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		clients.Go(func() {
			for storm.Err() == nil {
				x.drop(ctx, rng, o.At, &mu, &r)
			}
		})
	}
	boots := map[uint64]bool{x.prefill.up.Boot: true, x.decode.up.Boot: true}
	handed := uint64(0)
	for handed < o.Pages && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // the validator's rhythm
		}
		n, err := x.walk(boots)
		handed += n
		if err != nil {
			mu.Lock()
			r.Wrong = append(r.Wrong, err.Error())
			mu.Unlock()
			break
		}
		if o.Progress != nil {
			o.Progress(int(min(handed, o.Pages-1)), int(o.Pages), "page hand-overs")
		}
	}
	stop()
	clients.Wait()
	r.Cut = ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	if r.PoolFree, r.PoolTotal, r.Nonzero, err = x.settled(ctx, 60*time.Second); err != nil {
		return r, err
	}
	r.Verdicts = map[string]uint64{}
	for _, p := range x.workers() {
		for code, n := range x.stats(ctx, p).Verdicts {
			r.Verdicts[code] += n
			if !expected[code] {
				r.Wrong = append(r.Wrong, fmt.Sprintf("a false alarm: %d attempts on %s ended with %s", n, p.cfg.Kind, code))
			}
		}
	}
	if r.PoolFree != r.PoolTotal || r.PoolTotal == 0 {
		r.Wrong = append(r.Wrong, fmt.Sprintf("%d of %d pages came back", r.PoolFree, r.PoolTotal))
	}
	if r.Nonzero > 0 {
		r.Wrong = append(r.Wrong, fmt.Sprintf("%d bytes of free pages are not zero", r.Nonzero))
	}
	n, err := x.end(boots)
	r.Pages = handed + n
	if err != nil {
		r.Wrong = append(r.Wrong, err.Error())
	}
	if x.record != nil {
		if err := x.record.end(); err != nil {
			return r, fmt.Errorf("drill: the soak's trace: %w", err)
		}
	}
	if o.Progress != nil {
		o.Progress(int(o.Pages), int(o.Pages), "done")
	}
	c := x.validator.Counts()
	r.Events, r.Attempts = c.Events, c.Attempts
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// recording writes the events of a soak as they are validated. What goes wrong with it is told at its end.
type recording struct {
	to    *bufio.Writer
	lines trace.Encoder
	line  []byte
}

func (r *recording) put() {
	_, _ = r.to.Write(r.line) // a bufio.Writer keeps its error until Flush
	r.line = r.line[:0]
}

func (r *recording) head()               { r.line = r.lines.Head(r.line, 1); r.put() }
func (r *recording) event(e trace.Event) { r.line = r.lines.Event(r.line, e); r.put() }
func (r *recording) end() error {
	r.line = r.lines.End(r.line, 0)
	r.put()
	return r.to.Flush()
}

// walk validates what is new, and counts the pages that were handed over.
func (x *trio) walk(boots map[uint64]bool) (handed uint64, err error) {
	fresh := x.events.since(x.seen)
	for _, e := range fresh {
		if e.Machine == trace.Pool && e.Step == trace.Reserve && boots[e.Boot] {
			handed += uint64(e.B)
		}
		if x.record != nil {
			x.record.event(e)
		}
		if err := x.validator.Step(e); err != nil {
			return handed, err
		}
	}
	x.seen += len(fresh)
	x.events.forget(x.seen)
	return handed, nil
}

// end validates what is left, and that nothing is left open: the gateway's machines may take a moment longer than the workers'.
func (x *trio) end(boots map[uint64]bool) (handed uint64, err error) {
	for range 100 {
		n, err := x.walk(boots)
		handed += n
		if err != nil {
			return handed, err
		}
		if x.quiet() {
			break
		}
	}
	return handed, x.validator.End()
}

// quiet reports whether the fleet has fallen silent.
func (x *trio) quiet() bool {
	before := x.events.now()
	time.Sleep(300 * time.Millisecond) // the silence itself
	return x.events.now() == before
}

// drop is one client of the storm.
func (x *trio) drop(ctx context.Context, rng *rand.Rand, most time.Duration, mu *sync.Mutex, r *Soak) {
	own := secret(rng)
	p := plain(rng, own, 200+rng.IntN(7000))
	stays := rng.IntN(5) == 0
	if stays {
		p = plain(rng, own, 200+rng.IntN(1000))
	}
	asking, hangUp := context.WithCancel(ctx)
	defer hangUp()
	if !stays {
		t := time.AfterFunc(time.Duration(rng.Int64N(int64(most))), hangUp)
		defer t.Stop()
	}
	got, err := x.door().stream(asking, "honest", p, whole, func() {})
	mu.Lock()
	defer mu.Unlock()
	r.Requests++
	want := " " + own
	switch {
	case !strings.HasPrefix(want, got.text) && !strings.HasPrefix(got.text, want), err == nil && got.status == 200 && got.text != want:
		r.Wrong = append(r.Wrong, "a reply with text that is not its request's own")
	case err == nil && got.status == 200:
		r.Exact++
	case errors.Is(err, context.Canceled) || asking.Err() != nil:
		r.HungUp++
	case got.status == 503 || got.status == 504 || got.status == 429 || expected[got.code]:
		r.Busy++
	default:
		r.Wrong = append(r.Wrong, fmt.Sprintf("a request was answered %d %s %s (%v)", got.status, got.code, got.message, err))
	}
}
