package drill

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// events is what all nodes of a fleet did, in one order: see package node.
type events struct {
	r, w *os.File
	done chan struct{}

	mu      sync.Mutex
	all     []trace.Event
	base    int // events before all that were forgotten
	changed chan struct{}
}

func newEvents() (*events, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	e := &events{r: r, w: w, done: make(chan struct{}), changed: make(chan struct{})}
	go e.read()
	return e, nil
}

func (e *events) read() {
	defer close(e.done)
	b := make([]byte, 512*node.EventSize)
	have := 0
	for {
		n, err := e.r.Read(b[have:])
		have += n
		whole := have - have%node.EventSize
		if whole > 0 {
			e.mu.Lock()
			for i := 0; i < whole; i += node.EventSize {
				e.all = append(e.all, node.Get(b[i:]))
			}
			close(e.changed)
			e.changed = make(chan struct{})
			e.mu.Unlock()
			have = copy(b, b[whole:have])
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				panic("drill: the pipe of events: " + err.Error())
			}
			return
		}
	}
}

// now is how many events there are.
func (e *events) now() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.base + len(e.all)
}

// since are the events after the first from.
func (e *events) since(from int) []trace.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]trace.Event(nil), e.all[from-e.base:]...)
}

// forget forgets the first to events: a soak would hold millions.
func (e *events) forget(to int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all, e.base = append([]trace.Event(nil), e.all[to-e.base:]...), to
}

// count counts the steps of a machine after the first from events.
func (e *events) count(from int, m trace.Machine, s trace.Step) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.all[from-e.base:] {
		if x.Machine == m && x.Step == s {
			n++
		}
	}
	return n
}

// wait returns when the nth step of a machine after the first from events was made, or false when done is closed first.
func (e *events) wait(done <-chan struct{}, from int, m trace.Machine, s trace.Step, nth int) bool {
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		if e.count(from, m, s) >= nth {
			return true
		}
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

// close ends the pipe once every node has.
func (e *events) close() {
	e.w.Close()
	e.r.Close()
	<-e.done
}
