package liar

import (
	"context"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/engine"
	"github.com/sluicekv/sluice/internal/mac"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/transport/tcp"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// lying is one attempt in a liar's hands.
type lying struct {
	l      *Liar
	lie    Lie
	c      *tcp.Link
	plan   admission.Plan
	signed []byte
	key    *mac.Key
	tokens []int32
	ctx    context.Context
	cancel context.CancelFunc
}

// shipment is what an attempt has to ship: computed pages and what belongs to them.
type shipment struct {
	lease    *pool.Lease
	macs     []mac.Tag
	echo     wire.Echo
	frames   []wire.PageHeader // once shipped
	manifest wire.Manifest     // likewise
}

func (l *Liar) begin(c *tcp.Link, p admission.Plan, signed []byte, secret [32]byte) *lying {
	a := &lying{l: l, c: c, plan: p, signed: signed, key: mac.New(secret)}
	a.ctx, a.cancel = context.WithTimeout(l.ctx, p.Budget)
	l.mu.Lock()
	a.lie = l.lie
	l.mu.Unlock()
	return a
}

func (a *lying) run() {
	defer a.cancel()
	d, g, err := a.attach()
	if err != nil {
		a.outcome(verdict.Of(verdict.PeerLost, verdict.Prefill, "the lying prefill got no grant"), 0, [32]byte{}, [32]byte{})
		return
	}
	if a.lie == RefusedInEngine || a.lie == RefusedInManifest {
		a.refuse(d)
		return
	}
	tokens := a.tokens
	if a.lie.placeholder() {
		tokens = tokens[:1] // BOS: what the engine of the incident ran in place of the prompt
	}
	s, v := a.compute(tokens)
	if !v.IsZero() {
		a.outcome(v, 0, [32]byte{}, [32]byte{})
		return
	}
	a.ship(d, g, s)
}

// attach says to decode that prefill is here, and waits for the grant.
func (a *lying) attach() (*data, wire.Grant, error) {
	d, err := a.l.dial(a.plan.Decode, a.lie)
	if err != nil {
		return nil, wire.Grant{}, err
	}
	grant := make(chan wire.Grant, 1)
	d.mu.Lock()
	d.grants[a.plan.Attempt] = grant
	d.mu.Unlock()
	f := wire.Attach{Attempt: a.plan.Attempt}
	f.MAC = a.key.Sum(mac.Attach, 0, wire.Authenticated(f))
	if err := d.conn.Send(f); err != nil {
		return nil, wire.Grant{}, err
	}
	select {
	case g, ok := <-grant:
		if !ok {
			return nil, wire.Grant{}, errNoGrant
		}
		return d, g, nil
	case <-a.ctx.Done():
		return nil, wire.Grant{}, errNoGrant
	}
}

// refuse says that the prompt is over the pool, as prefill's engine would.
func (a *lying) refuse(d *data) {
	own := capacity.Node(a.l.honest())
	v := verdict.TooLong(verdict.Prefill, int(a.plan.PromptTokens), 0, false, own.Tokens, own.Setter)
	if a.lie == RefusedInEngine {
		f := wire.Abort{Attempt: a.plan.Attempt, Verdict: v}
		f.MAC = a.key.Sum(mac.AbortFromPrefill, 0, wire.Authenticated(f))
		_ = d.conn.Send(f)
	} else {
		m := wire.Manifest{Attempt: a.plan.Attempt, Digest: a.plan.Digest, Root: wire.RootOf([]mac.Tag(nil)), Verdict: v}
		m.MAC = a.key.Sum(mac.Manifest, 0, wire.Authenticated(m))
		e := wire.End{Attempt: a.plan.Attempt}
		e.MAC = a.key.Sum(mac.End, 0, wire.Authenticated(e))
		_ = d.conn.Send(m)
		_ = d.conn.Send(e)
		<-a.ctx.Done() // the gateway hears it from decode
	}
	a.outcome(v, 0, [32]byte{}, [32]byte{})
}

// sink collects what the engine computed.
type sink struct {
	macs []mac.Tag
	echo wire.Echo
	done chan verdict.Verdict
}

func (s *sink) Sealed(_ int, macs []mac.Tag) { s.macs = append(s.macs, macs...) }
func (s *sink) Done(_ int, e wire.Echo, v verdict.Verdict) {
	s.echo = e
	s.done <- v
}

// compute runs tokens through the real model into the liar's own arena.
func (a *lying) compute(tokens []int32) (*shipment, verdict.Verdict) {
	here := admission.Here{Role: capacity.Prefill, Limit: capacity.Limit{Tokens: 1 << 30}, Boot: a.l.boot, Model: a.plan.Model, Session: a.c.Own().Session, LastSeq: a.plan.Seq - 1}
	t, v := admission.Open(a.signed, a.l.cfg.Fleet, here)
	if !v.IsZero() {
		return nil, v
	}
	lease, err := a.l.pool.Reserve(t, a.l.pool.Geometry().Pages(len(tokens)))
	if err != nil {
		return nil, verdict.Of(verdict.PoolExhausted, verdict.Prefill, "%v", err)
	}
	s := &sink{done: make(chan verdict.Verdict, 1)}
	if err := a.l.engine.Submit(engine.PrefillJob{Ticket: t, Lease: lease, Tokens: tokens, Key: a.key, Sink: s}); err != nil {
		lease.Release()
		return nil, verdict.Of(verdict.EngineFailed, verdict.Prefill, "%v", err)
	}
	if v := <-s.done; !v.IsZero() {
		lease.Release()
		return nil, v
	}
	return &shipment{lease: lease, macs: s.macs, echo: s.echo}, verdict.Verdict{}
}

// frame is a page frame before it is sent.
type frame struct {
	h       wire.PageHeader
	payload []byte
}

// frames are the honest frames of a shipment under a grant.
func (a *lying) frames(g wire.Grant, s *shipment) []frame {
	var out []frame
	for i, m := range s.macs {
		if i >= len(g.Pages) {
			break
		}
		b := make([]byte, a.l.pool.Geometry().Bytes())
		if _, err := s.lease.CopyOut(b, i); err != nil {
			break
		}
		out = append(out, frame{wire.PageHeader{Attempt: a.plan.Attempt, Tag: page.Tag{Boot: g.Boot, ID: g.Pages[i].ID, Gen: g.Pages[i].Gen},
			Ordinal: uint32(i), Length: uint32(len(b)), MAC: m}, b})
	}
	return out
}

// ship sends the pages and the closing statement, as the lie has it.
func (a *lying) ship(d *data, g wire.Grant, s *shipment) {
	keep := a.lie == ""
	defer func() {
		if !keep {
			s.lease.Release()
			return
		}
		a.l.mu.Lock()
		old := a.l.kept
		a.l.kept = s
		a.l.mu.Unlock()
		if old != nil {
			old.lease.Release()
		}
	}()
	frames := a.frames(g, s)
	manifests, said := 1, verdict.Served(verdict.Prefill)
	switch a.lie {
	case Placeholder, Overstated:
		said = verdict.TooLong(verdict.Prefill, int(a.plan.PromptTokens), 0, false, a.l.cfg.KVTokens, "the KV pool of prefill "+a.l.cfg.Name)
	case Short:
		frames = frames[:len(frames)/2]
	case WrongTag:
		// the page of whoever holds it now: the next one after this attempt's own
		f := &frames[len(frames)/2]
		f.h.Tag.ID, f.h.Tag.Gen = a.stranger(g), f.h.Tag.Gen+1
	case WrongOrdinal:
		i, j := len(frames)/4, len(frames)/2
		frames[i].h.Tag, frames[j].h.Tag = frames[j].h.Tag, frames[i].h.Tag
	case Permuted:
		layer := len(frames[0].payload) / int(a.l.pool.Geometry().Layers)
		for i := range frames {
			b := frames[i].payload
			frames[i].payload = append(append(make([]byte, 0, len(b)), b[layer:]...), b[:layer]...)
			frames[i].h.MAC = a.key.Sum(mac.Page, uint64(i), frames[i].payload)
		}
	case OtherAttempt:
		a.l.mu.Lock()
		kept := a.l.kept
		a.l.mu.Unlock()
		if kept != nil {
			for i := range frames {
				if i < len(kept.macs) {
					if _, err := kept.lease.CopyOut(frames[i].payload, i); err == nil {
						frames[i].h.MAC = kept.macs[i]
					}
				}
			}
		}
	case Flipped:
		for i := range frames {
			for j := range frames[i].payload {
				frames[i].payload[j] ^= 0x11
			}
		}
	case Late:
		a.holdBack(d, frames)
		return
	case Replayed, Guessed:
		a.strangers(d, frames)
	case Doubled:
		twice := make([]frame, 0, 2*len(frames))
		for _, f := range frames {
			twice = append(twice, f, f)
		}
		frames = twice
	case HalfPages:
		for i := range frames {
			frames[i].payload = frames[i].payload[:len(frames[i].payload)/2]
			frames[i].h.Length /= 2
			frames[i].h.MAC = a.key.Sum(mac.Page, uint64(i), frames[i].payload)
		}
	case SwappedKV:
		g := a.l.pool.Geometry()
		half := int(g.Tokens) * int(g.HeadDim) * 2
		for i := range frames {
			b := make([]byte, 0, len(frames[i].payload))
			for at := 0; at < len(frames[i].payload); at += 2 * half {
				b = append(append(b, frames[i].payload[at+half:at+2*half]...), frames[i].payload[at:at+half]...)
			}
			frames[i].payload = b
			frames[i].h.MAC = a.key.Sum(mac.Page, uint64(i), b)
		}
	case NoManifest:
		manifests = 0
	case TwoManifests:
		manifests = 2
	}
	var sent []mac.Tag
	for _, f := range frames {
		sent = append(sent, f.h.MAC)
		s.frames = append(s.frames, f.h)
	}
	pages := func() bool {
		for _, f := range frames {
			if d.conn.SendPage(f.h, f.payload) != nil {
				return false
			}
		}
		return true
	}
	if a.lie != ManifestFirst && !pages() {
		return
	}
	m := wire.Manifest{Attempt: a.plan.Attempt, Tokens: a.plan.PromptTokens, Pages: uint32(len(frames)), Digest: a.plan.Digest,
		Root: wire.RootOf(sent), Echo: s.echo, Verdict: said}
	a.l.mu.Lock()
	if kept := a.l.kept; a.lie == OtherManifest && kept != nil {
		m = kept.manifest
		m.Attempt = a.plan.Attempt
	}
	a.l.mu.Unlock()
	m.MAC = a.key.Sum(mac.Manifest, 0, wire.Authenticated(m))
	for range manifests {
		if d.conn.Send(m) != nil {
			return
		}
	}
	e := wire.End{Attempt: a.plan.Attempt}
	e.MAC = a.key.Sum(mac.End, 0, wire.Authenticated(e))
	if d.conn.Send(e) != nil {
		return
	}
	if a.lie == ManifestFirst && !pages() {
		return
	}
	s.manifest = m
	computed := a.plan.PromptTokens
	if a.lie == Placeholder || a.lie == Overstated {
		computed = 1 // what it ran, which nobody compared
	}
	a.outcome(verdict.Served(verdict.Prefill), computed, m.Digest, m.Root)
}

// strangers sends frames of attempts that this link has no part in, or no longer.
func (a *lying) strangers(d *data, frames []frame) {
	a.l.mu.Lock()
	kept := a.l.kept
	a.l.mu.Unlock()
	const most = 8 // fewer than close a link
	for i := range min(most, len(frames)) {
		f := frames[i]
		switch {
		case a.lie == Guessed:
			f.h.Attempt = attempt.New()
			_ = d.conn.Send(wire.Attach{Attempt: f.h.Attempt})
		case kept != nil && i < len(kept.frames):
			f.h = kept.frames[i]
			b := make([]byte, len(f.payload))
			if _, err := kept.lease.CopyOut(b, i); err == nil {
				f.payload = b
			}
		default:
			continue
		}
		_ = d.conn.SendPage(f.h, f.payload)
	}
}

// stranger is a page that the grant does not name.
func (a *lying) stranger(g wire.Grant) page.ID {
	mine := map[page.ID]bool{}
	for _, p := range g.Pages {
		mine[p.ID] = true
	}
	for id := page.ID(0); ; id++ {
		if !mine[id] {
			return id
		}
	}
}

// holdBack waits for the attempt's end, and leaves the writes for Loose.
func (a *lying) holdBack(d *data, frames []frame) {
	a.l.mu.Lock()
	for _, f := range frames {
		a.l.held = append(a.l.held, func() { _ = d.conn.SendPage(f.h, f.payload) })
	}
	a.l.mu.Unlock()
	a.l.waiting <- struct{}{}
	<-a.ctx.Done()
	a.outcome(verdict.Of(verdict.ClientGone, verdict.Prefill, "aborted"), 0, [32]byte{}, [32]byte{})
}

// outcome tells the gateway, and that the pages are back, which for a liar is as true as the rest.
func (a *lying) outcome(v verdict.Verdict, computed uint32, digest, root [32]byte) {
	_ = a.c.Send(wire.Outcome{Attempt: a.plan.Attempt, Verdict: v, Computed: computed, Written: uint32(a.l.pool.Geometry().Pages(int(computed))), Digest: digest, Root: root})
	_ = a.c.Send(wire.Settled{Attempt: a.plan.Attempt})
}
