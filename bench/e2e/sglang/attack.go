package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// way is how the gateway stands before the pair, and what then must happen to a prompt over prefill's pool.
type way struct {
	name, title string
	pinned      int    // what the configuration says of prefill's pool; 0: nothing, it is read
	mode        string // of the guards
	status      int
	code        string // of the error; "" where the bytes pass
	incidents   []string
	asked       bool // the legs are asked
	share       int  // of -trials: one in so many
	sure        bool // all of -controls are made; else one for each way to ask
	keys        string
	canaries    int // right ones that an ejected pair needs
}

var ways = []way{
	{name: "known", title: "the pool is read from the worker", mode: "enforce", status: http.StatusBadRequest, code: "context_length_exceeded", share: 1, sure: true},
	{
		name: "pinned", title: "admission is told a pool of 8192", pinned: decodePool, mode: "enforce", status: http.StatusBadGateway, code: "legs_disagree",
		incidents: []string{"prompt-agree (enforce)"}, asked: true, share: 1,
		// The only pair may be ejected here, and comes back when it has proved itself.
		keys: "    max_ejected: 1\n    rest_for: 1s\n    canaries: 2\n", canaries: 2,
	},
	{name: "observe", title: "guards only observe", mode: "observe", status: http.StatusOK, incidents: []string{"admission (observe)", "prompt-agree (observe)"}, asked: true, share: 5},
}

// sizes of B's prompts, in bytes, which is tokens here: over prefill's pool, under decode's.
var sizes = []int{1500, 2200, 3000, 3600, 4000}

const (
	donors    = 10  // prompts of A before each of B's: they fill decode's pool
	donorSize = 960 // bytes: fits prefill's pool
	fitSize   = 900
	most      = 64 // tokens of a reply
)

// found is the result of a step.
type found struct {
	When, Release, Command     string
	Took                       time.Duration
	Memory                     int64
	Title                      string
	Controls, ControlLeaks     int
	Trials, Leaks, Right, Fits int
	Donors                     int
	Longest                    int // characters in a row, of the control
	Statuses                   map[string]int
	Incidents                  map[string]int
	Canaries                   map[string]int `json:",omitempty"` // by what came of them
	Detail                     string
	Faults                     []string `json:",omitempty"`
}

func (f *found) fault(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	fmt.Println("  FAULT:", s)
	f.Faults = append(f.Faults, s)
}

func (f *found) count(a answer, body []byte) {
	if f.Statuses == nil {
		f.Statuses = map[string]int{}
	}
	s := fmt.Sprint(a.status)
	if c := code(body); c != "" {
		s += " " + c
	}
	f.Statuses[s]++
}

// attack lets tenant A fill the pools and tenant B ask for something else, straight at the legs and then through the gateway.
func (b *bed) attack(ctx context.Context, w way) error {
	if err := b.up(ctx, "0.5.19"); err != nil {
		return err
	}
	began := time.Now()
	rng := rand.New(rand.NewPCG(b.seed, uint64(len(w.name))))
	f := &found{When: began.Format(time.DateOnly), Release: "0.5.19", Command: "go run ./bench/e2e/sglang " + w.name, Title: w.title}
	if f.Controls = len(apis); w.sure {
		f.Controls = b.controls
	}
	if err := b.control(ctx, rng, f); err != nil {
		return err
	}
	g, err := b.open(ctx, w.pinned, w.mode, w.keys)
	if err != nil {
		return err
	}
	defer g.close()
	f.Trials = b.trials / w.share
	for i := range f.Trials {
		if err := b.trial(ctx, g, w, f, rng, i); err != nil {
			return err
		}
	}
	f.Incidents = g.incidents(ctx)
	for _, name := range w.incidents {
		if f.Incidents[name] != f.Trials {
			f.fault("%d incidents of %s, want one a trial: %v", f.Incidents[name], name, f.Incidents)
		}
	}
	if len(f.Incidents) != len(w.incidents) {
		f.fault("incidents of other guards: %v", f.Incidents)
	}
	if w.canaries > 0 {
		f.Canaries = g.canaries(ctx)
		if f.Canaries["passed"] != w.canaries*f.Trials || f.Canaries["failed"] > 0 {
			f.fault("canaries %v, want %d right ones after each of %d ejections", f.Canaries, w.canaries, f.Trials)
		}
	}
	f.Detail, f.Memory, f.Took = g.newest(ctx), b.memory(), time.Since(began)
	b.keep(w.name+".json", f)
	fmt.Printf("control: foreign text in %d of %d; through the gateway: in %d of %d, answered right %d, prompts that fit served right %d, incidents %v\n",
		f.ControlLeaks, f.Controls, f.Leaks, f.Trials, f.Right, f.Fits, f.Incidents)
	return f.err()
}

func (f *found) err() error {
	if len(f.Faults) > 0 {
		return fmt.Errorf("%d faults, the first: %s", len(f.Faults), f.Faults[0])
	}
	return nil
}

