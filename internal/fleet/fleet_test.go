package fleet_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, keys fleettest.Fleet, change func(*fleet.Config), ws ...*fleettest.Worker) *fleet.Fleet {
	t.Helper()
	cfg := fleet.Config{Model: "m", Fingerprint: fleettest.Model, Identity: keys.IDs[fleettest.Gateway],
		Timing: fleet.Timing{PauseMin: time.Millisecond, PauseMax: 5 * time.Millisecond}}
	for _, w := range ws {
		cfg.Workers = append(cfg.Workers, w.At())
	}
	if change != nil {
		change(&cfg)
	}
	f, err := fleet.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.Start()
	t.Cleanup(f.Close)
	return f
}

func worker(t *testing.T, f *fleet.Fleet, name string) fleet.WorkerStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, w := range f.Status(ctx, false).Workers {
		if w.Name == name {
			return w
		}
	}
	t.Fatalf("no worker %s", name)
	return fleet.WorkerStatus{}
}

func TestWorkersComeUpAndRestart(t *testing.T) {
	keys := fleettest.Keys("p0", "d0")
	p, d := fleettest.NewWorker(t, keys, "p0").Start(), fleettest.NewWorker(t, keys, "d0").Start()
	p.Pong.NonzeroFree = 7
	f := start(t, keys, nil, p, d)
	fleettest.Until(t, "ready", f.Ready)
	if l := f.Limit(); l.Tokens != 4096 {
		t.Errorf("limit %+v", l)
	}
	st := f.Status(context.Background(), true)
	if got := st.Workers[1].Pool; got == nil || got.Total != 256 || got.Free != 256 || got.NonzeroFree == nil || *got.NonzeroFree != 7 {
		t.Errorf("pool of p0: %+v", got)
	}
	if st.Workers[0].Boot != d.Hello.Boot || st.Workers[0].Data == "" || len(st.Pairs) != 1 || st.Pairs[0].State != "usable" {
		t.Errorf("%+v", st)
	}

	changed := f.Changed()
	p.Stop()
	<-changed
	fleettest.Until(t, "not ready", func() bool { return !f.Ready() })
	if _, v := f.Pick(fleet.Need{}); v.Code != verdict.Overloaded || !strings.Contains(v.Reason, "0 of 1 prefill and 1 of 1 decode") {
		t.Errorf("%v", v)
	}
	p.Hello.Boot, p.Facts.PoolTokens, p.Facts.Context = page.NewBoot(), 1024, 1024
	p.Start()
	fleettest.Until(t, "ready again", f.Ready)
	if l := f.Limit(); l.Tokens != 1024 || l.Setter != "the context of prefill p0" {
		t.Errorf("limit after the restart %+v", l)
	}
	if w := worker(t, f, "p0"); w.Boots != 2 || w.Boot != p.Hello.Boot {
		t.Errorf("%+v", w)
	}
}

func TestFactsMayChange(t *testing.T) {
	keys := fleettest.Keys("p0", "d0")
	p, d := fleettest.NewWorker(t, keys, "p0").Start(), fleettest.NewWorker(t, keys, "d0").Start()
	f := start(t, keys, nil, p, d)
	fleettest.Until(t, "ready", f.Ready)
	drain := wire.Facts{JSON: []byte(`{"name":"p0","role":"prefill","pool_tokens":4096,"page_size":16,"context":4096,"dtype":"f16","version":"1"}`), Draining: true}
	p.Say(drain)
	fleettest.Until(t, "draining", func() bool { return !f.Ready() })
	if w := worker(t, f, "p0"); w.State != "up" || !w.Draining {
		t.Errorf("%+v", w)
	}
}

// The log says each loss of a worker, also of one that is back at once.
func TestALossIsLogged(t *testing.T) {
	keys := fleettest.Keys("p0", "d0")
	p, d := fleettest.NewWorker(t, keys, "p0").Start(), fleettest.NewWorker(t, keys, "d0").Start()
	var log lines
	f := start(t, keys, func(c *fleet.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }, p, d)
	fleettest.Until(t, "ready", f.Ready)
	p.Drop()
	fleettest.Until(t, "back", func() bool { return p.Dials() > 1 && f.Ready() })
	if got := log.String(); strings.Count(got, `msg="worker lost" model=m worker=p0 role=prefill`) != 1 {
		t.Errorf("%s", got)
	}
	f.Close()
	if got := log.String(); strings.Count(got, "worker lost") != 1 {
		t.Errorf("an end of our own is told as a loss:\n%s", got)
	}
}

