package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Transfer is the world of the gated receiver: what TCP gives, and what is implemented.
//
// Attempts, two or three, share decode's pool. Each has a prefill of its own, a link that keeps order, and a reader at decode that asks the gate,
// pins, copies, and unpins: a copy takes time, and everything else goes on meanwhile. Nobody is told when a sender is quiet: after an
// abort decode fences, gives the pages back and hands them to the other attempt, while frames of the first are still on their way.
// Decode's and prefill's machines are those that recorded runs are held to.
//
// Each attempt may be aborted at both ends at any time. A prefill may lie once an attempt, in every way that Faults allows.
type Transfer struct {
	On     Guard
	Faults Fault
	Pages  int             // of decode's pool, at most maxPages
	Need   [attempts]uint8 // pages that each attempt's prompt needs, at most maxNeed; 0: there is no such attempt
	Leaks  bool            // look for foreign bytes that are read, and for nothing else
}

const (
	attempts = 3
	maxPages = 4
	maxNeed  = 2
	maxLink  = 5
)

// handed is one attempt in the world.
type handed struct {
	D     Decode[uint8]
	P     Prefill[uint8]
	L     Lease[uint8]
	Page  [maxNeed]uint8 // tags, by ordinal
	Gen   [maxNeed]uint8
	Spent uint8 // a bit an ordinal: a frame was let in
	Link  link
	Stage frame // in staging: the machine said yes, the lease has not been asked
	Copy  frame // that the reader copies
	Into  uint8 // the page

	Grant, Abort, Lied, Gave, Reading, Dead bool // on the way to prefill; lied once; released; a view is open; prefill is gone
	Began                                   bool
}

// transferState is the world at one moment.
type transferState struct {
	Pool [maxPages]cell
	R    [attempts]handed
}

// Init implements check.System.
func (w Transfer) Init() (s transferState) {
	for i := range s.Pool {
		if !w.On.Has(GuardZero) {
			s.Pool[i].Data = old
		}
		if i >= w.Pages {
			s.Pool[i].Owner = 0xff
		}
	}
	return s
}

// Rests implements check.System.
func (w Transfer) Rests(s transferState) bool {
	for i := range w.Pages {
		if s.Pool[i].Owner != 0 || s.Pool[i].Pins != 0 {
			return false
		}
	}
	for r := range s.R {
		if w.Need[r] > 0 && (s.R[r].D.State != Settled || s.R[r].P.State != Done) {
			return false
		}
	}
	return true
}

// Holds implements check.System.
func (w Transfer) Holds(s transferState) error {
	if w.Leaks {
		return nil
	}
	for r := range s.R {
		q := &s.R[r]
		if q.Copy != noFrame && s.Pool[q.Into].Owner != uint8(r)+1 {
			if s.Pool[q.Into].Owner == 0 {
				return fmt.Errorf("page %d is free and a copy of r%d's goes into it", q.Into, r)
			}
			return fmt.Errorf("page %d is r%d's and a copy of r%d's goes into it", q.Into, s.Pool[q.Into].Owner-1, r)
		}
	}
	return nil
}

// turn is one attempt's part in a step.
type turn struct {
	w *Transfer
	s transferState // after the step
	r int8
	q *handed
	e error
}

// Next implements check.System.
func (w Transfer) Next(s transferState, yield func(check.Act, transferState, error)) {
	for r := range int8(attempts) {
		if w.Need[r] == 0 {
			continue
		}
		q := &s.R[r]
		do := func(what string, x int8, f func(t *turn)) {
			t := turn{w: &w, s: s, r: r}
			t.q = &t.s.R[r]
			f(&t)
			t.fold()
			yield(check.Act{What: what, R: r, X: x}, t.s, t.e)
		}
		if !q.Began {
			do("begins", -1, func(t *turn) {
				*t.q = handed{Began: true, D: NewDecode(w.Need[r], w.Need[r]), P: NewPrefill(w.Need[r], w.Need[r])}
			})
			continue
		}
		w.decodeSteps(q, do, s)
		w.linkSteps(q, do)
		w.prefillSteps(q, do)
		w.lies(q, do)
	}
}

type doer func(what string, x int8, f func(t *turn))

