package web

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// worker answers after a while, unless its request is cut before.
type worker struct {
	after  time.Duration
	answer string
	asked  bool
	cut    bool
}

func (w *worker) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked = true
	select {
	case <-time.After(w.after):
	case <-r.Context().Done():
		w.cut = true
		return nil, r.Context().Err()
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
		after  time.Duration
		handed bool
	}{{0, true}, {grace / 2, true}, {time.Minute, false}} {
		synctest.Test(t, func(t *testing.T) {
			prefill, decode := &worker{after: c.after, answer: answer}, &worker{answer: answer}
			over := make(chan struct{})
			begun := time.Now()
			r := Start(Plan{Whole: 1 << 20, Prefill: prefill.call(), Hand: func(*jsonedit.Doc, time.Duration) (legs.Handle, *Call) {
				return legs.Handle{State: legs.Ours}, decode.call()
			}}, func() { close(over) })
			r.End(Unheard, time.Hour)
			<-over
			if prefill.cut == c.handed || decode.asked != c.handed {
				t.Errorf("prefill that takes %v: cut %v, handed over %v", c.after, prefill.cut, decode.asked)
			}
			if took := time.Since(begun); took > grace {
				t.Errorf("prefill that takes %v: the attempt went on for %v", c.after, took)
			}
			if _, err := r.Next(context.Background()); err != nil {
				t.Errorf("nothing was heard: %v", err)
			}
		})
	}
}
