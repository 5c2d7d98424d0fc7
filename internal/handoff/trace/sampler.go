package trace

import (
	"encoding/binary"
	"sync"

	"github.com/sluicekv/sluice/internal/attempt"
)

// Sampler passes on whole attempts, one in Every: from the first event of each machine to its last, so that what it passes on can be
// replayed whenever it began or ends. Which ones follows from the id alone, so all processes of a fleet take the same. Safe for
// concurrent use.
type Sampler struct {
	next  Recorder
	every uint64

	mu      sync.Mutex
	open    map[attempt.ID]uint8 // machines under way, a bit each
	stopped bool
	late    uint64
}

// NewSampler takes one attempt in every; 0 and 1: all.
func NewSampler(next Recorder, every uint64) *Sampler {
	return &Sampler{next: next, every: max(every, 1), open: map[attempt.ID]uint8{}}
}

// Takes implements Chooser.
func (s *Sampler) Takes(id attempt.ID) bool {
	return binary.LittleEndian.Uint64(id[8:])%s.every == 0
}

// Record implements Recorder. Its lock is held over next's Record, which keeps the order.
func (s *Sampler) Record(e Event) {
	if !s.Takes(e.Attempt) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	machines, bit := s.open[e.Attempt], uint8(1)<<e.Machine
	switch {
	case e.Step == Opened && (machines != 0 || !s.stopped):
		s.open[e.Attempt] = machines | bit
	case machines == 0, e.Machine != Pool && machines&bit == 0:
		s.late++ // of one that began before the sampler, or is over
		return
	case e.Last() && machines == bit:
		delete(s.open, e.Attempt)
	case e.Last():
		s.open[e.Attempt] = machines &^ bit
	}
	s.next.Record(e)
}

// Stop takes no new attempts. Those under way go on; Left counts them.
func (s *Sampler) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
}

// Left is the number of attempts under way.
func (s *Sampler) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Numbers of the machines' last states: package handoff has their names, and a test there holds these to them.
const (
	DecodeSettled  = 9
	PrefillSettled = 6
	GatewayQuiet   = 4
)

// Last reports whether the event may be a machine's last: what comes after it changes nothing.
func (e Event) Last() bool {
	switch e.Machine {
	case Decode:
		return e.State == DecodeSettled
	case Prefill:
		return e.State == PrefillSettled
	case Gateway:
		return e.State == GatewayQuiet || e.Step == GivenUp
	}
	return false
}
