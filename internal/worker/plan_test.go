package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func TestPlansThatAWorkerMayNotRunAreRefused(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	served(t, d.call(needle("FIRST", 100)).run())
	for name, c := range map[string]struct {
		opt  planOption
		code verdict.Code
		says string
	}{
		"prompt over decode's limit": {func(p *admission.Plan) { p.PromptTokens = 1025 }, verdict.ContextLength, "1025 tokens, but at most 1024 fit (set by the context of decode d0)"},
		"reply over decode's limit":  {tokens(1000), verdict.ContextLength, "asks for up to 1000 more"},
		"another model":              {func(p *admission.Plan) { p.Model[0] ^= 1 }, verdict.PlanRefused, "model"},
		"another boot":               {func(p *admission.Plan) { p.Decode.Boot++ }, verdict.PlanRefused, "boot"},
		"no tokens":                  {func(p *admission.Plan) { p.PromptTokens = 0 }, verdict.Encoding, "no tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			call := d.call(needle("PLAN", 100), c.opt)
			d.decode.send(call)
			_, o := call.end()
			if o.Verdict.Code != c.code || o.Verdict.Layer != verdict.Open || !strings.Contains(o.Verdict.Reason, c.says) {
				t.Errorf("decode says %v", o.Verdict)
			}
		})
	}
	t.Run("prompt over prefill's limit", func(t *testing.T) {
		r := newRig(t, only(capacity.Prefill, func(_ capacity.Role, c *Config) { c.Context = 128 }))
		d := r.door("g0")
		call := d.call(needle("LONG", 300)).run()
		p, dec := call.conclude()
		if p.Verdict.Code != verdict.ContextLength || !strings.Contains(p.Verdict.Reason, "at most 128 fit (set by the context of prefill p0)") {
			t.Errorf("prefill says %v", p.Verdict)
		}
		if dec.Verdict != p.Verdict {
			t.Errorf("decode says %v, prefill %v", dec.Verdict, p.Verdict)
		}
		r.clean()
	})
	r.clean()
	served(t, d.call(needle("LAST", 100)).run())
	if n := r.decode.Snapshot().PlansRefused; n != 5 {
		t.Errorf("%d plans refused", n)
	}
}

// A signed plan is worth nothing a second time: not on its own link, not on another, not under another number.
func TestAReplayedPlanIsRefused(t *testing.T) {
	r := newRig(t)
	d, other := r.door("g0"), r.door("g0")
	c := d.call(needle("REPLAY", 100))
	p := c.plan
	p.Session, p.Seq = d.decode.link.Peer().Session, 1
	signed, err := admission.Sign(p, r.ids["g0"].PrivateKey())
	if err != nil {
		t.Fatal(err)
	}
	d.decode.calls[c.id], other.decode.calls[c.id] = c, c
	d.decode.link.Send(wire.Plan{Signed: signed, MACKey: c.key})
	c.waitReserved()
	other.decode.link.Send(wire.Plan{Signed: signed, MACKey: c.key})
	c.await("the other link's plan ends", func() bool { _, ok := c.ended[other.decode]; return ok })
	if v := c.ended[other.decode].Verdict; v.Code != verdict.PlanRefused || !strings.Contains(v.Reason, "another session") {
		t.Errorf("decode says %v", v)
	}
	d.decode.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	c.end()

	again := func(seq uint64) verdict.Verdict {
		c2 := &call{d: d, id: c.id, plan: c.plan, ended: map[*line]wire.Outcome{}, settled: map[*line]bool{}, change: make(chan struct{}), reserved: make(chan wire.Reserved, 1)}
		d.decode.mu.Lock()
		d.decode.calls[c.id] = c2
		d.decode.mu.Unlock()
		p.Seq = seq
		signed, err := admission.Sign(p, r.ids["g0"].PrivateKey())
		if err != nil {
			t.Fatal(err)
		}
		d.decode.link.Send(wire.Plan{Signed: signed, MACKey: c.key})
		_, o := c2.end()
		return o.Verdict
	}
	if v := again(1); v.Code != verdict.PlanRefused || !strings.Contains(v.Reason, "replayed or out of order") {
		t.Errorf("decode says %v of the same plan", v)
	}
	if v := again(2); v.Code != verdict.PlanRefused || !strings.Contains(v.Reason, "made already") {
		t.Errorf("decode says %v of the same attempt", v)
	}
	r.clean()
}

