// Package sim drives the real machines, pools and MACs of the handoff from one goroutine, by a seed or by a written schedule: no sockets, no
// clock, no goroutine of anybody's. The same schedule is the same run, to the bit of its trace.
//
// What worker does with links and engines is done here by hand, one act at a time: the schedule says which act comes next, among those
// that are possible. Schedules made from a seed lean toward what is dangerous: frames are held back after aborts, the page that was freed
// last is handed out first, one side is starved for a while, copies are overtaken in their middle. Every event goes through the model's
// validator as it happens, and every page that decode reads is compared with what its own prefill wrote.
package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/handoff/model/validate"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/handoff/trace/pooltrace"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// shape is a tiny page: 512 bytes.
var shape = page.Geometry{Tokens: 16, Layers: 1, KVHeads: 1, HeadDim: 8, Layout: page.LayoutPairs16}

const (
	decodeBoot  = 0xd
	prefillBoot = 0xa
)

// World is one pair of workers, and the attempts under way on it.
type World struct {
	decode, prefill *pool.Pool
	scrubD, scrubP  func() // what is to be zeroed, until somebody says so
	check           *validate.Validator
	wrong           error
	lanes           []*lane
	born            uint64
	mid             func() // what happens in the middle of the next copy
	Served, Refused int
	digest          uint64 // of all that happened
}

// frame is on a link from prefill to decode.
type frame struct {
	kind    wire.Kind
	header  wire.PageHeader
	payload []byte
	state   handoff.ManifestSeen
	root    [32]byte
}

// lane is one attempt, and what is on its way between its ends.
type lane struct {
	w            *World
	name         int8
	id           attempt.ID
	key          *mac.Key
	tokens       int
	at, pt       admission.Ticket
	d            handoff.Decode
	p            handoff.Prefill
	dt, ptr      trace.Thread
	dl, pl       *pool.Lease
	tags         []page.Tag
	macs, landed []mac.Tag
	content      [][]byte
	link         []frame
	granted      bool // on its way to prefill
	abort        verdict.Code
	queued, next uint32
	closing      verdict.Code
	view         pool.View
	steps        int
	opened       bool // prefill has the plan
	lied         bool
}

// New makes a pair with so many pages at decode, and room for lanes attempts at a time.
func New(pages, lanes int) (*World, error) {
	w := &World{check: validate.New(validate.Options{})}
	var err error
	w.decode, err = pool.New(pool.Config{
		Role: "sim-decode", Boot: decodeBoot, Geometry: shape, Pages: pages, ReuseLast: true, Trace: pooltrace.Of(w),
		Spawn: func(f func()) { w.scrubD = f }, MidCopy: func(page.Tag) { w.middle() },
	})
	if err != nil {
		return nil, err
	}
	w.prefill, err = pool.New(pool.Config{
		Role: "sim-prefill", Boot: prefillBoot, Geometry: shape, Pages: 4 * lanes, ReuseLast: true, Trace: pooltrace.Of(w),
		Spawn: func(f func()) { w.scrubP = f },
	})
	if err != nil {
		return nil, err
	}
	for i := range lanes {
		l := &lane{w: w, name: int8(i)}
		l.begin()
		w.lanes = append(w.lanes, l)
	}
	return w, nil
}

