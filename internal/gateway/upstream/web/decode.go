package web

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/sse"
	"github.com/sluicekv/sluice/internal/verdict"
)

// maxEvent is the most bytes of one event of a stream.
const maxEvent = 4 << 20

// runDecode asks decode and says what it answers.
func (r *Run) runDecode(call *Call) {
	began := time.Now()
	r.askDecode(call)
	r.mu.Lock()
	r.report.Decode = time.Since(began)
	r.reading = false
	overdue := r.overdue
	r.mu.Unlock()
	if overdue {
		r.giveUp() // nothing is written to any more: prefill had its time
	}
	r.done()
}

func (r *Run) askDecode(call *Call) {
	lose := func(err error) { r.loses(legs.Decode, err) }
	resp, err := call.Do(r.ctx[legs.Decode])
	r.sent()
	if err != nil {
		lose(err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := readWhole(resp, 1<<20)
		if err != nil {
			body = nil
		}
		r.tell(legs.LegError{Leg: legs.Decode, Verdict: refusal(legs.Decode, resp.StatusCode, body)}, nil)
		return
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	// An answer that does not say what it is, is read as what was asked for.
	if r.plan.Stream && (kind == "text/event-stream" || resp.Header.Get("Content-Type") == "") {
		r.tell(legs.LegStatus{Leg: legs.Decode, Status: resp.StatusCode}, nil)
		read := r.readStream
		if r.plan.Messages {
			read = r.readMessage
		}
		if err := read(resp.Body); err != nil {
			lose(err)
		}
		return
	}
	body, err := readWhole(resp, r.plan.Whole)
	if err != nil {
		lose(err)
		return
	}
	r.tell(legs.LegStatus{Leg: legs.Decode, Status: resp.StatusCode}, nil)
	r.kept()
	if r.plan.Messages {
		r.hearMessage(body)
		return
	}
	r.hearWhole(body)
}

// kept asks whether prefill still had what it handed over, where decode was so late that it may not have had. What decode says first
// it says after it has read.
func (r *Run) kept() {
	if r.plan.Kept == nil || r.handedAt.IsZero() || time.Since(r.handedAt) < r.plan.Lease {
		return
	}
	if why := r.plan.Kept(r.ctx[legs.Decode], r.handedAt); why != "" {
		r.tell(legs.HandleLapsed{Why: why}, nil)
	}
}

func (r *Run) broke(bytes []byte, format string, args ...any) {
	r.tell(legs.LegBroke{Leg: legs.Decode, Verdict: verdict.Of(verdict.ProtocolViolation, verdict.Decode, format, args...)}, bytes)
}

// hearWhole takes a reply that is no stream.
func (r *Run) hearWhole(body []byte) {
	doc, bad := jsonedit.Read(body, nil)
	s := summary{most: r.plan.Most, ours: r.plan.ID}
	out, content := body, 0
	switch {
	case bad != nil:
		r.broke(nil, "decode's answer is not a JSON object (%s)", bad.Reason)
	default:
		out = bare(doc, body)
		if v, is := errorUnder200(legs.Decode, doc); is {
			r.tell(legs.LegBroke{Leg: legs.Decode, Verdict: v}, nil)
			break
		}
		if why := s.add(doc, false); why != "" {
			r.broke(nil, "decode's answer %s", why)
			break
		}
		if r.plan.Stream {
			r.broke(nil, "decode answered a stream with a whole body")
		}
		r.counted(&s)
		r.named(&s)
		r.tell(legs.LegUsage{Leg: legs.Decode, Prompt: s.prompt, Completion: s.completion}, nil)
		r.hearTop(legs.Decode, doc, false, s.completion)
		r.sayEnd(&s)
		out, content = r.clean(doc, body), 1
	}
	// What is no reply is no content: decode may well have nothing to say.
	r.tell(legs.LegBytes{Leg: legs.Decode, N: content}, out)
	r.tell(legs.LegEnd{Leg: legs.Decode}, nil)
}

// sayEnd says how a reply finished, and that it is no success if it is empty.
func (r *Run) sayEnd(s *summary) {
	if s.completion == 0 {
		r.broke(nil, "decode calls a reply of no tokens a success")
	}
	if f := s.finish(); f != legs.NoFinish {
		r.tell(legs.LegFinish{Leg: legs.Decode, Reason: f}, nil)
	}
}

// named compares the models that the legs say they ran: each echoes the name that it was asked for, which was the same.
func (r *Run) named(s *summary) {
	r.mu.Lock()
	other := r.model
	if other == "" {
		r.model = s.model
	}
	r.mu.Unlock()
	if other != "" && s.model != "" && other != s.model {
		r.broke(nil, "decode names another model than prefill")
	}
}

func (r *Run) counted(s *summary) {
	r.mu.Lock()
	r.report.DecodePrompt, r.report.Completion = s.prompt, max(s.completion, r.report.Completion)
	r.mu.Unlock()
}

// secrets are members of an answer that name memory of a worker.
var secrets = []string{"kv_transfer_params", "ec_transfer_params"}

// bare is an answer that is passed on though something is wrong with it, by guards that observe: without what names memory all the same.
func bare(doc *jsonedit.Doc, body []byte) []byte {
	for _, name := range secrets {
		if doc.Get(name).Said() {
			return doc.Edit().Delete(secrets...).Body().AppendTo(nil)
		}
	}
	return body
}

// clean removes from an answer what clients may not have, or did not ask for.
func (r *Run) clean(doc *jsonedit.Doc, body []byte) []byte {
	dirty := r.plan.Logprobs.Hide
	for _, name := range secrets {
		dirty = dirty || doc.Get(name).Said()
	}
	if !dirty {
		return body
	}
	e := doc.Edit()
	for _, name := range secrets {
		if doc.Get(name).Said() {
			e.Delete(name)
		}
	}
	if r.plan.Logprobs.Hide {
		choices, _ := r.plan.hidden(doc.Get("choices"))
		e.Set("choices", choices)
	}
	return e.Body().AppendTo(nil)
}

var doneEvent = []byte("data: [DONE]\n\n")

// readStream takes a streamed reply, chunk by chunk. The error is of the connection.
func (r *Run) readStream(body io.Reader) error {
	in := sse.NewReader(body, maxEvent)
	s := summary{most: r.plan.Most, ours: r.plan.ID}
	var like alike
	for first := true; ; first = false {
		e, err := in.Next()
		if first && err == nil {
			r.kept()
		}
		if err != nil {
			return r.streamEnds(err, func() { r.sayEnd(&s) })
		}
		if bytes.Equal(e.Data, []byte(sse.Done)) {
			r.sayEnd(&s)
			r.finish(in)
			return nil
		}
		if !like.hear(r, &s, e.Data) {
			r.hearChunk(&s, &like, e.Data)
		}
	}
}

// streamEnds says how a stream ended that did not end with its mark. The error is of the connection.
func (r *Run) streamEnds(err error, sayEnd func()) error {
	switch {
	case errors.Is(err, io.EOF):
		// Between two events.
		sayEnd()
		r.broke(nil, "decode's stream ended without its end mark")
	case errors.Is(err, sse.ErrTooLong), errors.Is(err, sse.ErrEncoding):
		r.broke(nil, "decode's stream cannot be read: an event is too long, or not UTF-8")
	case errors.Is(err, sse.ErrTruncated):
		return io.ErrUnexpectedEOF
	default:
		return err
	}
	r.tell(legs.LegEnd{Leg: legs.Decode}, nil)
	return nil
}

// finish says that the reply has ended, and reads what follows the end mark, so that the connection can be used again. There should be
// nothing, and none of what there is leaves.
func (r *Run) finish(in *sse.Reader) {
	r.tell(legs.LegEnd{Leg: legs.Decode}, append(r.owed, doneEvent...))
	for n := range 16 {
		if _, err := in.Next(); err != nil {
			return
		}
		if n == 0 {
			r.broke(nil, "decode sent more after its end mark")
		}
	}
}

// hearChunk takes one chunk of a stream.
func (r *Run) hearChunk(s *summary, like *alike, data []byte) {
	*like = alike{}
	doc, bad := jsonedit.Read(data, nil)
	if bad != nil {
		r.broke(event(data), "decode sent an event that is not a JSON object (%s)", bad.Reason)
		return
	}
	if v, is := errorUnder200(legs.Decode, doc); is {
		r.tell(legs.LegBroke{Leg: legs.Decode, Verdict: v, Failed: true}, event(bare(doc, data)))
		return
	}
	if why := s.add(doc, true); why != "" {
		r.broke(event(bare(doc, data)), "decode sent a chunk that %s", why)
		return
	}
	if !r.begun {
		r.begun = true
		r.named(s)
	}
	if s.usage {
		r.counted(s)
		r.tell(legs.LegUsage{Leg: legs.Decode, Prompt: s.prompt, Completion: s.completion}, nil)
	}
	count := -1
	if s.usage {
		count = s.completion
	}
	r.hearTop(legs.Decode, doc, true, count)
	if s.failed() {
		r.tell(legs.LegFinish{Leg: legs.Decode, Reason: legs.Other}, nil) // before the chunk that would tell a client that this is an end
	}
	n := 0
	if s.content {
		n = 1
	}
	if s.usage {
		r.owe(s, doc)
	}
	out := r.forClient(doc, data)
	if !r.plan.Logprobs.Read && !r.plan.Logprobs.Hide {
		like.learn(doc, data, out, s)
	}
	r.tell(legs.LegBytes{Leg: legs.Decode, N: n}, out)
}

// owe keeps the usage of a chunk that ends the reply. Engines say it once more in a chunk of its own, which is what a client asked for; where
// one does not, the end mark takes what is kept along, in that form.
func (r *Run) owe(s *summary, doc *jsonedit.Doc) {
	if !r.plan.Usage || r.plan.Every {
		return
	}
	r.owed = nil
	if s.ending {
		b := doc.Edit().Delete(secrets...).Set("choices", []byte("[]")).Body()
		r.owed = event(b.AppendTo(nil))
	}
}

// forClient is a chunk as the client asked for it: usage was asked for by the gateway, and is taken out again for those who did not.
func (r *Run) forClient(doc *jsonedit.Doc, data []byte) []byte {
	usage := doc.Get("usage").Kind() != jsonedit.Absent
	last := bytes.Equal(bytes.TrimSpace(doc.Get("choices").Raw()), []byte("[]"))
	if usage && last && !r.plan.Usage {
		return nil
	}
	strip := usage && !r.plan.Every && !last
	for _, name := range secrets {
		strip = strip || doc.Get(name).Said()
	}
	var choices []byte
	if r.plan.Logprobs.Hide && !last {
		all, keep := r.plan.hidden(doc.Get("choices"))
		if !keep {
			return nil
		}
		choices, strip = all, true
	}
	if !strip {
		return event(data)
	}
	e := doc.Edit().Delete(secrets...)
	if usage && !r.plan.Every && !last {
		e.Delete("usage")
	}
	if choices != nil {
		e.Set("choices", choices)
	}
	b := e.Body()
	out := make([]byte, 0, int(b.Len())+8)
	out = append(out, "data: "...)
	return append(b.AppendTo(out), "\n\n"...)
}

func event(data []byte) []byte { return sse.AppendData(make([]byte, 0, len(data)+8), data) }
