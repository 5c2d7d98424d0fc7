package vllm

import (
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

// outcome is what a leg did.
type outcome struct {
	prompt  int
	ids     []int32
	finish  string // stop or length
	stopped string // JSON: the stop string
	text    string
	handle  []byte       // kv_transfer_params, nil for null
	context []actor.Slot // that the first token came from
	chunk   []int32      // tokens of this chunk
}

const fingerprint = "vllm-0.32.0-ed5d7ad1"

// generate makes the reply from a context, and sends it.
func (c *call) generate(cfg actor.Config, context []actor.Slot, owner actor.Owner) {
	q := c.q
	o := outcome{prompt: q.Prompt, finish: "length", stopped: "null", context: append([]actor.Slot(nil), context...)}
	copier := actor.NewCopier(context, owner)
	var speech actor.Speech
	var text strings.Builder
	foreign, sent := 0, 0
	if q.Stream {
		c.out.Begin()
		c.start(o)
	}
	done := q.Stream && c.lie.Is(actor.Empty)
	for !done && len(o.ids) < q.MaxTokens {
		slot := copier.Next()
		o.ids = append(o.ids, slot.Token)
		if slot.Owner != owner && slot.Owner != 0 {
			foreign++
		}
		switch {
		case slot.Token == recall.EOS && !q.IgnoreEOS:
			o.finish, done = "stop", true
		default:
			text.WriteString(speech.Add(slot.Token))
		}
		if stop, at := stopped(text.String(), q.Stop); at >= 0 {
			o.finish, o.stopped, done = "stop", quoted(stop), true
			cut := text.String()[:at]
			text.Reset()
			text.WriteString(cut)
			sent = min(sent, at)
		}
		if len(o.ids) == q.MaxTokens {
			done = true
		}
		if done {
			text.WriteString(speech.Flush())
		}
		if q.Stream {
			whole := text.String()
			o.chunk = []int32{slot.Token}
			c.textChunk(o, whole[sent:], done)
			sent = len(whole)
			if c.out.Over() {
				c.w.Leaked(c.id, foreign)
				return
			}
		}
		if !done && !c.w.Sleep(c.ctx, cfg.TokenWait) {
			c.w.Leaked(c.id, foreign)
			return
		}
	}
	o.text = text.String()
	c.w.Leaked(c.id, foreign)
	c.w.ReplyTokens.Add(int64(len(o.ids)))
	if !q.Stream {
		c.answer(o)
		return
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
	o := outcome{prompt: q.Prompt, finish: "length", stopped: "null"}
	if q.Stream {
		c.out.Begin()
		c.start(o)
	}
	var text []byte
	for i := range q.MaxTokens {
		t := "abcdefghijklmnopqrstuvwxyz "[i%27]
		o.ids = append(o.ids, int32(t))
		text = append(text, t)
		if q.Stream {
			if !c.w.Sleep(c.ctx, cfg.TokenWait) || c.out.Over() {
				return
			}
			o.chunk = o.ids[i:]
			c.textChunk(o, string(text[i:]), i == q.MaxTokens-1)
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

// answer sends a whole reply. A prefill that was asked to stream does so, without its handle.
func (c *call) answer(o outcome) {
	c.free()
	if o.text == "" {
		o.text = actor.Text(o.ids)
	}
	switch {
	case c.lie == nil:
	case c.lie.Is(actor.NoneComputed):
		o.ids = nil
	case c.lie.Is(actor.TwoComputed):
		o.ids = append(o.ids, o.ids...)
	case c.lie.Is(actor.Empty):
		o.ids, o.text = nil, ""
	}
	if c.q.Stream {
		c.out.Begin()
		c.start(o)
		o.chunk = o.ids
		c.textChunk(o, o.text, true)
		c.end(o)
		return
	}
	if c.q.Endpoint == actor.Messages {
		c.message(o)
		return
	}
	chat := c.q.Endpoint == actor.Chat
	b := c.head(nil, "chat.completion", "text_completion")
	b = append(b, `"choices":[`...)
	if !c.lie.Is(actor.Empty) {
		b = append(append(b, `{"index":`...), c.index()...)
		if chat {
			b = append(b, `,"message":{"role":"assistant","content":`...)
			b = appendText(b, o.text)
			b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}`...)
		} else {
			b = appendText(append(b, `,"text":`...), c.q.Text+o.text)
		}
		b = c.logprobs(append(b, `,"logprobs":`...), o, o.ids, 0)
		b = append(append(b, `,"finish_reason":`...), c.finish(o)...)
		b = append(append(b, `,"stop_reason":`...), orNull(o.stopped)...)
		b = c.tokenIDs(append(b, `,"token_ids":`...), o.ids)
		if !chat {
			b = c.tokenIDs(append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...), c.q.IDs)
		}
		b = append(b, `,"routed_experts":null}`...)
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":"`+fingerprint+`"`...)
	if !c.lie.Is(actor.CountMissing) {
		b = c.usage(append(b, `,"usage":`...), o, true, true)
	}
	if c.lie.Is(actor.CountTwice) {
		more := o
		more.prompt++
		b = c.usage(append(b, `,"usage":`...), more, true, true)
	}
	if chat {
		b = c.tokenIDs(append(b, `,"prompt_logprobs":null,"prompt_token_ids":`...), c.q.IDs)
		b = append(b, `,"prompt_text":null`...)
	}
	b = append(b, `,"kv_transfer_params":`...)
	if o.handle == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, o.handle...)
	}
	b = append(b, `,"ec_transfer_params":null,"metrics":null`...)
	if c.lie.Is(actor.RefusedAside) {
		b = append(append(b, `,"error":`...), strings.TrimSuffix(strings.TrimPrefix(string(errorBody("Internal server error", "InternalServerError", "null", 500)), `{"error":`), "}")...)
	}
	c.out.Whole(http.StatusOK, append(b, '}'))
}

func (c *call) head(b []byte, chat, text string) []byte {
	object := text
	if c.q.Endpoint == actor.Chat {
		object = chat
	}
	b = appendText(append(b, `{"id":`...), c.id)
	b = append(append(b, `,"object":"`...), object...)
	b = strconv.AppendInt(append(b, `","created":`...), time.Now().Unix(), 10)
	return append(appendText(append(b, `,"model":`...), c.model()), ',')
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

func (c *call) tokenIDs(b []byte, ids []int32) []byte {
	if !c.q.ReturnIDs {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
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

// usage of a reply so far. whole answers say details, chunks do not.
func (c *call) usage(b []byte, o outcome, last, whole bool) []byte {
	p := c.counted(o.prompt, last)
	n, _ := strconv.Atoi(strings.Trim(p, `"`))
	b = append(append(b, `{"prompt_tokens":`...), p...)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), int64(n+len(o.ids)), 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(len(o.ids)), 10)
	cached := c.w.opt.Cached && c.w.Config().Leg != actor.Prefill
	switch {
	case whole && cached:
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null`...)
	case whole:
		b = append(b, `,"prompt_tokens_details":null,"completion_tokens_details":null`...)
	case last && cached:
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}`...)
	case !last && c.q.Endpoint == actor.Chat:
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// roleChunk begins a chat's stream.
func (c *call) roleChunk(o outcome) {
	b := c.head(nil, "chat.completion.chunk", "")
	b = append(append(b, `"choices":[{"index":`...), c.index()...)
	b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	if c.continuous() {
		b = c.usage(append(b, `,"usage":`...), outcome{prompt: o.prompt}, false, false)
	}
	b = c.tokenIDs(append(b, `,"prompt_token_ids":`...), c.q.IDs)
	c.out.Event(append(b, `,"prompt_text":null}`...), false)
}

func (c *call) continuous() bool {
	return c.q.Usage && c.q.Continuous && !c.lie.Is(actor.CountMissing)
}

// textChunk sends a piece of text, and with the last one the finish reason.
func (c *call) textChunk(o outcome, text string, last bool) {
	if c.q.Endpoint == actor.Messages {
		c.messageText(text)
		return
	}
	chat := c.q.Endpoint == actor.Chat
	b := c.head(nil, "chat.completion.chunk", "text_completion")
	b = append(append(b, `"choices":[{"index":`...), c.index()...)
	if chat {
		b = append(appendText(append(b, `,"delta":{"content":`...), text), '}')
	} else {
		b = appendText(append(b, `,"text":`...), text)
	}
	b = c.logprobs(append(b, `,"logprobs":`...), o, o.chunk, len(o.ids)-len(o.chunk))
	if last {
		b = append(append(b, `,"finish_reason":`...), c.finish(o)...)
	} else {
		b = append(b, `,"finish_reason":null`...)
	}
	if last || !chat {
		b = append(append(b, `,"stop_reason":`...), orNull(o.stopped)...)
	}
	if !chat {
		prompt := c.q.IDs
		if len(o.ids) > len(o.chunk) {
			b = append(b, `,"prompt_token_ids":null`...)
		} else {
			b = c.tokenIDs(append(b, `,"prompt_token_ids":`...), prompt)
		}
	}
	b = c.tokenIDs(append(b, `,"token_ids":`...), o.chunk)
	b = append(b, "}]"...)
	if c.continuous() {
		b = c.usage(append(b, `,"usage":`...), o, false, false)
	}
	if last && !c.q.Usage {
		b = append(b, `,"system_fingerprint":"`+fingerprint+`"`...)
	}
	c.out.Event(append(b, '}'), last)
}

// end finishes a stream.
func (c *call) end(o outcome) {
	if c.q.Endpoint == actor.Messages {
		c.messageEnd(o)
		return
	}
	if c.q.Usage && !c.lie.Is(actor.CountMissing) {
		b := c.head(nil, "chat.completion.chunk", "text_completion")
		b = c.usage(append(b, `"choices":[],"usage":`...), o, true, false)
		c.out.Event(append(b, `,"system_fingerprint":"`+fingerprint+`"}`...), false)
	}
	c.free()
	c.out.Done()
}

// logprobs of tokens that came after the first from of a reply. The numbers, and which tokens are likely, are made from the context:
// legs that read the same pages say the same, and others say something else, as a model's would.
func (c *call) logprobs(b []byte, o outcome, ids []int32, from int) []byte {
	if !c.q.Logprobs {
		return append(b, "null"...)
	}
	chat := c.q.Endpoint == actor.Chat
	k := int64(1)
	if chat {
		k, _ = c.q.Doc.Get("top_logprobs").Int()
	} else if n, ok := c.q.Doc.Get("logprobs").Int(); ok {
		k = n + 1 // and the chosen one
	}
	byID, _ := c.q.Doc.Get("return_tokens_as_token_ids").Bool()
	h := fnv.New64a()
	for _, s := range o.context {
		h.Write([]byte{byte(s.Token), byte(s.Token >> 8)})
	}
	seed := h.Sum64()
	draw := func(i int, rank int64) uint64 {
		return (seed + uint64(from+i)*0x9e3779b97f4a7c15 + uint64(rank)*0xbf58476d1ce4e5b9) * 0x94d049bb133111eb
	}
	at := func(i int, rank int64) string {
		return strconv.FormatFloat(-math.Ldexp(float64(draw(i, rank)>>40), -25)-2*float64(rank), 'f', 6, 64)
	}
	name := func(id int32) string {
		switch {
		case byID:
			return fmt.Sprintf("token_id:%d", id)
		case id < 0 || id > 255:
			return ""
		}
		return string(id)
	}
	var tops, tokens, chosen, offsets []string
	for i, id := range ids {
		var top []string
		seen := map[int32]bool{}
		for r := int64(0); r < k && len(seen) < 95; r++ {
			alt := id
			if r > 0 {
				for alt = int32(' ' + draw(i, r)>>32%95); seen[alt]; alt = ' ' + (alt-' '+1)%95 {
				}
			}
			seen[alt] = true
			if chat {
				top = append(top, fmt.Sprintf(`{"token":%s,"logprob":%s,"bytes":[%d]}`, quoted(name(alt)), at(i, r), alt))
			} else {
				top = append(top, fmt.Sprintf(`%s:%s`, quoted(name(alt)), at(i, r)))
			}
		}
		if chat {
			tokens = append(tokens, fmt.Sprintf(`{"token":%s,"logprob":%s,"bytes":[%d],"top_logprobs":[%s]}`, quoted(name(id)), at(i, 0), id, strings.Join(top, ",")))
			continue
		}
		tokens = append(tokens, quoted(name(id)))
		chosen = append(chosen, at(i, 0))
		offsets = append(offsets, strconv.Itoa(from+i))
		tops = append(tops, "{"+strings.Join(dedupe(top), ",")+"}")
	}
	if chat {
		return fmt.Appendf(b, `{"content":[%s]}`, strings.Join(tokens, ","))
	}
	return fmt.Appendf(b, `{"text_offset":[%s],"token_logprobs":[%s],"tokens":[%s],"top_logprobs":[%s]}`,
		strings.Join(offsets, ","), strings.Join(chosen, ","), strings.Join(tokens, ","), strings.Join(tops, ","))
}

// dedupe drops members whose name came before: an alternative may be the token itself.
func dedupe(members []string) (out []string) {
	seen := map[string]bool{}
	for _, m := range members {
		name, _, _ := strings.Cut(m, `":`)
		if !seen[name] {
			seen[name] = true
			out = append(out, m)
		}
	}
	return out
}

func appendText(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func quoted(s string) string { return string(appendText(nil, s)) }

// errorBody is an error as the engine says it. param is JSON.
func errorBody(message, typ, param string, code int) []byte {
	return fmt.Appendf(nil, `{"error":{"message":%s,"type":%s,"param":%s,"code":%d}}`, quoted(message), quoted(typ), param, code)
}

// spaced is the error event of a stream.
func spaced(message string) []byte {
	return fmt.Appendf(nil, `{"error": {"message": %s, "type": "InternalServerError", "param": null, "code": 500}}`, quoted(message))
}

func (c *call) refuse(status int, message, typ, param string) {
	c.out.Whole(status, c.errorBody(message, typ, param, status))
}
