package sglang

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

// outcome is what a leg did.
type outcome struct {
	prompt  int
	ids     []int32
	finish  string // stop, length or abort
	matched string // JSON: what stopped it
	prefill bool
	text    string // if it is not the ids' own
}

// generate makes the reply from a context, and sends it.
func (c *call) generate(cfg actor.Config, context []actor.Slot, owner actor.Owner, first *int32) {
	q := c.q
	copier := actor.NewCopier(context, owner)
	o := outcome{prompt: q.Prompt, finish: "length", matched: "null"}
	var speech actor.Speech
	var text strings.Builder
	foreign, sent := 0, 0
	if q.Stream {
		c.out.Begin()
		if q.Endpoint == actor.Chat {
			c.chunk(o, "", true, "")
		}
	}
	say := func(last bool) bool {
		if !q.Stream {
			return true
		}
		whole := text.String()
		delta := whole[sent:]
		sent = len(whole)
		switch q.Endpoint {
		case actor.Generate:
			c.nativeEvent(o, whole, last)
		case actor.Chat:
			if delta != "" {
				c.chunk(o, delta, false, "")
			}
		case actor.Completions:
			c.textChunk(o, delta, last)
		case actor.Messages:
			c.messageText(o, delta)
		}
		return !c.out.Over()
	}
	empty := q.Stream && c.lie.Is(actor.Empty)
	for len(o.ids) < q.MaxTokens && !empty {
		var slot actor.Slot
		if first != nil {
			slot = actor.Slot{Token: *first, Owner: owner}
			copier.Take(*first)
			first = nil
		} else {
			slot = copier.Next()
		}
		o.ids = append(o.ids, slot.Token)
		if slot.Owner != owner && slot.Owner != 0 {
			foreign++
		}
		if slot.Token == recall.EOS && !q.IgnoreEOS {
			o.finish, o.matched = "stop", strconv.Itoa(recall.EOS)
			break
		}
		text.WriteString(speech.Add(slot.Token))
		if stop, at := stopped(text.String(), q.Stop); at >= 0 {
			o.finish = "stop"
			o.matched = quoted(stop)
			cut := text.String()[:at]
			text.Reset()
			text.WriteString(cut)
			sent = min(sent, at)
			break
		}
		if len(o.ids) == q.MaxTokens {
			break
		}
		if !say(false) || !c.w.Sleep(c.ctx, cfg.TokenWait) {
			c.w.Leaked(c.id, foreign)
			return
		}
		select {
		case <-c.stop:
			o.finish = "abort"
		default:
			continue
		}
		break
	}
	text.WriteString(speech.Flush())
	o.text = text.String()
	c.w.Leaked(c.id, foreign)
	c.w.ReplyTokens.Add(int64(len(o.ids)))
	if !q.Stream {
		c.answer(o)
		return
	}
	if !empty {
		say(true)
	}
	c.end(o)
}

func stopped(text string, stops []string) (string, int) {
	for _, s := range stops {
		if at := strings.Index(text, s); at >= 0 && s != "" {
			return s, at
		}
	}
	return "", -1
}

// light is a reply of a fixed text.
func (c *call) light(cfg actor.Config) {
	q := c.q
	o := outcome{prompt: q.Prompt, finish: "length", matched: "null"}
	if q.Stream {
		c.out.Begin()
		if q.Endpoint == actor.Chat {
			c.chunk(o, "", true, "")
		}
	}
	var text []byte
	for i := range q.MaxTokens {
		t := "abcdefghijklmnopqrstuvwxyz "[i%27]
		o.ids = append(o.ids, int32(t))
		text = append(text, t)
		if !q.Stream {
			continue
		}
		if !c.w.Sleep(c.ctx, cfg.TokenWait) || c.out.Over() {
			return
		}
		last := i == q.MaxTokens-1
		switch q.Endpoint {
		case actor.Chat:
			c.chunk(o, string(text[i:]), false, "")
		case actor.Completions:
			c.textChunk(o, string(text[i:]), last)
		case actor.Messages:
			c.messageText(o, string(text[i:]))
		default:
			o.text = string(text)
			c.nativeEvent(o, o.text, last)
		}
	}
	c.w.ReplyTokens.Add(int64(len(o.ids)))
	o.text = string(text)
	if !q.Stream {
		c.answer(o)
		return
	}
	c.end(o)
}

