package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// Phases of a handoff, in order.
var Phases = []string{"plan", "reserve", "attach", "grant", "landing", "manifest", "seal", "echo", "stream", "settle"}

// Cell is one fault class at one phase of the handoff: what was done to a fleet, and what came of it.
type Cell struct {
	Class        string `json:"class"`
	Phase        string `json:"phase"`
	Fired        int    `json:"fired"`         // how often the fault really acted
	Guard        string `json:"guard"`         // that met it; "" if none needed to
	Status       int    `json:"status"`        // that the client saw; 0: no reply at all
	ForeignBytes int    `json:"foreign_bytes"` // of another request's text in the reply
	PoolFree     int    `json:"pool_free"`     // pages, of all workers, afterwards
	PoolTotal    int    `json:"pool_total"`
	// RedWithoutGuard is whether the same cell goes red when its guard is taken out; null where it has none that can be, and in the release
	// build. CaughtNextBy is the next guard that met it, where it does not.
	RedWithoutGuard *bool  `json:"red_without_guard"`
	CaughtNextBy    string `json:"caught_next_by"`

	Injected string        `json:"-"` // in words
	Removed  string        `json:"-"` // the guard that RedWithoutGuard is about
	Verdict  string        `json:"-"` // as the reply's header or trailer had it
	Events   int           `json:"-"` // trace events that were validated
	Took     time.Duration `json:"-"`
	Why      []string      `json:"-"` // it is red; empty: it is green
	Skipped  string        `json:"-"` // why it was not run
	Without  []string      `json:"-"` // why it is red without its guard
}

// Red reports whether the cell failed.
func (c Cell) Red() bool { return len(c.Why) > 0 }

// wants is what a client may see of a cell's request.
type wants int

const (
	either  wants = iota // the exact reply, or an error
	served               // the exact reply
	refused              // an error
)

// fault is a cell before it is run.
type fault struct {
	class, phase, what string
	want               wants
	guards             []string    // that may meet it; nil: any, or none
	out                guard.Guard // that the unsafe build takes out; 0: none can be
	next               string      // what meets it without out, where no verdict says so
	quick              bool
	ends               bool // it ends a process, or leaves the fleet in a state that is not worth mending
	needs              func() string
	run                func(ctx context.Context, s *scene) (seen, error)
}

// seen is what a fault's run saw.
type seen struct {
	fired int
	reply reply
	guard string // if the reply does not say
}

// scene is a fleet on which one fault is injected.
type scene struct {
	x         *trio
	rng       *rand.Rand
	code, own string // A's and B's
	a, b      string // their prompts
	from      int    // events before it
	undo      []func(context.Context) error
}

// Sizes of a scene's prompts in tokens: A's pages are more than B's, so that B gets A's.
const (
	aTokens     = 3000
	bTokens     = 2000
	longTokens  = 4500 // over prefill's pool, under decode's
	streamed    = 150
	whole       = 17 // a blank and the 16 letters of a code
	bPages      = (bTokens + node.PageTokens - 1) / node.PageTokens
	settleLimit = 12 * time.Second
)

// prepare serves A, so that the pages which B gets were A's a moment ago.
func (x *trio) prepare(ctx context.Context, rng *rand.Rand, through string) (*scene, error) {
	s := &scene{x: x, rng: rng, code: secret(rng), own: secret(rng)}
	s.a, s.b = planted(s.code, aTokens), plain(rng, s.own, bTokens)
	var r reply
	var err error
	for range 3 { // a busy machine may need another try; wrong text never gets one
		if r, err = x.door().ask(ctx, through, s.a, 40); err == nil && r.status == 200 {
			break
		}
	}
	if err != nil || r.status != 200 || !strings.Contains(r.text, s.code) {
		return nil, fmt.Errorf("drill: positive control: A's own prompt was answered %d %q %s (%v)", r.status, r.text, r.message, err) //nolint:errorlint // err may be nil
	}
	if _, _, _, err := x.settled(ctx, settleLimit); err != nil {
		return nil, err
	}
	s.from = x.events.now()
	return s, nil
}

