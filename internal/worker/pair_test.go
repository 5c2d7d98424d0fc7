package worker

import (
	"fmt"
	"sync"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func served(t *testing.T, c *call) (prefill, decode wire.Outcome) {
	t.Helper()
	prefill, decode = c.end()
	if prefill.Verdict.Code != verdict.OK || decode.Verdict.Code != verdict.OK {
		t.Fatalf("prefill: %v\ndecode: %v", prefill.Verdict, decode.Verdict)
	}
	return prefill, decode
}

func TestAPairAnswersFromTheTransferredPages(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	prompt := needle("QX7-PLUM-44", 300)
	c := d.call(prompt, tokens(11)).run()
	p, dec := served(t, c)
	if got := c.text(); got != "QX7-PLUM-44" {
		t.Errorf("the reply is %q", got)
	}
	n := uint32(len(prompt))
	held := (n + pageTokens - 1) / pageTokens
	digest := admission.Digest(admission.Scope{1}, prompt)
	if p.Computed != n || p.Written != held || p.Reserved != held || p.Digest != digest {
		t.Errorf("prefill's outcome: %+v", p)
	}
	if dec.Computed != n || dec.Written != held || dec.Held != 0 || dec.Completion != 11 || dec.Finish != wire.FinishLength || dec.Digest != digest ||
		dec.Root != p.Root || dec.Root == [32]byte{} || dec.PhaseMicroEnd <= dec.PhaseMicroBegin {
		t.Errorf("decode's outcome: %+v", dec)
	}
	s := <-c.sealed
	if s.Tokens != n || s.Written != held || s.Digest != digest || s.Root != p.Root {
		t.Errorf("sealed: %+v", s)
	}
	r.clean()
	if s := r.decode.Snapshot(); s.PagesLanded != uint64(held) || s.BytesLanded != uint64(held)*uint64(r.decode.geometry.Bytes()) || s.PagesRefused != 0 ||
		s.Verdicts[verdict.OK] != 1 || s.Stages[StageTransfer].Count != 1 || s.Stages[StageGenerate].Sum == 0 {
		t.Errorf("decode's snapshot: %+v", s)
	}
	if s := r.prefill.Snapshot(); s.PagesSent != uint64(held) || s.Stages[StageCompute].Sum == 0 {
		t.Errorf("prefill's snapshot: %+v", s)
	}
}

// Sizes around the edges of pages, chunks and the limit.
func TestPromptsOfEverySizeAreServed(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	long := needle("ZEBRA", 1000)
	for _, n := range []int{1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 400, 1016} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			prompt := long[:n]
			c := d.call(prompt, tokens(1024-n+1)).run()
			if n < 1000 {
				c.plan.MaxTokens = 20
			}
			p, dec := served(t, c)
			if p.Computed != uint32(n) || dec.Computed != uint32(n) || int(dec.Completion) != len(c.out) {
				t.Errorf("computed %d, sealed %d; %d tokens said, %d came", p.Computed, dec.Computed, dec.Completion, len(c.out))
			}
		})
	}
	r.clean()
}

// One data link a pair carries all attempts, and stays open between them.
func TestAttemptsShareOneDataLink(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	for i := range 5 {
		served(t, d.call(needle(fmt.Sprintf("CODE-%d", i), 200)).run())
	}
	r.clean()
	if p, dec := r.prefill.Snapshot(), r.decode.Snapshot(); p.DataLinks != 1 || dec.DataLinks != 1 {
		t.Errorf("%d and %d data links", p.DataLinks, dec.DataLinks)
	}
}

func TestTwoHundredAttemptsAtOnce(t *testing.T) {
	r := newRig(t)
	gates := []*door{r.door("g0"), r.door("g1")}
	var wg sync.WaitGroup
	for i := range 200 {
		code := fmt.Sprintf("K%03d-%03d", i, i*7%1000)
		wg.Go(func() {
			c := gates[i%2].call(needle(code, 60+i%120), tokens(len(code))).run()
			p, dec := c.end()
			if p.Verdict.Code != verdict.OK || dec.Verdict.Code != verdict.OK {
				t.Errorf("%d: prefill: %v; decode: %v", i, p.Verdict, dec.Verdict)
				return
			}
			if got := c.text(); got != code {
				t.Errorf("%d: the reply is %q, not %q", i, got, code)
			}
		})
	}
	wg.Wait()
	r.clean()
	if s := r.decode.Snapshot(); s.Settled != 200 || s.Verdicts[verdict.OK] != 200 {
		t.Errorf("snapshot: %+v", s)
	}
}

func TestAStopStringEndsAReplyWell(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	c := d.call(needle("STOP-HERE", 300), tokens(500)).run()
	<-c.tokens
	d.decode.link.Send(wire.Stop{Attempt: c.id})
	_, dec := served(t, c)
	if dec.Finish != wire.FinishStop || dec.Completion == 0 || dec.Completion == 500 {
		t.Errorf("outcome: %+v", dec)
	}
	r.clean()
}

func TestAPongTellsThePool(t *testing.T) {
	r := newRig(t)
	d := r.door("g0")
	served(t, d.call(needle("PING", 100)).run())
	r.clean()
	for _, l := range []*line{d.prefill, d.decode} {
		l.link.Send(wire.Ping{Nonce: 9, Scan: true})
		p := <-l.pongs
		want := wire.Pong{Nonce: 9, PagesTotal: 128, PagesFree: 128, Settled: 1}
		if p != want {
			t.Errorf("%s: %+v", l.w.cfg.Name, p)
		}
	}
}
