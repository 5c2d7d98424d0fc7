package model

// Look is what of a state of Transfer can be seen from outside: what a scheduler that drives the real machines along the model's acts
// compares them with, act by act.
type Look struct {
	Attempts [attempts]AttemptLook
	Pages    [maxPages]PageLook
}

// AttemptLook is one attempt at both of its ends, and what is between them.
type AttemptLook struct {
	Began   bool
	D       Decode[uint8]  // what no longer matters once it is over is zero
	P       Prefill[uint8] // the same
	Dead    bool           // prefill is gone, or says nothing of its own any more
	Link    int            // frames under way to decode
	Staged  bool           // a page lies in staging: the machine said yes, the pool has not been asked
	Copying bool           // the pool is in the middle of a copy
	Reading bool           // a step has the pages in view
	Fenced  bool           // the lease is revoked
	Final   bool           // the lease is sealed
}

// PageLook is one page of decode's pool.
type PageLook struct {
	Owner int // attempt; -1: free, or not there
	Gen   uint8
	Pins  uint8
}

// Look shows a state.
func (w Transfer) Look(s transferState) (l Look) {
	for r := range s.R {
		q := &s.R[r]
		a := AttemptLook{Began: q.Began, D: q.D, P: q.P, Dead: q.Dead, Staged: q.Stage != noFrame, Copying: q.Copy != noFrame,
			Reading: q.Reading, Fenced: q.L.Fenced > 0, Final: q.L.Sealed}
		for _, f := range q.Link {
			if f != noFrame {
				a.Link++
			}
		}
		l.Attempts[r] = a
	}
	for i, c := range s.Pool {
		l.Pages[i] = PageLook{Owner: int(c.Owner) - 1, Gen: c.Gen, Pins: c.Pins}
		if i >= w.Pages {
			l.Pages[i] = PageLook{Owner: -1}
		}
	}
	return l
}
