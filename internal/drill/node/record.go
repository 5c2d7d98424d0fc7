package node

import (
	"encoding/binary"
	"os"
	"sync"
	"syscall"

	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
)

// EventSize is the length of an event in the shared pipe: far below what a pipe writes in one piece.
const EventSize = 56

// Put writes an event as the pipe has it: attempt, boot, digest, A, B, C, machine, step, code, state.
func Put(b *[EventSize]byte, e trace.Event) {
	copy(b[:16], e.Attempt[:])
	le := binary.LittleEndian
	le.PutUint64(b[16:], e.Boot)
	le.PutUint64(b[24:], e.Digest)
	le.PutUint32(b[32:], e.A)
	le.PutUint32(b[36:], e.B)
	le.PutUint32(b[40:], e.C)
	b[44], b[45], b[46], b[47] = byte(e.Machine), byte(e.Step), byte(e.Code), e.State
}

// Get reads what Put wrote.
func Get(b []byte) (e trace.Event) {
	copy(e.Attempt[:], b[:16])
	le := binary.LittleEndian
	e.Boot, e.Digest = le.Uint64(b[16:]), le.Uint64(b[24:])
	e.A, e.B, e.C = le.Uint32(b[32:]), le.Uint32(b[36:]), le.Uint32(b[40:])
	e.Machine, e.Step, e.Code, e.State = trace.Machine(b[44]), trace.Step(b[45]), verdict.Code(b[46]), b[47]
	return e
}

// recorder puts each event into the pipe, and sends the node a signal at the step that it is armed for.
type recorder struct {
	pipe *os.File
	file trace.Recorder // nil: none

	mu      sync.Mutex
	machine trace.Machine
	step    trace.Step
	left    int
	signal  syscall.Signal
}

// Record implements trace.Recorder. The node's own lock around it is what keeps a worker's and its pool's events in one order.
func (r *recorder) Record(e trace.Event) {
	var b [EventSize]byte
	Put(&b, e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pipe != nil {
		_, _ = r.pipe.Write(b[:])
	}
	if r.file != nil {
		r.file.Record(e)
	}
	if r.left > 0 && e.Machine == r.machine && e.Step == r.step {
		if r.left--; r.left == 0 {
			_ = syscall.Kill(os.Getpid(), r.signal)
			if r.signal == syscall.SIGKILL {
				select {} // nothing that the step asks for is performed
			}
		}
	}
}

func (r *recorder) arm(a Arm) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = 0
	if a.Step == "" {
		return nil
	}
	step, err := trace.ParseStep(a.Step)
	if err != nil {
		return err
	}
	for _, m := range []trace.Machine{trace.Decode, trace.Prefill, trace.Gateway, trace.Pool} {
		if m.String() == a.Machine {
			r.machine, r.step, r.left, r.signal = m, step, a.Nth, syscall.Signal(a.Signal)
		}
	}
	return nil
}
