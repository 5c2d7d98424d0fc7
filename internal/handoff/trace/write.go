package trace

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"
)

// Encoder turns events into the lines of one file, one after another. The zero Encoder is ready for a Head; it is not safe for
// concurrent use.
type Encoder struct {
	n   uint64
	sum uint32
}

// Head appends the file's first line. sample is the rate at which attempts are taken; 1: all.
func (c *Encoder) Head(b []byte, sample uint64) []byte {
	from := len(b)
	b = appendHead(b, sample)
	c.sum = crc32.Checksum(b[from:], castagnoli)
	return b
}

// Event appends the line of the next event.
func (c *Encoder) Event(b []byte, e Event) []byte {
	from := len(b)
	c.n++
	b, c.sum = seal(appendEvent(b, c.n, e), from, c.sum)
	return b
}

// End appends the last line; lost is the number of events that are missing before it.
func (c *Encoder) End(b []byte, lost uint64) []byte {
	from := len(b)
	b, c.sum = seal(appendEnd(b, c.n, lost), from, c.sum)
	return b
}

// Write writes a whole file of events.
func Write(w io.Writer, events []Event) error {
	var c Encoder
	b := c.Head(nil, 1)
	for _, e := range events {
		if b = c.Event(b, e); len(b) > 64<<10 {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	_, err := w.Write(c.End(b, 0))
	return err
}

// FileBuffer bounds what a File keeps in memory.
const FileBuffer = 8 << 20

// File records into a file that a goroutine of its own writes. Record never waits for the disk: when the disk does not keep up with
// FileBuffer bytes, or fails, recording is over, and Close says how many events that cost. Safe for concurrent use.
type File struct {
	mu      sync.Mutex
	lines   Encoder
	pending []byte
	spare   []byte
	lost    uint64
	closed  bool
	err     error
	wake    chan struct{}
	done    chan struct{}
	w       io.WriteCloser
}

// NewFile starts a File. It owns w. sample is the rate at which attempts are taken: see Sampler.
func NewFile(w io.WriteCloser, sample uint64) *File {
	f := &File{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	f.pending = f.lines.Head(nil, max(sample, 1))
	go f.run()
	return f
}

// Record implements Recorder.
func (f *File) Record(e Event) {
	f.mu.Lock()
	if f.closed || f.lost > 0 || f.err != nil || len(f.pending) >= FileBuffer {
		f.lost++
		f.mu.Unlock()
		return
	}
	f.pending = f.lines.Event(f.pending, e)
	full := len(f.pending) >= FileBuffer/8
	f.mu.Unlock()
	if full {
		f.signal()
	}
}

func (f *File) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// fileEvery is how long a line waits for company.
const fileEvery = 200 * time.Millisecond

func (f *File) run() {
	defer close(f.done)
	tick := time.NewTicker(fileEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-f.wake:
		}
		f.mu.Lock()
		out, closed := f.pending, f.closed
		f.pending, f.spare = f.spare[:0], nil
		f.mu.Unlock()
		var err error
		if len(out) > 0 {
			_, err = f.w.Write(out)
		}
		f.mu.Lock()
		f.spare = out
		if err != nil && f.err == nil {
			f.err = err
		}
		f.mu.Unlock()
		if closed {
			return
		}
	}
}

// Close writes what is left and the last line, and closes the file. The error names what was lost.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		<-f.done
		return nil
	}
	f.closed = true
	f.pending = f.lines.End(f.pending, f.lost)
	lost := f.lost
	f.mu.Unlock()
	f.signal()
	<-f.done
	err := errors.Join(f.err, f.w.Close())
	if lost > 0 {
		err = errors.Join(fmt.Errorf("trace: %d events were lost: the disk did not keep up", lost), err)
	}
	return err
}
