package worker

import (
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// TestAManifestSaysWhatWasComputed: prefill's digest is of the ids that its engine computed, not of those that it was sent or that the plan
// names. Ids that change in between give KV that agrees with itself, echo and all, and is of another prompt.
func TestAManifestSaysWhatWasComputed(t *testing.T) {
	const pages = 8
	r := newRig(t, func(role capacity.Role, c *Config) {
		if c.PageTokens = 64; role == capacity.Prefill {
			c.PoolPages, c.Context = pages, pages*64
		}
	})
	d := r.door("g0")
	long := make([]int32, pages*64-10)
	for i := range long {
		long[i] = 'a'
	}
	first := d.call(long, tokens(1)) // it has all of prefill's pages, and decode never grants it any
	d.prefill.send(first)
	d.prefill.sendPrompt(first)
	at := func(c *call, want handoff.PrefillState) *prefillAttempt {
		t.Helper()
		for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) { // polling a machine
			if x, _, _ := r.prefill.table.find(c.id); x != nil {
				a := x.(*prefillAttempt)
				a.mu.Lock()
				s := a.machine.State
				a.mu.Unlock()
				if s == want {
					return a
				}
			}
		}
		t.Fatalf("prefill does not come to state %s", want)
		return nil
	}
	a := at(first, handoff.PrefillShipping)
	second := d.call(needle("SECOND", 100))
	second.run()
	b := at(second, handoff.PrefillReserving)
	b.mu.Lock()
	b.tokens[3]++ // in memory, between the comparison with the plan and the engine
	b.mu.Unlock()
	a.abort(handoff.GatewayEnd, verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up"))
	if _, o := second.end(); o.Verdict.Code != verdict.DigestMismatch {
		t.Errorf("decode says %v", o.Verdict)
	}
}

// TestAnOutcomeSaysWhatWasComputed: a prefill that was stopped before its engine began has computed nothing, whatever was planned.
func TestAnOutcomeSaysWhatWasComputed(t *testing.T) {
	const pages = 8
	r := newRig(t, func(role capacity.Role, c *Config) {
		if c.PageTokens = 64; role == capacity.Prefill {
			c.PoolPages, c.Context = pages, pages*64
		}
	})
	d := r.door("g0")
	long := make([]int32, pages*64-10)
	for i := range long {
		long[i] = 'a'
	}
	first := d.call(long, tokens(1))
	d.prefill.send(first)
	d.prefill.sendPrompt(first)
	state := func(c *call) (s handoff.PrefillState) {
		if x, _, _ := r.prefill.table.find(c.id); x != nil {
			a := x.(*prefillAttempt)
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.machine.State
		}
		return handoff.PrefillCollecting
	}
	wait := func(c *call, want handoff.PrefillState) {
		for until := time.Now().Add(30 * time.Second); state(c) != want; time.Sleep(time.Millisecond) { // polling a machine
			if time.Now().After(until) {
				t.Fatalf("prefill does not come to state %s", want)
			}
		}
	}
	wait(first, handoff.PrefillShipping)
	second := d.call(needle("SECOND", 100))
	second.run()
	wait(second, handoff.PrefillReserving)
	for _, c := range []*call{second, first} {
		d.prefill.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	}
	if p, _ := second.end(); p.Computed != 0 || p.Verdict.Code != verdict.ClientGone {
		t.Errorf("prefill computed nothing and says %d tokens, %v", p.Computed, p.Verdict)
	}
	r.clean()
}
