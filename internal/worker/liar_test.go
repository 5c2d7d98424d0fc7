package worker

import (
	"context"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/engine"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// liar is a prefill that says what a test tells it to say. It computes real pages; everything after that is a lie or not.
type liar struct {
	t    testing.TB
	r    *rig
	boot page.Boot
	link *tcp.DataLink
	from chan wire.Frame // what decode says; closed at the link's end
	pool *pool.Pool
	eng  *engine.Prefill
}

func newLiar(t testing.TB, r *rig) *liar { return newLiarOf(t, r, pageTokens) }

func newLiarOf(t testing.TB, r *rig, slots int) *liar {
	t.Helper()
	l := &liar{t: t, r: r, boot: page.NewBoot(), from: make(chan wire.Frame, 64)}
	g := copier().Geometry(slots)
	var err error
	if l.pool, err = pool.New(pool.Config{Role: "liar", Boot: l.boot, Geometry: g, Pages: 128}); err != nil {
		t.Fatal(err)
	}
	run := llm.NewRunner(copier(), llm.RunnerOptions{Threads: 1, MaxRows: 64})
	l.eng = engine.NewPrefill(engine.PrefillConfig{Runner: run, Vocab: copier().Config().Vocab, PageTokens: slots, Chunk: 64})
	t.Cleanup(func() { l.eng.Close(); run.Close(); l.pool.Close() })
	l.link = l.dial("p1")
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(l.from)
		for {
			f, _, err := l.link.Recv(nil)
			if err != nil {
				return
			}
			l.from <- f
		}
	})
	t.Cleanup(func() { l.link.Close(); wg.Wait() })
	return l
}

func (l *liar) dial(name string) *tcp.DataLink {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	link, err := tcp.DialData(ctx, l.r.decode.DataAddr().String(), tcp.Config{
		Identity: l.r.ids[name], Trust: keyring.Only(l.r.ids["d0"].Public()), Hello: wire.Hello{
			Role: wire.RolePrefill, Name: name, Boot: l.boot, Model: copier().Fingerprint(), Geometry: l.pool.Geometry(),
			Path: l.r.decode.cfg.KernelPath,
		}})
	if err != nil {
		l.t.Fatal(err)
	}
	return link
}

// as makes a plan's prefill the liar.
func (l *liar) as(p *admission.Plan) {
	p.Prefill = admission.Endpoint{Name: "p1", Boot: l.boot, Key: l.r.ids["p1"].Key()}
}

// work is a prompt, computed.
type work struct {
	pages [][]byte
	macs  []mac.Tag
	echo  wire.Echo
	done  chan verdict.Verdict
}

func (w *work) Sealed(_ int, macs []mac.Tag) { w.macs = append(w.macs, macs...) }
func (w *work) Done(_ int, echo wire.Echo, v verdict.Verdict) {
	w.echo = echo
	w.done <- v
}

func (l *liar) compute(c *call, prompt []int32) *work {
	l.t.Helper()
	p := c.plan
	p.Attempt = attempt.New()
	ticket, v := admission.Admit(p, capacity.Limit{Tokens: 1 << 20})
	if !v.IsZero() {
		l.t.Fatal(v)
	}
	lease, err := l.pool.Reserve(ticket, l.pool.Geometry().Pages(len(prompt)))
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { lease.Release(); <-lease.Done() }()
	w := &work{done: make(chan verdict.Verdict, 1)}
	if err := l.eng.Submit(engine.PrefillJob{Ticket: ticket, Lease: lease, Tokens: prompt, Key: mac.New(c.key), Sink: w}); err != nil {
		l.t.Fatal(err)
	}
	if v := <-w.done; !v.IsZero() {
		l.t.Fatal(v)
	}
	for i := range lease.Len() {
		b := make([]byte, l.pool.Geometry().Bytes())
		if _, err := lease.CopyOut(b, i); err != nil {
			l.t.Fatal(err)
		}
		w.pages = append(w.pages, b)
	}
	return w
}

// tale is an attempt that the liar has the grant of.
type tale struct {
	*liar
	c     *call
	key   *mac.Key
	w     *work
	grant wire.Grant
}

