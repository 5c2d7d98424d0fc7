// Package sim drives the real machines, pools and MACs of the handoff from one goroutine: by the model's own acts, by a seed, or by a
// written schedule. There are no sockets, no clock, and no goroutine of anybody's. The same schedule is the same run, to the bit of its trace.
//
// What worker does with links and engines is done here by hand, one act at a time: the schedule says which act comes next, among those
// that are possible. A copy into a page, and a step's reading of pages, are two acts each, begin and end, so that whatever can overtake
// them does. Every event goes through the model's validator as it happens, and every page that decode reads is compared with what its own
// prefill wrote.
//
// Schedules come from three places. Follow takes the paths of the model of the gated receiver and does on the real side what each act
// says; after each act both must be in the same state (follow.go). Walk takes a seed and leans toward what is dangerous: frames are
// held back after aborts, the page that was freed last is handed out first, one side is starved for a while, copies are overtaken in
// their middle (seed.go). The stories of testdata are written by people, and a seed that fails is shrunk to one of them (shrink.go).
package sim

import (
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
)

// shape is a tiny page: 512 bytes.
var shape = page.Geometry{Tokens: 16, Layers: 1, KVHeads: 1, HeadDim: 8, Layout: page.LayoutPairs16}

const (
	decodeBoot  = 0xd
	prefillBoot = 0xa
)

// Options of a World.
type Options struct {
	Pages int   // of decode's pool
	Lanes int   // attempts at a time
	Need  []int // pages of each lane's prompt; nil: 2 each
	// LowestFirst hands out the free page with the lowest number, as the model does; else the one that was freed last.
	LowestFirst bool
	// Liars: prefills may say what they did not do, so what they do is not traced. Decode's trace must be valid all the same.
	Liars bool
}

// World is one pair of workers, and the attempts under way on it.
type World struct {
	o               Options
	decode, prefill *pool.Pool
	scrubD, scrubP  func() // what is to be zeroed, until somebody says so
	check           *validate.Validator
	wrong           error
	lanes           []*lane
	born            uint64
	mid             func() // what happens in the middle of the next copy
	scratch         kernel.AttnScratch
	heard           *frame            // the page that went over a link last
	pages           map[uint32]tenant // of decode's pool, as its trace has them
	Served, Refused int
	digest          uint64 // of all that happened
}

// tenant is who has a page.
type tenant struct {
	id  attempt.ID
	gen uint64
}

// lane is one attempt, and what is on its way between its ends.
type lane struct {
	w            *World
	name         int8
	id           attempt.ID
	key          *mac.Key
	plan         admission.Plan
	tokens       int
	began        bool
	at, pt       admission.Ticket
	d            handoff.Decode
	p            handoff.Prefill
	dt, ptr      trace.Thread
	dl, pl       *pool.Lease
	tags         []page.Tag
	macs, landed []mac.Tag
	content      [][]byte // as prefill sealed it, by ordinal
	link         []frame
	staged       *frame   // the machine said yes, the pool has not been asked
	copy         *copying // in its middle
	seal         bool     // asked for, and not done
	granted      bool     // on its way to prefill
	abort        verdict.Code
	queued, next uint32
	closing      verdict.Code
	view         pool.View
	reading      bool
	steps        int
	opened       bool // prefill has the plan
	lied         bool
	dead         bool // prefill is gone: what its machine asks for goes nowhere
}

// New makes a pair, with an attempt begun in each lane.
func New(o Options) (*World, error) {
	w, err := Make(o)
	if err != nil {
		return nil, err
	}
	for _, l := range w.lanes {
		l.begin()
	}
	return w, nil
}

// Make makes a pair on which no attempt has begun.
func Make(o Options) (*World, error) {
	w := &World{o: o, check: validate.New(validate.Options{}), pages: map[uint32]tenant{}}
	var err error
	w.decode, err = pool.New(pool.Config{
		Role: "sim-decode", Boot: decodeBoot, Geometry: shape, Pages: o.Pages, ReuseLast: !o.LowestFirst, Trace: pooltrace.Of(w),
		Spawn: func(f func()) { w.scrubD = f }, MidCopy: func(page.Tag) { w.middle() },
	})
	if err != nil {
		return nil, err
	}
	cfg := pool.Config{Role: "sim-prefill", Boot: prefillBoot, Geometry: shape, Pages: 4 * o.Lanes, ReuseLast: true, Spawn: func(f func()) { w.scrubP = f }}
	if !o.Liars {
		cfg.Trace = pooltrace.Of(w)
	}
	if w.prefill, err = pool.New(cfg); err != nil {
		return nil, err
	}
	for i := range o.Lanes {
		w.lanes = append(w.lanes, &lane{w: w, name: int8(i)})
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
	if e.Machine == trace.Pool && e.Boot == decodeBoot {
		for i := range e.B {
			switch e.Step {
			case trace.Reserve:
				w.pages[e.A+i] = tenant{e.Attempt, w.pages[e.A+i].gen + 1}
			case trace.Free:
				w.pages[e.A+i] = tenant{gen: w.pages[e.A+i].gen}
			}
		}
	}
	if err := w.check.Step(e); err != nil && w.wrong == nil {
		w.wrong = err
	}
}

// off takes what nobody traces.
type off struct{}

func (off) Record(trace.Event) {}

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
	need := 2
	if w.o.Need != nil {
		need = w.o.Need[l.name]
	}
	*l = lane{w: w, name: l.name, began: true, tokens: 16*need - 14 + int(w.born%14)}
	binary.LittleEndian.PutUint64(l.id[:], w.born)
	l.id[15] = byte(l.name) + 1
	var secret [32]byte
	copy(secret[:], l.id[:])
	l.key = mac.New(secret)
	l.plan = admission.Plan{Attempt: l.id, PromptTokens: uint32(l.tokens), MaxTokens: 1, Budget: time.Hour}
	l.at, _ = admission.Admit(l.plan, capacity.Limit{Tokens: 1 << 10})
	l.pt, _ = admission.Admit(l.plan, capacity.Limit{Tokens: 1 << 10})
	n := uint32(shape.Pages(l.tokens))
	l.d = handoff.NewDecode(uint32(l.tokens), n)
	l.p = handoff.NewPrefill(uint32(l.tokens), n)
	l.content, l.landed = make([][]byte, n), make([]mac.Tag, n)
	l.dt = trace.Begin(w, decodeBoot, trace.Decode, l.id, uint32(l.tokens), n, uint8(l.d.State), l.d.Digest())
}

// open gives prefill the plan.
func (l *lane) open() {
	l.opened = true
	var r trace.Recorder = l.w
	if l.w.o.Liars {
		r = off{}
	}
	l.ptr = trace.Begin(r, prefillBoot, trace.Prefill, l.id, uint32(l.tokens), l.p.Needed, uint8(l.p.State), l.p.Digest())
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
			l.seal = true
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
			if !l.dead {
				l.closing = x.Code
			}
		case handoff.SetVerdict:
			l.pt.Verdict().Set(verdict.Of(x.Code, x.Layer, "sim"))
		case handoff.SendAbort:
			l.put(frame{says: abortFrame, code: l.p.Verdict})
		case handoff.Fence:
			l.pl.Fence()
		case handoff.ReleaseLease:
			l.pl.Release()
		}
	}
	return asked
}

func (l *lane) fail(format string, args ...any) {
	if l.w.wrong == nil {
		l.w.wrong = fmt.Errorf("r%d, attempt %s: "+format, append([]any{l.name, l.id}, args...)...)
	}
}
