package model

import (
	"errors"
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Prefix is a page that outlives the attempt that wrote it: sealed, then held for others of the same scope and token chain. Attempts that
// find it count it among their pages instead of being sent it; an evictor takes it back when the pool is short.
//
// It stays as long as anybody holds it (refcount); finding it and holding it are one step (pin-at-once), or it may be gone, and another's,
// in between; and it is found by its own scope alone (scope). r0 writes it; r1 is of the same scope, r2 of another.
type Prefix struct{ On Guard }

const readers = 3

type prefixState struct {
	Owner  uint8 // of the one page: 0 free, 1 held as prefix, 2+r attempt r's own
	Data   content
	Scope  uint8 // of what is held
	Refs   uint8
	R      [readers]uint8 // 0 idle, 1 found it, 2 holds it, 3 over
	Wrote  bool
	Stored bool
}

func scopeOf(r int8) uint8 { return uint8(r) / 2 } // r0 and r1 share one

// Init implements check.System.
func (w Prefix) Init() (s prefixState) { return s }

// Rests implements check.System.
func (w Prefix) Rests(s prefixState) bool { return s.R == [readers]uint8{3, 3, 3} && s.Owner == 0 }

// Holds implements check.System.
func (w Prefix) Holds(s prefixState) error {
	held := uint8(0)
	for r := 1; r < readers; r++ {
		if s.R[r] == 2 {
			held++
		}
	}
	if held > 0 && s.Owner != 1 && w.On.Has(GuardRefcount) && w.On.Has(GuardPinAtOnce) {
		return errors.New("a page that somebody holds is not there any more")
	}
	return nil
}

// Next implements check.System.
func (w Prefix) Next(s prefixState, yield func(check.Act, prefixState, error)) {
	n := steps[prefixState]{s, yield}
	n.may(s.R[0] == 0 && s.Owner == 0, "writes the page of its prompt", 0, -1, func(t *prefixState) { t.R[0], t.Owner, t.Data = 2, 2, right(0, 0) })
	n.may(s.R[0] == 2, "is over, and leaves the page as a prefix", 0, -1, func(t *prefixState) { t.R[0], t.Owner, t.Scope = 3, 1, scopeOf(0) })
	n.may(s.R[0] == 0, "is aborted", 0, -1, func(t *prefixState) { t.R[0] = 3 })
	n.may(s.Owner == 1 && (s.Refs == 0 || !w.On.Has(GuardRefcount)), "the prefix is evicted, zeroed and freed", -1, -1, func(t *prefixState) {
		t.Owner, t.Data = 0, zeroes
	})
	for r := int8(1); r < readers; r++ {
		found := s.Owner == 1 && (s.Scope == scopeOf(r) || !w.On.Has(GuardScope))
		if w.On.Has(GuardPinAtOnce) {
			n.may(s.R[r] == 0 && found, "finds the prefix and holds it", r, -1, func(t *prefixState) { t.R[r] = 2; t.Refs++ })
		} else {
			n.may(s.R[r] == 0 && found, "finds the prefix", r, -1, func(t *prefixState) { t.R[r] = 1 })
			n.may(s.R[r] == 1, "holds what it found", r, -1, func(t *prefixState) { t.R[r] = 2; t.Refs++ })
		}
		if s.R[r] == 2 {
			n.do("reads the held page, serves, and lets go", r, -1, func(t *prefixState) error {
				t.R[r] = 3
				t.Refs--
				if t.Data != right(0, 0) || scopeOf(0) != scopeOf(r) {
					return leak(r, t.Data)
				}
				return nil
			})
			n.may(true, "is aborted, and lets go", r, -1, func(t *prefixState) { t.R[r] = 3; t.Refs-- })
		}
		n.may(s.R[r] == 0 && s.Owner == 0, "finds nothing, and takes the page for its own", r, -1, func(t *prefixState) {
			t.R[r], t.Owner, t.Data = 4, uint8(r)+2, right(r, 1)
		})
		n.may(s.R[r] == 4, "serves from its own page, zeroes and frees it", r, -1, func(t *prefixState) { t.R[r], t.Owner, t.Data = 3, 0, zeroes })
		n.may(s.R[r] < 2, "is aborted", r, -1, func(t *prefixState) { t.R[r] = 3 })
	}
}

func (s prefixState) tell() string {
	owner := [...]string{"free", "a prefix", "r0's", "r1's", "r2's"}[s.Owner]
	return fmt.Sprintf("the page is %s, holds %s, %d refs", owner, s.Data, s.Refs)
}
