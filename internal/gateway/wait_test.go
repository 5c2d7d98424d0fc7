package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/verdict"
)

// waiting opens a door whose requests wait for a pair, with prefill gone.
func waiting(t *testing.T, wait time.Duration, change func(*Config)) *door {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) {
		c.Limits.PairWait = wait
		if change != nil {
			change(c)
		}
	})
	d.pair.Prefill.Stop()
	fleettest.Until(t, "not ready", func() bool { return !d.g.Ready() })
	return d
}

func (d *door) untilWaiting(n int64) {
	d.t.Helper()
	fleettest.Until(d.t, "requests that wait", func() bool { return d.g.waiting.Load() == n })
}

// A request that comes while a worker restarts waits for it, and is served.
func TestRequestsWaitForARestart(t *testing.T) {
	d := waiting(t, time.Minute, nil)
	reply := make(chan answer)
	go func() { reply <- d.post("/v1/completions", complete("x", "")) }()
	d.untilWaiting(1)
	d.pair.Prefill.Start()
	if a := <-reply; a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// An attempt that its pair's lost link ended is made again once that link is back, not before.
func TestRetriesWaitForARestart(t *testing.T) {
	lost := make(chan bool, 1)
	d := open(t, func(a *fleettest.Attempt) {
		a.Reserved()
		a.WaitPrompt()
		// Decode hears of it first: to the gateway prefill's control link is as good as ever.
		a.No(decode, verdict.Of(verdict.PeerLost, verdict.Gate, "prefill p0 was lost"))
		a.No(prefill, a.Aborted(prefill))
		lost <- true
	}, func(c *Config, _ *fleettest.Pair) { c.Limits.PairWait = time.Minute })
	reply := make(chan answer)
	go func() { reply <- d.post("/v1/completions", complete("x", "")) }()
	<-lost
	d.pair.Set(fleettest.Honest('x'))
	d.untilWaiting(1)
	d.pair.Prefill.Drop()
	if a := <-reply; a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	rs := d.g.ring.Last(9, nil)
	if len(rs) != 2 || rs[0].Verdict.Code != verdict.OK || rs[1].Verdict.Code != verdict.PeerLost {
		t.Errorf("%+v", rs)
	}
}

// The wait has an end: its own time, the deadline, the client, the operator. Each has its verdict.
func TestTheWaitEnds(t *testing.T) {
	post := func(d *door, headers ...string) chan answer {
		reply := make(chan answer, 1)
		go func() { reply <- d.post("/v1/completions", complete("x", ""), headers...) }()
		return reply
	}
	t.Run("its time", func(t *testing.T) {
		d := waiting(t, 20*time.Millisecond, nil)
		if a := <-post(d); a.status != 503 || !strings.Contains(a.body, "no pair can serve model m now: 0 of 1 prefill") {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("the deadline", func(t *testing.T) {
		d := waiting(t, time.Minute, nil)
		want := errorBody("out of time while waiting for a pair that can serve (layer plan)", "server_error", "null", "deadline_exceeded")
		if a := <-post(d, "X-Request-Timeout", "20ms"); a.status != 504 || a.body != want {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("the client", func(t *testing.T) {
		d := waiting(t, time.Minute, nil)
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "POST", d.url("/v1/completions"), strings.NewReader(complete("x", "")))
		if err != nil {
			t.Fatal(err)
		}
		go func() { d.untilWaiting(1); cancel() }()
		if resp, err := d.client.Do(r); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		fleettest.Until(t, "a record", func() bool { return len(d.g.ring.Last(1, nil)) == 1 })
		if v := d.last().Verdict; v.Code != verdict.ClientGone {
			t.Errorf("%+v", v)
		}
	})
	t.Run("the kill switch", func(t *testing.T) {
		d := waiting(t, time.Minute, nil)
		reply := post(d)
		d.untilWaiting(1)
		d.g.catalog().find("m").turnOff("so")
		if a := <-reply; a.status != 503 || !strings.Contains(a.body, "switched off: so") {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("a drain", func(t *testing.T) {
		d := waiting(t, time.Minute, nil)
		reply := post(d)
		d.untilWaiting(1)
		if err := d.g.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if a := <-reply; a.status != 503 || !strings.Contains(a.body, "the gateway is shutting down") {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("too many wait", func(t *testing.T) {
		d := waiting(t, time.Minute, func(c *Config) { c.Limits.PairWaiters = 1 })
		first := post(d)
		d.untilWaiting(1)
		if a := <-post(d); a.status != 503 {
			t.Errorf("%d %s", a.status, a.body)
		}
		d.pair.Prefill.Start()
		if a := <-first; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// A pair that rests is an answer, and is not waited for.
func TestNoWaitForAPairThatRests(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) {
		c.Limits.PairWait, c.Rests = time.Minute, fleet.Rests{Last: time.Minute}
	})
	d.g.catalog().find("m").native.Rest("p0", "d0", "a test")
	if a := d.post("/v1/completions", complete("x", "")); a.status != 503 || !strings.Contains(a.body, "1 pairs rest") {
		t.Errorf("%d %s", a.status, a.body)
	}
}
