package model

import (
	"errors"
	"fmt"

	"github.com/sluicekv/sluice/internal/handoff/model/check"
)

// Retry is one request in two tries on two pairs. The first may fail in a way that a second try may mend, and what its legs said may
// still be on its way when the second runs.
//
// A retry is a new attempt, with an id of its own (new-attempt): else the first try's "all is well" is heard as the second's. And
// there is none once a byte has left (resume): else the client reads two replies as one.
type Retry struct{ On Guard }

type tryState struct {
	Asked           bool
	Prefill, Decode uint8 // what the leg says: 0 nothing yet, 1 well, 2 no
	PHeard, DHeard  bool  // it has arrived
}

type retryState struct {
	Try     [2]tryState
	Now     int8  // the try that the gateway runs
	P, D    uint8 // what it holds to be said by the two legs of Now
	Bytes   [2]bool
	Verdict Code
}

// Init implements check.System.
func (w Retry) Init() (s retryState) {
	s.Try[0].Asked = true
	return s
}

// Rests implements check.System.
func (w Retry) Rests(s retryState) bool { return s.Verdict != None }

// Holds implements check.System.
func (w Retry) Holds(s retryState) error {
	if s.Bytes[0] && s.Bytes[1] {
		return errors.New("the client has bytes of two tries in one reply")
	}
	return nil
}

// Next implements check.System.
func (w Retry) Next(s retryState, yield func(check.Act, retryState, error)) {
	n := steps[retryState]{s, yield}
	for i := range int8(2) {
		q := s.Try[i]
		if !q.Asked {
			continue
		}
		n.may(q.Prefill == 0, "prefill is done", i, -1, func(t *retryState) { t.Try[i].Prefill = 1 })
		n.may(q.Prefill == 0, "prefill refuses", i, -1, func(t *retryState) { t.Try[i].Prefill = 2 })
		n.may(q.Decode == 0, "decode answers", i, -1, func(t *retryState) { t.Try[i].Decode = 1 })
		ours := i == s.Now || !w.On.Has(GuardNewAttempt)
		n.may(q.Prefill != 0 && !q.PHeard, "prefill's word reaches the gateway", i, -1, func(t *retryState) {
			t.Try[i].PHeard = true
			if ours && t.P == 0 {
				t.P = q.Prefill
			}
		})
		n.may(q.Decode != 0 && !q.DHeard, "decode's answer reaches the gateway", i, -1, func(t *retryState) {
			t.Try[i].DHeard = true
			if ours && t.D == 0 {
				t.D = q.Decode
			}
		})
	}
	if s.Verdict != None {
		return
	}
	if s.P == 2 {
		n.do("the gateway refuses", -1, -1, func(t *retryState) error { t.Verdict = ContextLength; return nil })
		return
	}
	if s.P == 1 && s.D == 1 && !s.Bytes[s.Now] {
		n.do("the gateway lets the first byte go, of try", -1, s.Now, func(t *retryState) error {
			t.Bytes[t.Now] = true
			if t.Try[t.Now].Prefill == 2 {
				return fmt.Errorf("a byte of try %d goes to the client although that try's prefill refused", t.Now)
			}
			return nil
		})
	}
	if s.P == 1 && s.D == 1 && s.Bytes[s.Now] {
		n.do("the reply is whole", -1, -1, func(t *retryState) error { t.Verdict = OK; return nil })
	}
	left := s.Bytes[0] || s.Bytes[1]
	n.may(s.Now == 0 && (!left || !w.On.Has(GuardResume)), "a leg is lost: the gateway tries again elsewhere", -1, -1, func(t *retryState) {
		t.Now, t.P, t.D = 1, 0, 0
		t.Try[1].Asked = true
	})
	n.may(true, "a leg is lost, or time is over: the gateway refuses", -1, -1, func(t *retryState) { t.Verdict = PeerLost })
}

func (s retryState) tell() string {
	say := [...]string{"-", "ok", "no"}
	return fmt.Sprintf("try %d: prefill %s, decode %s", s.Now, say[s.P], say[s.D])
}