// decodeSteps are those of decode, its pool and its engine.
func (w *Transfer) decodeSteps(q *handed, do doer, s transferState) {
	d := &q.D
	if d.State == Waiting && w.free(&s) >= int(d.Needed) {
		do("decode reserves", -1, (*turn).reserve)
	}
	if d.State == Cancelled && w.free(&s) >= int(d.Needed) {
		do("decode is handed pages too late", -1, (*turn).reserve)
	}
	if d.State == Cancelled {
		do("decode stops waiting for pages", -1, func(t *turn) { t.decode(Event[uint8]{Step: ReserveEnded}) })
	}
	if !d.Over() && d.State != Cancelled {
		do("decode hears an abort", -1, func(t *turn) { t.decode(Event[uint8]{Step: AbortAsked, A: GatewayEnd, Code: ClientGone}) })
	}
	if d.State == Reserved && !q.Dead {
		do("prefill attaches, decode grants", -1, func(t *turn) { t.decode(Event[uint8]{Step: Attached}) })
	}
	if q.Stage != noFrame {
		do("decode's pool is asked to land the page in staging", -1, (*turn).land)
	}
	if q.Copy != noFrame {
		do("decode ends the copy into page", int8(q.Into), (*turn).copied)
	}
	if d.SealAsked {
		do("decode seals", -1, (*turn).seal)
	}
	if d.Running && !q.Reading {
		do("decode views its pages", -1, (*turn).view)
	}
	if q.Reading {
		do("decode computes from its pages", -1, (*turn).compute)
	}
	if q.Gave {
		do("decode's pool zeroes and frees", -1, (*turn).free)
	}
}

// linkSteps are those of decode's reader, which takes one frame after another, and of the link itself.
func (w *Transfer) linkSteps(q *handed, do doer) {
	if q.Link[0] != noFrame && q.Copy == noFrame && q.Stage == noFrame {
		do("decode's reader takes: "+q.Link[0].String(), -1, (*turn).arrive)
	}
	if w.Faults.Has(FaultLinkLost) && (q.Link[0] != noFrame || !q.D.Over() && q.D.State >= Granted && q.D.State < Sealing) && q.Copy == noFrame && q.Stage == noFrame {
		do("the link breaks", -1, func(t *turn) {
			t.q.Link = link{}
			t.decode(Event[uint8]{Step: PeerLostStep, A: PrefillLeg})
			t.prefill(Event[uint8]{Step: PeerLostStep, A: DecodeLeg})
		})
	}
	if q.Grant {
		do("prefill hears the grant", -1, func(t *turn) {
			t.q.Grant = false
			t.prefill(Event[uint8]{Step: GrantSeen, A: t.q.P.Needed})
		})
	}
	if q.Abort && !q.Grant {
		do("prefill hears decode's abort", -1, func(t *turn) {
			t.q.Abort = false
			t.prefill(Event[uint8]{Step: AbortAsked, A: DecodeLeg, Code: ClientGone})
		})
	}
}

// prefillSteps are those of an honest prefill. Its own pool is another world's matter: see Source.
func (w *Transfer) prefillSteps(q *handed, do doer) {
	p := &q.P
	if q.Dead || p.State == Done {
		return
	}
	if p.State == Collecting && q.D.State >= Reserved { // the gateway asks prefill when decode holds pages
		do("prefill begins to compute", -1, func(t *turn) {
			t.prefill(Event[uint8]{Step: PromptSeen, B: t.q.P.Planned, C: 1})
			t.prefill(Event[uint8]{Step: PagesReserved, A: t.q.P.Needed})
		})
	}
	if p.State == Collecting && q.D.Over() {
		do("the gateway never asks prefill", -1, func(t *turn) {
			t.prefill(Event[uint8]{Step: AbortAsked, A: GatewayEnd, Code: ClientGone})
		})
	}
	if p.Running && !p.Over() {
		do("prefill computes page", int8(p.Sealed), func(t *turn) {
			n := t.q.P.Sealed + 1
			t.prefill(Event[uint8]{Step: PagesSealed, A: n - 1, B: n})
			if n == t.q.P.Needed {
				t.prefill(Event[uint8]{Step: EngineDone, A: t.q.P.Planned, Code: OK})
			}
		})
		if w.Faults.Has(FaultReject) {
			do("prefill refuses", -1, func(t *turn) { t.prefill(Event[uint8]{Step: EngineDone, Code: ContextLength}) })
		}
	}
	if !p.Over() && p.Queued > p.Sent && q.Link.room(3) {
		do("prefill sends page", int8(p.Sent), func(t *turn) {
			k := t.q.P.Sent
			t.prefill(Event[uint8]{Step: PageTaken, A: k})
			t.q.Link.put(pageFrame + frame(k))
			t.prefill(Event[uint8]{Step: PageSent, A: k})
		})
	}
	if !p.Over() && p.State != Collecting && q.Link.room(2) {
		do("prefill hears an abort", -1, func(t *turn) { t.prefill(Event[uint8]{Step: AbortAsked, A: GatewayEnd, Code: ClientGone}) })
	}
	if w.Faults.Has(FaultCrash) && !p.Over() {
		do("prefill dies", -1, func(t *turn) { t.q.Dead, t.q.P = true, Prefill[uint8]{State: Done} })
	}
}

