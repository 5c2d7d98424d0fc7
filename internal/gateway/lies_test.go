package gateway

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// secret is what a lying pair would leak.
const secret = "the other tenant's code"

// told serves a reply with the secret, honestly but for what change does to each frame.
type told struct {
	prefill func(*wire.Outcome)
	sealed  func(*wire.Sealed)
	decode  func(*wire.Outcome)
}

func (c told) script(a *fleettest.Attempt) {
	nothing := func(*wire.Outcome) {}
	if c.prefill == nil {
		c.prefill = nothing
	}
	if c.decode == nil {
		c.decode = nothing
	}
	if c.sealed == nil {
		c.sealed = func(*wire.Sealed) {}
	}
	a.Reserved()
	if !a.WaitPrompt() {
		return
	}
	a.Ends(prefill, a.Outcome(prefill, 0, c.prefill))
	a.Sealed(c.sealed)
	a.Output(0, text(secret)...)
	a.Ends(decode, a.Outcome(decode, len(secret), c.decode))
}

// A pair that lies about anything: no byte of its reply reaches the client, whole or streamed; the verdict names what
// disagreed, and the pair rests where that is proof.
func TestLyingPairs(t *testing.T) {
	for name, c := range map[string]struct {
		script fleettest.Script
		code   verdict.Code
		layer  verdict.Layer
		words  string // of the reason
		spoke  string
		rests  bool
	}{
		"the incident: a placeholder of one token": {told{prefill: func(o *wire.Outcome) { o.Computed = 1 }}.script, verdict.LegsDisagree, verdict.Legs,
			"prompt tokens: 2 planned, prefill computed 1", "hold", true},
		"decode sealed another count": {told{sealed: func(s *wire.Sealed) { s.Tokens = 3 }}.script, verdict.LegsDisagree, verdict.Legs,
			"decode holds 3", "hold", true},
		"prefill computed other ids": {told{prefill: func(o *wire.Outcome) { o.Digest[0]++ }}.script, verdict.LegsDisagree, verdict.Legs, "digests differ", "hold", true},
		"decode sealed other ids":    {told{sealed: func(s *wire.Sealed) { s.Digest[0]++ }}.script, verdict.LegsDisagree, verdict.Legs, "digests differ", "hold", true},
		"both computed other ids": {told{prefill: func(o *wire.Outcome) { o.Digest[0] ^= 9 }, sealed: func(s *wire.Sealed) { s.Digest[0] ^= 9 }}.script, verdict.LegsDisagree, verdict.Legs,
			"digests differ", "hold", true},
		"other pages landed":       {told{sealed: func(s *wire.Sealed) { s.Root[0]++ }}.script, verdict.LegsDisagree, verdict.Legs, "roots differ", "hold", true},
		"fewer pages landed":       {told{sealed: func(s *wire.Sealed) { s.Written-- }}.script, verdict.LegsDisagree, verdict.Legs, "pages: prefill sent 1, decode holds 0", "hold", true},
		"decode changes its count": {told{decode: func(o *wire.Outcome) { o.Computed = 9 }}.script, verdict.LegsDisagree, verdict.Legs, "decode contradicts its own usage", "hold", true},
		"prefill says no, decode speaks": {func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.Sealed()
				a.Output(0, text(secret)...)
				a.No(prefill, verdict.Of(verdict.EngineFailed, verdict.Prefill, "logits are not finite"))
				a.No(decode, a.Aborted(decode))
			}
		}, verdict.EngineFailed, verdict.Prefill, "logits are not finite", "verdict", false},
		"output before the seal": {func(a *fleettest.Attempt) {
			a.Reserved()
			a.Output(0, text(secret)...)
			a.No(prefill, a.Aborted(prefill))
			a.No(decode, a.Aborted(decode))
		}, verdict.ProtocolViolation, verdict.Legs, "decode d0: output from 0 where 0 was next, while running", "", false},
		"output with a hole": {func(a *fleettest.Attempt) {
			if a.Prefilled() {
				a.Output(3, text(secret)...)
				a.No(decode, a.Aborted(decode))
			}
		}, verdict.ProtocolViolation, verdict.Legs, "output from 3 where 0 was next", "", false},
		"more output than the plan": {func(a *fleettest.Attempt) {
			if a.Prefilled() {
				a.Output(0, text(strings.Repeat(secret, 10))...)
				a.No(decode, a.Aborted(decode))
			}
		}, verdict.ProtocolViolation, verdict.Legs, "230 tokens, of at most 100", "", false},
		"a reserved from prefill": {func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.Say(prefill, wire.Reserved{Attempt: a.Plan.Attempt}) // the transport ends the link
				a.No(decode, a.Aborted(decode))
			}
		}, verdict.PeerLost, verdict.Prefill, "the control link to prefill p0 ended", "", false},
		"two seals": {func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.Sealed()
				a.Sealed()
				a.No(prefill, a.Aborted(prefill))
				a.No(decode, a.Aborted(decode))
			}
		}, verdict.ProtocolViolation, verdict.Legs, "decode d0: a seal out of place", "", false},
		"two outcomes of prefill": {func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.Say(prefill, a.Outcome(prefill, 0))
				a.Say(prefill, a.Outcome(prefill, 0))
				a.Settled(prefill)
				a.No(decode, a.Aborted(decode))
			}
		}, verdict.ProtocolViolation, verdict.Prefill, "prefill sent more (usage) after its end", "", false},
		"prefill served and then not": {func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.Say(prefill, a.Outcome(prefill, 0))
				a.No(prefill, verdict.Of(verdict.EngineFailed, verdict.Prefill, "after all"))
				a.No(decode, a.Aborted(decode))
			}
		}, verdict.LegsDisagree, verdict.Legs, "prefill ended well and then said engine_failed", "hold", true},
		"a seal by prefill's outcome alone": {func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.Ends(prefill, a.Outcome(prefill, 0))
				a.Output(0, text(secret)...)
				a.Ends(decode, a.Outcome(decode, len(secret)))
			}
		}, verdict.ProtocolViolation, verdict.Legs, "decode d0: output from 0 where 0 was next, while running", "", false},
		"no finish reason": {told{decode: func(o *wire.Outcome) { o.Finish = wire.FinishNone }}.script, verdict.ProtocolViolation, verdict.Decode,
			"decode ended without a finish reason", "", false},
		"a verdict with another status": {func(a *fleettest.Attempt) {
			v := verdict.Of(verdict.EngineFailed, verdict.Decode, "200 all the same")
			v.Status = 200
			a.No(decode, v)
		}, verdict.EngineFailed, verdict.Decode, "200 all the same", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, c.script, nil)
			for _, stream := range []bool{false, true} {
				if name == "no finish reason" && stream {
					continue // the legs had agreed: see TestStreamsThatFailMidway
				}
				if name == "decode changes its count" && stream {
					continue
				}
				d.waitReady()
				rested := d.g.catalog().find("m").fleet.Status(t.Context(), false).Rested
				a := d.post("/v1/completions", complete("x", fmt.Sprintf(`,"max_tokens":100,"stream":%v`, stream)))
				if leaks(a.body) {
					t.Fatalf("leaked: %s", a.body)
				}
				if want := c.code.About().Status; a.status != want || !strings.Contains(a.body, `"code":"`+c.code.About().API+`"`) {
					t.Errorf("%d %s", a.status, a.body)
				}
				if got := a.header.Get("X-Sluice-Verdict"); got != c.code.String()+"; layer="+c.layer.String() {
					t.Errorf("header %q", got)
				}
				if !strings.Contains(a.body, "(layer "+c.layer.String()+")") {
					t.Errorf("the message does not name the layer: %s", a.body)
				}
				d.quiet()
				r := d.last()
				if r.Verdict.Code != c.code || r.Verdict.Layer != c.layer || !strings.Contains(r.Verdict.Reason, c.words) {
					t.Errorf("record says %v", r.Verdict)
				}
				spoke := ""
				for _, g := range r.Spoke {
					spoke += g.Name
				}
				if spoke != c.spoke {
					t.Errorf("spoke %v", r.Spoke)
				}
				if got := d.g.catalog().find("m").fleet.Status(t.Context(), false).Rested > rested; got != c.rests {
					t.Errorf("the pair rested: %v", got)
				}
			}
		})
	}
}

