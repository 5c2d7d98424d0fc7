package worker

import (
	"sync"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/wire"
)

// outbox is what is still to be said on a link. Putting a frame into it never blocks, so it is done under an attempt's lock; one
// goroutine carries it to the socket at the peer's pace. A peer that does not read fills it, and loses the link: the
// limit is in frames, and generated tokens that wait share one frame an attempt.
type outbox struct {
	limit    int
	overflow func() // closes the link; called at most once, on its own goroutine

	mu     sync.Mutex
	queue  []wire.Frame
	first  uint64                // number of queue[0]; numbers grow by one a frame
	output map[attempt.ID]uint64 // number of the attempt's Output that waits and may still grow
	closed bool
	wake   chan struct{}
}

func newOutbox(limit int, overflow func()) *outbox {
	return &outbox{limit: limit, overflow: overflow, output: map[attempt.ID]uint64{}, wake: make(chan struct{}, 1)}
}

// put queues a frame.
func (o *outbox) put(f wire.Frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.append(f)
}

func (o *outbox) append(f wire.Frame) {
	if o.closed {
		return
	}
	if len(o.queue) >= o.limit {
		o.closed, o.queue = true, nil
		go o.overflow()
	} else {
		o.queue = append(o.queue, f)
	}
	o.signal()
}

// putToken queues one generated token, in the frame of those before it if that has not left yet.
func (o *outbox) putToken(id attempt.ID, index uint32, token int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n, ok := o.output[id]; ok && n >= o.first && n-o.first < uint64(len(o.queue)) {
		out := o.queue[n-o.first].(wire.Output)
		if len(out.IDs) < wire.OutputChunk {
			out.IDs = append(out.IDs, token)
			o.queue[n-o.first] = out
			return
		}
	}
	o.output[id] = o.first + uint64(len(o.queue))
	o.append(wire.Output{Attempt: id, Index: index, IDs: []int32{token}})
}

// take removes what is queued; nil and false when the outbox is closed and empty.
func (o *outbox) take() ([]wire.Frame, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.queue
	o.queue, o.first = nil, o.first+uint64(len(q))
	clear(o.output)
	return q, len(q) > 0 || !o.closed
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// close ends the outbox: what is queued still leaves, later frames are dropped.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.signal()
}

// run carries frames to send until the outbox is closed and empty, or send fails.
func (o *outbox) run(send func(wire.Frame) error) error {
	for {
		frames, open := o.take()
		for _, f := range frames {
			if err := send(f); err != nil {
				o.close()
				return err
			}
		}
		if !open {
			return nil
		}
		if len(frames) == 0 {
			<-o.wake
		}
	}
}
