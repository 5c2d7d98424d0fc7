package trace

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/verdict"
)

// Writer records events as lines of JSON:
//
//	{"n":1,"attempt":"…32 hex…","machine":"decode","step":"page-landed","a":3,"b":0,"code":"none","state":3,"digest":"…16 hex…"}
//
// Lines are numbered from 1, so that a deleted or swapped line shows. Buffered: Flush or Close writes the rest. The first
// write error is kept, later events are dropped and counted; it never disturbs the handoff.
type Writer struct {
	mu      sync.Mutex
	w       *bufio.Writer
	line    []byte
	n       uint64
	dropped uint64
	err     error
}

// NewWriter writes to w, which the caller closes after Flush.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 64<<10)} }

// Record implements Recorder.
func (w *Writer) Record(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		w.dropped++
		return
	}
	w.n++
	w.line = appendEvent(w.line[:0], w.n, e)
	_, w.err = w.w.Write(w.line)
}

// Flush writes what is buffered and returns the first error, with the number of events that it cost.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if w.err != nil {
		return fmt.Errorf("trace: %d events dropped: %w", w.dropped, w.err)
	}
	return nil
}

func appendEvent(b []byte, n uint64, e Event) []byte {
	b = append(b, `{"n":`...)
	b = strconv.AppendUint(b, n, 10)
	b = append(b, `,"attempt":"`...)
	b = hex.AppendEncode(b, e.Attempt[:])
	b = append(b, `","machine":"`...)
	b = append(b, e.Machine.String()...)
	b = append(b, `","step":"`...)
	b = append(b, e.Step.String()...)
	b = append(b, `","a":`...)
	b = strconv.AppendUint(b, uint64(e.A), 10)
	b = append(b, `,"b":`...)
	b = strconv.AppendUint(b, uint64(e.B), 10)
	b = append(b, `,"code":"`...)
	b = append(b, e.Code.String()...)
	b = append(b, `","state":`...)
	b = strconv.AppendUint(b, uint64(e.State), 10)
	b = append(b, `,"digest":"`...)
	b = fmt.Appendf(b, "%016x", e.Digest)
	return append(b, "\"}\n"...)
}

// maxLine bounds a line of a recorded file.
const maxLine = 1024

// ErrOrder is returned by Read when a line's number does not follow the one before it.
var ErrOrder = errors.New("trace: a line is missing or out of place")

// Read calls f with each event of a recorded file, in order, with its line number, until the end or f's first error.
func Read(r io.Reader, f func(line uint64, e Event) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, maxLine), maxLine)
	for n := uint64(1); s.Scan(); n++ {
		var l struct {
			N       uint64       `json:"n"`
			Attempt attempt.ID   `json:"attempt"`
			Machine string       `json:"machine"`
			Step    string       `json:"step"`
			A       uint32       `json:"a"`
			B       uint32       `json:"b"`
			Code    verdict.Code `json:"code"`
			State   uint8        `json:"state"`
			Digest  string       `json:"digest"`
		}
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			return fmt.Errorf("trace: line %d: %w", n, err)
		}
		if l.N != n {
			return fmt.Errorf("line %d says it is %d: %w", n, l.N, ErrOrder)
		}
		e := Event{Attempt: l.Attempt, Args: Args{A: l.A, B: l.B, Code: l.Code}, State: l.State}
		var err error
		if e.Step, err = ParseStep(l.Step); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		for _, m := range []Machine{Decode, Prefill, Gateway} {
			if m.String() == l.Machine {
				e.Machine = m
			}
		}
		if e.Machine == 0 {
			return fmt.Errorf("trace: line %d: no machine is named %q", n, l.Machine)
		}
		if e.Digest, err = strconv.ParseUint(l.Digest, 16, 64); err != nil {
			return fmt.Errorf("trace: line %d: digest: %w", n, err)
		}
		if err := f(n, e); err != nil {
			return err
		}
	}
	return s.Err()
}
