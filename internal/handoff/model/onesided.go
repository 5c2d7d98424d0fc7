package model

import (
	"fmt"
	"strings"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// OneSided is the world without a gate: prefill writes straight into decode's pages, as RDMA, NVLink or a shared mapping would, and no
// code of decode's runs where bytes land. A write has two halves that land at any time, in any order, for as long as the mapping
// of its grant lives; what the sender says of its completions need not be true.
//
// What stands in for the gate is an order: the mapping is revoked, that is waited for; then the MACs are verified, once; then the pages
// are read. And when an attempt ends otherwise: the mapping is revoked, that is waited for; then the pages are freed. A revocation that
// is not confirmed leaves the pages in quarantine until the connection is torn down, which is confirmed by our own side.
type OneSided struct {
	On     Guard
	Faults Fault
	Pages  int
	Need   [two]uint8

	// VerifyFirst verifies before the revocation and not after: the two in the wrong order.
	VerifyFirst bool
	Leaks       bool // look for foreign bytes that are read, and for nothing else
}

// mapping is what decode knows of a grant's way into its memory.
type mapping uint8

const (
	unmapped mapping = iota
	mapped           // writes land
	revoking         // asked for; writes land until it is done
	revoked          // done, and decode does not know it yet
	closed           // decode knows: nothing lands any more
)

// sideEnd is where decode stands.
type sideEnd uint8

const (
	sideIdle  sideEnd = iota
	sideOpen          // granted: waits for the completion
	sideClose         // the completion is in: revokes
	sideCheck         // revoked: verifies
	sideRead          // verified: reads, page by page
	sideLeave         // over: revokes what is mapped, then frees
	sideFreed
)

var sideNames = [...]string{"idle", "granted", "revoking", "verifying", "reading", "leaving", "freed"}

type side struct {
	D                       sideEnd
	Map                     mapping
	Page                    [maxNeed]uint8
	Fly                     [maxNeed]uint8 // halves in flight: bit 0 low, bit 1 high; bits 2, 3: of bytes that no seal is of
	Posted, Read            uint8
	Done, Refused, Rejected bool // the completion came; it says no; prefill said no
	Lied, Served, Over      bool
	Verified                bool
	Dead                    bool // the sender's process or connection is gone
}

type sideState struct {
	Owner [maxPages]uint8
	Half  [maxPages][2]content
	R     [two]side
}

// Init implements check.System.
func (w OneSided) Init() (s sideState) {
	for i := range s.Owner {
		if !w.On.Has(GuardZero) {
			s.Half[i] = [2]content{old, old}
		}
		if i >= w.Pages {
			s.Owner[i] = 0xff
		}
	}
	return s
}

// Rests implements check.System.
func (w OneSided) Rests(s sideState) bool {
	for i := range w.Pages {
		if s.Owner[i] != 0 {
			return false
		}
	}
	for r := range s.R {
		if s.R[r].D != sideFreed {
			return false
		}
	}
	return true
}

// Holds implements check.System: no write may land in a page that is not its attempt's.
func (w OneSided) Holds(s sideState) error {
	for r := range s.R {
		q := &s.R[r]
		live := q.Map == mapped || q.Map == revoking
		for k := range w.Need[r] {
			if live && q.Fly[k] != 0 && s.Owner[q.Page[k]] != uint8(r)+1 && !w.Leaks {
				return fmt.Errorf("page %d is not r%d's any more, and a write of r%d's can land in it", q.Page[k], r, r)
			}
		}
	}
	return nil
}

// Next implements check.System.
func (w OneSided) Next(s sideState, yield func(check.Act, sideState, error)) {
	for r := range int8(two) {
		do := func(what string, x int8, f func(t *sideState, q *side) error) {
			t := s
			err := f(&t, &t.R[r])
			yield(check.Act{What: what, R: r, X: x}, t, err)
		}
		w.decode(&s, r, do)
		w.writer(&s, r, do)
		w.memory(&s, r, do)
	}
}

type sideDoer func(what string, x int8, f func(t *sideState, q *side) error)

// leave ends the attempt for decode: with its one verdict, and with pages that go when nothing can land in them.
func (q *side) leave(served bool) error {
	q.D, q.Over, q.Served, q.Read = sideLeave, true, served, 0
	if served && q.Rejected {
		return fmt.Errorf("an attempt is served although prefill refused it")
	}
	return nil
}

func (w OneSided) decode(s *sideState, r int8, do sideDoer) {
	q, need := &s.R[r], w.Need[r]
	if q.D > sideIdle && q.D < sideLeave {
		do("decode hears an abort", -1, func(_ *sideState, q *side) error { return q.leave(false) })
	}
	switch q.D {
	case sideIdle:
		free := uint8(0)
		for i := range w.Pages {
			if s.Owner[i] == 0 {
				free++
			}
		}
		if free >= need {
			do("decode reserves, maps and grants", -1, func(t *sideState, q *side) error {
				k := uint8(0)
				for i := range w.Pages {
					if t.Owner[i] == 0 && k < need {
						t.Owner[i], q.Page[k] = uint8(r)+1, uint8(i)
						k++
					}
				}
				q.D, q.Map = sideOpen, mapped
				return nil
			})
		}
	case sideOpen:
		if !q.Done {
			break
		}
		if q.Refused && w.On.Has(GuardVerdict) {
			do("decode hears prefill's refusal", -1, func(_ *sideState, q *side) error { return q.leave(false) })
			break
		}
		do("decode takes the completion", -1, func(_ *sideState, q *side) error { q.D = sideClose; return nil })
	case sideClose:
		if w.VerifyFirst && !q.Verified {
			w.verify(s, q, need, do)
			break
		}
		w.revoke(q, do)
		if q.Map == closed || !w.On.Has(GuardRevoke) {
			do("decode begins to verify", -1, func(_ *sideState, q *side) error { q.D = sideCheck; return nil })
		}
	case sideCheck:
		if w.VerifyFirst || !w.On.Has(GuardVerifyOnce) {
			do("decode reads without a look at the MACs", -1, func(_ *sideState, q *side) error { q.D = sideRead; return nil })
			break
		}
		w.verify(s, q, need, do)
	case sideRead:
		if q.Read == need {
			do("decode serves", -1, func(_ *sideState, q *side) error { return q.leave(true) })
			break
		}
		do("decode reads page", int8(q.Page[q.Read]), func(t *sideState, q *side) error {
			p, want := q.Page[q.Read], right(r, q.Read)
			q.Read++
			for _, half := range t.Half[p] {
				if foreign := half != want && half != zeroes && half != want|torn; foreign {
					return fmt.Errorf("LEAK: r%d reads page %d, which holds %s", r, p, half)
				}
				if half != want && !w.Leaks {
					return fmt.Errorf("r%d reads page %d, which it never wrote whole: %s", r, p, half)
				}
			}
			return nil
		})
	case sideLeave:
		if q.Map == mapped && w.On.Has(GuardRevokeFirst) || q.Map == revoking || q.Map == revoked {
			w.revoke(q, do)
		}
		sure := q.Map == unmapped || q.Map == closed
		if sure || !w.On.Has(GuardRevokeFirst) || !w.On.Has(GuardQuarantine) && q.Map == revoking {
			do("decode's pool zeroes and frees", -1, func(t *sideState, q *side) error {
				for k := range need {
					p := q.Page[k]
					t.Owner[p] = 0
					if w.On.Has(GuardZero) {
						t.Half[p] = [2]content{}
					}
				}
				q.D = sideFreed
				return nil
			})
		}
	}
}

// revoke is asked for, then done somewhere else, then confirmed; the confirmation can get lost, and then only tearing the connection
// down is sure.
func (w OneSided) revoke(q *side, do sideDoer) {
	switch q.Map {
	case mapped:
		do("decode revokes the mapping", -1, func(_ *sideState, q *side) error { q.Map = revoking; return nil })
	case revoked:
		do("decode hears that it is revoked", -1, func(_ *sideState, q *side) error { q.Map = closed; return nil })
		fallthrough
	case revoking:
		if w.Faults.Has(FaultAckLost | FaultCrash) {
			do("decode tears the connection down", -1, func(_ *sideState, q *side) error {
				q.Map, q.Fly, q.Dead = closed, [maxNeed]uint8{}, true
				return nil
			})
		}
	}
}

func (w OneSided) verify(s *sideState, q *side, need uint8, do sideDoer) {
	good, r := true, int8(0)
	if q == &s.R[1] {
		r = 1
	}
	for k := range need {
		good = good && s.Half[q.Page[k]] == [2]content{right(r, k), right(r, k)}
	}
	if !good {
		do("decode finds a MAC wrong", -1, func(_ *sideState, q *side) error { return q.leave(false) })
		return
	}
	do("decode verifies the MACs", -1, func(_ *sideState, q *side) error {
		if q.Verified = true; !w.VerifyFirst {
			q.D = sideRead
		}
		return nil
	})
}

// writer is prefill.
func (w OneSided) writer(s *sideState, r int8, do sideDoer) {
	q, need := &s.R[r], w.Need[r]
	if q.D == sideIdle || q.Dead || q.Done {
		if q.Done && !q.Lied && !q.Dead && q.Posted > 0 && w.Faults.Has(FaultTwice|FaultTorn) {
			do("prefill writes again, other bytes, into page", int8(q.Page[0]), func(_ *sideState, q *side) error {
				q.Lied = true
				q.Fly[0] |= 0b1100
				return nil
			})
		}
		return
	}
	if q.Posted < need {
		do("prefill posts its write into page", int8(q.Page[q.Posted]), func(_ *sideState, q *side) error {
			q.Fly[q.Posted] |= 0b11
			q.Posted++
			return nil
		})
	}
	quiet := q.Fly == [maxNeed]uint8{}
	done := func(what string, refused bool) {
		do(what, -1, func(_ *sideState, q *side) error {
			q.Done, q.Refused, q.Rejected = true, refused, q.Rejected || refused
			return nil
		})
	}
	if q.Posted == need && quiet {
		done("prefill completes", false)
	}
	if q.Posted == need && !quiet && w.Faults.Has(FaultEarly) {
		done("prefill completes before its writes have landed", false)
	}
	if q.Posted < need && w.Faults.Has(FaultShort) {
		done("prefill completes too soon", false)
	}
	if w.Faults.Has(FaultReject) && q.Posted > 0 {
		done("prefill refuses, and completes its placeholder", true)
	}
	if w.Faults.Has(FaultCrash) {
		do("prefill dies", -1, func(_ *sideState, q *side) error { q.Dead = true; return nil })
	}
}

// memory is where writes land, without anybody's leave, and where a revocation takes effect.
func (w OneSided) memory(s *sideState, r int8, do sideDoer) {
	q := &s.R[r]
	if q.Map == revoking {
		do("the mapping is gone", -1, func(_ *sideState, q *side) error {
			q.Fly = [maxNeed]uint8{} // what had not landed never will
			if q.Map = revoked; !w.Faults.Has(FaultAckLost) {
				q.Map = closed
			}
			return nil
		})
	}
	if q.Map == revoked || q.Map == closed {
		if q.Fly != [maxNeed]uint8{} {
			do("a write finds no mapping", -1, func(_ *sideState, q *side) error { q.Fly = [maxNeed]uint8{}; return nil })
		}
		return
	}
	for k := range w.Need[r] {
		for half := range uint8(2) {
			p := q.Page[k]
			for _, bad := range []uint8{0, 2} {
				if q.Fly[k]>>(half+bad)&1 == 0 {
					continue
				}
				do(fmt.Sprintf("half %d of a write lands in page", half), int8(p), func(t *sideState, q *side) error {
					q.Fly[k] &^= 1 << (half + bad)
					t.Half[p][half] = right(r, k)
					if bad != 0 {
						t.Half[p][half] |= torn
					}
					return nil
				})
			}
		}
	}
}

// tell is the world in one line.
func (s sideState) tell() string {
	var b strings.Builder
	for i, o := range s.Owner {
		if o == 0xff {
			continue
		}
		owner := "free"
		if o > 0 {
			owner = fmt.Sprintf("r%d", o-1)
		}
		fmt.Fprintf(&b, "page %d: %s %s,%s | ", i, owner, s.Half[i][0], s.Half[i][1])
	}
	for r := range s.R {
		if q := &s.R[r]; q.D != sideIdle {
			fmt.Fprintf(&b, "r%d %s  ", r, sideNames[q.D])
		}
	}
	return strings.TrimRight(b.String(), " |")
}