// answer sends a whole reply. A prefill that was asked to stream does so.
func (c *call) answer(o outcome) {
	c.free()
	if o.text == "" {
		o.text = actor.Text(o.ids)
	}
	o = c.untrue(o)
	if c.q.Stream {
		c.out.Begin()
		switch c.q.Endpoint {
		case actor.Generate:
			c.nativeEvent(o, o.text, true)
		case actor.Chat:
			c.chunk(o, "", true, "")
			if o.text != "" {
				c.chunk(o, o.text, false, "")
			}
		case actor.Completions:
			c.textChunk(o, o.text, true)
		case actor.Messages:
			c.messageText(o, o.text)
		}
		c.end(o)
		return
	}
	var b []byte
	switch c.q.Endpoint {
	case actor.Generate:
		b = c.native(nil, o, o.text, true)
	case actor.Chat:
		b = c.head(nil, "chat.completion")
		b = append(b, `"choices":[`...)
		if !c.lie.Is(actor.Empty) {
			b = append(b, `{"index":`...)
			b = append(b, c.index()...)
			b = append(b, `,"message":{"role":"assistant","content":`...)
			b = appendText(b, o.text)
			b = append(b, `,"reasoning_content":null`...)
			if !c.w.atLeast(0, 5, 23) {
				b = append(b, `,"tool_calls":null`...)
			}
			b = append(b, `},"logprobs":null,"finish_reason":`...)
			b = append(b, c.finish(o)...)
			b = append(b, `,"matched_stop":`...)
			b = append(b, orNull(o.matched)...)
			b = append(b, '}')
		}
		b = c.tail(append(b, ']'), o)
	case actor.Completions:
		b = c.head(nil, "text_completion")
		b = append(b, `"choices":[`...)
		if !c.lie.Is(actor.Empty) {
			b = append(b, `{"index":`...)
			b = append(b, c.index()...)
			b = append(b, `,"text":`...)
			b = appendText(b, c.q.Text+o.text)
			b = append(b, `,"logprobs":null,"finish_reason":`...)
			b = append(b, c.finish(o)...)
			b = append(b, `,"matched_stop":`...)
			b = append(b, orNull(o.matched)...)
			b = append(b, '}')
		}
		b = c.tail(append(b, ']'), o)
	case actor.Messages:
		b = c.message(o)
	}
	if c.lie.Is(actor.RefusedAside) {
		b = append(b[:len(b)-1], `,"error":{"message":`...)
		b = appendText(b, overPool(o.prompt, longest(c.w.Config())))
		b = append(b, `,"type":"BadRequestError","code":400}}`...)
	}
	c.out.Whole(http.StatusOK, b)
}

// untrue changes what was done into what a lie says was done.
func (c *call) untrue(o outcome) outcome {
	switch {
	case c.lie == nil:
	case c.lie.Is(actor.NoneComputed):
		o.ids = nil
	case c.lie.Is(actor.TwoComputed):
		o.ids = append(o.ids, o.ids...)
	case c.lie.Is(actor.Empty):
		o.ids, o.text = nil, ""
	}
	return o
}

func (c *call) head(b []byte, object string) []byte {
	b = append(b, `{"id":`...)
	b = appendText(b, c.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, time.Now().Unix(), 10)
	b = append(b, `,"model":`...)
	b = appendText(b, c.model())
	return append(b, ',')
}

func (c *call) model() string {
	m := c.q.Model
	if c.lie.Is(actor.OtherModel) {
		m += "-other"
	}
	return m
}

func (c *call) index() string {
	if c.lie.Is(actor.OtherIndex) {
		return "1"
	}
	return "0"
}

func (c *call) finish(o outcome) string {
	switch {
	case c.lie.Is(actor.FinishMissing):
		return "null"
	case c.lie.Is(actor.AbortFinish):
		return `"abort"`
	}
	return `"` + o.finish + `"`
}

func orNull(s string) string {
	if s == "" {
		return "null"
	}
	return s
}

// tail ends a whole reply with usage and metadata.
func (c *call) tail(b []byte, o outcome) []byte {
	if !c.lie.Is(actor.CountMissing) {
		b = append(b, `,"usage":`...)
		b = c.usage(b, o, true)
	}
	if c.lie.Is(actor.CountTwice) {
		o.prompt++
		b = append(b, `,"usage":`...)
		b = c.usage(b, o, true)
	}
	b = append(b, `,"metadata":{"weight_version":"default","weight_versions":[`...)
	b = appendVersions(b, len(o.ids))
	return append(b, "]}}"...)
}

