package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicekv/sluice/bench/trio"
)

// load is what is asked of a fleet to measure its speed.
type load struct {
	model   string // a file; empty: built in
	title   string
	workers []string
	short   int // bytes of the prompt whose first token is timed
	long    int // bytes of the prompt that is computed and continued alone
	many    int // bytes of the eight prompts
	alone   int // tokens of one stream
	crowded int // tokens of each of eight streams, while all eight run
	most    int // max_tokens of these: enough that the first still runs when the last has begun
	rounds  map[string]int
}

var loads = []load{{
	title:   "recall (built in), prompts of 8,000 tokens",
	workers: []string{"--kv-memory", "1GiB", "--context", "65536"},
	short:   64, long: 7999, many: 7999, alone: 2000, crowded: 500, most: 30000,
	rounds: map[string]int{"first": 60, "alone": 30, "crowd": 10},
}, {
	model: smollm, title: "SmolLM2-135M-Instruct Q4_1, prompts of about 400 tokens",
	workers: []string{"--kv-memory", "2GiB"},
	short:   64, long: 2000, many: 200, alone: 64, crowded: 24, most: 256,
	rounds: map[string]int{"first": 20, "alone": 12, "crowd": 5},
}}

// measure is one figure of a step.
type measure struct {
	step, name string
	higher     bool // is better
}

const (
	firstToken   = "first token, short prompt, ms"
	prefillSpeed = "prefill, tokens/s"
	prefillCPU   = "  processor time, µs/token"
	decodeSpeed  = "decode, 1 stream, tokens/s"
	decodeGap    = "  p99 between tokens, ms"
	decodeCPU    = "  processor time, µs/token "
	crowdSpeed   = "decode, 8 streams, tokens/s"
	crowdGap     = "  p99 between tokens, ms "
	crowdCPU     = "  processor time, µs/token  "
)

var measures = []measure{
	{"first", firstToken, false},
	{"alone", prefillSpeed, true},
	{"alone", prefillCPU, false},
	{"alone", decodeSpeed, true},
	{"alone", decodeGap, false},
	{"alone", decodeCPU, false},
	{"crowd", crowdSpeed, true},
	{"crowd", crowdGap, false},
	{"crowd", crowdCPU, false},
}

var steps = []string{"first", "alone", "crowd"}

// restartEvery rounds the fleets are made anew: where a process's memory happens to lie is noise as well.
const restartEvery = 5

// three are the fleets that take turns: A and A again, the release build, and B, the unsafe build without guards.
var three = [3]string{"A", "A'", "B"}

// speeds measures a load on three fleets, interleaved, and prints what the guards cost.
func (b *bench) speeds(ctx context.Context, l load) error {
	fmt.Printf("\n%s\n", l.title)
	got := map[string][3][]float64{} // by measure and fleet, a figure each round
	var fleets [3]*trio.Fleet
	closeAll := func() {
		for i, f := range fleets {
			if f != nil {
				f.Close()
			}
			fleets[i] = nil
		}
	}
	defer closeAll()
	rng := rand.New(rand.NewPCG(b.seed, 1))
	most := 0
	for _, s := range steps {
		most = max(most, b.rounds(l, s))
	}
	for round := range most {
		if round%restartEvery == 0 {
			closeAll()
			for i := range fleets {
				o := trio.Options{Binary: b.release, Model: l.model, Both: l.workers}
				if three[i] == "B" {
					o.Binary, o.All = b.unsafe, []string{"--unsafe-disable", "all"}
				}
				f, err := trio.Start(ctx, o)
				if err != nil {
					return err
				}
				fleets[i] = f
				if _, err := l.aloneOn(ctx, f, rng.Uint64()); err != nil { // warm: code, pages of the pools, links
					return err
				}
			}
		}
		for _, s := range steps {
			if round >= b.rounds(l, s) {
				continue
			}
			seed := rng.Uint64() // all three get the same prompts
			for k := range fleets {
				i := (k + round) % len(fleets)
				x, err := l.run(ctx, s, fleets[i], seed)
				if err != nil {
					return fmt.Errorf("%s, fleet %s: %w", s, three[i], err)
				}
				for name, v := range x {
					all := got[name]
					all[i] = append(all[i], v)
					got[name] = all
				}
			}
		}
	}
	printSpeeds(got)
	return nil
}

func (b *bench) rounds(l load, step string) int {
	return max(int(float64(l.rounds[step])*b.scale+0.5), 2)
}

// run measures one step.
func (l load) run(ctx context.Context, step string, f *trio.Fleet, seed uint64) (map[string]float64, error) {
	switch step {
	case "first":
		return l.firstOn(ctx, f, seed)
	case "alone":
		return l.aloneOn(ctx, f, seed)
	}
	return l.crowdOn(ctx, f, seed)
}

func (l load) prompt(rng *rand.Rand, n int) string {
	if l.model == "" {
		p, _ := needle(rng, n)
		return p
	}
	// A real model repeats this for ever, where it would answer a question and end.
	text := strings.Repeat(fmt.Sprintf("%d. The river turned slowly past old mills.\n", 10+rng.IntN(90)), n/40+1)
	return text[:n]
}

// firstOn times the first token of short prompts: what a request costs before its length does.
func (l load) firstOn(ctx context.Context, f *trio.Fleet, seed uint64) (map[string]float64, error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	var firsts []float64
	for range 5 {
		r, err := f.Stream(ctx, trio.Request{Prompt: l.prompt(rng, l.short), MaxTokens: 4}, nil)
		if err != nil {
			return nil, err
		}
		firsts = append(firsts, milliseconds(r.First()))
	}
	return map[string]float64{firstToken: median(firsts)}, nil
}

