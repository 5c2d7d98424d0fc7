package record

import "sync"

// Ring holds the last records of a process, for /admin/records. Its zero value holds none.
type Ring struct {
	mu   sync.Mutex
	buf  []Record
	next uint64 // number of the next record; number n lies at n % len(buf)
}

// NewRing holds the last n records.
func NewRing(n int) *Ring { return &Ring{buf: make([]Record, n)} }

// Slot names a record that was put, so that what becomes known later (pages back) can be added to it.
type Slot uint64

// Put adds a record.
func (r *Ring) Put(rec Record) Slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Slot(r.next)
	if len(r.buf) > 0 {
		r.buf[r.next%uint64(len(r.buf))] = rec
	}
	r.next++
	return s
}

// Update replaces the record of a slot, unless newer ones have pushed it out.
func (r *Ring) Update(s Slot, rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := uint64(len(r.buf)); n > 0 && r.next-uint64(s) <= n {
		r.buf[uint64(s)%n] = rec
	}
}

// Last returns up to n records that match, newest first. A nil match takes all.
func (r *Ring) Last(n int, match func(*Record) bool) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Record
	for i := r.next; i > 0 && r.next-i < uint64(len(r.buf)) && len(out) < n; i-- {
		rec := &r.buf[(i-1)%uint64(len(r.buf))]
		if match == nil || match(rec) {
			out = append(out, *rec)
		}
	}
	return out
}
