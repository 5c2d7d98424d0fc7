package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/handoff/model/validate"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// copier is the built-in model, made once.
var copier = sync.OnceValue(func() *llm.Model {
	f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: -1}))
	if err != nil {
		panic(err)
	}
	m, err := llm.Load(f)
	if err != nil {
		panic(err)
	}
	return m
})

const pageTokens = 16

// rig is a fleet in one process, on real sockets: one gateway (a test's), one prefill and one decode worker.
type rig struct {
	t               testing.TB
	fleet           *keyring.Fleet
	ids             map[string]keyring.Identity
	prefill, decode *Worker
	ring            *trace.Ring
	watch           *watch
}

// watch is a recorder that a test waits on: for an attempt's machine to come to a state.
type watch struct {
	mu     sync.Mutex
	states map[place]bool
	change chan struct{}
}

type place struct {
	id      attempt.ID
	machine trace.Machine
	state   uint8
	step    trace.Step // 0: any
}

func (w *watch) Record(e trace.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range []place{{e.Attempt, e.Machine, e.State, 0}, {e.Attempt, e.Machine, 0, e.Step}} {
		w.states[p] = true
	}
	close(w.change)
	w.change = make(chan struct{})
}

// until waits for the attempt's machine to have been in the state.
func (r *rig) until(c *call, m trace.Machine, state uint8) {
	r.t.Helper()
	r.await(place{c.id, m, state, 0})
}

// untilStep waits for the attempt's machine to have made a step.
func (r *rig) untilStep(c *call, m trace.Machine, step trace.Step) {
	r.t.Helper()
	r.await(place{c.id, m, 0, step})
}

func (r *rig) await(p place) {
	r.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		r.watch.mu.Lock()
		ok, change := r.watch.states[p], r.watch.change
		r.watch.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-change:
		case <-timeout:
			r.t.Fatalf("%+v was never seen", p)
		}
	}
}

type option func(role capacity.Role, c *Config)

func pages(n int) option { return func(_ capacity.Role, c *Config) { c.PoolPages = n } }

func only(r capacity.Role, o option) option {
	return func(role capacity.Role, c *Config) {
		if role == r {
			o(role, c)
		}
	}
}

func newRig(t testing.TB, opts ...option) *rig {
	t.Helper()
	r := &rig{t: t, ring: trace.NewRing(1 << 17), watch: &watch{states: map[place]bool{}, change: make(chan struct{})}}
	r.fleet, r.ids = keyring.Ephemeral(keyring.Node{Name: "g0", Role: wire.RoleGateway}, keyring.Node{Name: "g1", Role: wire.RoleGateway},
		keyring.Node{Name: "p0", Role: wire.RolePrefill}, keyring.Node{Name: "p1", Role: wire.RolePrefill},
		keyring.Node{Name: "d0", Role: wire.RoleDecode})
	off := guardsOff()
	t.Cleanup(func() { r.replay(off) }) // after the workers are closed
	r.prefill = r.start("p0", capacity.Prefill, opts...)
	r.decode = r.start("d0", capacity.Decode, opts...)
	return r
}

// replay walks everything that the workers recorded through the model, which does without the same guards.
func (r *rig) replay(off guard.Guard) {
	events, dropped := r.ring.Events()
	if dropped > 0 {
		r.t.Errorf("the trace is longer than the ring: its first %d events are lost", dropped)
		return
	}
	if dir := os.Getenv("SLUICE_TRACES"); dir != "" { // make traces
		f, err := os.Create(filepath.Join(dir, strings.NewReplacer("/", ".", " ", "_").Replace(r.t.Name())+".trace"))
		if err == nil {
			err = errors.Join(trace.Write(f, events), f.Close())
		}
		if err != nil {
			r.t.Error(err)
		}
	}
	if err := validate.All(events, validate.Options{Without: validate.Guards(off)}); err != nil {
		r.t.Errorf("%d events: %v", len(events), err)
	}
}

