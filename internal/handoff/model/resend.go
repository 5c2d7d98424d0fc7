package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Resend is a prompt's last page, which is sent half full and again when it is full. Both frames are sealed for the same ordinal under
// the same key, so no MAC tells the old one from the new one; only sending each tag once does (one-grant): the tail goes once, at the
// end, and a resend needs a new grant.
type Resend struct {
	On     Guard
	Faults Fault
}

type resendState struct {
	Sent   [2]uint8 // frames of version 0 (half full) and 1: 0 not sent, 1 in flight, 2 over
	Page   uint8    // 0 nothing, 1 half full, 2 full
	Spent  bool
	Closed bool
	Read   bool
}

// Init implements check.System.
func (w Resend) Init() (s resendState) { return s }

// Rests implements check.System.
func (w Resend) Rests(s resendState) bool { return s.Read }

// Holds implements check.System.
func (w Resend) Holds(resendState) error { return nil }

// Next implements check.System.
func (w Resend) Next(s resendState, yield func(check.Act, resendState, error)) {
	n := steps[resendState]{s, yield}
	n.may(s.Sent[0] == 0 && s.Sent[1] == 0 && !w.On.Has(GuardOneGrant), "prefill sends the page half full", -1, -1, func(t *resendState) { t.Sent[0] = 1 })
	n.may(s.Sent[1] == 0, "prefill sends the page full", -1, -1, func(t *resendState) { t.Sent[1] = 1 })
	for v := range int8(2) {
		first := v == 0 || s.Sent[0] != 1 || w.Faults.Has(FaultReorder) // in order, unless the way does not keep it
		n.may(s.Sent[v] == 1 && first, []string{"the half full page lands", "the full page lands"}[v], -1, -1, func(t *resendState) {
			t.Sent[v] = 2
			if !w.On.Has(GuardOneGrant) || !t.Spent {
				t.Page, t.Spent = uint8(v)+1, true
			}
		})
	}
	n.may(s.Sent[1] == 2 && !s.Closed, "the manifest agrees", -1, -1, func(t *resendState) { t.Closed = true })
	if s.Closed && !s.Read {
		n.do("decode reads", -1, -1, func(t *resendState) error {
			t.Read = true
			if t.Page != 2 {
				return fmt.Errorf("decode reads the half full page where the full one was sealed")
			}
			return nil
		})
	}
}

func (s resendState) tell() string {
	return fmt.Sprintf("the page holds %s", [...]string{"nothing", "the half full version", "the full version"}[s.Page])
}
