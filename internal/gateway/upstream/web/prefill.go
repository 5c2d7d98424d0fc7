package web

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/verdict"
)

// runPrefill asks prefill, and where the legs run one after the other, then decode.
func (r *Run) runPrefill() {
	call := r.askPrefill()
	r.mu.Lock()
	r.report.Prefill = time.Since(r.began)
	if call != nil {
		r.handed, r.reading = true, true
		r.live++
	}
	r.mu.Unlock()
	serial := r.plan.Decode == nil
	r.plan.Hand, r.plan.Alone = nil, nil // they keep the body
	if call == nil && serial {
		r.sent() // decode is never asked
	}
	if call != nil {
		r.handedAt = time.Now()
		r.runDecode(call)
	}
	r.done()
}

// askPrefill says what prefill answered, and returns decode's call if there is one to make.
func (r *Run) askPrefill() (decode *Call) {
	no := func(e legs.Event) *Call {
		r.tell(e, nil)
		if r.plan.Alone != nil {
			return r.plan.Alone()
		}
		return nil
	}
	resp, err := r.plan.Prefill.Do(r.ctx[legs.Prefill])
	r.sent()
	if err != nil {
		r.loses(legs.Prefill, err)
		return nil
	}
	defer resp.Body.Close()
	answered := time.Now()
	body, err := readWhole(resp, r.plan.Whole)
	switch {
	case err != nil:
		r.loses(legs.Prefill, err)
		return nil
	case resp.StatusCode != http.StatusOK:
		// Where the legs run one after the other this is the whole story, in every mode.
		r.tell(legs.LegError{Leg: legs.Prefill, Verdict: refusal(legs.Prefill, resp.StatusCode, body)}, nil)
		return nil
	}
	doc, bad := jsonedit.Read(body, nil)
	if bad != nil {
		return no(legs.LegBroke{Leg: legs.Prefill, Verdict: verdict.Of(verdict.ProtocolViolation, verdict.Prefill, "prefill's answer is not a JSON object (%s)", bad.Reason)})
	}
	if v, is := errorUnder200(legs.Prefill, doc); is {
		return no(legs.LegBroke{Leg: legs.Prefill, Verdict: v})
	}
	s := summary{most: 1, ours: r.plan.ID, first: true}
	if why := s.add(doc, false); why != "" {
		return no(legs.LegBroke{Leg: legs.Prefill, Verdict: verdict.Of(verdict.ProtocolViolation, verdict.Prefill, "prefill's answer %s", why)})
	}
	if s.prompt < 0 || s.completion < 0 {
		return no(legs.LegBroke{Leg: legs.Prefill, Verdict: verdict.Of(verdict.ProtocolViolation, verdict.Prefill, "prefill's answer does not say what it computed")})
	}
	r.mu.Lock()
	r.report.Prompt, r.report.Cached = s.prompt, cached(doc)
	r.mu.Unlock()
	r.named(&s)
	r.tell(legs.LegStatus{Leg: legs.Prefill, Status: resp.StatusCode}, nil)
	r.tell(legs.LegUsage{Leg: legs.Prefill, Prompt: s.prompt, Completion: s.completion}, nil)
	if f := s.finish(); f != legs.NoFinish {
		r.tell(legs.LegFinish{Leg: legs.Prefill, Reason: f}, nil)
	}
	r.hearTop(legs.Prefill, doc, false, s.completion)
	if r.plan.Hand != nil {
		var h legs.Handle
		h, decode = r.plan.Hand(doc, time.Since(answered))
		if h.State != legs.Missing {
			r.tell(legs.LegHandle{Leg: legs.Prefill, Handle: h}, nil)
		}
		if decode == nil && r.plan.Alone != nil {
			decode = r.plan.Alone()
		}
	}
	r.tell(legs.LegEnd{Leg: legs.Prefill}, nil)
	return decode
}

// cached is how many tokens of a prompt prefill did not have to compute: in its usage, or in what it hands over (vLLM NIXL). -1: not said.
func cached(answer *jsonedit.Doc) int {
	for _, v := range []jsonedit.Value{
		answer.Get("usage").Get("prompt_tokens_details").Get("cached_tokens"), answer.Get("kv_transfer_params").Get("remote_prefill_cached_tokens"),
	} {
		if n, ok := v.Int(); ok && n >= 0 && n < 1<<40 {
			return int(n)
		}
	}
	return -1
}

// readWhole reads an answer of at most most bytes.
func readWhole(resp *http.Response, most int) ([]byte, error) {
	if resp.ContentLength > int64(most) {
		return nil, errTooLong
	}
	size := 4096
	if n := resp.ContentLength; n >= 0 {
		size = int(n) + 1
	}
	b := make([]byte, 0, size)
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := resp.Body.Read(b[len(b):min(cap(b), most+1)])
		b = b[:len(b)+n]
		switch {
		case len(b) > most:
			return nil, errTooLong
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return nil, err
		}
	}
}