// lines is a log that can be read while it grows.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A worker that answers and is not what it should be is refused, by name, and asked again.
func TestWorkersThatAreRefused(t *testing.T) {
	keys := fleettest.Keys("p0", "d0", "p1")
	for want, change := range map[string]func(w *fleettest.Worker, c *fleet.Config){
		"it is a prefill worker, configured as decode":                func(_ *fleettest.Worker, c *fleet.Config) { c.Workers[0].Role = "decode" },
		"it says that it is p9":                                       func(w *fleettest.Worker, _ *fleet.Config) { w.Hello.Name = "p9" },
		"it runs model 0100000000000000…, prompts are encoded for 5a": func(w *fleettest.Worker, _ *fleet.Config) { w.Hello.Model = [32]byte{1} },
		"it names no page geometry":                                   func(w *fleettest.Worker, _ *fleet.Config) { w.Hello.Geometry = page.Geometry{} },
		"its facts cannot be read":                                    func(w *fleettest.Worker, _ *fleet.Config) { w.RawFacts = []byte(`{"name":`) },
		`its facts are those of prefill "x"`:                          func(w *fleettest.Worker, _ *fleet.Config) { w.Facts.Name = "x" },
		"a pool of 4096 and a context of 0 tokens":                    func(w *fleettest.Worker, _ *fleet.Config) { w.Facts.Context = 0 },
		"the KV pool holds 4096 tokens but the context is 8192":       func(w *fleettest.Worker, _ *fleet.Config) { w.Facts.Context = 8192 },
		"guards can be taken out of its build (+UNSAFE)":              func(w *fleettest.Worker, _ *fleet.Config) { w.Facts.Version = "1" + guard.Mark + " (drills)" },
		"the peer's key is not trusted":                               func(_ *fleettest.Worker, c *fleet.Config) { c.Workers[0].Key = keys.IDs["p1"].Public() },
		"the fleet has no key for p0": func(_ *fleettest.Worker, c *fleet.Config) {
			c.Workers[0].Key, c.Keys = nil, fleettest.Keys("p1").Keys
		},
	} {
		t.Run(want, func(t *testing.T) {
			if guard.Unsafe && strings.Contains(want, guard.Mark) {
				t.Skip("a gateway of the unsafe build takes such workers: drills have no other")
			}
			w := fleettest.NewWorker(t, keys, "p0")
			var cfg fleet.Config
			cfg.Workers = make([]fleet.Worker, 1)
			change(w, &cfg) // of the worker, before it starts
			w.Start()
			f := start(t, keys, func(c *fleet.Config) { change(w, c) }, w)
			fleettest.Until(t, want, func() bool {
				s := worker(t, f, "p0")
				return strings.Contains(s.Reason, want)
			})
			fleettest.Until(t, "another dial", func() bool { return w.Dials() > 1 || strings.Contains(want, "key") })
			if f.Ready() {
				t.Error("ready")
			}
		})
	}
}

// sink keeps what it hears.
type sink struct {
	frames chan wire.Frame
	lost   chan string
}

func newSink() *sink { return &sink{make(chan wire.Frame, 16), make(chan string, 2)} }

func (s *sink) Frame(f wire.Frame) { s.frames <- f }
func (s *sink) Lost(r string)      { s.lost <- r }

