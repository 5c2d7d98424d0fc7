package model

import (
	"fmt"
	"strings"
)

// decode takes an event and does what it asks for.
func (t *turn) decode(e Event[uint8]) {
	d, asks, err := t.q.D.Step(t.w.On, e)
	t.fail(err)
	t.q.D = d
	if asks.Has(AskVerdict) && d.Verdict == OK && t.q.P.Verdict != OK {
		t.fail(fmt.Errorf("r%d is served although prefill refused it", t.r))
	}
	if asks.Has(AskGrant) {
		t.q.Grant = true
	}
	if asks.Has(AskAbortPrefill) && !t.q.Dead {
		t.q.Abort = true
	}
	if asks.Has(AskFence) && t.q.L.Pages > 0 {
		t.lease(OpFence, t.q.L.Pages, 0)
	}
	if asks.Has(AskRelease) {
		t.q.Gave = true
	}
}

// prefill takes an event and does what it asks for. Once it is over its engine lets go, and its own pages are back, at once.
func (t *turn) prefill(e Event[uint8]) {
	if t.q.Dead || t.q.P.State == Done {
		return
	}
	p, asks, err := t.q.P.Step(t.w.On, e)
	t.fail(err)
	t.q.P = p
	if asks.Has(AskClosing) {
		f := doneFrame
		if p.Over() {
			f = noManifest
		}
		t.q.Link.put(f)
		t.q.Link.put(endFrame)
		if !p.Over() {
			t.prefill(Event[uint8]{Step: ClosingSent})
		}
	}
	if asks.Has(AskAbortDecode) {
		t.q.Link.put(abortFrame)
	}
	if p.Over() && p.State == Revoked {
		if t.q.P.Running {
			t.prefill(Event[uint8]{Step: EngineDone, Code: p.Verdict})
		}
		if t.q.P.State == Revoked {
			t.prefill(Event[uint8]{Step: LeaseDrained})
		}
	}
}

func (t *turn) fail(err error) {
	if t.e == nil {
		t.e = err
	}
}

func (t *turn) lease(op Op, n, writes uint8) {
	l, err := t.q.L.Do(t.w.On, op, n, writes, true)
	t.fail(err)
	t.q.L = l
}

func (w *Transfer) free(s *transferState) (n int) {
	for i := range w.Pages {
		if s.Pool[i].Owner == 0 {
			n++
		}
	}
	return n
}

// reserve hands out the free pages with the lowest numbers: what reuses soonest.
func (t *turn) reserve() {
	k := uint8(0)
	for i := range t.s.Pool {
		if c := &t.s.Pool[i]; c.Owner == 0 && k < t.q.D.Needed {
			c.Owner, c.Gen = uint8(t.r)+1, c.Gen+1
			t.q.Page[k], t.q.Gen[k] = uint8(i), c.Gen
			k++
		}
	}
	t.lease(OpReserve, k, 0)
	t.q.L.Granted = k
	t.decode(Event[uint8]{Step: PagesReserved, A: k})
}

// arrive takes the frame in front.
func (t *turn) arrive() {
	f := t.q.Link.take()
	switch f {
	case doneFrame, lieFrame, noManifest, forgedFrame:
		t.manifest(f)
	case endFrame:
		t.decode(Event[uint8]{Step: EndSeen})
	case abortFrame:
		t.decode(Event[uint8]{Step: AbortAsked, A: PrefillLeg, Code: ClientGone})
	default:
		t.page(f)
	}
}

// page asks the machine's half of the gate: is there a live grant.
func (t *turn) page(f frame) {
	k := uint8(f-pageFrame) & 1
	was := t.q.D.Landing
	t.decode(Event[uint8]{Step: PageArrived, A: k})
	if t.q.D.Landing == was {
		return // refused by the machine
	}
	t.q.Stage = f
}

