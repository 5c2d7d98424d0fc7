package foreign

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

// lateMetric counts, at a vLLM prefill with NixlConnector, the reads of pages that it had given back before: it says so afterwards,
// decode goes on, and nobody else hears of it.
const lateMetric = "vllm:nixl_num_notifications_after_expiry_total"

// late is what a prefill said of late reads, and when. Under Fleet.mu.
type late struct {
	seen []lateReading // the oldest first
}

type lateReading struct {
	at    time.Time // before the worker was asked
	reads float64
}

// maxLate readings are kept: at one in ten seconds, forty minutes.
const maxLate = 256

func (l *late) add(r lateReading) {
	if n := len(l.seen); n > 1 && l.seen[n-1].reads == r.reads && l.seen[n-2].reads == r.reads {
		l.seen[n-1] = r // what lies between two that say the same says nothing
		return
	}
	if len(l.seen) == maxLate {
		l.seen = append(l.seen[:0], l.seen[1:]...)
	}
	l.seen = append(l.seen, r)
}

// before is the last that was said before t.
func (l *late) before(t time.Time) (reads float64, known bool) {
	for i := len(l.seen) - 1; i >= 0; i-- {
		if l.seen[i].at.Before(t) {
			return l.seen[i].reads, true
		}
	}
	return 0, false
}

// ErrNotCounted says that a worker does not count late reads, or cannot be asked.
var ErrNotCounted = errors.New("the worker does not say how often its pages were read too late")

// LateSince reports how many reads of a prefill's pages came too late since the last reading of its facts before t, as the worker
// counts them now. A count that is lower than before is a worker that has started again: nothing that it gave away is there any more.
func (n *Node) LateSince(ctx context.Context, t time.Time) (reads int, err error) {
	now, err := n.readLate(ctx)
	if err != nil {
		return 0, err
	}
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	was, known := n.late.before(t)
	switch {
	case !known:
		return 0, ErrNotCounted
	case now < was:
		return max(int(now), 1), nil
	}
	return int(now - was), nil
}

// readLate asks a worker.
func (n *Node) readLate(ctx context.Context) (float64, error) {
	r := &http.Request{Method: http.MethodGet, URL: n.At("/metrics"), Header: n.Header, Host: n.URL.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	resp, err := n.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, ErrNotCounted
	}
	sum, ok := lateReads(b)
	if !ok {
		return 0, ErrNotCounted
	}
	return sum, nil
}

const maxMetrics = 8 << 20

// lateReads sums the metric over the engines of a page of metrics.
func lateReads(page []byte) (sum float64, ok bool) {
	for line := range bytes.Lines(page) {
		rest, is := bytes.CutPrefix(line, []byte(lateMetric))
		if !is || len(rest) == 0 || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		if rest[0] == '{' {
			end := bytes.LastIndexByte(rest, '}')
			if end < 0 {
				continue
			}
			rest = rest[end+1:]
		}
		f := bytes.Fields(rest) // the value, and perhaps a time
		if len(f) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(string(f[0]), 64)
		if err != nil || !(v >= 0 && v <= 1<<53) { // not a number is neither
			continue
		}
		sum, ok = sum+v, true
	}
	return sum, ok
}

// noteLate keeps what a prefill says of late reads now, for attempts that come later.
func (f *Fleet) noteLate(ctx context.Context, n *Node) {
	at := time.Now()
	reads, err := n.readLate(ctx)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n.late.add(lateReading{at, reads})
}
