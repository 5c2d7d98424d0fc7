package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

// call is one request to a worker.
type call struct {
	w     *Worker
	q     *actor.Request
	out   *actor.Out
	lie   *actor.Lie
	ctx   context.Context
	base  string // the request id of the header
	id    string // the reply's
	came  time.Time
	last  int64 // of this worker's requests
	held  []int // pages
	proc  *actor.Process
	from  *actor.Pages // of proc
	spoke bool         // a message's block has begun
}

// free gives the request's pages back, once: before its end is said, so that who asks next finds them.
func (c *call) free() {
	if c.held != nil {
		c.from.Free(c.held)
		c.held = nil
	}
}

func (w *Worker) serve(rw http.ResponseWriter, r *http.Request, ep actor.Endpoint) {
	cfg := w.Config()
	lie := w.Lie(cfg.Leg)
	c := &call{w: w, lie: lie, ctx: r.Context(), came: time.Now(), last: w.serial.Add(1), proc: w.Process(r.Context())}
	c.from = c.proc.Pages
	c.out = actor.NewOut(w.Worker, lie, rw, r)
	if lie.Is(actor.HalfOpen) {
		c.out.Silenced()
		return
	}
	if !w.CheckHeaders(r, "X-Data-Parallel-Rank") && cfg.APIKey != "" && r.Header.Get("Authorization") != "Bearer "+cfg.APIKey {
		send(rw, http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
		return
	}
	body, err := actor.ReadBody(r)
	if err != nil {
		return
	}
	w.Requests.Add(1)
	d, err := w.ReadDoc(body)
	if err != nil {
		c.refuse(http.StatusBadRequest, "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error'}", "Bad Request", `"body"`)
		return
	}
	w.Forged(d)
	if c.q, err = w.Understand(ep, d); err != nil {
		c.refuse(http.StatusBadRequest, err.Error(), "BadRequestError", "null")
		return
	}
	c.name(r.Header.Get("X-Request-Id"), cfg)
	c.out.ID = c.id
	c.out.Broken = spaced("Internal server error")
	if ep == actor.Messages {
		c.out.Named, c.out.Broken = true, messageError("internal_error", "Internal server error")
	}
	if !c.check(d, cfg) {
		return
	}
	switch {
	case w.opt.Connector == None || cfg.Leg == actor.Both:
		if !c.out.Silenced() {
			c.alone(cfg)
		}
	case w.opt.Connector == Nixl && cfg.Leg == actor.Prefill:
		c.nixlPrefill(d, cfg)
	case w.opt.Connector == Nixl:
		c.nixlDecode(d, cfg)
	case cfg.Leg == actor.Prefill:
		c.mooncakePrefill(d, cfg)
	default:
		c.mooncakeDecode(d, cfg)
	}
}

// name gives the reply its id: the header's, with the endpoint's prefix.
func (c *call) name(header string, cfg actor.Config) {
	c.base = header
	if header == "" {
		_, boots := c.w.Boot()
		c.base = fmt.Sprintf("%04x%04x%08x", boots, c.w.Config().Leg, c.last)
	}
	c.id = "cmpl-" + c.base
	if c.q.Endpoint != actor.Completions {
		c.id = "chatcmpl-" + c.base
	}
	if c.lie.Is(actor.OtherID) {
		c.id = actor.OtherThan(c.id)
	}
	if cfg.Leg == actor.Both {
		return
	}
	if c.w.opt.AnyID {
		return
	}
	if header == "" {
		c.w.Violate(actor.RuleID, "there is no X-Request-Id")
	} else if !c.w.Once(cfg.Name + "/" + header) {
		c.w.Violate(actor.RuleID, "X-Request-Id %s is used again", header)
	}
}

// sets is what a gateway sets on this engine.
var sets = map[string]bool{"kv_transfer_params": true, "cache_salt": true, "priority": true}

// check judges what the gateway sent, and answers what the engine itself refuses.
func (c *call) check(d *jsonedit.Doc, cfg actor.Config) bool {
	w := c.w
	d.Each(func(name string, _ jsonedit.Value, _ bool) bool {
		if jsonedit.IsControl([]byte(name)) && !sets[name] {
			w.Violate(actor.RuleControl, "%s", name)
		}
		return true
	})
	if salt, ok := d.Get("cache_salt").Text(); w.opt.Salted && (!ok || len(salt) == 0) {
		w.Violate(actor.RuleSalt, "there is no cache_salt")
	}
	if n := d.Get("n"); n.Said() && string(n.Raw()) != "1" && cfg.Leg != actor.Both {
		w.Violate(actor.RuleSequences, "n is not 1")
	}
	if c.q.Model != cfg.Model {
		w.Violate(actor.RuleModel, "the request is for another model")
		c.refuse(http.StatusNotFound, fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", c.q.Model, cfg.Model), "NotFoundError", `"model"`)
		return false
	}
	if cfg.Leg == actor.Both && d.Get("kv_transfer_params").Said() {
		w.Violate(actor.RuleControl, "kv_transfer_params on a worker without a connector")
	}
	return c.fits(cfg)
}

// fits answers a request that is too long, or whose max_tokens is.
func (c *call) fits(cfg actor.Config) bool {
	q := c.q
	limit := cfg.Context
	if q.MaxTokens < 1 && q.MaxTokens != actor.Unsaid {
		c.refuse(http.StatusBadRequest, fmt.Sprintf("max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%d)", q.MaxTokens, q.MaxTokens), "BadRequestError", `"max_tokens"`)
		return false
	}
	if q.MaxTokens > limit {
		c.refuse(http.StatusBadRequest, fmt.Sprintf("max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens. (parameter=max_tokens, value=%d)", q.MaxTokens, limit, q.MaxTokens), "BadRequestError", `"max_tokens"`)
		return false
	}
	if chars := q.Doc.Prompt().Bytes; chars > 14*limit {
		c.refuse(http.StatusBadRequest, fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt contains %d characters (more than %d characters, which is the upper bound for %d input tokens). Please reduce the length of the input prompt. (parameter=input_text, value=%d)", limit, chars, 14*limit, limit, chars), "BadRequestError", `"input_text"`)
		return false
	}
	if q.Prompt > limit {
		said := fmt.Sprintf("at least %d", limit+1)
		n := limit + 1
		if q.Doc.Prompt().Shape == jsonedit.IDs {
			said, n = fmt.Sprint(q.Prompt), q.Prompt
		}
		c.refuse(http.StatusBadRequest, fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt contains %s input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)", limit, said, n), "BadRequestError", `"input_tokens"`)
		return false
	}
	if q.Prompt == limit {
		c.refuse(http.StatusBadRequest, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "BadRequestError", `"max_tokens"`)
		return false
	}
	if q.MaxTokens == actor.Unsaid {
		q.MaxTokens = actor.DefaultMaxTokens
		if q.Endpoint == actor.Chat {
			q.MaxTokens = min(512, limit-q.Prompt)
		}
	} else if q.Prompt+q.MaxTokens > limit {
		c.refuse(http.StatusBadRequest, fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=%d)", limit, q.MaxTokens, q.Prompt, q.Prompt+q.MaxTokens, q.Prompt), "BadRequestError", `"input_tokens"`)
		return false
	}
	return true
}

// prefillLeg checks what every prefill leg must be.
func (c *call) prefillLeg() {
	if c.q.Stream {
		c.w.Violate(actor.RulePrefillLeg, "the prefill leg is streamed")
	}
	if c.q.MaxTokens != 1 {
		c.w.Violate(actor.RulePrefillLeg, "the prefill leg asks for %d tokens", c.q.MaxTokens)
	}
	if n, _ := c.q.Doc.Get("min_tokens").Int(); n > 1 {
		c.w.Violate(actor.RulePrefillLeg, "the prefill leg asks for at least %d tokens", n)
	}
}

// memory takes and writes pages for the prompt. It is nil if there were none.
func (c *call) memory(owner actor.Owner, tokens int, write bool) ([]int, *actor.Pages, bool) {
	mine, cfg := c.from, c.w.Config()
	if cfg.Light {
		return nil, mine, true
	}
	pages := c.proc.Take(c.ctx, mine.Need(tokens), cfg.Patience)
	if pages == nil {
		c.internal()
		return nil, mine, false
	}
	if write {
		mine.Write(pages, c.q.IDs, owner)
	}
	return pages, mine, true
}

// refuses tells the lies in which a leg does nothing and says so, or not.
func (c *call) refuses() bool {
	cfg := c.w.Config()
	switch l := c.lie; {
	case l.Is(actor.Refused):
		c.refuse(http.StatusBadRequest, fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)", cfg.Context, cfg.Context+1, cfg.Context+1), "BadRequestError", `"input_tokens"`)
	case l.Is(actor.Failed):
		c.internal()
	case l.Is(actor.Unavailable):
		c.refuse(http.StatusServiceUnavailable, "The server is overloaded", "ServiceUnavailableError", "null")
	case l.Is(actor.ErrorIn200):
		if c.q.Stream {
			c.out.Event(c.out.Broken, false)
			c.out.Done()
		} else {
			c.out.Whole(http.StatusOK, c.errorBody("Internal server error", "InternalServerError", "null", 500))
		}
	default:
		return false
	}
	return true
}

// nixlPrefill computes a prompt and hands out what decode needs to read its blocks.
func (c *call) nixlPrefill(d *jsonedit.Doc, cfg actor.Config) {
	c.prefillLeg()
	kv := d.Get("kv_transfer_params")
	remote, _ := kv.Get("do_remote_decode").Bool()
	load, said := kv.Get("do_remote_prefill").Bool()
	if !remote || load || !said {
		c.w.Violate(actor.RulePrefillLeg, "kv_transfer_params do not ask for a remote decode")
	}
	for _, f := range []string{"remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "remote_request_id"} {
		if kv.Get(f).Said() {
			c.w.Violate(actor.RulePrefillLeg, "kv_transfer_params name a %s", f)
		}
	}
	if !c.w.Sleep(c.ctx, cfg.FirstWait) || c.out.Silenced() || c.lie != nil && c.refuses() {
		return
	}
	owner := c.w.Arrive()
	pages, mine, ok := c.memory(owner, c.q.Prompt, true)
	if !ok {
		return
	}
	g := &grant{from: c.w, request: c.base, owner: owner, digest: c.q.Digest, prompt: c.q.Prompt, pages: pages, memory: mine, issued: time.Now(), lie: c.lie}
	first, seen := c.first(pages, mine, owner)
	if c.ctx.Err() != nil { // an abort of what is under way: later there is only the lease
		mine.Free(pages)
		return
	}
	var kept *actor.Pages
	if !cfg.Light {
		kept = mine.Keep(pages)
	}
	handle := c.handle(g)
	if g.borrowed {
		mine.Free(pages)
	}
	c.w.fleet.issue(handle, g, c.w.opt.Lease)
	c.w.mu.Lock()
	c.w.last, c.w.lastRaw, c.w.lastKept = g, handle, kept
	c.w.mu.Unlock()
	c.w.PromptTokens.Add(int64(c.q.Prompt))
	c.w.ReplyTokens.Add(1)
	o := outcome{prompt: c.q.Prompt, ids: []int32{first}, finish: "length", handle: handle, context: seen}
	if first == recall.EOS && !c.q.IgnoreEOS {
		o.finish = "stop"
	}
	c.answer(o)
}

// first is the token that follows a context, and the context.
func (c *call) first(pages []int, mine *actor.Pages, owner actor.Owner) (int32, []actor.Slot) {
	if c.w.Config().Light {
		return 'a', nil
	}
	context := mine.Read(pages, c.q.Prompt)
	return actor.NewCopier(slices.Clone(context), owner).Next().Token, context
}

func compact(raw []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// handle is what the prefill gives out for a grant, or what a lie makes of it. nil is none.
func (c *call) handle(g *grant) []byte {
	w := c.w
	blocks := g.pages
	engine, host, port := w.EngineID(), w.opt.SideHost, w.opt.SidePort
	request := fmt.Sprintf("%s-%08x", c.id, uint32(c.last)*0x9e3779b1)
	if c.q.Endpoint == actor.Completions {
		request = fmt.Sprintf("%s-0-%08x", c.id, uint32(c.last)*0x9e3779b1)
	}
	count, asked := g.prompt, "true"
	l := c.lie
	w.mu.Lock()
	before, raw, kept := w.last, w.lastRaw, w.lastKept
	w.mu.Unlock()
	switch {
	case l == nil:
	case l.Is(actor.HandleMissing):
		return nil
	case l.Is(actor.HandleEmpty):
		return []byte("{}")
	case l.Is(actor.HandleForeign, actor.HandleBlocks, actor.HandleReplayed) && kept != nil:
		// Somebody else's blocks: under their name, under the own one, or the whole handle as it was.
		blocks = before.pages
		g.pages, g.memory, g.borrowed = make([]int, len(blocks)), kept, true
		for i := range g.pages {
			g.pages[i] = i
		}
		if l.Is(actor.HandleReplayed) {
			return raw
		}
		if l.Is(actor.HandleForeign) {
			request, count = "cmpl-"+before.request+"-0-0badcafe", before.prompt
		}
	case l.Is(actor.HandleForeign, actor.HandleBlocks, actor.HandleReplayed):
		request = actor.OtherThan(request) // nobody was here before
	case l.Is(actor.HandleEngine):
		engine = actor.OtherThan(engine)
	case l.Is(actor.HandleHost):
		host = l.Elsewhere()
	case l.Is(actor.HandlePort):
		port++
	case l.Is(actor.HandleShort) && len(blocks) > 0:
		blocks = blocks[:len(blocks)-1]
	case l.Is(actor.HandleCount):
		count++
	case l.Is(actor.HandleUnasked):
		asked = "false"
	}
	ids, _ := json.Marshal([][]int{append([]int{}, blocks...)})
	if l.Is(actor.HandleFlat) {
		ids, _ = json.Marshal(append([]int{}, blocks...))
	}
	b := fmt.Appendf(nil, `{"do_remote_prefill":%s,"do_remote_decode":false,"remote_block_ids":%s,"remote_engine_id":"%s"`, asked, ids, engine)
	if !l.Is(actor.HandlePartial) {
		b = fmt.Appendf(b, `,"remote_request_id":%s`, quoted(request))
	}
	b = fmt.Appendf(b, `,"remote_host":%s,"remote_port":%d,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0`, quoted(host), port, count)
	if l.Is(actor.HandleHuge) {
		b = fmt.Appendf(b, `,"padding":"%s"`, strings.Repeat("x", 1<<20))
	}
	return append(b, '}')
}

// nixlDecode reads the blocks that a handle names, and goes on from there.
func (c *call) nixlDecode(d *jsonedit.Doc, cfg actor.Config) {
	w := c.w
	kv := d.Get("kv_transfer_params")
	var g *grant
	if !kv.Said() {
		w.Violate(actor.RuleNoHandle, "the decode leg has no kv_transfer_params")
	} else {
		var used bool
		g, used = w.fleet.redeem(compact(kv.Raw()))
		switch {
		case g == nil:
			w.Violate(actor.RuleHandle, "kv_transfer_params are not what a prefill of the fleet gave out")
		case used:
			w.Violate(actor.RuleHandleReused, "a handle is used again")
		case g.lapsed || time.Since(g.issued) > w.opt.Lease:
			w.Violate(actor.RuleHandleStale, "a handle is used after its lease")
		case g.request != c.base && !w.opt.AnyID:
			w.Violate(actor.RuleID, "the legs have different request ids")
		case g.digest != c.q.Digest || g.prompt != c.q.Prompt:
			w.Violate(actor.RuleLegs, "the legs got different prompts")
		default:
			used = false
		}
		if g == nil || used || g.lapsed || g.request != c.base && !w.opt.AnyID || g.digest != c.q.Digest {
			c.internal()
			return
		}
	}
	if g != nil {
		defer w.fleet.release(g) // whatever becomes of the request
	}
	if c.out.Silenced() || c.lie != nil && c.refuses() {
		return
	}
	owner := w.Arrive()
	if g != nil {
		owner = g.owner
	}
	pages, mine, ok := c.memory(owner, c.q.Prompt+c.q.MaxTokens, g == nil)
	if !ok {
		return
	}
	c.held = pages
	defer c.free()
	if g != nil {
		time.Sleep(cfg.Transfer)
		w.fleet.late(g, w.opt.Lease)
		stale := c.lie != nil && (c.lie.Stale || c.lie.Is(actor.StalePages)) || g.lie != nil && g.lie.Stale && !g.borrowed
		if !cfg.Light && !stale {
			mine.Copy(pages, g.memory, g.pages)
		}
		w.fleet.release(g)
	}
	w.PromptTokens.Add(int64(c.q.Prompt))
	c.reply(cfg, pages, mine, owner)
}

// reply generates from what lies in the pages, and sends it.
func (c *call) reply(cfg actor.Config, pages []int, mine *actor.Pages, owner actor.Owner) {
	if cfg.Light {
		c.light(cfg)
		return
	}
	context := mine.Read(pages, c.q.Prompt)
	if n := c.q.Prompt; n > 0 && len(c.q.IDs) == n {
		context[n-1] = actor.Slot{Token: c.q.IDs[n-1], Owner: owner} // decode computes the last position itself
	}
	c.generate(cfg, context, owner)
}

// alone serves a request on a worker without a connector.
func (c *call) alone(cfg actor.Config) {
	if !c.w.Sleep(c.ctx, cfg.FirstWait) || c.lie != nil && c.refuses() {
		return
	}
	owner := c.w.Arrive()
	pages, mine, ok := c.memory(owner, c.q.Prompt+c.q.MaxTokens, c.lie == nil || !c.lie.Stale)
	if !ok {
		return
	}
	c.held = pages
	defer c.free()
	c.w.PromptTokens.Add(int64(c.q.Prompt))
	c.reply(cfg, pages, mine, owner)
}