// lies are what a prefill that is not honest puts on the link: one an attempt, at any time.
func (w *Transfer) lies(q *handed, do doer) {
	p := &q.P
	if q.Lied || q.Dead || !p.Granted || p.Over() || !q.Link.room(3) {
		return
	}
	lie := func(f Fault, what string, k uint8, put func(t *turn)) {
		if w.Faults.Has(f) {
			do(what, int8(k), func(t *turn) {
				t.q.Lied = true
				put(t)
			})
		}
	}
	instead := func(of frame) func(t *turn) { // of the next page
		return func(t *turn) {
			k := t.q.P.Sent
			t.prefill(Event[uint8]{Step: PageTaken, A: k})
			t.q.Link.put(of + frame(k))
			t.prefill(Event[uint8]{Step: PageSent, A: k})
		}
	}
	if p.Queued > p.Sent {
		lie(FaultTorn, "prefill sends a torn page", p.Sent, instead(tornFrame))
		if p.Needed > 1 {
			lie(FaultMisplace, "prefill sends another page as page", p.Sent, instead(swapFrame))
		}
		lie(FaultForeign, "prefill sends, to the other attempt's tag, page", p.Sent, instead(foreignFrame))
	}
	if p.Sent > 0 {
		lie(FaultTwice, "prefill sends again page", p.Sent-1, func(t *turn) { t.q.Link.put(pageFrame + frame(t.q.P.Sent-1)) })
	}
	say := func(f frame, goOn bool) func(t *turn) {
		return func(t *turn) {
			t.q.Link.put(f)
			t.q.Link.put(endFrame)
			if !goOn {
				t.q.Dead, t.q.P = true, Prefill[uint8]{State: Done, Verdict: OK}
			}
		}
	}
	if p.Sent < p.Needed {
		lie(FaultShort, "prefill says too soon that it is done, pages sent:", p.Sent, say(doneFrame, false))
		lie(FaultShort, "prefill says that all pages were sent, of which it sent", p.Sent, say(lieFrame, false))
		lie(FaultEarly, "prefill says that it is done, and goes on sending from page", p.Sent, say(lieFrame, true))
	}
	lie(FaultForge, "somebody forges prefill's closing statement, pages sent:", p.Sent, say(forgedFrame, true))
	if p.Needed > 1 && p.Sent == 0 { // the incident's
		lie(FaultReject, "prefill refuses, ships a one-page placeholder, and says that all is well: page", 0, func(t *turn) {
			t.q.Link.put(pageFrame)
			t.q.Link.put(doneFrame)
			t.q.Link.put(endFrame)
			t.q.Dead, t.q.P = true, Prefill[uint8]{State: Done, Verdict: ContextLength}
		})
	}
	lie(FaultReject, "prefill refuses, and ships a placeholder as page", p.Sent, func(t *turn) {
		t.q.Link.put(pageFrame + frame(t.q.P.Sent))
		t.q.Link.put(noManifest)
		t.q.Link.put(endFrame)
		t.q.Dead, t.q.P = true, Prefill[uint8]{State: Done, Verdict: ContextLength}
	})
}