// begin opens the attempt at decode, computes its prompt and attaches.
func (l *liar) begin(d *door, prompt []int32, opts ...planOption) *tale {
	l.t.Helper()
	c := d.call(prompt, append([]planOption{l.as}, opts...)...)
	d.decode.send(c)
	if !c.waitReserved() {
		l.t.Fatalf("decode refused: %v", c.ended[d.decode].Verdict)
	}
	t := &tale{liar: l, c: c, key: mac.New(c.key), w: l.compute(c, prompt)}
	t.attach()
	g, ok := (<-l.from).(wire.Grant)
	if !ok {
		l.t.Fatal("no grant came")
	}
	t.grant = g
	return t
}

func (t *tale) attach() {
	f := wire.Attach{Attempt: t.c.id}
	f.MAC = t.key.Sum(mac.Attach, 0, wire.Authenticated(f))
	t.link.Send(f)
}

func (t *tale) header(i int) wire.PageHeader {
	g := t.grant.Pages[i]
	return wire.PageHeader{Attempt: t.c.id, Tag: page.Tag{Boot: t.grant.Boot, ID: g.ID, Gen: g.Gen}, Ordinal: uint32(i), Length: uint32(len(t.w.pages[i])), MAC: t.w.macs[i]}
}

func (t *tale) page(i int) { t.send(t.header(i), t.w.pages[i]) }

func (t *tale) send(h wire.PageHeader, b []byte) { t.link.SendPage(h, b) }

func (t *tale) pages(from, to int) {
	for i := from; i < to; i++ {
		t.page(i)
	}
}

func (t *tale) manifest() wire.Manifest {
	return wire.Manifest{Attempt: t.c.id, Tokens: t.c.plan.PromptTokens, Pages: uint32(len(t.w.pages)), Digest: t.c.plan.Digest,
		Root: wire.RootOf(t.w.macs), Echo: t.w.echo, Verdict: verdict.Served(verdict.Prefill)}
}

func (t *tale) close(m wire.Manifest) {
	t.say(m)
	t.finish()
}

func (t *tale) say(m wire.Manifest) {
	m.MAC = t.key.Sum(mac.Manifest, 0, wire.Authenticated(m))
	t.link.Send(m)
}

func (t *tale) finish() {
	e := wire.End{Attempt: t.c.id}
	e.MAC = t.key.Sum(mac.End, 0, wire.Authenticated(e))
	t.link.Send(e)
}

// told returns decode's abort, which must be authentic.
func (t *tale) told() verdict.Verdict {
	t.t.Helper()
	for {
		select {
		case f, ok := <-t.from:
			if !ok {
				return verdict.Verdict{}
			}
			if a, ok := f.(wire.Abort); ok && a.Attempt == t.c.id {
				if !mac.Equal(t.key.Sum(mac.AbortFromDecode, 0, wire.Authenticated(a)), mac.Tag(a.MAC)) {
					t.t.Error("the abort's MAC is wrong")
				}
				return a.Verdict
			}
		case <-time.After(10 * time.Second):
			t.t.Fatal("decode did not abort")
		}
	}
}

func TestAnHonestLiarIsServed(t *testing.T) {
	r := newRig(t)
	l, d := newLiar(t, r), r.door("g0")
	ta := l.begin(d, needle("HONEST", 100), tokens(6))
	ta.pages(0, len(ta.w.pages))
	ta.close(ta.manifest())
	_, o := ta.c.end()
	if !o.Verdict.OK() || ta.c.text() != "HONEST" {
		t.Errorf("decode says %v, the reply is %q", o.Verdict, ta.c.text())
	}
	r.clean(r.decode)
}

