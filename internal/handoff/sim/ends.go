package sim

import (
	"bytes"
	"errors"
	"iter"
	"math"

	"github.com/sluicekv/sluice/internal/handoff"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/pool"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

// says is a kind of frame.
type says uint8

const (
	pageFrame says = iota
	manifestFrame
	endFrame
	abortFrame
)

// frame is on a link from prefill to decode.
type frame struct {
	says     says
	header   wire.PageHeader
	payload  []byte
	manifest handoff.ManifestSeen
	root     [32]byte
	code     verdict.Code // of an abort
}

// kernelShape is shape, for the kernels.
var kernelShape = kernel.Shape{Tokens: int(shape.Tokens), Layers: 1, KVHeads: 1, HeadDim: 8}

// put puts a frame on the link, of a prefill that lives.
func (l *lane) put(f frame) {
	if l.dead {
		return
	}
	l.link = append(l.link, f)
	if f.says == pageFrame {
		l.w.heard = &f // by whoever listens on the wire
	}
}

// compute writes the next page of the prompt and seals it; after the last, the engine is done.
func (l *lane) compute() {
	k := int(l.p.Sealed)
	to := min((k+1)*int(shape.Tokens), l.tokens)
	if err := l.pl.View(&l.view, to, k*int(shape.Tokens)); err != nil {
		l.prefillTakes(handoff.EngineDone{Code: verdict.ClientGone})
		return
	}
	kv := l.token(k)
	for pos := k * int(shape.Tokens); pos < to; pos++ {
		kernel.StoreKV(l.view.Slot(pos), kernelShape, 0, kv[:], kv[:])
	}
	l.view.Done()
	m, err := l.pl.SealOwn(k, l.key)
	if err != nil {
		l.fail("prefill could not seal page %d: %v", k, err)
		return
	}
	l.macs = append(l.macs, m)
	b := make([]byte, shape.Bytes())
	if _, err := l.pl.CopyOut(b, k); err != nil {
		l.fail("prefill could not read page %d: %v", k, err)
		return
	}
	l.content[k] = b
	l.prefillTakes(handoff.PagesSealed{From: uint32(k), To: uint32(k + 1)})
	if k+1 == len(l.content) {
		l.prefillTakes(handoff.EngineDone{Tokens: uint32(l.tokens), Code: verdict.OK})
	}
}

// send puts the next page on the link, or the closing statement behind the last. lie makes another frame of it.
func (l *lane) send(lie func(frame) frame) {
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
		l.next++
		f := frame{header: wire.PageHeader{Attempt: l.id, Tag: l.tags[k], Ordinal: k, MAC: l.macs[k]}, payload: b}
		if lie != nil {
			f = lie(f)
		}
		l.put(f)
		l.prefillTakes(handoff.PageSent{Ordinal: k})
		return
	}
	l.close()
}

// close puts the closing statement on the link.
func (l *lane) close() {
	m := handoff.ManifestSeen{Tokens: l.p.Computed, Pages: l.p.Sent, MACOK: true, DigestOK: l.closing == verdict.OK, Verdict: l.closing}
	l.put(frame{says: manifestFrame, manifest: m, root: wire.RootOf(l.macs[:l.p.Sent])})
	l.put(frame{says: endFrame})
	l.closing = verdict.None
	l.prefillTakes(handoff.ClosingSent{})
}

// take is decode's reader: it takes the frame in front. A page goes to staging when the machine's half of the gate says yes.
func (l *lane) take() {
	f := l.link[0]
	l.link = l.link[1:]
	switch f.says {
	case pageFrame:
		if l.decodeTakes(handoff.PageArrived{Ordinal: f.header.Ordinal}) != nil {
			l.staged = &f
		}
	case manifestFrame:
		f.manifest.RootOK = f.root == wire.RootOf(l.landed[:l.d.Written])
		l.decodeTakes(f.manifest)
	case endFrame:
		l.decodeTakes(handoff.EndSeen{MACOK: true})
	case abortFrame:
		l.decodeTakes(handoff.AbortAsked{From: handoff.PrefillLeg, Code: f.code})
	}
}

// copying is a copy into the pool that stands in its middle: the gate has let it in, and its bytes are not compared yet.
type copying struct {
	of     frame
	goOn   func() (struct{}, bool)
	result *error
}

// land asks the pool's half of the gate for the page in staging, and begins the copy.
func (l *lane) land() {
	f := *l.staged
	l.staged = nil
	var err error
	goOn, _ := iter.Pull(func(yield func(struct{}) bool) {
		l.w.mid = func() { yield(struct{}{}) }
		err = l.dl.Land(int(f.header.Ordinal), f.header.Tag, f.payload, l.key, f.header.MAC)
	})
	if _, middle := goOn(); middle {
		l.copy = &copying{f, goOn, &err}
		return
	}
	l.w.mid = nil
	l.landedAs(f, err)
}