// control is the attack without a gateway: where it finds nothing, nothing is shown by what follows.
func (b *bed) control(ctx context.Context, rng *rand.Rand, f *found) error {
	for i := range f.Controls {
		a := apis[i%len(apis)]
		d := newDonor(rng, donorSize)
		b.codes.plant(d.code, d.line+d.line)
		if err := b.fill(ctx, func(api api) answer { return b.pair(ctx, api, d.prompt, 2)[1] }, d, f); err != nil {
			return err
		}
		size := sizes[i%len(sizes)]
		prompt := filler(rng, size)
		out := b.pair(ctx, a, prompt, most)
		p, r := read(out[0].body), read(out[1].body)
		text := b.codes.foreign(out[1].raw())
		fmt.Printf("  control %d: %-20s %4d bytes: prefill %d (%d tokens), decode %d (%d tokens): %d foreign characters in a row\n",
			i, a, size, out[0].status, p.prompt, out[1].status, r.prompt, len(text))
		if text != "" && strings.Contains(r.text, d.code[:window]) || strings.Contains(r.text, d.code[12-window:]) {
			f.ControlLeaks++
		}
		f.Longest = max(f.Longest, len(text))
		b.capture("over "+a.String(), size, d.code, out)
		q := newQuestion(rng, fitSize, alphabet)
		fits := b.pair(ctx, a, q.prompt, len(q.want))
		if got := read(fits[1].body).text; got != q.want {
			f.fault("control: a prompt that fits says %q, want %q", got, q.want)
		}
		b.capture("fits "+a.String(), fitSize, "", fits)
	}
	if f.ControlLeaks != f.Controls {
		return fmt.Errorf("the control found tenant A's code in %d of %d replies: the pair does not leak, so nothing can be shown", f.ControlLeaks, f.Controls)
	}
	return nil
}

// fill sends A's prompt until it is all over the pools. Each reply must be the right one.
func (b *bed) fill(ctx context.Context, send func(api) answer, d donor, f *found) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var bad error
	const crowd = 2
	for i := range crowd {
		wg.Go(func() {
			for n := i; n < donors; n += crowd {
				a := send(apis[n%2])
				r := read(a.body)
				mu.Lock()
				switch {
				case a.status != http.StatusOK:
					bad = errors.Join(fmt.Errorf("tenant A's prompt: status %d: %.300s", a.status, a.body), a.err)
				case r.text != d.next(2):
					bad = fmt.Errorf("tenant A's prompt: %q, want %q", r.text, d.next(2))
				default:
					f.Donors++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(bad, ctx.Err())
}

// trial is one attack through the gateway, and one prompt that fits.
func (b *bed) trial(ctx context.Context, g *gateway, w way, f *found, rng *rand.Rand, i int) error {
	a, size := apis[i%len(apis)], sizes[i%len(sizes)]
	d := newDonor(rng, donorSize)
	b.codes.plant(d.code, d.line+d.line)
	if err := b.fill(ctx, func(api api) answer { return g.ask(ctx, tenantA, api, api.ask(d.prompt, 2)) }, d, f); err != nil {
		return err
	}
	before, err := b.requests(ctx)
	if err != nil {
		return err
	}
	got := g.ask(ctx, tenantB, a, a.ask(filler(rng, size), most))
	if err := g.quiet(ctx); err != nil {
		return err
	}
	after, err := b.requests(ctx)
	if err != nil {
		return err
	}
	if w.canaries > 0 {
		if err := g.ready(ctx); err != nil {
			return fmt.Errorf("trial %d: the pair did not prove itself: %w", i, err)
		}
	}
	f.count(got, got.body)
	text := b.codes.foreign(got.raw())
	if text != "" {
		f.Leaks++
	}
	right := got.err == nil && got.status == w.status
	switch {
	case w.code == "":
		right = right && text != "" // the same judge, on the same wire: it would have seen it
	case code(got.body) != w.code || bare(got.body) != "" || text != "":
		right = false
	}
	if asked := after != before; asked != w.asked {
		right = false
		f.fault("trial %d: the legs were asked: %v (%v, then %v requests)", i, asked, before, after)
	}
	if right {
		f.Right++
	} else {
		f.fault("trial %d (%s, %d bytes): status %d, code %q, foreign text of %d characters: %.300s", i, a, size, got.status, code(got.body), len(text), got.body)
	}
	fmt.Printf("  trial %2d: %-20s %4d bytes: %d %s, %d foreign characters, %v\n", i, a, size, got.status, code(got.body), len(text), got.took.Round(time.Millisecond))

	q := newQuestion(rng, fitSize, alphabet)
	fits := g.ask(ctx, tenantB, a, a.ask(q.prompt, len(q.want)))
	if r := read(fits.body); fits.status != http.StatusOK || r.text != q.want || a.stream && !r.done {
		f.fault("trial %d (%s): a prompt that fits: %d %q, want %q: %.300s", i, a, fits.status, r.text, q.want, fits.body)
	} else {
		f.Fits++
	}
	return ctx.Err()
}

// requests that each leg has had so far, by its own count.
func (b *bed) requests(ctx context.Context) (n [2]float64, err error) {
	for leg := range legs {
		if n[leg], err = b.counter(ctx, leg, "sglang:num_requests_total"); err != nil {
			return n, err
		}
	}
	return n, nil
}