// leaks looks for any four letters of the secret.
func leaks(body string) bool {
	body = regexp.MustCompile(`"message":"[^"]*"`).ReplaceAllString(body, "")
	var got strings.Builder
	for _, m := range regexp.MustCompile(`"(?:text|content)":"([^"]*)"`).FindAllStringSubmatch(body, -1) {
		got.WriteString(m[1])
	}
	for i := 0; i+4 <= len(secret); i++ {
		if strings.Contains(got.String(), secret[i:i+4]) {
			return true
		}
	}
	return false
}

func TestLeaksSeesALeak(t *testing.T) {
	d := open(t, told{}.script, nil)
	for _, stream := range []bool{false, true} {
		if a := d.post("/v1/completions", complete("x", fmt.Sprintf(`,"max_tokens":100,"stream":%v`, stream))); !leaks(a.body) {
			t.Errorf("the positive control is not seen: %s", a.body)
		}
	}
}

// A stream that fails after the release ends with the error as its last event, without [DONE], and with the verdict as trailer.
func TestStreamsThatFailMidway(t *testing.T) {
	for name, c := range map[string]struct {
		then func(d **door, a *fleettest.Attempt)
		code verdict.Code
		want string
	}{
		"decode says no": {func(_ **door, a *fleettest.Attempt) {
			a.No(decode, verdict.Of(verdict.TagMismatch, verdict.Decode, "page 3 is not this lease's"))
		}, verdict.TagMismatch, errorBody("page 3 is not this lease's (layer decode)", "server_error", "null", "tag_mismatch")},
		"decode is lost": {func(d **door, _ *fleettest.Attempt) { (*d).pair.Decode.Drop() }, verdict.PeerLost,
			errorBody("the control link to decode d0 ended (layer decode)", "server_error", "null", "worker_lost")},
		"decode miscounts": {func(_ **door, a *fleettest.Attempt) { a.Ends(decode, a.Outcome(decode, 3)) }, verdict.LegsDisagree,
			errorBody("completion tokens: decode says 3, 2 came (layer legs)", "server_error", "null", "legs_disagree")},
		"no finish reason": {func(_ **door, a *fleettest.Attempt) {
			a.Ends(decode, a.Outcome(decode, 2, func(o *wire.Outcome) { o.Finish = wire.FinishNone }))
		}, verdict.ProtocolViolation, errorBody("decode ended without a finish reason (layer decode)", "server_error", "null", "protocol_violation")},
		"switched off": {func(d **door, a *fleettest.Attempt) {
			(*d).g.catalog().find("m").turnOff("a leak is feared")
			a.No(decode, a.Aborted(decode))
		}, verdict.ModelOff, errorBody("model m is switched off: a leak is feared", "server_error", "model", "model_off")},
	} {
		t.Run(name, func(t *testing.T) {
			var d *door
			seen := make(chan bool)
			d = open(t, func(a *fleettest.Attempt) {
				if a.Prefilled() {
					a.Output(0, 'o', 'k')
					<-seen
					c.then(&d, a)
				}
			}, nil)
			a := d.stream(complete("x", `,"stream":true`), func(body string) bool { return strings.Contains(body, "ok") }, func() { close(seen) })
			ev := events(a.body)
			if a.status != 200 || a.err != nil || ev[len(ev)-1] != c.want || strings.Contains(a.body, "[DONE]") {
				t.Errorf("%d %v\n got %s\nwant %s", a.status, a.err, ev[len(ev)-1], c.want)
			}
			if got := a.trailer.Get("X-Sluice-Verdict"); !strings.HasPrefix(got, c.code.String()+"; layer=") {
				t.Errorf("trailer %q", got)
			}
			d.quiet()
			if r := d.last(); r.Verdict.Code != c.code {
				t.Errorf("%+v", r.Verdict)
			}
		})
	}
}