func (r *rig) start(name string, role capacity.Role, opts ...option) *Worker {
	r.t.Helper()
	c := Config{
		Role: role, Name: name, Listen: "127.0.0.1:0", Model: copier(), PageTokens: pageTokens, PoolPages: 128, Context: 1024,
		Identity: r.ids[name], Fleet: r.fleet, Trace: trace.Tee{r.ring, r.watch}, Threads: 1, Chunk: 64, Log: slog.New(slog.DiscardHandler),
	}
	if testing.Verbose() {
		c.Log = slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if role == capacity.Decode {
		c.Data = "127.0.0.1:0"
	}
	for _, o := range opts {
		o(role, &c)
	}
	w, err := New(c)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := w.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return w
}

// clean asserts what must hold after any storm: no attempt lives, all pages are free, and every byte of them is zero.
func (r *rig) clean(ws ...*Worker) {
	r.t.Helper()
	if len(ws) == 0 {
		ws = []*Worker{r.prefill, r.decode}
	}
	for _, w := range ws {
		select {
		case <-w.table.quiet():
		case <-time.After(30 * time.Second):
			for _, d := range w.table.living(func(driver) bool { return true }) {
				r.t.Errorf("%s: attempt lives: %s", w.cfg.Name, describe(d))
			}
			r.t.Fatalf("%s: attempts never settled", w.cfg.Name)
		}
		s := w.Snapshot()
		if s.Active != 0 || s.Queued != 0 || s.Pool.Free != s.Pool.Total || s.Pool.Pins != 0 || s.Pool.Fenced != 0 {
			r.t.Errorf("%s after: active %d, queued %d, pool %+v", w.cfg.Name, s.Active, s.Queued, s.Pool)
		}
		if n := w.pool.ScanFree(); n != 0 {
			r.t.Errorf("%s: %d bytes of free pages are not zero", w.cfg.Name, n)
		}
	}
}

func describe(d driver) string {
	switch a := d.(type) {
	case *decodeAttempt:
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Sprintf("decode %+v", a.machine)
	case *prefillAttempt:
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Sprintf("prefill %+v", a.machine)
	}
	return "?"
}

// door is a test's gateway: it speaks control frames, and keeps what comes back by attempt.
type door struct {
	r               *rig
	name            string
	prefill, decode *line
}

// line is the door's link to one worker.
type line struct {
	d     *door
	w     *Worker
	link  *tcp.Link
	facts wire.Facts
	seq   uint64

	mu    sync.Mutex
	calls map[attempt.ID]*call
	pongs chan wire.Pong
	facC  chan wire.Facts
	gone  chan struct{}
}

// call is one attempt, as the door sees it.
type call struct {
	d      *door
	id     attempt.ID
	plan   admission.Plan
	key    [32]byte
	prompt []int32

	reserved chan wire.Reserved
	sealed   chan wire.Sealed
	tokens   chan struct{} // 1: some came
	mu       sync.Mutex
	out      []int32
	ended    map[*line]wire.Outcome
	settled  map[*line]bool
	change   chan struct{} // closed and replaced at each end or settlement
}

func (r *rig) door(name string) *door {
	d := &door{r: r, name: name}
	d.prefill, d.decode = d.dial(r.prefill), d.dial(r.decode)
	return d
}

func (d *door) dial(w *Worker) *line {
	d.r.t.Helper()
	id := d.r.ids[d.name]
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := tcp.DialControl(ctx, w.Addr().String(), tcp.Config{
		Identity: id, Hello: wire.Hello{Role: wire.RoleGateway, Name: d.name, Boot: 7}, Trust: d.r.fleet.Trust(w.role()), Accept: d.r.fleet.Check,
	})
	if err != nil {
		d.r.t.Fatal(err)
	}
	ln := &line{d: d, w: w, link: l, calls: map[attempt.ID]*call{}, pongs: make(chan wire.Pong, 8), facC: make(chan wire.Facts, 8), gone: make(chan struct{})}
	go ln.read()
	select {
	case ln.facts = <-ln.facC:
	case <-ctx.Done():
		d.r.t.Fatal("no facts came")
	}
	d.r.t.Cleanup(ln.close)
	return ln
}

func (l *line) close() {
	l.link.Close()
	<-l.gone
}

func (l *line) read() {
	defer close(l.gone)
	for {
		f, err := l.link.Recv()
		if err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, c := range l.calls {
				c.note(func() {
					if _, ok := c.ended[l]; !ok {
						c.ended[l] = wire.Outcome{Attempt: c.id, Verdict: verdict.Of(verdict.PeerLost, verdict.Legs, "the line to %s is gone", l.w.cfg.Name)}
					}
					c.settled[l] = true
				})
			}
			return
		}
		switch f := f.(type) {
		case wire.Facts:
			l.facC <- f
		case wire.Pong:
			l.pongs <- f
		case wire.Reserved:
			l.call(f.Attempt, func(c *call) { c.reserved <- f })
		case wire.Sealed:
			l.call(f.Attempt, func(c *call) { c.sealed <- f })
		case wire.Output:
			l.call(f.Attempt, func(c *call) {
				c.mu.Lock()
				if int(f.Index) != len(c.out) {
					l.d.r.t.Errorf("output at %d after %d tokens", f.Index, len(c.out))
				}
				c.out = append(c.out, f.IDs...)
				c.mu.Unlock()
				select {
				case c.tokens <- struct{}{}:
				default:
				}
			})
		case wire.Outcome:
			l.call(f.Attempt, func(c *call) {
				c.note(func() {
					if o, ok := c.ended[l]; ok {
						l.d.r.t.Errorf("%s: a second outcome: %v after %v", l.w.cfg.Name, f.Verdict, o.Verdict)
					}
					c.ended[l] = f
				})
			})
		case wire.Settled:
			l.call(f.Attempt, func(c *call) {
				c.note(func() {
					if _, ok := c.ended[l]; !ok || c.settled[l] {
						l.d.r.t.Errorf("%s: settled out of order", l.w.cfg.Name)
					}
					c.settled[l] = true
				})
			})
		default:
			l.d.r.t.Errorf("%s sent a %s", l.w.cfg.Name, f.Kind())
		}
	}
}