// aloneOn computes one long prompt and continues it.
func (l load) aloneOn(ctx context.Context, f *trio.Fleet, seed uint64) (map[string]float64, error) {
	rng := rand.New(rand.NewPCG(seed, 3))
	var at atomic.Int64 // processor time when the first token came
	before, err := f.CPU()
	if err != nil {
		return nil, err
	}
	r, err := f.Stream(ctx, trio.Request{Prompt: l.prompt(rng, l.long), MaxTokens: l.alone}, func() {
		if at.Load() == 0 {
			d, _ := f.CPU()
			at.Store(int64(d))
		}
	})
	if err != nil {
		return nil, err
	}
	after, err := f.CPU()
	if err != nil {
		return nil, err
	}
	if r.Completion < 8 {
		return nil, fmt.Errorf("the reply ended after %d tokens", r.Completion)
	}
	first, mid := r.First(), time.Duration(at.Load())
	last := r.Pieces[len(r.Pieces)-1].At
	return map[string]float64{
		prefillSpeed: float64(r.Prompt) / first.Seconds(),
		prefillCPU:   microseconds(mid-before) / float64(r.Prompt),
		decodeSpeed:  float64(r.Completion-1) / last.Sub(r.Pieces[0].At).Seconds(),
		decodeGap:    quantile(gaps(r, time.Time{}, last), 0.99),
		decodeCPU:    microseconds(after-mid) / float64(r.Completion-1),
	}, nil
}

// gaps between the pieces of a reply within a window, in ms.
func gaps(r *trio.Reply, from, to time.Time) (ms []float64) {
	for i := 1; i < len(r.Pieces); i++ {
		if a, b := r.Pieces[i-1].At, r.Pieces[i].At; !a.Before(from) && !b.After(to) {
			ms = append(ms, milliseconds(b.Sub(a)))
		}
	}
	return ms
}

// crowdOn continues eight long prompts at once. Only the time in which all eight stream counts.
func (l load) crowdOn(ctx context.Context, f *trio.Fleet, seed uint64) (map[string]float64, error) {
	const streams = 8
	rng := rand.New(rand.NewPCG(seed, 4))
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		begun   int
		left    = map[int]int{}
		from    time.Time
		to      time.Time
		cpu     [2]time.Duration
		replies [streams]*trio.Reply
		errs    [streams]error
	)
	for i := range streams {
		prompt, first := l.prompt(rng, l.many), true
		wg.Go(func() {
			replies[i], errs[i] = f.Stream(ctx, trio.Request{Prompt: prompt, MaxTokens: l.most}, func() {
				mu.Lock()
				defer mu.Unlock()
				if first {
					first = false
					if begun++; begun == streams {
						cpu[0], _ = f.CPU()
						from = time.Now()
						for j := range streams {
							left[j] = l.crowded
						}
					}
				}
				if begun == streams && left[i] > 0 {
					if left[i]--; left[i] == 0 {
						delete(left, i)
					}
					if len(left) == 0 && to.IsZero() {
						to = time.Now()
						cpu[1], _ = f.CPU()
						enough()
					}
				}
			})
		})
	}
	wg.Wait()
	if to.IsZero() {
		errs[0] = errors.Join(errs[0], errEnded)
		return nil, fmt.Errorf("the streams ended before all had run for %d events together: %w", l.crowded, errors.Join(errs[:]...))
	}
	tokens, all := 0.0, []float64(nil)
	for _, r := range replies {
		if r == nil {
			return nil, errors.Join(errs[:]...)
		}
		all = append(all, gaps(r, from, to)...)
		for _, p := range r.Pieces {
			if p.At.After(from) && !p.At.After(to) {
				tokens += l.tokens(p.Text)
			}
		}
	}
	return map[string]float64{
		crowdSpeed: tokens / to.Sub(from).Seconds(),
		crowdGap:   quantile(all, 0.99),
		crowdCPU:   microseconds(cpu[1]-cpu[0]) / tokens,
	}, f.Idle(context.WithoutCancel(ctx))
}

// tokens of a piece of a reply. The built-in model has a token a byte; a real one's stream has mostly a token a piece.
func (l load) tokens(text string) float64 {
	if l.model == "" {
		return float64(len(text))
	}
	return 1
}

// errEnded: a stream ended well, too soon.
var errEnded = errors.New("max_tokens were too few, or the model ended its reply")

func printSpeeds(got map[string][3][]float64) {
	fmt.Printf("  %-32s %10s %10s   %-44s   %s\n", "", "release", "no guards", "guards cost: min, median, max [95% of median]", "A/A: the same, release against release")
	for _, m := range measures {
		x := got[m.name]
		cost := func(i, j int) spread { // of fleet i against fleet j
			var r []float64
			for k := range x[i] {
				if m.higher {
					r = append(r, x[j][k]/x[i][k]-1)
				} else {
					r = append(r, x[i][k]/x[j][k]-1)
				}
			}
			return spreadOf(r)
		}
		fmt.Printf("  %-32s %10s %10s   %-44s   %s\n", m.name, figure(median(append(x[0][:len(x[0]):len(x[0])], x[1]...))), figure(median(x[2])), cost(0, 2), cost(0, 1))
	}
}

// figure prints three digits or more.
func figure(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
