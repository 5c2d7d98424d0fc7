package sglang

import (
	"sync"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// Fleet is what the workers of one fleet share: rooms, and where prefills can be found.
type Fleet struct {
	*actor.Stage

	mu       sync.Mutex
	rooms    map[uint64]*room
	prefills map[string]*Worker // by bootstrap address
}

// NewFleet makes an empty fleet.
func NewFleet(s *actor.Stage) *Fleet {
	return &Fleet{Stage: s, rooms: map[uint64]*room{}, prefills: map[string]*Worker{}}
}

// room is where the legs of one request meet.
type room struct {
	id    uint64
	owner actor.Owner

	mu       sync.Mutex
	came     [2]bool
	digest   [2]uint64
	limit    [2]int
	reserved chan struct{} // closed when decode has pages
	sent     chan struct{} // closed when prefill is done with the room
	gone     chan struct{} // closed when decode is
	pages    []int         // of decode
	into     *actor.Pages
	writing  bool
	stale    bool // nothing is written: decode reads what its pages held
	first    int32
	failure  string // of the transfer
}

// enter is a leg's arrival in a room. It reports what the gateway did wrong.
func (f *Fleet) enter(w *Worker, id uint64, leg actor.Leg, q *actor.Request) (*room, bool) {
	f.mu.Lock()
	r := f.rooms[id]
	if r == nil {
		r = &room{id: id, reserved: make(chan struct{}), sent: make(chan struct{}), gone: make(chan struct{})}
		f.rooms[id] = r
	}
	f.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner == 0 {
		r.owner = f.Arrive()
	}
	if r.came[leg] {
		w.Violate(actor.RuleRoomReused, "room %d is used again by %s", id, leg)
		return nil, false
	}
	r.came[leg], r.digest[leg], r.limit[leg] = true, q.Digest, q.MaxTokens
	if r.came[0] && r.came[1] && (r.digest[0] != r.digest[1] || r.limit[0] != r.limit[1]) {
		w.Violate(actor.RuleLegs, "the legs of room %d got different requests", id)
	}
	return r, true
}

// leave forgets decode's part of a room; its number stays used.
func (f *Fleet) leave(r *room) {
	r.mu.Lock()
	r.pages, r.into = nil, nil
	closeOnce(r.gone)
	r.mu.Unlock()
}

// reserve says that decode has pages.
func (r *room) reserve(ids []int, into *actor.Pages) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pages, r.into = ids, into
	closeOnce(r.reserved)
}

// abandon takes decode's pages back, and reports whether they were being written.
func (r *room) abandon() (writing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writing
}

// begin takes decode's pages for writing.
func (r *room) begin() ([]int, *actor.Pages) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = true
	return r.pages, r.into
}

// finish ends prefill's part: a first token, or a failure.
func (r *room) finish(first int32, failure string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = false
	r.first, r.failure = first, failure
	closeOnce(r.sent)
}

// lie lets decode go on without anything having been written.
func (r *room) lie(first int32) {
	r.mu.Lock()
	r.stale = true
	r.mu.Unlock()
	r.finish(first, "")
}

func (r *room) result() (first int32, failure string, stale bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.failure, r.stale
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
