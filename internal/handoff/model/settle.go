package model

import (
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Foreign is the gateway in front of a pair that is not ours: engines without a gate, which free decode's page as soon as the request on
// decode ends or is aborted, whatever prefill is still writing. Two requests follow one another on the pair.
//
// What the gateway can do there is not to start it: a reply that it will not give is swallowed to its end and not aborted (rest), and the
// pair gets the next request only when both legs of the one before are over (settle).
type Foreign struct{ On Guard }

type foreignEnd struct {
	Asked, Refused          bool  // the gateway has sent it; the gateway will not answer it
	Write                   uint8 // of prefill: 0 not posted, 1 in flight, 2 landed
	Ready                   bool  // decode's engine knows that KV is there
	PrefillOver, DecodeOver bool  // the leg's answer has ended, as the gateway sees it
	Stopped                 bool  // prefill posts nothing any more
}

type foreignState struct {
	Owner uint8
	Data  content
	R     [two]foreignEnd
}

// Init implements check.System.
func (w Foreign) Init() (s foreignState) { return s }

// Rests implements check.System.
func (w Foreign) Rests(s foreignState) bool {
	for _, q := range s.R {
		if !q.PrefillOver || !q.DecodeOver || q.Write == 1 {
			return false
		}
	}
	return s.Owner == 0
}

// Holds implements check.System.
func (w Foreign) Holds(foreignState) error { return nil }

// Next implements check.System.
func (w Foreign) Next(s foreignState, yield func(check.Act, foreignState, error)) {
	n := steps[foreignState]{s, yield}
	for r := range int8(two) {
		q := s.R[r]
		first := s.R[0]
		turn := r == 0 || first.DecodeOver && (first.PrefillOver || !w.On.Has(GuardSettle))
		n.may(!q.Asked && turn && s.Owner == 0, "the gateway sends the request to both legs", r, -1, func(t *foreignState) {
			t.R[r].Asked = true
			t.Owner, t.Data = uint8(r)+1, zeroes
		})
		if !q.Asked {
			continue
		}
		n.may(q.Write == 0 && !q.Stopped, "prefill posts its write", r, -1, func(t *foreignState) { t.R[r].Write = 1 })
		n.may(q.Write == 1, "prefill's write lands", r, -1, func(t *foreignState) {
			t.Data = right(r, 0) // in whoever's page it is by now
			t.R[r].Write, t.R[r].Ready = 2, true
		})
		n.may(q.Write == 2 && !q.PrefillOver, "prefill's leg ends", r, -1, func(t *foreignState) { t.R[r].PrefillOver = true })
		n.may(q.Stopped && q.Write == 0 && !q.PrefillOver, "prefill's leg ends", r, -1, func(t *foreignState) { t.R[r].PrefillOver = true })
		if q.DecodeOver {
			continue
		}
		if q.Ready {
			n.do("decode reads, and answers", r, -1, func(t *foreignState) error {
				t.R[r].DecodeOver, t.Owner = true, 0
				if t.Data != right(r, 0) && !q.Refused {
					return leak(r, t.Data)
				}
				return nil
			})
		}
		n.may(true, "decode fails, and its engine frees the page", r, -1, func(t *foreignState) {
			t.R[r].DecodeOver, t.R[r].Refused, t.R[r].Stopped, t.Owner = true, true, true, 0
		})
		if q.Refused {
			continue
		}
		if w.On.Has(GuardRest) {
			n.may(true, "the client hangs up, or the legs disagree: the gateway swallows what is left", r, -1, func(t *foreignState) { t.R[r].Refused = true })
			continue
		}
		n.may(true, "the client hangs up, or the legs disagree: the gateway aborts, and decode's engine frees the page", r, -1, func(t *foreignState) {
			t.R[r] = foreignEnd{Asked: true, Refused: true, Write: q.Write, PrefillOver: true, DecodeOver: true, Stopped: true}
			t.Owner = 0
		})
	}
}

func (s foreignState) tell() string { return fmt.Sprintf("page: owner %d, %s", s.Owner, s.Data) }
