package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// Many attempts, of which most are aborted at a random moment from a random side, on pools that hold a few of them. Every reply that is
// served is exact; afterwards nothing lives, all pages are free, and all of them are zero.
func TestAnAbortStormLeavesNothing(t *testing.T) {
	r := newRig(t, pages(80))
	gates := []*door{r.door("g0"), r.door("g1")}
	var wg sync.WaitGroup
	var ok, ended atomic.Int64
	codes := [256]atomic.Int64{}
	line := make(chan struct{}, 40)
	for i := range 300 {
		line <- struct{}{}
		wg.Go(func() {
			defer func() { <-line }()
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			code := fmt.Sprintf("S%03d-%03d", i, i*13%1000)
			g := gates[i%2]
			c := g.call(needle(code, 60+rng.IntN(300)), tokens(len(code)))
			if rng.IntN(3) > 0 {
				after := time.Duration(rng.IntN(60_000)) * time.Microsecond
				side := g.decode
				if rng.IntN(2) == 0 {
					side = g.prefill
				}
				time.AfterFunc(after, func() {
					side.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
				})
			}
			c.run()
			_, d := c.conclude()
			codes[d.Verdict.Code].Add(1)
			switch {
			case d.Verdict.OK() && c.text() == code:
				ok.Add(1)
			case d.Verdict.OK():
				t.Errorf("%d: the reply is %q, not %q", i, c.text(), code)
			default:
				ended.Add(1)
				if got := c.text(); !strings.HasPrefix(code, got) {
					t.Errorf("%d: a reply that was cut off is %q, not the begin of %q", i, got, code)
				}
			}
		})
	}
	wg.Wait()
	r.clean()
	if ok.Load() == 0 || ended.Load() == 0 {
		t.Errorf("%d served, %d ended: no storm", ok.Load(), ended.Load())
	}
	for c := range codes {
		if n := codes[c].Load(); n > 0 {
			t.Logf("%s: %d", verdict.Code(c), n)
			if a := verdict.Code(c).About(); a.Proof || verdict.Code(c) == verdict.Internal || verdict.Code(c) == verdict.ProtocolViolation {
				t.Errorf("honest legs gave %s %d times", verdict.Code(c), n)
			}
		}
	}
	for _, w := range []*Worker{r.prefill, r.decode} {
		if s := w.Snapshot(); s.StrayFrames != 0 || s.LinksBroken != 0 {
			t.Errorf("%s: %d stray frames, %d links broken", w.cfg.Name, s.StrayFrames, s.LinksBroken)
		}
	}
}

// Replies that outgrow the pool: one gives way, and the others are served.
func TestRepliesThatOutgrowThePoolGiveWay(t *testing.T) {
	r := newRig(t, only(capacity.Decode, func(_ capacity.Role, c *Config) { c.PoolPages, c.Limits.Ahead = 64, 16 }))
	d := r.door("g0")
	var calls []*call
	for i := range 3 {
		c := d.call(needle(fmt.Sprintf("GROW-%d", i), 100), tokens(600)).run()
		calls = append(calls, c)
	}
	exhausted := 0
	for _, c := range calls {
		_, o := c.conclude()
		switch o.Verdict.Code {
		case verdict.OK:
		case verdict.PoolExhausted:
			exhausted++
		default:
			t.Errorf("decode says %v", o.Verdict)
		}
	}
	if exhausted == 0 || exhausted == len(calls) {
		t.Errorf("%d of %d gave way", exhausted, len(calls))
	}
	r.clean()
}

// A gateway that does not read what it is sent loses its link, and its attempts; others do not notice.
func TestAGatewayThatDoesNotReadLosesItsLink(t *testing.T) {
	stuck, began := make(chan struct{}), make(chan struct{})
	var over atomic.Bool
	o := newOutbox(4, func() { over.Store(true); close(stuck) })
	done := make(chan error, 1)
	go func() {
		done <- o.run(func(wire.Frame) error {
			close(began)
			<-stuck // the peer takes nothing
			return context.Canceled
		})
	}()
	o.put(wire.Ping{})
	<-began
	for i := range 5 {
		o.put(wire.Ping{Nonce: uint64(i)})
	}
	<-stuck
	if err := <-done; err == nil || !over.Load() {
		t.Errorf("run ended with %v", err)
	}
	o.put(wire.Ping{}) // goes nowhere, and does not block
}

