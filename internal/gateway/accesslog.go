package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// accessLog is one JSON line a request: ids, numbers, times, and nothing that a client or a worker wrote. Requests never wait for it:
// what a slow or full disk does not take in time is lost, and counted.
type accessLog struct {
	log  *slog.Logger
	path string // empty: the writer cannot be opened anew

	mu     sync.Mutex
	buf    []byte
	spare  []byte
	gone   uint64
	closed bool
	out    io.Writer // under writing
	file   *os.File  // under writing; nil: not ours

	writing sync.Mutex // before mu
	wake    chan struct{}
	done    chan struct{}
}

// mostWaiting bounds the bytes that wait for the disk.
const mostWaiting = 4 << 20

// openAccessLog appends to the file at path; "-" is standard output.
func openAccessLog(path string) (*accessLog, error) {
	if path == "-" {
		return newAccessLog(os.Stdout), nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("access log: %w", err)
	}
	a := newAccessLog(f)
	a.path, a.file = path, f
	return a, nil
}

func newAccessLog(out io.Writer) *accessLog {
	a := &accessLog{out: out, wake: make(chan struct{}, 1), done: make(chan struct{})}
	a.log = slog.New(slog.NewJSONHandler(a, nil))
	go a.run()
	return a
}

// Write takes one line of the handler's.
func (a *accessLog) Write(line []byte) (int, error) {
	a.mu.Lock()
	if a.closed || len(a.buf)+len(line) > mostWaiting {
		a.gone++
		a.mu.Unlock()
		return len(line), nil
	}
	first := len(a.buf) == 0
	a.buf = append(a.buf, line...)
	a.mu.Unlock()
	if first {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
	return len(line), nil
}

func (a *accessLog) run() {
	defer close(a.done)
	for {
		<-a.wake
		if a.flush() {
			return
		}
	}
}

// flush writes what waits. It reports whether nothing more will come.
func (a *accessLog) flush() (last bool) {
	a.writing.Lock()
	defer a.writing.Unlock()
	a.mu.Lock()
	b := a.buf
	a.buf, last = a.spare[:0], a.closed
	a.mu.Unlock()
	if n, err := a.out.Write(b); err != nil {
		lines := uint64(0)
		for _, c := range b[max(n, 0):] {
			if c == '\n' {
				lines++
			}
		}
		a.mu.Lock()
		a.gone += lines
		a.mu.Unlock()
	}
	a.spare = b[:0]
	if cap(a.spare) > mostWaiting/8 {
		a.spare = nil
	}
	return last
}

// reopen begins the file anew where it was moved away.
func (a *accessLog) reopen() error {
	if a.path == "" {
		return nil
	}
	f, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	a.writing.Lock()
	defer a.writing.Unlock()
	a.file.Close()
	a.out, a.file = f, f
	return nil
}

func (a *accessLog) lost() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone
}

// close writes what waits.
func (a *accessLog) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default: // one is waiting to be heard
	}
	<-a.done
	if a.file != nil {
		a.file.Close()
	}
}

// sent is what a request's line says beside what its record does.
type sent struct {
	status             int // 0: none was sent
	verdict            verdict.Verdict
	prompt, completion uint32 // as far as they were known at the reply's end
	firstByte          time.Duration
}

// log writes the request's line. Everything in it is a number, a name of the configuration, or an id without content.
func (x *walk) log() {
	a := x.g.access
	if a == nil {
		return
	}
	var b [20]slog.Attr
	n := 0
	add := func(at slog.Attr) { b[n] = at; n++ }
	add(slog.String("request", x.request))
	add(slog.String("attempt", x.rec.Attempt))
	add(slog.String("tenant", x.tenant.ID))
	add(slog.String("key", x.tenant.Key))
	add(slog.String("model", x.asked.model))
	add(slog.String("endpoint", x.endpoint.String()))
	add(slog.Bool("stream", x.asked.stream))
	add(slog.Int("status", x.sent.status))
	add(slog.String("verdict", x.sent.verdict.Code.String()))
	add(slog.String("layer", x.sent.verdict.Layer.String()))
	add(slog.Int("tries", x.tries))
	if x.rec.Pair.Decode != "" {
		add(slog.String("prefill", x.rec.Pair.Prefill))
		add(slog.String("decode", x.rec.Pair.Decode))
	}
	add(slog.Uint64("prompt_tokens", uint64(x.sent.prompt)))
	add(slog.Uint64("completion_tokens", uint64(x.sent.completion)))
	add(slog.Int64("encode_us", x.rec.Times[record.PhaseEncode].Microseconds()))
	add(slog.Int64("hold_us", x.rec.Times[record.PhaseHold].Microseconds()))
	add(slog.Int64("first_byte_us", x.sent.firstByte.Microseconds()))
	add(slog.Int64("total_us", time.Since(x.start).Microseconds()))
	a.log.LogAttrs(context.Background(), slog.LevelInfo, "request", b[:n]...)
}