func (l *line) call(id attempt.ID, f func(*call)) {
	l.mu.Lock()
	c := l.calls[id]
	l.mu.Unlock()
	if c == nil {
		l.d.r.t.Errorf("%s: a frame of an attempt that was not made: %s", l.w.cfg.Name, id)
		return
	}
	f(c)
}

func (c *call) note(f func()) {
	c.mu.Lock()
	f()
	close(c.change)
	c.change = make(chan struct{})
	c.mu.Unlock()
}

type planOption func(*admission.Plan)

func budget(d time.Duration) planOption { return func(p *admission.Plan) { p.Budget = d } }
func tokens(n int) planOption           { return func(p *admission.Plan) { p.MaxTokens = uint32(n) } }

// call makes an attempt for a prompt; nothing is sent yet.
func (d *door) call(prompt []int32, opts ...planOption) *call {
	var f capacity.Facts
	if err := json.Unmarshal(d.decode.facts.JSON, &f); err != nil {
		d.r.t.Fatal(err)
	}
	p, dw := d.r.prefill, d.decode.w
	if d.prefill != nil {
		p = d.prefill.w
	}
	plan := admission.Plan{
		Attempt: attempt.New(), Request: "test", Scope: admission.Scope{1}, Model: copier().Fingerprint(),
		PromptTokens: uint32(len(prompt)), LastToken: prompt[len(prompt)-1], Digest: admission.Digest(admission.Scope{1}, prompt),
		MaxTokens: 8, Limit: 1024, Budget: 60 * time.Second, TestTraffic: true,
		Prefill: admission.Endpoint{Name: p.cfg.Name, Boot: p.Boot(), Key: p.cfg.Identity.Key()},
		Decode:  admission.Endpoint{Name: dw.cfg.Name, Boot: dw.Boot(), Key: dw.cfg.Identity.Key(), Data: d.decode.facts.Data},
	}
	for _, o := range opts {
		o(&plan)
	}
	return &call{
		d: d, id: plan.Attempt, plan: plan, key: [32]byte(append(plan.Attempt[:], plan.Attempt[:]...)), prompt: prompt,
		reserved: make(chan wire.Reserved, 4), sealed: make(chan wire.Sealed, 4), tokens: make(chan struct{}, 1),
		ended: map[*line]wire.Outcome{}, settled: map[*line]bool{}, change: make(chan struct{}),
	}
}