func appendVersions(b []byte, n int) []byte {
	b = append(b, `{"version":"default","start":0,"end":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '}')
}

// counted is the prompt's count as the leg says it, in JSON.
func (c *call) counted(n int, last bool) string {
	l := c.lie
	switch {
	case l == nil:
	case l.Is(actor.CountOne):
		n = 1
	case l.Is(actor.CountShort):
		n--
	case l.Is(actor.CountLong), l.Is(actor.CountLate) && last:
		n++
	case l.Is(actor.CountZero):
		n = 0
	case l.Is(actor.CountText):
		return quoted(strconv.Itoa(n))
	}
	return strconv.Itoa(n)
}

func (c *call) usage(b []byte, o outcome, last bool) []byte {
	p := c.counted(o.prompt, last)
	n, _ := strconv.Atoi(strings.Trim(p, `"`))
	b = append(b, `{"prompt_tokens":`...)
	b = append(b, p...)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(n+len(o.ids)), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(len(o.ids)), 10)
	// The last chunk of a completion's stream comes without what is null.
	bare := last && c.q.Stream && c.q.Endpoint == actor.Completions
	if !bare {
		b = append(b, `,"prompt_tokens_details":null`...)
	}
	b = append(b, `,"reasoning_tokens":0`...)
	if c.w.atLeast(0, 5, 23) && !bare {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// chunk sends a chunk of a chat: the role, a piece of text, or the finish reason.
func (c *call) chunk(o outcome, text string, role bool, finish string) {
	b := c.head(nil, "chat.completion.chunk")
	b = append(b, `"choices":[{"index":`...)
	b = append(b, c.index()...)
	b = append(b, `,"delta":{"reasoning_content":null`...)
	if role {
		b = append(b, `,"role":"assistant","content":""`...)
	} else if text != "" {
		b = append(b, `,"content":`...)
		b = appendText(b, text)
	}
	b = append(b, `},"logprobs":null,"finish_reason":`...)
	b = append(b, orNull(finish)...)
	b = append(b, `,"matched_stop":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, orNull(o.matched)...)
	}
	b = append(b, "}]"...)
	// The role and the finish reason come without.
	if c.q.Continuous && text != "" && !c.lie.Is(actor.CountMissing) {
		b = append(b, `,"usage":`...)
		b = c.usage(b, o, false)
	}
	c.out.Event(append(b, '}'), finish != "")
}

// textChunk sends a chunk of a completion.
func (c *call) textChunk(o outcome, text string, last bool) {
	b := c.head(nil, "text_completion")
	b = append(b, `"choices":[{"index":`...)
	b = append(b, c.index()...)
	b = append(b, `,"text":`...)
	b = appendText(b, text)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if last {
		b = append(b, c.finish(o)...)
		b = append(b, `,"matched_stop":`...)
		b = append(b, orNull(o.matched)...)
	} else {
		b = append(b, `null,"matched_stop":null`...)
	}
	b = append(b, `}],"usage":`...)
	if c.q.Continuous && !c.lie.Is(actor.CountMissing) {
		b = c.usage(b, o, false)
	} else {
		b = append(b, "null"...)
	}
	c.out.Event(append(b, '}'), last)
}

// streamHead begins an event of a stream.
func (c *call) streamHead() []byte {
	if c.q.Endpoint == actor.Completions {
		return c.head(nil, "text_completion")
	}
	return c.head(nil, "chat.completion.chunk")
}

// end finishes a stream.
func (c *call) end(o outcome) {
	if c.q.Endpoint == actor.Chat && !c.lie.Is(actor.Empty, actor.FinishMissing) {
		c.chunk(o, "", false, c.finish(o))
	}
	if c.q.Endpoint == actor.Messages {
		c.messageEnd(o)
	} else if c.q.Usage && c.q.Endpoint != actor.Generate && !c.lie.Is(actor.CountMissing) {
		b := c.streamHead()
		b = append(b, `"choices":[],"usage":`...)
		b = c.usage(b, o, true)
		c.out.Event(append(b, '}'), false)
	}
	c.free()
	c.out.Done()
}

func (c *call) nativeEvent(o outcome, text string, last bool) {
	c.out.Event(c.native(nil, o, text, last), last)
}

// native is a body of /generate.
func (c *call) native(b []byte, o outcome, text string, last bool) []byte {
	now := time.Now()
	seconds := func(t time.Time) string {
		return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64)
	}
	since := strconv.FormatFloat(now.Sub(c.came).Seconds(), 'f', 6, 64)
	v23 := c.w.atLeast(0, 5, 23)
	b = append(b, `{"text":`...)
	b = appendText(b, text)
	b = append(b, `,"output_ids":[`...)
	for i, id := range o.ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	b = append(b, `],"meta_info":{"id":`...)
	b = appendText(b, c.id)
	b = append(b, `,"finish_reason":`...)
	switch {
	case !last, c.lie.Is(actor.FinishMissing):
		b = append(b, "null"...)
	case c.lie.Is(actor.AbortFinish):
		b = append(b, `{"type":"abort","message":`...)
		b = appendText(b, overPool(o.prompt, longest(c.w.Config())))
		b = append(b, `,"status_code":null,"err_type":null}`...)
	case o.prefill:
		b = append(b, `{"type":"length","length":0}`...)
	case o.finish == "stop":
		b = append(append(append(b, `{"type":"stop","matched":`...), orNull(o.matched)...), '}')
	case o.finish == "abort":
		b = append(b, `{"type":"abort","message":"Abort before prefill","status_code":null,"err_type":null}`...)
	default:
		b = append(append(append(b, `{"type":"length","length":`...), strconv.Itoa(len(o.ids))...), '}')
	}
	if !c.lie.Is(actor.CountMissing) {
		b = append(append(b, `,"prompt_tokens":`...), c.counted(o.prompt, last)...)
	}
	b = append(b, `,"weight_version":"default","num_retractions":0`...)
	if v23 && o.prefill {
		b = append(b, `,"storage_prefetch_wait":0.0,"storage_staging_wait":0.0`...)
	}
	b = append(append(b, `,"forward_entry_time":`...), seconds(now)...)
	if o.prefill {
		b = append(append(b, `,"prefill_finished_time":`...), seconds(now)...)
	}
	b = append(b, `,"queue_time":0.000357`...)
	if c.q.Logprobs {
		b = c.logprobs(b, o)
	}
	b = append(append(b, `,"reasoning_tokens":0,"completion_tokens":`...), strconv.Itoa(len(o.ids))...)
	b = append(b, `,"cached_tokens":0,"weight_versions":[`...)
	b = appendVersions(b, len(o.ids))
	b = append(append(b, `],"cached_tokens_details":null,"dp_rank":null,"e2e_latency":`...), since...)
	b = append(append(b, `,"request_received_ts":`...), seconds(c.came)...)
	if v23 {
		b = append(append(b, `,"first_token_latency":`...), since...)
	}
	b = append(append(b, `,"api_server_dispatch_finish_ts":`...), seconds(c.came)...)
	b = append(append(b, `,"request_finished_ts":`...), seconds(now)...)
	if !v23 && !o.prefill && len(o.ids) > 1 {
		b = append(b, `,"decode_throughput":1074113.5`...)
	}
	b = append(append(b, `,"response_sent_to_client_ts":`...), seconds(now)...)
	return append(b, "}}"...)
}

// logprobs of a leg: the prompt's where it was computed, and the reply's.
func (c *call) logprobs(b []byte, o outcome) []byte {
	b = append(b, `,"input_token_logprobs":[`...)
	if o.prefill && o.prompt == c.q.Prompt {
		for i, id := range c.q.IDs {
			if i > 0 {
				b = append(b, ',')
			}
			p := "-5.5"
			if i == 0 {
				p = "null"
			}
			b = fmt.Appendf(b, "[%s,%d,null]", p, id)
		}
	}
	b = append(b, `],"output_token_logprobs":[`...)
	n := 0
	if !o.prefill || o.prompt == c.q.Prompt {
		for i, id := range o.ids {
			if i > 0 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, "[-5.5,%d,null]", id)
			n++
		}
	}
	return fmt.Appendf(b, `],"output_token_logprobs_length":%d`, n)
}

func appendText(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func quoted(s string) string { return string(appendText(nil, s)) }

// newID makes an id as the engine does: 32 hexadecimal digits.
func newID(w *Worker, _ *jsonedit.Doc) string {
	n := w.Requests.Load()
	_, boots := w.Boot()
	return fmt.Sprintf("%08x%08x%016x", uint32(boots), uint32(w.Config().Leg)+0xf0, uint64(n))
}
