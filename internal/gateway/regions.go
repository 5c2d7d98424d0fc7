package gateway

import (
	"sync"
	"time"
)

// regions are mapped regions that bodies have left, for those to come: on many machines a page's first touch costs more than reading the
// body into it. They are zero: what a body held is wiped when it is dropped.
type regions struct {
	mu    sync.Mutex
	spare [][]byte
	bytes int
	timer *time.Timer
}

const (
	mostSpare = 64 << 20 // bytes that lie unused
	spareFor  = time.Second
)

var spareRegions regions

// take returns a region for n bytes, nil if there is none that fits well.
func (r *regions) take(n int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.spare) - 1; i >= 0; i-- {
		if b := r.spare[i]; len(b) >= n && len(b)/2 <= n {
			last := len(r.spare) - 1
			r.spare[i], r.spare[last] = r.spare[last], nil
			r.spare = r.spare[:last]
			r.bytes -= len(b)
			return b
		}
	}
	return nil
}

// give wipes the first used bytes of a region, and keeps it for a while, or not.
func (r *regions) give(b []byte, used int) {
	b = b[:cap(b)]
	r.mu.Lock()
	keep := r.bytes+len(b) <= mostSpare
	if keep {
		r.bytes += len(b) // before others count on the room
	}
	r.mu.Unlock()
	if !keep {
		unmap(b)
		return
	}
	clear(b[:used])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spare = append(r.spare, b)
	if r.timer == nil {
		r.timer = time.AfterFunc(spareFor, r.drop)
	} else {
		r.timer.Reset(spareFor)
	}
}

// drop gives all of them back to the system: no body has left one for a while.
func (r *regions) drop() {
	r.mu.Lock()
	gone := r.spare
	r.spare = nil
	for _, b := range gone {
		r.bytes -= len(b)
	}
	r.mu.Unlock()
	for _, b := range gone {
		unmap(b)
	}
}