// Close ends what is under way and unmaps the pools.
func (w *World) Close() error {
	w.finish()
	if n := w.decode.ScanFree() + w.prefill.ScanFree(); n != 0 && w.wrong == nil {
		w.wrong = fmt.Errorf("%d bytes of free pages are not zero", n)
	}
	for _, p := range []*pool.Pool{w.decode, w.prefill} {
		if s := p.Stats(); s.Free != s.Total || s.Pins != 0 {
			return fmt.Errorf("pages are lost: %+v (%w)", s, w.wrong)
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
	if w.wrong == nil {
		w.wrong = w.check.End()
	}
	return w.wrong
}

// Record implements trace.Recorder.
func (w *World) Record(e trace.Event) {
	w.digest = trace.Chain(w.digest, e.Args, e.State, e.Digest)
	if err := w.check.Step(e); err != nil && w.wrong == nil {
		w.wrong = err
	}
}

func (w *World) middle() {
	if f := w.mid; f != nil {
		w.mid = nil
		f()
	}
}

// begin makes a new attempt in the lane.
func (l *lane) begin() {
	w := l.w
	w.born++
	*l = lane{w: w, name: l.name, tokens: 17 + int(w.born%14)}
	binary.LittleEndian.PutUint64(l.id[:], w.born)
	l.id[15] = byte(l.name) + 1
	var secret [32]byte
	copy(secret[:], l.id[:])
	l.key = mac.New(secret)
	plan := admission.Plan{Attempt: l.id, PromptTokens: uint32(l.tokens), MaxTokens: 1, Budget: time.Hour}
	l.at, _ = admission.Admit(plan, capacity.Limit{Tokens: 1 << 10})
	l.pt, _ = admission.Admit(plan, capacity.Limit{Tokens: 1 << 10})
	n := uint32(shape.Pages(l.tokens))
	l.d = handoff.NewDecode(uint32(l.tokens), n)
	l.p = handoff.NewPrefill(uint32(l.tokens), n)
	l.content, l.landed = make([][]byte, n), make([]mac.Tag, n)
	l.dt = trace.Begin(w, decodeBoot, trace.Decode, l.id, uint32(l.tokens), n, uint8(l.d.State), l.d.Digest())
}

// decodeTakes feeds decode's machine and does what it asks for.
func (l *lane) decodeTakes(e handoff.Event) (asked handoff.Effect) {
	next, out := l.d.Step(e)
	l.d = next
	l.dt.Record(e.Trace(), uint8(next.State), next.Digest())
	for x := range out.All() {
		switch x := x.(type) {
		case handoff.LandPage:
			asked = x
		case handoff.SendGrant:
			l.granted, l.tags = true, l.dl.Tags()
		case handoff.SetVerdict:
			l.at.Verdict().Set(verdict.Of(x.Code, x.Layer, "sim"))
		case handoff.SendAbort:
			l.abort = l.d.Verdict
			if l.abort == verdict.None {
				l.abort = verdict.ClientGone
			}
		case handoff.Seal:
			code := verdict.None
			if l.dl.SealPrompt(l.tokens) != nil {
				code = verdict.CountMismatch
			}
			l.decodeTakes(handoff.SealDone{Code: code})
		case handoff.Fence:
			l.dl.Fence()
		case handoff.ReleaseLease:
			l.dl.Release()
		case handoff.SendSettled:
			if l.d.Verdict == verdict.OK {
				l.w.Served++
			} else {
				l.w.Refused++
			}
		}
	}
	return asked
}

// prefillTakes feeds prefill's machine and does what it asks for.
func (l *lane) prefillTakes(e handoff.Event) (asked handoff.Effect) {
	next, out := l.p.Step(e)
	l.p = next
	l.ptr.Record(e.Trace(), uint8(next.State), next.Digest())
	for x := range out.All() {
		switch x := x.(type) {
		case handoff.WritePage:
			asked = x
		case handoff.QueuePages:
			l.queued = x.To
		case handoff.SendClosing:
			l.closing = x.Code
		case handoff.SetVerdict:
			l.pt.Verdict().Set(verdict.Of(x.Code, x.Layer, "sim"))
		case handoff.SendAbort:
			l.link = append(l.link, frame{kind: wire.KindAbort, state: handoff.ManifestSeen{Verdict: l.p.Verdict}})
		case handoff.Fence:
			l.pl.Fence()
		case handoff.ReleaseLease:
			l.pl.Release()
		}
	}
	return asked
}

// compute writes the next page of the prompt and seals it; after the last, the engine is done.
func (l *lane) compute() {
	k := int(l.p.Sealed)
	to := min((k+1)*int(shape.Tokens), l.tokens)
	if err := l.pl.View(&l.view, to, k*int(shape.Tokens)); err != nil {
		l.prefillTakes(handoff.EngineDone{Code: verdict.ClientGone})
		return
	}
	var kv [8]float32
	kv[0], kv[1], kv[2] = float32(l.id[0]), float32(l.id[1]), float32(k+1)
	sh := kernel.Shape{Tokens: int(shape.Tokens), Layers: 1, KVHeads: 1, HeadDim: 8}
	for pos := k * int(shape.Tokens); pos < to; pos++ {
		kernel.StoreKV(l.view.Slot(pos), sh, 0, kv[:], kv[:])
	}
	l.view.Done()
	m, err := l.pl.SealOwn(k, l.key)
	if err != nil {
		l.fail("prefill could not seal page %d: %v", k, err)
		return
	}
	l.macs = append(l.macs, m)
	l.prefillTakes(handoff.PagesSealed{From: uint32(k), To: uint32(k + 1)})
	if k+1 == len(l.content) {
		l.prefillTakes(handoff.EngineDone{Tokens: uint32(l.tokens), Code: verdict.OK})
	}
}

// send puts the next page on the link, or the closing statement behind the last.
func (l *lane) send() {
	if l.next < l.queued {
		k := l.next
		if l.prefillTakes(handoff.PageTaken{Ordinal: k}) == nil {
			l.next = l.queued // over: the pages stay
			return
		}
		b := make([]byte, shape.Bytes())
		if _, err := l.pl.CopyOut(b, int(k)); err != nil {
			l.prefillTakes(handoff.PageDropped{Ordinal: k})
			return
		}
		l.content[k] = b
		l.next++
		l.link = append(l.link, frame{kind: wire.KindPage, payload: b, header: wire.PageHeader{Attempt: l.id, Tag: l.tags[k], Ordinal: k, MAC: l.macs[k]}})
		l.prefillTakes(handoff.PageSent{Ordinal: k})
		return
	}
	m := handoff.ManifestSeen{Tokens: l.p.Computed, Pages: l.p.Sent, MACOK: true, DigestOK: l.closing == verdict.OK, Verdict: l.closing}
	l.link = append(l.link, frame{kind: wire.KindManifest, state: m, root: wire.RootOf(l.macs[:l.p.Sent])}, frame{kind: wire.KindEnd})
	l.closing = verdict.None
	l.prefillTakes(handoff.ClosingSent{})
}

// take is decode's reader: it takes the frame in front.
func (l *lane) take() {
	f := l.link[0]
	l.link = l.link[1:]
	switch f.kind {
	case wire.KindPage:
		k := f.header.Ordinal
		if l.decodeTakes(handoff.PageArrived{Ordinal: k}) == nil {
			return
		}
		err := l.dl.Land(int(k), f.header.Tag, f.payload, l.key, f.header.MAC)
		code := verdict.None
		if err != nil {
			code = verdict.GateRefused
			if bytes.Contains([]byte(err.Error()), []byte("MAC")) {
				code = verdict.MACMismatch
			}
		} else {
			l.landed[k] = f.header.MAC
		}
		l.decodeTakes(handoff.PageLanded{Ordinal: k, Code: code})
	case wire.KindManifest:
		f.state.RootOK = f.root == wire.RootOf(l.landed[:l.d.Written])
		l.decodeTakes(f.state)
	case wire.KindEnd:
		l.decodeTakes(handoff.EndSeen{MACOK: true})
	case wire.KindAbort:
		l.decodeTakes(handoff.AbortAsked{From: handoff.PrefillLeg, Code: f.state.Verdict})
	}
}

// step is one step of decode's engine: it reads every page. The first gives the echo; the second a token, and the end.
func (l *lane) step() {
	if err := l.dl.View(&l.view, l.tokens, l.tokens-1); err != nil {
		l.decodeTakes(handoff.EngineDone{Tokens: uint32(max(l.steps-1, 0)), Code: verdict.ClientGone})
		return
	}
	got := make([]byte, shape.Bytes())
	for k := range len(l.content) - 1 { // the tail is decode's own to write
		if _, err := l.dl.CopyOut(got, k); err != nil || !bytes.Equal(got, l.content[k]) {
			l.fail("it reads page %d, which is not what its prefill wrote (%v)", k, err)
		}
	}
	l.view.Done()
	if l.steps++; l.steps == 1 {
		l.decodeTakes(handoff.EchoCompared{Agrees: true})
		return
	}
	l.decodeTakes(handoff.TokenReady{})
	l.decodeTakes(handoff.EngineDone{Tokens: 1, Code: verdict.OK})
}

func (l *lane) fail(format string, args ...any) {
	if l.w.wrong == nil {
		l.w.wrong = fmt.Errorf("r%d, attempt %s: "+format, append([]any{l.name, l.id}, args...)...)
	}
}