func TestSessionsCarryFrames(t *testing.T) {
	keys := fleettest.Keys("p0", "d0")
	pair := fleettest.NewPair(t, keys, "p0", "d0", func(a *fleettest.Attempt) {
		a.Reserved()
		a.Aborted(wire.RoleDecode)
		a.Settled(wire.RoleDecode)
	}).Start()
	f := start(t, keys, nil, pair.Prefill, pair.Decode)
	fleettest.Until(t, "ready", f.Ready)
	p, v := f.Pick(fleet.Need{Tokens: 1, Load: 5})
	if !v.IsZero() {
		t.Fatal(v)
	}
	plan := admission.Plan{Attempt: attempt.New(), PromptTokens: 1, MaxTokens: 1, Budget: time.Second, Prefill: p.Prefill.Endpoint(), Decode: p.Decode.Endpoint()}
	s := newSink()
	if err := p.Decode.Attach(plan.Attempt, s); err != nil {
		t.Fatal(err)
	}
	if err := p.Decode.SendPlan(plan, [32]byte{}); err != nil {
		t.Fatal(err)
	}
	if r := (<-s.frames).(wire.Reserved); r.Attempt != plan.Attempt || r.Pages != 1 {
		t.Errorf("%+v", r)
	}
	again := plan
	again.Attempt = attempt.New()
	if err := p.Decode.SendPlan(again, [32]byte{}); err != nil {
		t.Fatal(err)
	}
	fleettest.Until(t, "both plans", func() bool { return len(pair.Attempts()) == 2 })
	if a := pair.Attempts(); a[0].Plan.Seq != 1 || a[1].Plan.Seq != 2 {
		t.Errorf("numbers %d, %d", a[0].Plan.Seq, a[1].Plan.Seq)
	}
	if l := worker(t, f, "d0").Load; l != 5 {
		t.Errorf("load %d", l)
	}
	p.Done()
	if l := worker(t, f, "d0").Load; l != 0 {
		t.Errorf("load %d", l)
	}

	p.Decode.Send(wire.Abort{Attempt: plan.Attempt, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "gone")})
	if _, ok := (<-s.frames).(wire.Settled); !ok {
		t.Error("no settled")
	}
	pair.Decode.Stop()
	if r := <-s.lost; r != "the control link to decode d0 ended" {
		t.Errorf("lost: %q", r)
	}
	if err := p.Decode.Attach(plan.Attempt, s); err == nil {
		t.Error("attached to a link that ended")
	}
	if err := p.Decode.SendPlan(plan, [32]byte{}); err == nil {
		t.Error("a plan was sent on a link that ended")
	}
	if _, err := p.Decode.Ping(context.Background(), false); err == nil {
		t.Error("a link that ended was pinged")
	}
}

// Frames of an attempt that nobody waits for are dropped and counted; they never stop the link.
func TestLateFramesAreCounted(t *testing.T) {
	keys := fleettest.Keys("d0")
	d := fleettest.NewWorker(t, keys, "d0").Start()
	f := start(t, keys, nil, d)
	fleettest.Until(t, "up", func() bool { return worker(t, f, "d0").State == "up" })
	d.Say(wire.Settled{Attempt: attempt.New()})
	d.Say(wire.Output{Attempt: attempt.New(), IDs: []int32{1}})
	fleettest.Until(t, "two late frames", func() bool { return worker(t, f, "d0").Late == 2 })
}

// A worker that hangs without closing its socket is given up, and its attempts hear of it.
func TestASilentLinkIsGivenUp(t *testing.T) {
	keys := fleettest.Keys("d0", "p0")
	d, p := fleettest.NewWorker(t, keys, "d0").Start(), fleettest.NewWorker(t, keys, "p0").Start()
	d.Mute = true
	f := start(t, keys, func(c *fleet.Config) {
		c.Timing.PingEvery, c.Timing.Silence = 20*time.Millisecond, 2*time.Second
	}, d, p)
	fleettest.Until(t, "ready", f.Ready)
	pair, v := f.Pick(fleet.Need{})
	if !v.IsZero() {
		t.Fatal(v)
	}
	s := newSink()
	if err := pair.Decode.Attach(attempt.New(), s); err != nil {
		t.Fatal(err)
	}
	<-s.lost
	fleettest.Until(t, "another dial", func() bool { return d.Dials() > 1 })
	if p.Dials() != 1 {
		t.Errorf("the worker that answers was dialled %d times", p.Dials())
	}
}

func TestNewRefuses(t *testing.T) {
	keys := fleettest.Keys("p0")
	for want, ws := range map[string][]fleet.Worker{
		"must be prefill or decode":      {{Name: "x", Role: "both"}},
		"a name has 1 to 64 bytes":       {{Role: "prefill"}},
		"two workers named x":            {{Name: "x", Role: "prefill", Key: keys.IDs["p0"].Public()}, {Name: "x", Role: "decode"}},
		"worker x of model m has no key": {{Name: "x", Role: "prefill"}},
	} {
		if _, err := fleet.New(fleet.Config{Model: "m", Workers: ws}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