// land is the lease's half of the gate, and the pin. What the machine said may be long ago.
func (t *turn) land() {
	f := t.q.Stage
	t.q.Stage = noFrame
	k := uint8(f-pageFrame) & 1
	into := t.q.Page[k]
	right := true
	if f == foreignFrame+frame(k) {
		into, right = t.s.R[t.w.neighbour(t.r)].Page[0], false
	}
	if t.w.On.Has(GuardGate) && (!right || t.q.Spent>>k&1 != 0 || t.q.L.Fenced > 0 || t.q.L.Sealed) {
		t.decode(Event[uint8]{Step: PageLanded, A: k, Code: GateRefused})
		return
	}
	t.q.Spent |= 1 << k
	t.q.L.Landing++
	t.q.Copy, t.q.Into = f, into
	if t.w.On.Has(GuardPin) {
		t.s.Pool[into].Pins++
	}
}

// neighbour is another attempt.
func (w *Transfer) neighbour(r int8) int8 {
	if r == 0 {
		return 1
	}
	return 0
}

// copied ends a copy: by now the page may be anybody's, unless the pin kept it.
func (t *turn) copied() {
	f, c := t.q.Copy, &t.s.Pool[t.q.Into]
	k := uint8(f-pageFrame) & 1
	good := f != tornFrame+frame(k)
	switch {
	case !good && t.w.On.Has(GuardMAC):
		c.Data = zeroes
	case !good:
		c.Data, good = right(t.r, k)|torn, true
	case f == swapFrame+frame(k):
		c.Data = right(t.r, 1-k)
	default:
		c.Data = right(t.r, k)
	}
	if t.w.On.Has(GuardPin) {
		c.Pins--
	}
	t.q.Copy, t.q.Into = noFrame, 0
	code := None
	switch {
	case !good:
		code = MACMismatch
	case t.q.L.Fenced > 0 && t.w.On.Has(GuardFence):
		code = GateRefused // overtaken
	}
	t.q.L.Landing--
	if code == None {
		t.q.L.Written++
	}
	if t.q.D.State != Settled {
		t.decode(Event[uint8]{Step: PageLanded, A: k, Code: code})
	}
}

// manifest compares the statement with what is here.
func (t *turn) manifest(f frame) {
	d := &t.q.D
	e := Event[uint8]{Step: ManifestSeen, A: d.Planned, B: d.Written, C: MACRight | DigestRight | RootRight, Code: OK}
	switch f {
	case lieFrame:
		e.B = d.Needed
	case noManifest:
		e.Code = ContextLength
	case forgedFrame:
		e.C &^= MACRight
	}
	t.decode(e)
}

// seal makes the pages final, if they are whole.
func (t *turn) seal() {
	code := None
	if t.q.L.Fenced > 0 || t.w.On.Has(GuardCount) && t.q.L.Written != t.q.D.Needed {
		code = CountMismatch
	} else {
		t.lease(OpSeal, t.q.D.Needed, 0)
	}
	t.decode(Event[uint8]{Step: SealDone, Code: code})
}

// view begins a step: all tags are checked once, all pages pinned. A lease that is fenced gives none.
func (t *turn) view() {
	bad := t.q.L.Fenced > 0
	for k := range t.q.D.Needed {
		c := t.s.Pool[t.q.Page[k]]
		bad = bad || t.w.On.Has(GuardTag) && (c.Owner != uint8(t.r)+1 || c.Gen != t.q.Gen[k])
	}
	if bad || t.q.D.Over() {
		t.decode(Event[uint8]{Step: EngineDone, Code: ClientGone})
		return
	}
	t.q.Reading = true
	if t.w.On.Has(GuardPin) {
		for k := range t.q.D.Needed {
			t.s.Pool[t.q.Page[k]].Pins++
		}
	}
	t.lease(OpViewBegin, t.q.D.Needed, 1)
}

