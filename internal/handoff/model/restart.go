package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Restart is a decode that ends in the middle of a handoff and comes back, with all generations at their beginning. The frames of before
// name page and generation, and both can be right again: what makes them another's is the boot, a random id taken at start, which every
// tag, every plan and every link's hello carries. The other half is prefill's: its memory of which plans it took is gone, and a plan that
// comes once more, made for its former self, would have it seal other bytes under a key that was used.
type Restart struct {
	On    Guard
	Leaks bool // look for foreign bytes that are read, and for nothing else
}

type restartState struct {
	Boot    uint8 // of decode
	PBoot   uint8 // of prefill
	Owner   uint8 // of the one page
	Data    content
	Flying  [two]bool  // a frame of the attempt is on its way, to page 0 at generation 1
	Plan    [two]uint8 // boot of prefill that the plan names, plus 1
	Took    [two]bool  // this boot of prefill has taken the plan
	Sealed  [two]bool  // the key was used
	Granted [two]uint8 // under which boot, plus 1
	Served  [two]uint8 // 1 served, 2 lost
	Landed  [two]bool
}

// Init implements check.System.
func (w Restart) Init() (s restartState) { return s }

// Rests implements check.System.
func (w Restart) Rests(s restartState) bool {
	return s.Owner == 0 && s.Served[0] != 0 && s.Served[1] != 0
}

// Holds implements check.System.
func (w Restart) Holds(restartState) error { return nil }

// Next implements check.System.
func (w Restart) Next(s restartState, yield func(check.Act, restartState, error)) {
	n := steps[restartState]{s, yield}
	n.may(s.Boot == 0, "decode dies, and comes back as another boot", -1, -1, func(t *restartState) {
		t.Boot, t.Owner, t.Data = 1, 0, zeroes
		for r := range t.Served {
			if t.Granted[r] != 0 && t.Served[r] == 0 {
				t.Served[r] = 2 // its gateway hears that the link is gone
			}
		}
	})
	n.may(s.PBoot == 0, "prefill dies, and comes back as another boot", -1, -1, func(t *restartState) {
		t.PBoot, t.Took = 1, [two]bool{}
	})
	for r := range int8(two) {
		q := s.Granted[r]
		n.may(q == 0 && s.Owner == 0, "decode reserves page 0 at the first generation, and grants it", r, -1, func(t *restartState) {
			t.Granted[r], t.Owner, t.Data = s.Boot+1, uint8(r)+1, zeroes
			t.Plan[r] = s.PBoot + 1
		})
		if s.Plan[r] != 0 && !s.Took[r] && (s.Plan[r] == s.PBoot+1 || !w.On.Has(GuardBoot)) {
			n.do("prefill takes the plan, seals page 0 and sends it", r, -1, func(t *restartState) error {
				again := t.Sealed[r]
				t.Took[r], t.Sealed[r], t.Flying[r] = true, true, true
				if again && !w.Leaks {
					return fmt.Errorf("two boots of prefill seal page 0 of r%d under one key", r)
				}
				return nil
			})
		}
		if s.Flying[r] {
			n.do("a frame to page 0 at the first generation arrives", r, -1, func(t *restartState) error {
				t.Flying[r] = false
				live := t.Owner == uint8(r)+1 && t.Granted[r] == t.Boot+1
				if live || !w.On.Has(GuardBoot) && t.Owner != 0 { // page and generation are right
					t.Data = right(r, 0)
					t.Landed[t.Owner-1] = true
				}
				return nil
			})
		}
		live := s.Owner == uint8(r)+1 && s.Served[r] == 0
		if live && s.Landed[r] {
			n.do("decode reads, and serves", r, -1, func(t *restartState) error {
				t.Served[r], t.Owner = 1, 0
				if t.Data != right(r, 0) {
					return leak(r, t.Data)
				}
				return nil
			})
		}
		n.may(live, "decode gives up, fences and frees", r, -1, func(t *restartState) { t.Served[r], t.Owner, t.Flying[r] = 2, 0, false })
	}
}

func (s restartState) tell() string {
	return fmt.Sprintf("boot %d, page 0: owner %d, %s", s.Boot, s.Owner, s.Data)
}
