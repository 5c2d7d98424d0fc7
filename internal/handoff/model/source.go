package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Source is prefill's own pool: a page is computed, sealed, and later copied out for sending, while other prompts want pages.
//
// Two things can keep foreign bytes off the wire: the page stays until it was copied out (source-hold), or its MAC was made when it was
// sealed, so that whatever else is sent does not match (seal-mac). Each alone is enough; a MAC that is made when the page is sent is not
// the second of them.
type Source struct{ On Guard }

type sourceEnd struct {
	Phase         uint8 // 0 idle, 1 computed and sealed, 2 engine done, 3 the sender has the page, 4 on the wire, 5 decode has taken it, 6 refused
	Sealed, Frame content
	Freed         bool
}

type sourceState struct {
	Owner uint8 // of the one page; attempt + 1
	Data  content
	R     [two]sourceEnd
}

// Init implements check.System.
func (w Source) Init() (s sourceState) { return s }

// Rests implements check.System.
func (w Source) Rests(s sourceState) bool {
	return s.R[0].Phase >= 5 && s.R[1].Phase >= 5 && s.Owner == 0
}

// Holds implements check.System.
func (w Source) Holds(sourceState) error { return nil }

// Next implements check.System.
func (w Source) Next(s sourceState, yield func(check.Act, sourceState, error)) {
	n := steps[sourceState]{s, yield}
	for r := range int8(two) {
		q := s.R[r]
		n.may(q.Phase == 0 && s.Owner == 0, "prefill computes and seals a page", r, -1, func(t *sourceState) {
			t.Owner, t.Data = uint8(r)+1, right(r, 0)
			t.R[r].Phase = 1
			if w.On.Has(GuardSealMAC) {
				t.R[r].Sealed = t.Data
			}
		})
		n.may(q.Phase == 1, "prefill's engine is done", r, -1, func(t *sourceState) { t.R[r].Phase = 2 })
		n.may(q.Phase == 2, "the sender takes the page", r, -1, func(t *sourceState) { t.R[r].Phase = 3 })
		n.may(q.Phase == 3, "the sender copies the page out", r, -1, func(t *sourceState) {
			t.R[r].Phase, t.R[r].Frame = 4, t.Data
			if !w.On.Has(GuardSealMAC) {
				t.R[r].Sealed = t.Data // of whatever is there by now
			}
		})
		keep := w.On.Has(GuardSourceHold) && q.Phase < 4
		n.may(q.Phase >= 2 && !q.Freed && !keep, "prefill's pool zeroes and frees the page", r, -1, func(t *sourceState) {
			t.Owner, t.Data = 0, zeroes
			t.R[r].Freed = true
		})
		if q.Phase != 4 {
			continue
		}
		if q.Frame != q.Sealed {
			n.do("decode finds the MAC wrong", r, -1, func(t *sourceState) error { t.R[r].Phase = 6; return nil })
			continue
		}
		n.do("decode takes the page", r, -1, func(t *sourceState) error {
			t.R[r].Phase = 5
			if q.Frame != right(r, 0) {
				return leak(r, q.Frame)
			}
			return nil
		})
	}
}

func (s sourceState) tell() string {
	return fmt.Sprintf("page: owner %d, %s | r0 frame %s | r1 frame %s", s.Owner, s.Data, s.R[0].Frame, s.R[1].Frame)
}