// Tokens that wait share a frame an attempt, keep their order, and do not pass what was said before them.
func TestWaitingTokensShareAFrame(t *testing.T) {
	o := newOutbox(100, func() { t.Error("overflow") })
	a, b := newID(1), newID(2)
	o.putToken(a, 0, 10)
	o.putToken(b, 0, 20)
	o.putToken(a, 1, 11)
	o.put(wire.Settled{Attempt: b})
	o.putToken(a, 2, 12)
	got, open := o.take()
	if !open {
		t.Error("closed")
	}
	want := fmt.Sprint([]wire.Frame{
		wire.Output{Attempt: a, Index: 0, IDs: []int32{10, 11, 12}},
		wire.Output{Attempt: b, Index: 0, IDs: []int32{20}},
		wire.Settled{Attempt: b},
	})
	if fmt.Sprint(got) != want {
		t.Errorf("frames:\n%v\nwant\n%v", got, want)
	}
	o.putToken(a, 3, 13) // the frame is gone: a new one
	if got, _ := o.take(); fmt.Sprint(got) != fmt.Sprint([]wire.Frame{wire.Output{Attempt: a, Index: 3, IDs: []int32{13}}}) {
		t.Errorf("frames: %v", got)
	}
	for i := range wire.OutputChunk + 1 {
		o.putToken(a, uint32(4+i), 1)
	}
	got, _ = o.take()
	if len(got) != 2 || len(got[0].(wire.Output).IDs) != wire.OutputChunk || got[1].(wire.Output).Index != uint32(4+wire.OutputChunk) {
		t.Errorf("%d frames", len(got))
	}
}

func newID(b byte) (id [16]byte) { id[0] = b; return id }

// The table forgets the oldest settled attempts, and no others.
func TestTheTableForgetsTheOldest(t *testing.T) {
	tb := newTable(10, 3)
	for i := range byte(5) {
		tb.live[newID(i)] = nil
		tb.settle(newID(i), past{})
		tb.rest()
	}
	for i := range byte(5) {
		if _, _, was := tb.find(newID(i)); was != (i >= 2) {
			t.Errorf("attempt %d: remembered %v", i, was)
		}
	}
	if live, done := tb.active(); live != 0 || done != 5 || len(tb.settled) != 3 {
		t.Errorf("%d live, %d settled, %d remembered", live, done, len(tb.settled))
	}
}

// One page of each attempt in turn: the pages of a short prompt do not wait for a long one's.
func TestPagesOfAttemptsTakeTurns(t *testing.T) {
	r := newRig(t)
	l := &outlink{w: r.prefill, wake: make(chan struct{}, 1)}
	long, short := &prefillAttempt{link: l}, &prefillAttempt{link: l}
	long.shipment.a, short.shipment.a = long, short
	l.queuePages(long, 5)
	l.queuePages(short, 2)
	l.say(wire.Ping{})
	var order strings.Builder
	for {
		frames, s := l.work()
		switch {
		case frames != nil:
			order.WriteByte('!')
		case s == nil:
			if got := order.String(); got != "!lslslll" {
				t.Errorf("turns: %s", got)
			}
			return
		default:
			if s.a == long {
				order.WriteByte('l')
			} else {
				order.WriteByte('s')
			}
			l.mu.Lock()
			if s.next++; s.next < s.to {
				l.enqueue(s)
			}
			l.mu.Unlock()
		}
	}
}

func TestDataLinksCanBeEncrypted(t *testing.T) {
	r := newRig(t, func(_ capacity.Role, c *Config) { c.EncryptData = true })
	d := r.door("g0")
	c := d.call(needle("SEALED", 100), tokens(6)).run()
	served(t, c)
	if c.text() != "SEALED" {
		t.Errorf("the reply is %q", c.text())
	}
	r.clean()
}

// Ends that differ in what they hold are refused by name, in both values.
func TestPairsThatDifferAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		opt  option
		says []string
	}{
		"page size":  {func(_ capacity.Role, c *Config) { c.PageTokens, c.PoolPages = 32, 64 }, []string{"16 tokens", "32 tokens"}},
		"encryption": {func(_ capacity.Role, c *Config) { c.EncryptData = true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, only(capacity.Prefill, c.opt))
			d := r.door("g0")
			call := d.call(needle("DIFFER", 100), budget(8*time.Second)).run()
			p, _ := call.conclude()
			if p.Verdict.OK() {
				t.Errorf("prefill says %v", p.Verdict)
			}
			for _, s := range c.says {
				if !strings.Contains(p.Verdict.Reason, s) {
					t.Errorf("%q is not in %v", s, p.Verdict)
				}
			}
			t.Log(p.Verdict)
			r.clean()
		})
	}
}

// Legs on different kernels compare the echo within a tolerance, and serve.
func TestLegsOnDifferentKernelsAreServed(t *testing.T) {
	r := newRig(t, only(capacity.Prefill, func(_ capacity.Role, c *Config) { c.KernelPath = "other" }))
	d := r.door("g0")
	c := d.call(needle("PATHS", 100), tokens(5)).run()
	served(t, c)
	if c.text() != "PATHS" {
		t.Errorf("the reply is %q", c.text())
	}
	r.clean()
}