// Each lie meets the guard that names it, at decode, at the gateway (the outcome) and at prefill (the abort): one verdict. No token
// leaves, and the pages come back, all zero.
func TestLiesAreNamed(t *testing.T) {
	const code = "LIES"
	n := func(ta *tale) int { return len(ta.w.pages) }
	lies := map[string]struct {
		lie  func(ta *tale)
		code verdict.Code
		at   verdict.Layer
		says string
	}{
		"the incident: a placeholder page, reported as the whole prompt": {func(ta *tale) {
			ta.page(0)
			ta.close(ta.manifest())
		}, verdict.CountMismatch, verdict.Seal, "1 landed"},
		"a refusal in the manifest": {func(ta *tale) {
			m := ta.manifest()
			m.Verdict = verdict.TooLong(verdict.Prefill, 50, 0, false, 10, "the KV pool of prefill p1")
			ta.close(m)
		}, verdict.ContextLength, verdict.Prefill, "set by the KV pool of prefill p1"},
		"a refusal after all pages": {func(ta *tale) {
			ta.pages(0, n(ta))
			m := ta.manifest()
			m.Verdict = verdict.Of(verdict.EngineFailed, verdict.Prefill, "the engine failed")
			ta.close(m)
		}, verdict.EngineFailed, verdict.Prefill, "the engine failed"},
		"stops after some pages and is honest about it": {func(ta *tale) {
			ta.pages(0, 3)
			m := ta.manifest()
			m.Pages, m.Root = 3, wire.RootOf(ta.w.macs[:3])
			ta.close(m)
		}, verdict.CountMismatch, verdict.Seal, "3 landed"},
		"other token counts": {func(ta *tale) {
			ta.pages(0, n(ta))
			m := ta.manifest()
			m.Tokens--
			ta.close(m)
		}, verdict.CountMismatch, verdict.Seal, ""},
		"other tokens": {func(ta *tale) {
			ta.pages(0, n(ta))
			m := ta.manifest()
			m.Digest[3] ^= 1
			ta.close(m)
		}, verdict.DigestMismatch, verdict.Seal, "other token ids"},
		"another root": {func(ta *tale) {
			ta.pages(0, n(ta))
			m := ta.manifest()
			m.Root[0] ^= 1
			ta.close(m)
		}, verdict.RootMismatch, verdict.Seal, "other pages"},
		"a manifest without the key": {func(ta *tale) {
			ta.pages(0, n(ta))
			ta.key = mac.New([32]byte{1})
			ta.say(ta.manifest())
			ta.key = mac.New(ta.c.key)
		}, verdict.MACMismatch, verdict.Seal, "MAC"},
		"an end without the key": {func(ta *tale) {
			ta.pages(0, n(ta))
			ta.say(ta.manifest())
			ta.link.Send(wire.End{Attempt: ta.c.id, MAC: [16]byte{1}})
		}, verdict.MACMismatch, verdict.Seal, ""},
		"two manifests": {func(ta *tale) {
			ta.pages(0, n(ta))
			ta.say(ta.manifest())
			ta.close(ta.manifest())
		}, verdict.ProtocolViolation, verdict.Seal, "sent a manifest in state closing"},
		"an end without a manifest": {func(ta *tale) {
			ta.pages(0, n(ta))
			ta.finish()
		}, verdict.ProtocolViolation, verdict.Seal, "state granted"},
		"flipped bytes": {func(ta *tale) {
			ta.w.pages[2][100] ^= 4
			ta.pages(0, n(ta))
		}, verdict.MACMismatch, verdict.Gate, "page 2 of prefill p1"},
		"a generation that was not granted": {func(ta *tale) {
			h := ta.header(1)
			h.Tag.Gen++
			ta.page(0)
			ta.send(h, ta.w.pages[1])
		}, verdict.GateRefused, verdict.Gate, "page 1 of prefill p1"},
		"another boot's tag": {func(ta *tale) {
			h := ta.header(0)
			h.Tag.Boot++
			ta.send(h, ta.w.pages[0])
		}, verdict.GateRefused, verdict.Gate, ""},
		"a right page at a wrong ordinal": {func(ta *tale) {
			h := ta.header(1)
			h.Ordinal = 0
			ta.send(h, ta.w.pages[1])
		}, verdict.GateRefused, verdict.Gate, ""},
		"the pages of two ordinals exchanged, MACs and all": {func(ta *tale) {
			a, b := ta.header(0), ta.header(1)
			a.MAC, b.MAC = b.MAC, a.MAC
			ta.send(a, ta.w.pages[1])
			ta.send(b, ta.w.pages[0])
		}, verdict.MACMismatch, verdict.Gate, ""},
		"a page twice": {func(ta *tale) {
			ta.page(0)
			ta.page(0)
		}, verdict.GateRefused, verdict.Gate, ""},
		"a page past the prompt": {func(ta *tale) {
			h := ta.header(0)
			h.Ordinal = uint32(n(ta))
			ta.send(h, ta.w.pages[0])
		}, verdict.GateRefused, verdict.Gate, "without a live grant"},
		"a short page": {func(ta *tale) {
			h := ta.header(0)
			h.Length = 16
			ta.send(h, ta.w.pages[0][:16])
		}, verdict.ProtocolViolation, verdict.Gate, "another size"},
		"a page after the manifest": {func(ta *tale) {
			ta.pages(0, n(ta))
			ta.say(ta.manifest())
			ta.page(0)
		}, verdict.GateRefused, verdict.Gate, "state closing"},
		"a second attach": {func(ta *tale) { ta.attach() }, verdict.ProtocolViolation, verdict.Gate, "attached in state granted"},
		"an abort with a verdict that is none": {func(ta *tale) {
			a := wire.Abort{Attempt: ta.c.id, Verdict: verdict.Served(verdict.Prefill)}
			a.MAC = ta.key.Sum(mac.AbortFromPrefill, 0, wire.Authenticated(a))
			ta.link.Send(a)
		}, verdict.ProtocolViolation, verdict.Gate, "no reason to abort"},
		"an abort without the key": {func(ta *tale) {
			ta.link.Send(wire.Abort{Attempt: ta.c.id, Verdict: verdict.Of(verdict.Deadline, verdict.Prefill, "late"), MAC: [16]byte{1}})
		}, verdict.MACMismatch, verdict.Gate, "an abort"},
		"pages of other content, sealed with the right key": {func(ta *tale) {
			// The pages of another prompt of the same length: all counts, MACs and roots are right. Only content shows it.
			other := ta.compute(ta.c, append(needle("OTHER", 100)[:1], needle("ANOTHER TEXT ALTOGETHER", 300)[:len(ta.c.prompt)-1]...))
			other.echo = ta.w.echo
			ta.w = other
			ta.pages(0, n(ta))
			ta.close(ta.manifest())
		}, verdict.EchoMismatch, verdict.Echo, "another last position"},
		"an echo that is off by a bit, on the same kernels": {func(ta *tale) {
			ta.pages(0, n(ta))
			m := ta.manifest()
			m.Echo.Logits[0] = math.Nextafter32(m.Echo.Logits[0], 1e30)
			ta.close(m)
		}, verdict.EchoMismatch, verdict.Echo, "1 of 8 logits differ on one numeric path"},
		"no echo": {func(ta *tale) {
			ta.pages(0, n(ta))
			m := ta.manifest()
			m.Echo = wire.Echo{}
			ta.close(m)
		}, verdict.EchoMismatch, verdict.Echo, ""},
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l, d := newLiar(t, r), r.door("g0")
			ta := l.begin(d, needle(code, 100), tokens(6))
			lie.lie(ta)
			_, o := ta.c.end()
			if o.Verdict.Code != lie.code || o.Verdict.Layer != lie.at || !strings.Contains(o.Verdict.Reason, lie.says) {
				t.Errorf("decode says %v", o.Verdict)
			}
			if len(ta.c.out) != 0 {
				t.Errorf("%d tokens left", len(ta.c.out))
			}
			if lie.at != verdict.Prefill && lie.at != verdict.Echo { // prefill needs no telling of what it said, or when it is done
				if v := ta.told(); v != o.Verdict {
					t.Errorf("prefill is told %v, the gateway %v", v, o.Verdict)
				}
			}
			r.clean(r.decode)

			// The link carries on: the next attempt on it is served.
			ta = l.begin(d, needle("NEXT", 100), tokens(4))
			ta.pages(0, n(ta))
			ta.close(ta.manifest())
			if _, o := ta.c.end(); !o.Verdict.OK() || ta.c.text() != "NEXT" {
				t.Errorf("afterwards decode says %v, the reply is %q", o.Verdict, ta.c.text())
			}
			r.clean(r.decode)
		})
	}
}