// The deadline is the client's if that is sooner; the verdict names the layer that was waited for, and both legs are told.
func TestDeadlines(t *testing.T) {
	wait := func(a *fleettest.Attempt, both bool) {
		if v := a.Aborted(decode); v.Code != verdict.Deadline && !v.IsZero() {
			panic(v.String())
		}
		a.No(decode, verdict.Of(verdict.Deadline, verdict.Decode, "aborted"))
		if both {
			a.Aborted(prefill)
			a.No(prefill, verdict.Of(verdict.Deadline, verdict.Prefill, "aborted"))
		}
	}
	for name, c := range map[string]struct {
		script fleettest.Script
		layer  verdict.Layer
		words  string
		limits []string
	}{
		"reserve": {func(a *fleettest.Attempt) { wait(a, false) }, verdict.Reserve, "out of time while waiting for decode to reserve pages (layer reserve)", []string{"0.05", "50ms"}},
		"prefill": {func(a *fleettest.Attempt) { a.Reserved(); a.WaitPrompt(); wait(a, true) }, verdict.Prefill, "out of time while waiting for prefill's verdict (layer prefill)", []string{"1s"}},
		"seal": {func(a *fleettest.Attempt) {
			a.Reserved()
			a.WaitPrompt()
			a.Ends(prefill, a.Outcome(prefill, 0))
			wait(a, false)
		}, verdict.Seal, "out of time while waiting for decode to seal the pages (layer seal)", []string{"1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // with the others of this test
			d := open(t, c.script, nil)
			for _, h := range c.limits {
				start := time.Now()
				a := d.post("/v1/completions", complete("x", `,"stream":true`), "X-Request-Timeout", h)
				if want := errorBody(c.words, "server_error", "null", "deadline_exceeded"); a.status != 504 || a.body != want {
					t.Errorf("%d %s\nwant %s", a.status, a.body, want)
				}
				if took := time.Since(start); took < 50*time.Millisecond {
					t.Errorf("took %v", took)
				}
				d.quiet()
				if r := d.last(); r.Verdict.Layer != c.layer || r.Verdict.Code != verdict.Deadline {
					t.Errorf("%+v", r.Verdict)
				}
			}
			p := d.pair.Attempts()[0].Plan
			if p.Budget <= 0 || p.Budget > time.Second {
				t.Errorf("budget %v", p.Budget)
			}
		})
	}
	d := open(t, fleettest.Honest(), nil)
	for _, h := range []string{"0", "-1", "soon", "NaN"} {
		if a := d.post("/v1/completions", complete("x", ""), "X-Request-Timeout", h); a.status != 400 {
			t.Errorf("timeout %q: %d", h, a.status)
		}
	}
	if a := d.post("/v1/completions", complete("x", ""), "X-Request-Timeout", "1e300"); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// Frames of attempts that are over, or never were, harm nobody.
func TestLateFramesOfOneAttemptHarmNoOther(t *testing.T) {
	var before *fleettest.Attempt
	d := open(t, func(a *fleettest.Attempt) {
		a.Say(decode, wire.Output{Attempt: attempt.New(), IDs: text(secret)})
		if before != nil {
			a.Say(decode, wire.Output{Attempt: before.Plan.Attempt, Index: 4, IDs: text(secret)})
			a.Say(decode, before.Outcome(decode, 9))
			a.Say(prefill, before.Outcome(prefill, 0))
			a.Say(decode, wire.Settled{Attempt: before.Plan.Attempt})
		}
		before = a
		fleettest.Honest(text("fine")...)(a)
	}, nil)
	for range 3 {
		a := d.post("/v1/completions", complete("x", ""))
		if got, _ := textOf(t, a, false); got != "fine" {
			t.Errorf("%d %s", a.status, a.body)
		}
		d.quiet()
	}
}