// A plan that is refused has used its number up: what comes under it again is a replay, whatever it says.
func TestARefusedPlanUsesItsNumberUp(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	c := d.call(needle("NUMBER", 100))
	say := func(change func(*admission.Plan)) verdict.Verdict {
		c2 := &call{d: d, id: c.id, plan: c.plan, ended: map[*line]wire.Outcome{}, settled: map[*line]bool{}, change: make(chan struct{}), reserved: make(chan wire.Reserved, 1)}
		d.decode.mu.Lock()
		d.decode.calls[c.id] = c2
		d.decode.mu.Unlock()
		p := c.plan
		p.Session, p.Seq = d.decode.link.Peer().Session, 1
		change(&p)
		signed, err := admission.Sign(p, r.ids["g0"].PrivateKey())
		if err != nil {
			t.Fatal(err)
		}
		d.decode.link.Send(wire.Plan{Signed: signed, MACKey: c.key})
		_, o := c2.end()
		return o.Verdict
	}
	if v := say(func(p *admission.Plan) { p.Decode.Boot++ }); v.Code != verdict.PlanRefused || !strings.Contains(v.Reason, "this is boot") {
		t.Errorf("decode says %v of another boot's plan", v)
	}
	if v := say(func(*admission.Plan) {}); v.Code != verdict.PlanRefused || !strings.Contains(v.Reason, "replayed or out of order") {
		t.Errorf("decode says %v of a number that was used", v)
	}
	r.clean()
}

// While an attempt is under way, its plan once more is not answered: the gateway would take the answer for the attempt's end.
func TestAPlanThatComesTwiceEndsNothing(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	c := d.call(needle("TWICE", 100))
	p := c.plan
	p.Session, p.Seq = d.decode.link.Peer().Session, 1
	signed, err := admission.Sign(p, r.ids["g0"].PrivateKey())
	if err != nil {
		t.Fatal(err)
	}
	d.decode.calls[c.id] = c
	for range 3 {
		d.decode.link.Send(wire.Plan{Signed: signed, MACKey: c.key})
	}
	c.waitReserved()
	d.decode.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	if _, o := c.end(); o.Verdict.Code != verdict.ClientGone {
		t.Errorf("the attempt ended with %v", o.Verdict)
	}
	if n := r.decode.Snapshot().StrayFrames; n != 2 {
		t.Errorf("%d strays", n)
	}
	r.clean()
}

// A plan that no gateway of the fleet signed is not answered: nothing that it says can be believed, not even whose it is.
func TestAnUnsignedPlanEndsTheLink(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	c := d.call(needle("FORGED", 100))
	p := c.plan
	p.Session, p.Seq = d.decode.link.Peer().Session, 1
	signed, err := admission.Sign(p, r.ids["p1"].PrivateKey())
	if err != nil {
		t.Fatal(err)
	}
	d.decode.link.Send(wire.Plan{Signed: signed, MACKey: c.key})
	select {
	case <-d.decode.gone:
	case <-time.After(10 * time.Second):
		t.Fatal("the link lives")
	}
	r.clean()
}

