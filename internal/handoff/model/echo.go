package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Placed is what the echo sees, and what it cannot: a prompt of two pages, of which one may come to lie in the other's place too, with
// every MAC, count, digest and root right.
//
// Sent wrong (FaultMisplace: prefill computed rightly and sealed one page for two ordinals), decode's own last position differs from
// prefill's, and the echo refuses. (Two pages that only changed places give the same sum: the root of the MACs, in order, sees those.) Computed wrong (FaultLegLies: prefill's engine itself read a wrong page, say of its own stale
// prefix, and sealed what came of it), both ends compute the same wrong thing and agree: nothing that decode can do sees that. It is
// prefill's pool that must, with the same tags and views; the model says so rather than leave it out.
type Placed struct {
	On     Guard
	Faults Fault
}

type placedState struct {
	Computed, Sent uint8 // 0 not yet, 1 right, 2 wrong
	Echoed         uint8
	Served         bool
	Refused        bool
}

// Init implements check.System.
func (w Placed) Init() (s placedState) { return s }

// Rests implements check.System.
func (w Placed) Rests(s placedState) bool { return s.Served || s.Refused }

// Holds implements check.System.
func (w Placed) Holds(placedState) error { return nil }

// Next implements check.System.
func (w Placed) Next(s placedState, yield func(check.Act, placedState, error)) {
	n := steps[placedState]{s, yield}
	n.may(s.Computed == 0, "prefill computes the prompt and its echo", -1, -1, func(t *placedState) { t.Computed = 1 })
	n.may(s.Computed == 0 && w.Faults.Has(FaultLegLies), "prefill computes over a wrong page of its own", -1, -1, func(t *placedState) { t.Computed = 2 })
	n.may(s.Computed != 0 && s.Sent == 0, "prefill seals and sends each page in its place", -1, -1, func(t *placedState) { t.Sent = 1 })
	n.may(s.Computed != 0 && s.Sent == 0 && w.Faults.Has(FaultMisplace), "prefill seals and sends one page for both ordinals", -1, -1, func(t *placedState) { t.Sent = 2 })
	if s.Sent != 0 && s.Echoed == 0 {
		n.do("MACs, count, digest and root are right: decode seals, and computes the last position", -1, -1, func(t *placedState) error {
			t.Echoed = 1
			if t.Sent == 2 && w.On.Has(GuardEcho) {
				t.Refused = true
			}
			return nil
		})
	}
	if s.Echoed != 0 && !s.Refused && !s.Served {
		n.do("decode serves", -1, -1, func(t *placedState) error {
			t.Served = true
			switch {
			case t.Sent == 2:
				return fmt.Errorf("a reply is computed from a right page in the wrong place")
			case t.Computed == 2:
				return fmt.Errorf("a reply is computed from what prefill computed wrongly")
			}
			return nil
		})
	}
}

func (s placedState) tell() string {
	say := [...]string{"not yet", "right", "wrong"}
	return fmt.Sprintf("computed %s, sent %s", say[s.Computed], say[s.Sent])
}