// send sends the plan on a line, signed for it.
func (l *line) send(c *call) {
	l.d.r.t.Helper()
	l.mu.Lock()
	l.calls[c.id] = c
	l.seq++
	p := c.plan
	p.Session, p.Seq = l.link.Peer().Session, l.seq
	signed, err := admission.Sign(p, l.d.r.ids[l.d.name].PrivateKey())
	if err == nil {
		err = l.link.Send(wire.Plan{Signed: signed, MACKey: c.key})
	}
	l.mu.Unlock()
	if err != nil && l.link.Err() == nil {
		l.d.r.t.Error(err)
	}
}

func (l *line) sendPrompt(c *call) {
	for at := 0; at < len(c.prompt); at += 100 {
		l.link.Send(wire.Prompt{Attempt: c.id, Offset: uint32(at), IDs: c.prompt[at:min(at+100, len(c.prompt))]})
	}
}

// run sends all there is to send, as a gateway does.
func (c *call) run() *call {
	c.d.decode.send(c)
	if c.waitReserved() {
		c.d.prefill.send(c)
		c.d.prefill.sendPrompt(c)
	}
	return c
}

// waitReserved is false when decode ended the attempt instead.
func (c *call) waitReserved() bool {
	for {
		c.mu.Lock()
		_, ended := c.ended[c.d.decode]
		change := c.change
		c.mu.Unlock()
		if ended {
			return false
		}
		select {
		case <-c.reserved:
			return true
		case <-change:
		case <-time.After(30 * time.Second):
			c.d.r.t.Fatal("decode neither reserved nor ended")
		}
	}
}

// end waits until the legs that have the plan settled, and returns their outcomes.
func (c *call) end() (prefill, decode wire.Outcome) {
	c.d.r.t.Helper()
	c.await("the attempt settles", func() bool {
		for _, l := range []*line{c.d.prefill, c.d.decode} {
			l.mu.Lock()
			_, asked := l.calls[c.id]
			l.mu.Unlock()
			if asked && !c.settled[l] {
				return false
			}
		}
		return true
	})
	return c.ended[c.d.prefill], c.ended[c.d.decode]
}

// await waits until a condition on what came holds; it is evaluated under the call's lock.
func (c *call) await(what string, cond func() bool) {
	c.d.r.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		c.mu.Lock()
		ok, change := cond(), c.change
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-change:
		case <-timeout:
			for _, w := range []*Worker{c.d.prefill.w, c.d.decode.w} {
				for _, x := range w.table.living(func(d driver) bool { return d.ident() == c.id }) {
					c.d.r.t.Logf("%s: %s", w.cfg.Name, describe(x))
				}
			}
			c.d.r.t.Fatalf("waited in vain: %s (ended %v, settled %v)", what, c.ended, c.settled)
		}
	}
}

func (c *call) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return recall.Decode(c.out)
}

// needle is a prompt that ends with the first words of a line that it holds; the copier continues with the rest of the line.
func needle(code string, filler int) []int32 {
	var b strings.Builder
	for i := 0; b.Len() < filler/2; i++ {
		fmt.Fprintf(&b, "line %d of the filler says %x. ", i, i*7919)
	}
	fmt.Fprintf(&b, "The code of the vault is %s! ", code)
	for i := 0; b.Len() < filler; i++ {
		fmt.Fprintf(&b, "row %d of the other filler says %x. ", i, i*104729)
	}
	b.WriteString("The code of the vault is ")
	return recall.Encode(b.String())
}

// conclude does what a gateway does when a leg ends badly: it tells the other with the same verdict. Then it waits for both.
func (c *call) conclude() (prefill, decode wire.Outcome) {
	c.d.r.t.Helper()
	bad := func(l *line) (wire.Outcome, bool) {
		o, ok := c.ended[l]
		return o, ok && !o.Verdict.OK()
	}
	var tell wire.Outcome
	c.await("a leg ends badly, or decode well", func() bool {
		for _, l := range []*line{c.d.prefill, c.d.decode} {
			if o, ok := bad(l); ok {
				tell = o
				return true
			}
		}
		_, ok := c.ended[c.d.decode]
		return ok
	})
	if !tell.Verdict.IsZero() {
		for _, l := range []*line{c.d.prefill, c.d.decode} {
			l.link.Send(wire.Abort{Attempt: c.id, Verdict: tell.Verdict})
		}
	}
	return c.end()
}