// The wait for pages is bounded, in time and in number, and first come is first served.
func TestTheWaitForPagesIsBounded(t *testing.T) {
	s := newScene(t, holdAt(wire.KindEnd), only(capacity.Decode, pages(64)), func(_ capacity.Role, c *Config) {
		c.Limits.PageWait, c.Limits.Waiting = 300*time.Millisecond, 1
	})
	block := s.door.call(needle("BLOCK", 800), s.through).run()
	s.rig.until(block, trace.Decode, uint8(handoff.DecodeClosing))
	first := s.door.call(needle("FIRST", 310), s.through)
	s.door.decode.send(first)
	s.turn(s.rig.decode)
	second := s.door.call(needle("SECOND", 310), s.through)
	s.door.decode.send(second)
	if _, o := second.end(); o.Verdict.Code != verdict.Overloaded || !strings.Contains(o.Verdict.Reason, "1 attempts wait for pages already") {
		t.Errorf("the second: %v", o.Verdict)
	}
	_, o := first.end()
	total := s.rig.decode.Snapshot().Pool
	want := verdict.NoPages(verdict.Reserve, s.rig.decode.geometry.Pages(len(first.prompt)+7), total.Free, total.Total)
	if o.Verdict != want {
		t.Errorf("the first: %v, want %v", o.Verdict, want)
	}
	// Within 9/10 of the budget, so that the reason is the true one.
	for budget, want := range map[time.Duration]time.Duration{100 * time.Millisecond: 90 * time.Millisecond, time.Hour: 300 * time.Millisecond} {
		if got := s.rig.decode.pageWait(admission.Plan{Budget: budget}); got != want {
			t.Errorf("of %s, %s may be spent on the wait", budget, got)
		}
	}
	abort := wire.Abort{Attempt: block.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")}
	s.door.decode.link.Send(abort)
	block.end()
	s.rig.clean()
}

func TestWaitersGetPagesInOrder(t *testing.T) {
	s := newScene(t, holdAt(wire.KindEnd), only(capacity.Decode, pages(64)))
	block := s.door.call(needle("BLOCK", 800), s.through).run()
	s.rig.until(block, trace.Decode, uint8(handoff.DecodeClosing))
	large := s.door.call(needle("LARGE", 600), s.through)
	s.door.decode.send(large)
	s.turn(s.rig.decode)
	small := s.door.call(needle("SMALL", 40), s.through) // would fit now; it comes after the large one
	s.door.decode.send(small)
	s.door.decode.link.Send(wire.Ping{Nonce: 1})
	for p := range s.door.decode.pongs {
		if p.Queued == 2 {
			break
		}
		s.door.decode.link.Send(wire.Ping{Nonce: 1})
	}
	s.door.decode.link.Send(wire.Abort{Attempt: block.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	if !large.waitReserved() || !small.waitReserved() {
		t.Error("a waiter got no pages")
	}
	events, _ := s.rig.ring.Events()
	var order []string
	for _, e := range events {
		if e.Step == trace.Reserve && e.Machine == trace.Pool && e.State == 1 {
			switch e.Attempt {
			case large.id:
				order = append(order, "large")
			case small.id:
				order = append(order, "small")
			}
		}
	}
	if strings.Join(order, ",") != "large,small" {
		t.Errorf("pages went to %v", order)
	}
	for _, c := range []*call{large, small} {
		s.door.decode.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
		c.end()
	}
	s.rig.clean()
}

func TestTheTableIsBounded(t *testing.T) {
	r := newRig(t, only(capacity.Decode, func(_ capacity.Role, c *Config) { c.Limits.Attempts = 1 }))
	d := r.door("g0")
	a := d.call(needle("A", 100))
	d.decode.send(a)
	a.waitReserved()
	b := d.call(needle("B", 100))
	d.decode.send(b)
	if _, o := b.end(); o.Verdict.Code != verdict.Overloaded || !strings.Contains(o.Verdict.Reason, "1 attempts are under way") {
		t.Errorf("decode says %v", o.Verdict)
	}
	d.decode.link.Send(wire.Abort{Attempt: a.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	a.end()
	r.clean()
}

// Decode hears every prompt frame's fault from prefill, whole.
func TestABadPromptIsHeardByAll(t *testing.T) {
	for name, c := range map[string]struct {
		send func(d *door, c *call)
		code verdict.Code
		says string
	}{
		"other ids": {func(d *door, c *call) {
			ids := append([]int32(nil), c.prompt...)
			ids[3]++
			d.prefill.link.Send(wire.Prompt{Attempt: c.id, IDs: ids})
		}, verdict.DigestMismatch, ""},
		"too many": {func(d *door, c *call) {
			d.prefill.link.Send(wire.Prompt{Attempt: c.id, IDs: append(append([]int32(nil), c.prompt...), 65)})
		}, verdict.CountMismatch, ""},
		"a hole": {func(d *door, c *call) {
			d.prefill.link.Send(wire.Prompt{Attempt: c.id, IDs: c.prompt[:10]})
			d.prefill.link.Send(wire.Prompt{Attempt: c.id, Offset: 20, IDs: c.prompt[20:]})
		}, verdict.ProtocolViolation, "at 20 where 10 of"},
		"an id that is none": {func(d *door, c *call) {
			ids := append([]int32(nil), c.prompt...)
			ids[3] = 5000
			d.prefill.link.Send(wire.Prompt{Attempt: c.id, IDs: ids})
		}, verdict.ProtocolViolation, "outside the vocabulary"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			d := r.door("g0")
			call := d.call(needle("BAD", 100))
			d.decode.send(call)
			call.waitReserved()
			d.prefill.send(call)
			r.until(call, trace.Decode, uint8(handoff.DecodeGranted))
			c.send(d, call)
			p, dec := call.end()
			if p.Verdict.Code != c.code || !strings.Contains(p.Verdict.Reason, c.says) {
				t.Errorf("prefill says %v", p.Verdict)
			}
			if dec.Verdict != p.Verdict {
				t.Errorf("decode says %v, prefill %v", dec.Verdict, p.Verdict)
			}
			r.clean()
		})
	}
}

// A gateway's frames to the wrong leg break the link's rules.
func TestFramesToTheWrongLegEndTheLink(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	c := d.call(needle("WRONG", 100))
	d.decode.send(c)
	c.waitReserved()
	d.decode.link.Send(wire.Prompt{Attempt: c.id, IDs: c.prompt})
	<-d.decode.gone
	r.clean()
}

func TestDrainingLetsRunningAttemptsEnd(t *testing.T) {
	r := newRig(t, func(_ capacity.Role, c *Config) { c.Context, c.PoolPages = 4096, 256 })
	d := r.door("g0")
	c := d.call(needle("DRAIN", 300), tokens(300)).run()
	r.until(c, trace.Decode, uint8(handoff.DecodeServing))
	done := make(chan error, 1)
	go func() { done <- r.decode.Drain(context.Background()) }()
	if f := <-d.decode.facC; !f.Draining {
		t.Error("the facts do not say that it drains")
	}
	late := d.call(needle("LATE", 100))
	d.decode.send(late)
	if _, o := late.end(); o.Verdict.Code != verdict.ShuttingDown || o.Verdict.Layer != verdict.Open || o.Verdict.Status != 503 {
		t.Errorf("decode says %v", o.Verdict)
	}
	served(t, c)
	if len(c.out) != 300 {
		t.Errorf("%d tokens came", len(c.out))
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.clean()

	// Out of time: what runs ends as shutting down, and Drain says so.
	d2 := newRig(t, func(_ capacity.Role, c *Config) { c.Context, c.PoolPages = 4096, 256 })
	door := d2.door("g0")
	c = door.call(needle("DRAIN", 300), tokens(3000)).run()
	d2.until(c, trace.Decode, uint8(handoff.DecodeServing))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := d2.decode.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Drain says %v", err)
	}
	if _, o := c.end(); o.Verdict.Code != verdict.ShuttingDown {
		t.Errorf("decode says %v", o.Verdict)
	}
	d2.clean()
}

func TestAPoolSmallerThanTheContextDoesNotStart(t *testing.T) {
	r := newRig(t)
	for _, role := range []capacity.Role{capacity.Prefill, capacity.Decode} {
		c := Config{Role: role, Name: "p1", Listen: "127.0.0.1:0", Data: "127.0.0.1:0", Model: copier(), PageTokens: pageTokens, KVTokens: 6812, Context: 10485,
			Identity: r.ids["p1"], Fleet: r.fleet}
		_, err := New(c)
		var short capacity.Shortfall
		if !errors.As(err, &short) || short.Pool != 6800 || short.Context != 10485 {
			t.Errorf("%s: %v", role, err)
		}
		for _, want := range []string{"6800", "10485", "--" + string(role) + "-kv-tokens", "--context"} {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in %q", role, want, err)
			}
		}
		c.ServeSmaller = true
		w, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if f := w.Facts(); f.Context != 6800 || w.limit.Tokens != 6800 {
			t.Errorf("%s advertises %d tokens, limit %v", role, f.Context, w.limit)
		}
		if err := w.pool.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTheFactsSayWhatTheWorkerIs(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	for _, l := range []*line{d.prefill, d.decode} {
		var f capacity.Facts
		if err := json.Unmarshal(l.facts.JSON, &f); err != nil {
			t.Fatal(err)
		}
		w := l.w
		if f != w.Facts() || f.Name != w.cfg.Name || f.Role != w.cfg.Role || f.PoolTokens != 128*pageTokens || f.Context != 1024 ||
			f.PageSize != pageTokens || f.Boot != w.Boot().String() || f.Engine != "native" || len(f.Fingerprint) != 64 {
			t.Errorf("facts: %+v", f)
		}
		if w.cfg.Role == capacity.Decode && l.facts.Data != w.DataAddr().String() {
			t.Errorf("the data address is %q, not %q", l.facts.Data, w.DataAddr())
		}
	}
}

func TestAWorkerThatCannotListenClosesClean(t *testing.T) {
	r := newRig(t)
	for _, taken := range []func(c *Config){
		func(c *Config) { c.Listen = r.decode.Addr().String() },
		func(c *Config) { c.Data = r.decode.DataAddr().String() },
	} {
		c := Config{Role: capacity.Decode, Name: "d0", Listen: "127.0.0.1:0", Data: "127.0.0.1:0", Model: copier(), PageTokens: pageTokens, PoolPages: 64, Context: 1024,
			Identity: r.ids["d0"], Fleet: r.fleet}
		taken(&c)
		w, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Start(); err == nil {
			t.Error("it listens on an address that is taken")
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An attempt belongs to the gateway link that its plan came on: another gateway can neither end it nor feed it.
func TestAnAttemptIsItsGatewaysAlone(t *testing.T) {
	r := newRig(t, func(_ capacity.Role, c *Config) { c.Context, c.PoolPages = 4096, 256 })
	d, other := r.door("g0"), r.door("g1")
	c := d.call(needle("MINE", 300), tokens(400)).run()
	r.until(c, trace.Decode, uint8(handoff.DecodeServing))
	for _, l := range []*line{other.prefill, other.decode} {
		l.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	}
	other.decode.link.Send(wire.Stop{Attempt: c.id})
	for _, l := range []*line{other.prefill, other.decode} {
		l.link.Send(wire.Ping{Nonce: 1})
		<-l.pongs // all that was said before is taken
	}
	other.close()
	_, o := served(t, c)
	if o.Completion != 400 {
		t.Errorf("%d tokens", o.Completion)
	}
	r.clean()
}

func (d *door) close() {
	d.prefill.close()
	d.decode.close()
}

func TestLinksAreBounded(t *testing.T) {
	r := newRig(t, func(_ capacity.Role, c *Config) { c.Limits.Controls, c.Limits.DataLinks = 1, 1 })
	d := r.door("g0")
	served(t, d.call(needle("FIRST", 100)).run())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := tcp.DialControl(ctx, r.decode.Addr().String(), tcp.Config{
		Identity: r.ids["g1"], Hello: wire.Hello{Role: wire.RoleGateway, Name: "g1", Boot: 7}, Trust: r.fleet.Trust(wire.RoleDecode),
	})
	if err == nil {
		_, err = l.Recv()
		l.Close()
	}
	if err == nil {
		t.Error("a second gateway was let in")
	}
	li := newLiar(t, r)
	<-li.link.Done()
	served(t, d.call(needle("SECOND", 100)).run())
	r.clean()
}

// A worker says why it let nobody in; what knocks often is said once a second.
func TestRefusedLinksAreLogged(t *testing.T) {
	var log lockedLog
	r := newRig(t, func(_ capacity.Role, c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for _, a := range []net.Addr{r.decode.Addr(), r.decode.DataAddr()} {
		for range 3 {
			c, err := net.Dial("tcp", a.String())
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
			io.Copy(io.Discard, c) // to its end: the refusal was said by then, or is being said
			c.Close()
		}
	}
	for _, socket := range []string{"control", "data"} {
		want := `msg="link refused" worker=d0 role=decode socket=` + socket
		for end := time.Now().Add(10 * time.Second); !strings.Contains(log.String(), want); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %s in\n%s", want, log.String())
			}
		}
	}
}

type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
