package web

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// worker answers when it is told to, unless its request is cut before.
type worker struct {
	ready  chan struct{}
	answer string
	asked  bool
	cut    bool
}

func (w *worker) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked = true
	select {
	case <-w.ready:
	case <-r.Context().Done():
	}
	if err := r.Context().Err(); err != nil {
		w.cut = true
		return nil, err
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(w.answer)), Body: io.NopCloser(strings.NewReader(w.answer))}, nil
}

func (w *worker) call() *Call {
	d, _ := jsonedit.Read([]byte(`{}`), nil)
	return &Call{Transport: w, URL: &url.URL{Scheme: "http", Host: "worker"}, Body: d.Edit().Body()}
}

// A client leaves while prefill works. A short prompt's answer is still heard and handed to decode, which lets go of the pages that it names:
// else they would stand until the end of their lease. A long prompt is cut, so that nobody computes it for nothing.
func TestAClientThatLeavesStrandsNoPages(t *testing.T) {
	const answer = `{"id":"a","model":"m","choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}`
	for _, c := range []struct {
		grace  time.Duration
		handed bool
	}{{time.Hour, true}, {time.Millisecond, false}} {
		ready := make(chan struct{})
		prefill, decode := &worker{ready: ready, answer: answer}, &worker{ready: ready, answer: answer}
		over := make(chan struct{})
		r := Start(Plan{Whole: 1 << 20, Prefill: prefill.call(), Hand: func(*jsonedit.Doc, time.Duration) (legs.Handle, *Call) {
			return legs.Handle{State: legs.Ours}, decode.call()
		}}, func() { close(over) })
		if r.grace != grace || grace <= 0 {
			t.Errorf("a prefill has %v", r.grace)
		}
		r.grace = c.grace
		r.End(Unheard, time.Hour)
		if c.handed {
			close(ready)
		}
		<-over
		if prefill.cut == c.handed || decode.asked != c.handed {
			t.Errorf("a prefill that has %v more: cut %v, handed over %v", c.grace, prefill.cut, decode.asked)
		}
		if _, err := r.Next(context.Background()); err != nil {
			t.Errorf("nothing was heard: %v", err)
		}
	}
}
