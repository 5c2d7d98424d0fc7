package model

import (
	"errors"
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Retract is decode taking the pages of a reply that is under way, for another that came before it, and going on with it later. Bytes have
// gone to the client by then.
//
// Its pages are fenced before they are another's, so that no step of it still reads them (wipe); when it comes back it computes its KV
// again from its own tokens, into pages under new tags, and does not trust what it remembers (recompute); and it goes on where it was:
// what the client has is not sent again (resume).
type Retract struct{ On Guard }

type retractState struct {
	Owner   uint8 // of the one page; reply + 1
	Gen     uint8
	Data    content
	Phase   uint8 // of r0: 0 waits for its first page, 1 runs, 2 steps, 3 retracted, 4 over
	Tag     uint8 // generation that r0 remembers
	Made    uint8 // tokens that r0 has made
	Client  uint8 // tokens that the client has, in order
	Other   uint8 // of r1: 0 waits, 1 holds the page, 2 over
	Retract uint8 // times
}

const replyLength = 2

// Init implements check.System.
func (w Retract) Init() (s retractState) { return s }

// Rests implements check.System.
func (w Retract) Rests(s retractState) bool { return s.Phase == 4 && s.Other == 2 && s.Owner == 0 }

// Holds implements check.System.
func (w Retract) Holds(s retractState) error {
	if s.Client > replyLength {
		return errors.New("the client has more tokens than there are")
	}
	return nil
}

// Next implements check.System.
func (w Retract) Next(s retractState, yield func(check.Act, retractState, error)) {
	n := steps[retractState]{s, yield}
	take := func(t *retractState) {
		t.Owner, t.Gen, t.Data, t.Phase = 1, t.Gen+1, right(0, 0), 1
		t.Tag = t.Gen
	}
	n.may(s.Phase == 0 && s.Owner == 0, "is handed a page, sealed", 0, -1, take)
	n.may(s.Phase == 1 && s.Made < replyLength, "begins a step", 0, -1, func(t *retractState) { t.Phase = 2 })
	if s.Phase == 2 {
		n.do("computes from its page, and sends a token", 0, -1, func(t *retractState) error {
			t.Phase = 1
			if t.Data != right(0, 0) {
				return leak(0, t.Data)
			}
			if t.Made != t.Client {
				return fmt.Errorf("token %d is sent where the client has %d", t.Made, t.Client)
			}
			t.Made++
			t.Client++
			return nil
		})
	}
	n.may(s.Phase == 1 && s.Made == replyLength, "is over", 0, -1, func(t *retractState) {
		t.Phase = 4
		if t.Owner == 1 {
			t.Owner, t.Data = 0, zeroes
		}
	})
	stepping := s.Phase == 2
	n.may((s.Phase == 1 || stepping && !w.On.Has(GuardWipe)) && s.Owner == 1 && s.Retract == 0 && s.Other == 0, "is retracted: its page is zeroed and free", 0, -1, func(t *retractState) {
		t.Owner, t.Data, t.Retract = 0, zeroes, 1
		if !stepping {
			t.Phase = 3
		}
	})
	n.may(s.Other == 0 && s.Owner == 0, "takes the page", 1, -1, func(t *retractState) { t.Owner, t.Gen, t.Data, t.Other = 2, t.Gen+1, right(1, 0), 1 })
	n.may(s.Other == 1, "is over", 1, -1, func(t *retractState) {
		t.Other = 2
		if t.Owner == 2 {
			t.Owner, t.Data = 0, zeroes
		}
	})
	if s.Phase == 3 {
		again := func(t *retractState) {
			if !w.On.Has(GuardResume) {
				t.Made = 0
			}
		}
		if w.On.Has(GuardRecompute) {
			n.may(s.Owner == 0, "comes back: computes its KV again, under a new tag", 0, -1, func(t *retractState) { take(t); again(t) })
		} else {
			n.may(true, "comes back: goes on with the page that it remembers", 0, -1, func(t *retractState) { t.Phase = 1; again(t) })
		}
		n.may(true, "is aborted", 0, -1, func(t *retractState) { t.Phase = 4 })
	}
}

func (s retractState) tell() string {
	return fmt.Sprintf("page: owner %d@%d, %s; the client has %d tokens", s.Owner, s.Gen, s.Data, s.Client)
}