// endCopy lets the copy go on to its end.
func (l *lane) endCopy() {
	c := l.copy
	l.copy = nil
	c.goOn()
	l.landedAs(c.of, *c.result)
}

func (l *lane) landedAs(f frame, err error) {
	k, code := f.header.Ordinal, verdict.None
	switch {
	case errors.Is(err, pool.ErrMAC):
		code = verdict.MACMismatch
	case err != nil:
		code = verdict.GateRefused
	default:
		l.landed[k] = f.header.MAC
	}
	l.decodeTakes(handoff.PageLanded{Ordinal: k, Code: code})
}

// sealPages is the pool's answer to the seal.
func (l *lane) sealPages() {
	l.seal = false
	code := verdict.None
	if l.dl.SealPrompt(l.tokens) != nil {
		code = verdict.CountMismatch
	}
	l.decodeTakes(handoff.SealDone{Code: code})
}

// look begins one step of decode's engine: its pages are pinned, and their tags checked once.
func (l *lane) look() {
	if err := l.dl.View(&l.view, l.tokens, l.tokens-1); err != nil {
		l.decodeTakes(handoff.EngineDone{Tokens: uint32(max(l.steps-1, 0)), Code: verdict.ClientGone})
		return
	}
	l.reading = true
}

// read ends the step: it has read every page, as the engine does. The first gives the echo; the second a token, and the end.
func (l *lane) read() {
	l.reading = false
	agrees := l.attends()
	if !agrees && (!l.w.o.Liars || l.d.State == handoff.DecodeServing) {
		l.fail("it attends over pages that are not what its prefill wrote")
	}
	got := make([]byte, shape.Bytes())
	for k := range len(l.content) - 1 { // the tail is decode's own to write
		switch _, err := l.dl.CopyOut(got, k); {
		case errors.Is(err, pool.ErrFenced): // the step that the fence overtook has its pins, and nothing of it goes out
		case err == nil && l.w.o.Liars && l.own(got):
		case err != nil || !bytes.Equal(got, l.content[k]):
			l.fail("it reads page %d, which is not what its prefill wrote (%v)", k, err)
		}
	}
	l.view.Done()
	switch l.steps++; {
	case l.d.Over():
		l.decodeTakes(handoff.EngineDone{Code: verdict.ClientGone})
	case l.steps == 1:
		l.decodeTakes(handoff.EchoCompared{Agrees: agrees})
		if l.d.Over() {
			l.decodeTakes(handoff.EngineDone{Code: verdict.EchoMismatch})
		}
	default:
		l.decodeTakes(handoff.TokenReady{})
		l.decodeTakes(handoff.EngineDone{Tokens: 1, Code: verdict.OK})
	}
}

// token is K and V of a token of page k: whose it is, and where.
func (l *lane) token(k int) (kv [8]float32) {
	kv[0], kv[1], kv[2] = float32(l.id[0]), float32(l.id[1]), float32(k+1)
	return kv
}

// attends computes the last position over all pages, and says whether it comes to what the attempt's own tokens come to. The query is
// zero, so every token counts the same: the mean of the values.
func (l *lane) attends() bool {
	last := l.token((l.tokens - 1) / int(shape.Tokens))
	kernel.StoreKV(l.view.Slot(l.tokens-1), kernelShape, 0, last[:], last[:])
	var q, got, want [8]float32
	kernel.Attend(got[:], q[:], l.view.Pages(), kernelShape, 0, 1, l.tokens-1, 1, 0, 1, &l.w.scratch)
	for pos := range l.tokens {
		for i, x := range l.token(pos / int(shape.Tokens)) {
			want[i] += x / float32(l.tokens)
		}
	}
	for i := range want {
		if !(math.Abs(float64(got[i]-want[i])) <= 1e-3*(1+math.Abs(float64(want[i])))) {
			return false
		}
	}
	return true
}

// own reports whether a page's bytes are of this attempt, whatever ordinal they are of.
func (l *lane) own(b []byte) bool {
	for _, x := range l.others() {
		for _, c := range x.content {
			if c != nil && bytes.Equal(b, c) {
				return false
			}
		}
	}
	return true
}

func (l *lane) others() (all []*lane) {
	for _, x := range l.w.lanes {
		if x != l {
			all = append(all, x)
		}
	}
	return all
}
