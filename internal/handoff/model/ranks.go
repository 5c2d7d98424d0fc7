package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Ranks is a prefill of several ranks, each of which writes its slice of every page without a gate, and acknowledges an abort when it
// is quiet. The page may go to another attempt when all have (all-ranks), by name: not when the last one spoke, not when there is room
// for one name only, and not when time is over (then it is fenced first). An acknowledgement may get lost, come early or come twice.
type Ranks struct {
	On     Guard
	Faults Fault
}

const ranks = 2

type rankState struct {
	Owner   uint8          // of the one page; attempt + 1
	Data    [ranks]content // by slice
	Flying  [ranks]bool    // r0's writes
	Posted  [ranks]bool
	Acked   [ranks]bool // sent
	Heard   [ranks]bool // arrived
	Count   uint8       // arrived, however often
	Aborted bool
	Fenced  bool
	R1      uint8 // 0 waits, 1 holds the page, 2 written, 3 over
}

// Init implements check.System.
func (w Ranks) Init() (s rankState) {
	s.Owner = 1
	return s
}

// Rests implements check.System.
func (w Ranks) Rests(s rankState) bool { return s.R1 == 3 && s.Owner == 0 }

// Holds implements check.System.
func (w Ranks) Holds(s rankState) error { return nil }

// Next implements check.System.
func (w Ranks) Next(s rankState, yield func(check.Act, rankState, error)) {
	n := steps[rankState]{s, yield}
	n.may(!s.Aborted, "decode aborts", 0, -1, func(t *rankState) { t.Aborted = true })
	for k := range int8(ranks) {
		n.may(!s.Posted[k] && !s.Acked[k] && !s.Fenced, "posts its write, rank", 0, k, func(t *rankState) { t.Posted[k], t.Flying[k] = true, true })
		n.may(s.Flying[k], "lands the write, rank", 0, k, func(t *rankState) { t.Flying[k], t.Data[k] = false, right(0, 0) })
		n.may(s.Aborted && !s.Acked[k] && (!s.Flying[k] || w.Faults.Has(FaultAckEarly)), "acknowledges that it is quiet, rank", 0, k, func(t *rankState) { t.Acked[k] = true })
		n.may(s.Acked[k] && !s.Heard[k], "decode hears the acknowledgement of rank", 0, k, func(t *rankState) { t.Heard[k] = true; t.Count++ })
		n.may(s.Heard[k] && s.Count < ranks && w.Faults.Has(FaultAckTwice), "decode hears once more the acknowledgement of rank", 0, k, func(t *rankState) { t.Count++ })
	}
	quiet := s.Heard == [ranks]bool{true, true}
	if !w.On.Has(GuardAllRanks) {
		quiet = s.Count >= ranks || s.Heard[ranks-1] // one name is kept: the last to speak
	}
	sure := s.Fenced || quiet && !w.Faults.Has(FaultAckEarly) || quiet && !w.On.Has(GuardFence)
	n.may(s.Aborted && !s.Fenced && w.On.Has(GuardFence), "decode fences: the connections of all ranks are torn down", 0, -1, func(t *rankState) {
		t.Fenced, t.Flying = true, [ranks]bool{}
	})
	n.may(s.Owner == 1 && s.Aborted && sure, "decode zeroes and frees the page", 0, -1, func(t *rankState) { t.Owner, t.Data = 0, [ranks]content{} })
	n.may(s.Owner == 0 && s.R1 == 0, "reserves the page", 1, -1, func(t *rankState) { t.Owner, t.R1 = 2, 1 })
	n.may(s.R1 == 1, "is written whole", 1, -1, func(t *rankState) { t.R1, t.Data = 2, [ranks]content{right(1, 0), right(1, 0)} })
	if s.R1 == 2 {
		n.do("reads the page and serves", 1, -1, func(t *rankState) error {
			t.R1, t.Owner = 3, 0
			for _, d := range t.Data {
				if d != right(1, 0) {
					return leak(1, d)
				}
			}
			return nil
		})
	}
}

func (s rankState) tell() string {
	return fmt.Sprintf("page: owner %d, %s,%s; acknowledgements heard %v", s.Owner, s.Data[0], s.Data[1], s.Heard)
}