// Late frames of an attempt that was aborted are dropped and counted; they disturb nobody.
func TestLateFramesAreRefused(t *testing.T) {
	r := newRig(t)
	l, d := newLiar(t, r), r.door("g0")
	late := l.begin(d, needle("LATE", 100))
	late.page(0)
	r.untilStep(late.c, trace.Decode, trace.PageLanded)
	d.decode.link.Send(wire.Abort{Attempt: late.c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	late.c.end()
	if v := late.told(); v.Code != verdict.ClientGone {
		t.Errorf("prefill is told %v", v)
	}
	now := l.begin(d, needle("NOW", 100), tokens(3)) // it has the pages that were given back
	late.pages(1, 4)
	late.close(late.manifest())
	now.pages(0, len(now.w.pages))
	late.page(1)
	now.close(now.manifest())
	if _, o := now.c.end(); !o.Verdict.OK() || now.c.text() != "NOW" {
		t.Errorf("decode says %v, the reply is %q", o.Verdict, now.c.text())
	}
	r.clean(r.decode)
	if s := r.decode.Snapshot(); s.LateFrames != 6 || s.StrayFrames != 0 {
		t.Errorf("%d late frames, %d stray ones", s.LateFrames, s.StrayFrames)
	}
}

// Frames of attempts that a link has no part in do not touch those attempts, and end the link when there are too many.
func TestStrayFramesTouchNobody(t *testing.T) {
	r := newRig(t, func(_ capacity.Role, c *Config) { c.Limits.Strays = 8 })
	l, d := newLiar(t, r), r.door("g0")
	mine := l.begin(d, needle("MINE", 100), tokens(4))
	// The attempt of another prefill: it knows the id and even the key, but is not at the other end of the link that the plan names.
	theirs := d.call(needle("THEIRS", 100), tokens(6))
	d.decode.send(theirs)
	theirs.waitReserved()
	spoof := &tale{liar: l, c: theirs, key: mac.New(theirs.key), w: mine.w, grant: mine.grant}
	spoof.attach()
	spoof.page(0)
	spoof.close(spoof.manifest())
	spoof.link.Send(wire.Abort{Attempt: attempt.New(), Verdict: verdict.Of(verdict.Deadline, verdict.Prefill, "late")})
	d.prefill.send(theirs)
	d.prefill.sendPrompt(theirs)
	served(t, theirs)
	if theirs.text() != "THEIRS" {
		t.Errorf("the reply is %q", theirs.text())
	}
	mine.pages(0, len(mine.w.pages))
	mine.close(mine.manifest())
	if _, o := mine.c.end(); !o.Verdict.OK() || mine.c.text() != "MINE" {
		t.Errorf("decode says %v, the reply is %q", o.Verdict, mine.c.text())
	}
	if n := r.decode.Snapshot().StrayFrames; n != 5 {
		t.Errorf("%d stray frames", n)
	}

	last := l.begin(d, needle("LAST", 100))
	for range 9 {
		spoof.link.Send(wire.End{Attempt: attempt.New()})
	}
	_, o := last.c.end()
	if o.Verdict.Code != verdict.ProtocolViolation || !strings.Contains(o.Verdict.Reason, "no part in") {
		t.Errorf("decode says %v", o.Verdict)
	}
	<-l.link.Done()
	if n := r.decode.Snapshot().LinksBroken; n != 1 {
		t.Errorf("%d links broken", n)
	}
	r.clean()
}

// A prefill that breaks the wire's framing loses its link, and its attempts end as that.
func TestGarbageEndsTheLink(t *testing.T) {
	r := newRig(t)
	l, d := newLiar(t, r), r.door("g0")
	ta := l.begin(d, needle("GARBAGE", 100))
	l.link.Send(wire.Grant{Attempt: ta.c.id, Boot: 1, Pages: []wire.GrantedPage{{ID: 1, Gen: 1}}}) // decode's word, from prefill
	_, o := ta.c.end()
	if o.Verdict.Code != verdict.ProtocolViolation {
		t.Errorf("decode says %v", o.Verdict)
	}
	<-l.link.Done()
	r.clean(r.decode)
}

// An attach is worth as much as its MAC, and counts only from the process that the plan names.
func TestAnAttachIsAuthentic(t *testing.T) {
	r := newRig(t)
	l, d := newLiar(t, r), r.door("g0")
	c := d.call(needle("ATTACH", 100), l.as)
	d.decode.send(c)
	c.waitReserved()
	l.link.Send(wire.Attach{Attempt: c.id, MAC: [16]byte{1}})
	if _, o := c.end(); o.Verdict.Code != verdict.MACMismatch || !strings.Contains(o.Verdict.Reason, "an attach") {
		t.Errorf("decode says %v", o.Verdict)
	}
	c = d.call(needle("ATTACH", 100), l.as, func(p *admission.Plan) { p.Prefill.Boot++ })
	d.decode.send(c)
	c.waitReserved()
	(&tale{liar: l, c: c, key: mac.New(c.key)}).attach()
	l.link.Send(wire.Ping{Nonce: 1})
	if f := <-l.from; f.Kind() != wire.KindPong { // no grant came before it
		t.Errorf("decode says %+v", f)
	}
	if s := r.decode.Snapshot(); s.StrayFrames != 1 || s.Active != 1 {
		t.Errorf("%d stray frames, %d attempts", s.StrayFrames, s.Active)
	}
	d.decode.link.Send(wire.Abort{Attempt: c.id, Verdict: verdict.Of(verdict.ClientGone, verdict.Stream, "the client hung up")})
	c.end()
	r.clean(r.decode)
}