// compute reads every page. The first step gives the echo; the second, in this world, the whole reply.
func (t *turn) compute() {
	agrees := true
	for k := range t.q.D.Needed {
		c := &t.s.Pool[t.q.Page[k]]
		want := right(t.r, k)
		switch {
		case c.Data == want:
		case c.Data == right(t.r, 1-k):
			if agrees = false; t.q.D.State == Serving && !t.w.Leaks {
				t.fail(fmt.Errorf("r%d is served from its own page in the wrong place: page %d holds %s", t.r, t.q.Page[k], c.Data))
			}
		case c.Data == zeroes || c.Data == want|torn:
			if agrees = false; !t.w.Leaks {
				t.fail(fmt.Errorf("r%d reads page %d, which it never wrote whole: %s", t.r, t.q.Page[k], c.Data))
			}
		default:
			t.fail(fmt.Errorf("LEAK: r%d reads page %d, which holds %s", t.r, t.q.Page[k], c.Data))
		}
		if t.w.On.Has(GuardPin) {
			c.Pins--
		}
	}
	t.q.Reading = false
	t.lease(OpViewEnd, t.q.D.Needed, 1)
	switch {
	case t.q.D.Over():
		t.decode(Event[uint8]{Step: EngineDone, Code: ClientGone})
	case t.q.D.State == Echoing:
		e := Event[uint8]{Step: EchoCompared}
		if agrees {
			e.A = 1
		}
		t.decode(e)
		if t.q.D.Over() {
			t.decode(Event[uint8]{Step: EngineDone, Code: EchoMismatch})
		}
	default:
		t.decode(Event[uint8]{Step: TokenReady})
		t.decode(Event[uint8]{Step: EngineDone, A: 1, Code: OK})
	}
}

// free zeroes and gives back those pages that have no pin.
func (t *turn) free() {
	for k := range t.q.D.Needed {
		c := &t.s.Pool[t.q.Page[k]]
		if c.Owner != uint8(t.r)+1 || c.Gen != t.q.Gen[k] || c.Pins != 0 {
			continue
		}
		c.Owner = 0
		if t.w.On.Has(GuardZero) {
			c.Data = zeroes
		}
		t.lease(OpScrub, 1, 0)
		t.lease(OpFree, 1, 0)
	}
	if t.q.L.Gone() {
		t.q.Gave = false
		t.decode(Event[uint8]{Step: LeaseDrained})
	}
}

// fold makes states equal that differ in nothing that matters any more.
func (t *turn) fold() {
	q := t.q
	if q.D.Over() && q.D.Verdict != OK {
		q.D.Verdict = ClientGone
	}
	if q.P.Over() && q.P.Verdict != OK {
		q.P.Verdict = ContextLength
	}
	if q.D.Over() {
		q.D.ManifestSeen, q.D.ManifestTokens, q.D.ManifestPages, q.D.ManifestVerdict = false, 0, 0, 0
		q.D.Emitted, q.L.Viewed = 0, 0
	}
	if q.P.State == Done {
		q.P = Prefill[uint8]{State: Done, Verdict: q.P.Verdict}
		q.Grant, q.Abort = false, false
	}
}

// tell is the world in one line.
func (s transferState) tell() string {
	var b strings.Builder
	for i, c := range s.Pool {
		if c.Owner == 0xff {
			continue
		}
		owner := "free"
		if c.Owner > 0 {
			owner = fmt.Sprintf("r%d", c.Owner-1)
		}
		fmt.Fprintf(&b, "page %d: %s@%d %s", i, owner, c.Gen, c.Data)
		if c.Pins > 0 {
			fmt.Fprintf(&b, " pins %d", c.Pins)
		}
		b.WriteString(" | ")
	}
	for r := range s.R {
		q := &s.R[r]
		if !q.Began {
			continue
		}
		fmt.Fprintf(&b, "r%d %s/%s", r, q.D.State, q.P.State)
		var on []string
		for _, f := range q.Link {
			if f != noFrame {
				on = append(on, f.String())
			}
		}
		if len(on) > 0 {
			fmt.Fprintf(&b, " [%s]", strings.Join(on, ", "))
		}
		b.WriteString("  ")
	}
	return strings.TrimRight(b.String(), " |")
}
