package record

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
)

// Writer appends records as JSON lines. A disk that is full, slow or gone never delays or fails a request: what cannot be
// written is counted and lost, and a line that was cut is ended before the next one, so that a reader loses that line alone.
type Writer struct {
	out     io.Writer
	close   func() error
	queue   chan Record
	onError func(lost int, err error)
	done    chan struct{}

	mu      sync.Mutex
	closed  bool
	written uint64
	lost    uint64
}

// queueLength bounds the records that wait for the disk.
const queueLength = 4096

// Open appends to the file at path, made if it is not there, readable by its owner alone. onError hears of each loss, from the
// writer's goroutine; nil is allowed.
func Open(path string, onError func(lost int, err error)) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	w := NewWriter(f, onError)
	w.close = f.Close
	return w, nil
}

// NewWriter writes to out, which the caller closes after Close. Calls of out.Write come from one goroutine.
func NewWriter(out io.Writer, onError func(lost int, err error)) *Writer {
	w := &Writer{out: out, queue: make(chan Record, queueLength), onError: onError, done: make(chan struct{})}
	go w.run()
	return w
}

// Write queues a record. It never blocks.
func (w *Writer) Write(r Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		w.lost++
		return
	}
	select {
	case w.queue <- r:
	default:
		w.lost++
	}
}

// Counts returns the records that were written and lost so far.
func (w *Writer) Counts() (written, lost uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written, w.lost
}

// Close writes what is queued and returns. Idempotent.
func (w *Writer) Close() error {
	w.mu.Lock()
	already := w.closed
	w.closed = true
	if !already {
		close(w.queue)
	}
	w.mu.Unlock()
	<-w.done
	if already || w.close == nil {
		return nil
	}
	return w.close()
}

func (w *Writer) run() {
	defer close(w.done)
	torn := false
	var batch []byte
	for r := range w.queue {
		batch = batch[:0]
		if torn {
			batch = append(batch, '\n')
		}
		lines := 0
		for more := true; more; {
			b, err := json.Marshal(r)
			if err != nil {
				w.count(0, 1, err)
			} else {
				batch = append(append(batch, b...), '\n')
				lines++
			}
			if len(batch) >= 64<<10 {
				break
			}
			select {
			case r, more = <-w.queue:
			default:
				more = false
			}
		}
		n, err := w.out.Write(batch)
		if err != nil {
			// Lines before the cut are whole.
			whole := 0
			for _, c := range batch[:max(n, 0)] {
				if c == '\n' {
					whole++
				}
			}
			if torn && whole > 0 {
				whole--
			}
			if n > 0 {
				torn = batch[n-1] != '\n'
			}
			w.count(whole, lines-whole, err)
			continue
		}
		torn = false
		w.count(lines, 0, nil)
	}
}

func (w *Writer) count(written, lost int, err error) {
	w.mu.Lock()
	w.written += uint64(written)
	w.lost += uint64(lost)
	w.mu.Unlock()
	if err != nil && w.onError != nil {
		w.onError(lost, err)
	}
}