// judge runs a fault on a fleet and says what came of it. An error means that the drill itself failed.
func (x *trio) judge(ctx context.Context, f fault, seed uint64) (c Cell, err error) {
	began := time.Now()
	c = Cell{Class: f.class, Phase: f.phase, Injected: f.what}
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	s, err := x.prepare(ctx, rand.New(rand.NewPCG(seed, 7)), "honest")
	if err != nil {
		return c, err
	}
	got, err := f.run(ctx, s)
	if err != nil {
		return c, err
	}
	for _, u := range s.undo {
		err = errors.Join(err, u(ctx))
	}
	if err := errors.Join(err, x.mend(ctx)); err != nil {
		return c, err
	}
	c.Fired, c.Status, c.Verdict = got.fired, got.reply.status, got.reply.verdict
	c.ForeignBytes = foreign(got.reply.text, s.b, s.a)
	c.Guard = got.guard
	if c.Guard == "" {
		c.Guard = named(got.reply)
	}
	if c.Guard == "" && c.Status == 200 {
		c.Guard = "harmless"
	}
	red := func(format string, args ...any) { c.Why = append(c.Why, fmt.Sprintf(format, args...)) }
	if c.Fired == 0 {
		red(notActed)
	}
	if c.ForeignBytes > 0 {
		red("%d bytes of another request's text in the reply", c.ForeignBytes)
	}
	want := " " + s.own
	switch text := got.reply.text; {
	case got.reply.status == 200 && !strings.HasPrefix(text, want):
		red("status 200 with text that is not the request's own")
	case !strings.HasPrefix(text, want) && !strings.HasPrefix(want, text):
		red("text that is not the request's own, before an error")
	case f.want == served && got.reply.status != 200:
		red("the reply should have been served, and was %d %s", got.reply.status, got.reply.code)
	case f.want == refused && got.reply.status == 200:
		red("the request should have been refused")
	}
	if err := x.recovers(ctx, s); err != nil {
		red("%v", err)
	}
	var nonzero uint64
	if c.PoolFree, c.PoolTotal, nonzero, err = x.settled(ctx, settleLimit); err != nil {
		return c, err
	}
	if c.PoolFree != c.PoolTotal || c.PoolTotal == 0 {
		red("%d of %d pages came back", c.PoolFree, c.PoolTotal)
	}
	if nonzero > 0 {
		red("%d bytes in free pages are not zero, seen from outside", nonzero)
	}
	if c.Events, err = x.validate(); err != nil {
		red("the trace is not one of the model's: %v", err)
	}
	if len(f.guards) > 0 && x.without == 0 && !contains(f.guards, c.Guard) {
		red("it was met by %q, and should have been by one of %v", c.Guard, f.guards)
	}
	c.Took = time.Since(began)
	return c, nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// recovers asks for one more reply, which must be exact: the fleet is as good as before.
func (x *trio) recovers(ctx context.Context, s *scene) error {
	code := secret(s.rng)
	p := plain(s.rng, code, bTokens/2)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		r, err := x.door().ask(ctx, "honest", p, whole)
		switch {
		case err == nil && r.status == 200 && r.text == " "+code:
			return nil
		case err == nil && r.status == 200:
			return fmt.Errorf("afterwards another request was answered with text that is not its own (%d bytes of A's)", foreign(r.text, p, s.a))
		case ctx.Err() != nil:
			return fmt.Errorf("the fleet did not recover: %d %s %s (%w)", r.status, r.code, r.message, ctx.Err())
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // polling another process
		}
	}
}

// at is when a phase is reached, as a step that one machine makes.
type at struct {
	machine trace.Machine
	step    trace.Step
	nth     int
}

// reached is when a fleet is in a phase.
var reached = map[string]at{
	"plan":     {trace.Gateway, trace.Opened, 1},
	"reserve":  {trace.Decode, trace.PagesReserved, 1},
	"attach":   {trace.Decode, trace.Attached, 1},
	"grant":    {trace.Prefill, trace.GrantSeen, 1},
	"landing":  {trace.Decode, trace.PageLanded, bPages / 4},
	"manifest": {trace.Decode, trace.ManifestSeen, 1},
	"seal":     {trace.Decode, trace.SealDone, 1},
	"echo":     {trace.Decode, trace.EchoCompared, 1},
	"stream":   {trace.Decode, trace.TokenReady, 10},
	"settle":   {trace.Decode, trace.LeaseDrained, 1},
}

// own is the step of a process's own machine that is in a phase; a process that takes no part in it has none.
var own = map[string]map[string]at{
	node.Decode: {"plan": {trace.Decode, trace.Opened, 1}, "reserve": reached["reserve"], "attach": reached["attach"], "grant": {trace.Decode, trace.PageArrived, 1},
		"landing": reached["landing"], "manifest": reached["manifest"], "seal": reached["seal"], "echo": reached["echo"], "stream": reached["stream"],
		"settle": reached["settle"]},
	node.Prefill: {"plan": {trace.Prefill, trace.Opened, 1}, "reserve": {trace.Prefill, trace.PagesReserved, 1}, "attach": {trace.Prefill, trace.PromptSeen, 1},
		"grant": reached["grant"], "landing": {trace.Prefill, trace.PageSent, bPages / 4}, "manifest": {trace.Prefill, trace.ClosingSent, 1},
		"settle": {trace.Prefill, trace.LeaseDrained, 1}},
	node.Gateway: {"plan": {trace.Gateway, trace.Opened, 1}, "reserve": {trace.Gateway, trace.ReservedSeen, 1}, "manifest": {trace.Gateway, trace.PrefillEnded, 1},
		"seal": {trace.Gateway, trace.SealedSeen, 1}, "stream": {trace.Gateway, trace.OutputSeen, 1}, "settle": {trace.Gateway, trace.LegSettled, 1}},
}

// when waits until the fleet is in a phase. It reports false when the phase was not reached in time.
func (s *scene) when(ctx context.Context, phase string) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p := reached[phase]
	return s.x.events.wait(ctx.Done(), s.from, p.machine, p.step, p.nth)
}

// tries counts the attempts that the gateway made since the scene began.
func (s *scene) tries() int { return s.x.events.count(s.from, trace.Gateway, trace.Opened) }

// why names what made a reply good although something was broken.
func (s *scene) why() string {
	if s.tries() > 1 {
		return "retry"
	}
	return "not needed any more"
}

// ask sends B's request; stream asks for it as a stream. An end of the connection is a reply of status 0, with the text so far.
func (s *scene) ask(ctx context.Context, model string) reply {
	r, err := s.x.door().ask(ctx, model, s.b, whole)
	if err != nil && r.status == 200 {
		r.status = 0
	}
	return r
}

func (s *scene) stream(ctx context.Context) reply {
	r, err := s.x.door().stream(ctx, "honest", s.b, streamed, func() {})
	if err != nil {
		r.status = 0
	}
	return r
}

func (s *scene) process(kind string) *process {
	switch kind {
	case node.Prefill:
		return s.x.prefill
	case node.Decode:
		return s.x.decode
	case node.Liar:
		return s.x.liar
	}
	return s.x.gateway
}

// tell makes the liar lie from now on.
func (s *scene) tell(ctx context.Context, l liar.Lie) error {
	_, err := s.x.liar.do(ctx, node.Command{Do: node.DoTell, Lie: string(l)})
	return err
}
