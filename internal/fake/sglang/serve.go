package sglang

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
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
	id    string
	room  *room
	came  time.Time
	stop  chan struct{} // closed by an abort
	held  []int         // pages
	proc  *actor.Process
	from  *actor.Pages // of proc
	begun bool         // of a streamed message: its start was said
	spoke bool         // and its block has begun
}

// free gives the request's pages back, once: before its end is said, so that who asks next finds them.
func (c *call) free() {
	c.from.Free(c.held)
	c.held = nil
}

// take takes pages for so many tokens.
func (c *call) take(tokens int, cfg actor.Config) []int {
	return c.proc.Take(c.ctx, c.from.Need(tokens), cfg.Patience)
}

func (w *Worker) serve(rw http.ResponseWriter, r *http.Request, ep actor.Endpoint) {
	cfg := w.Config()
	lie := w.Lie(cfg.Leg)
	out := actor.NewOut(w.Worker, lie, rw, r)
	if lie.Is(actor.HalfOpen) {
		out.Silenced()
		return
	}
	if !w.CheckHeaders(r, rankHeader(cfg)...) && cfg.APIKey != "" && r.Header.Get("Authorization") != "Bearer "+cfg.APIKey {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(rw, `{"error":"Unauthorized"}`)
		return
	}
	body, err := actor.ReadBody(r)
	if err != nil {
		return
	}
	w.Requests.Add(1)
	c := &call{w: w, out: out, lie: lie, ctx: r.Context(), came: time.Now(), stop: make(chan struct{}), proc: w.Process(r.Context())}
	c.from = c.proc.Pages
	d, err := w.ReadDoc(body)
	if err != nil {
		c.flat(http.StatusBadRequest, "Bad Request", "body: JSON decode error")
		return
	}
	w.Forged(d)
	c.q, err = w.Understand(ep, d)
	if err != nil {
		c.flat(http.StatusBadRequest, "Bad Request", err.Error())
		return
	}
	if c.q.MaxTokens == actor.Unsaid {
		c.q.MaxTokens = actor.DefaultMaxTokens
		if ep == actor.Chat {
			c.q.MaxTokens = min(512, cfg.Context-c.q.Prompt-1)
		} else if ep == actor.Generate {
			c.q.MaxTokens = 128
		}
	}
	if c.id = c.q.RID; c.id == "" {
		c.id = newID(w, d)
	}
	if ep == actor.Messages {
		c.id = "msg_" + c.id
		c.out.Named, c.out.Broken = true, messageError(http.StatusInternalServerError, "", "")
	} else {
		c.out.Broken = spaced("INTERNAL_SERVER_ERROR", 500, "Internal server error: the worker lied")
	}
	c.out.ID = c.id
	if !c.check(d, cfg) {
		return
	}
	c.track()
	defer c.untrack()
	if c.out.Silenced() {
		c.silent()
		return
	}
	switch cfg.Leg {
	case actor.Prefill:
		c.prefill(cfg)
	case actor.Decode:
		c.decode(cfg)
	default:
		c.alone(cfg)
	}
}

func rankHeader(cfg actor.Config) []string {
	if cfg.Ranks > 1 {
		return []string{"X-Data-Parallel-Rank"}
	}
	return nil
}

// sets is what a gateway sets on this engine.
var sets = map[string]bool{
	"bootstrap_host": true, "bootstrap_port": true, "bootstrap_room": true, "rid": true, "cache_salt": true, "extra_key": true, "priority": true,
	"routed_dp_rank": true, "disagg_prefill_dp_rank": true, "data_parallel_rank": true,
}

// check judges what the gateway sent. It is false if the engine would not go on with it; then it has answered.
func (c *call) check(d *jsonedit.Doc, cfg actor.Config) bool {
	w := c.w
	d.Each(func(name string, _ jsonedit.Value, _ bool) bool {
		if jsonedit.IsControl([]byte(name)) && !sets[name] {
			w.Violate(actor.RuleControl, "%s", name)
		}
		return true
	})
	if c.q.Endpoint != actor.Generate && c.q.Model != cfg.Model {
		w.Violate(actor.RuleModel, "the request is for another model")
	}
	if n := d.Get("n"); n.Said() && string(n.Raw()) != "1" {
		w.Violate(actor.RuleSequences, "n is not 1")
	}
	if strings.HasPrefix(c.q.RID, "HEALTH_CHECK") {
		w.Violate(actor.RuleID, "the request id is a health check's")
	}
	if c.q.RID != "" && !w.Once(cfg.Name+"/"+c.q.RID) {
		w.Violate(actor.RuleID, "the request id is used again")
	}
	if cfg.Leg == actor.Both {
		for _, f := range []string{"bootstrap_room", "bootstrap_host", "bootstrap_port"} {
			if d.Get(f).Said() {
				w.Violate(actor.RuleControl, "%s on a worker that is not disaggregated", f)
			}
		}
		return true
	}
	if cfg.Leg == actor.Prefill && c.q.Stream {
		w.Violate(actor.RulePrefillLeg, "the prefill leg is streamed")
	}
	v := d.Get("bootstrap_room")
	if !v.Said() {
		w.Violate(actor.RuleRoom, "there is no room")
		c.abort(http.StatusBadRequest, "", fmt.Sprintf("Invalid request: Disaggregated request received without bootstrap room id. req.rid='%s'", c.id))
		return false
	}
	n, ok := v.Int()
	if !ok || n < 0 {
		w.Violate(actor.RuleRoom, "the room is no integer of 63 bits")
		c.flat(http.StatusBadRequest, "Bad Request", "Input should be a valid integer")
		return false
	}
	if n < 1<<32 {
		w.Violate(actor.RuleRoom, "the room can be guessed")
	}
	room := uint64(n)
	c.rank(d, cfg, room)
	if !c.atBootstrap(d, cfg) {
		return false
	}
	r, fresh := w.fleet.enter(w, room, cfg.Leg, c.q)
	if !fresh {
		c.flat(http.StatusInternalServerError, "500", fmt.Sprintf("%s bootstrap failed for request rank=0 req.rid='%s' req.bootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): Failed due to an unknown reason from another rank", title(cfg.Leg), c.id, room, room))
		return false
	}
	c.room = r
	return true
}

func title(l actor.Leg) string {
	if l == actor.Prefill {
		return "Prefill"
	}
	return "Decode"
}

// rank checks the data-parallel rank: prefill's is the room's remainder, and whatever the fields say has to agree.
func (c *call) rank(d *jsonedit.Doc, cfg actor.Config, room uint64) {
	want := int64(room % uint64(cfg.Ranks))
	fields := []string{"disagg_prefill_dp_rank"}
	if cfg.Leg == actor.Prefill {
		fields = append(fields, "routed_dp_rank", "data_parallel_rank")
	}
	for _, f := range fields {
		if v := d.Get(f); v.Said() {
			if n, ok := v.Int(); !ok || n != want {
				c.w.Violate(actor.RuleRank, "%s is not the room's rank %d", f, want)
			}
		}
	}
}

// atBootstrap checks that the legs are told to meet at a prefill of the fleet.
func (c *call) atBootstrap(d *jsonedit.Doc, cfg actor.Config) bool {
	host, _ := d.Get("bootstrap_host").Text()
	port, _ := d.Get("bootstrap_port").Int()
	addr := net.JoinHostPort(string(host), strconv.FormatInt(port, 10))
	c.w.fleet.mu.Lock()
	p := c.w.fleet.prefills[addr]
	c.w.fleet.mu.Unlock()
	if p == nil || cfg.Leg == actor.Prefill && p != c.w {
		c.w.Violate(actor.RuleBootstrap, "the bootstrap address is not that of the pair's prefill")
		c.flat(http.StatusInternalServerError, "500", c.handshake(0))
		return false
	}
	return true
}

func (c *call) handshake(room uint64) string {
	return fmt.Sprintf("Decode handshake failed for request rank=0 decode_req.req.rid='%s' decode_req.req.bootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): Aborted by AbortReq.", c.id, room, room)
}

func (c *call) transfer(why string) string {
	return fmt.Sprintf("Decode transfer failed for request rank=0 decode_req.req.rid='%s' decode_req.req.bootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): %s", c.id, c.room.id, c.room.id, why)
}

func (c *call) track() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.w.running[c.id] = &flight{abort: c.stop, room: c.room}
}

func (c *call) untrack() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	delete(c.w.running, c.id)
}

// silent is the engine's part of a request whose answer a lie has taken: with stale pages the other leg goes on all the same.
func (c *call) silent() {
	if c.room == nil {
		return
	}
	if c.w.Config().Leg == actor.Prefill && c.lie.Stale {
		// The request is over for its sender, so only the engine's patience counts.
		t := time.NewTimer(c.w.Config().Patience)
		defer t.Stop()
		select {
		case <-c.room.reserved:
		case <-t.C:
		}
		c.room.lie('\n')
	}
}

// await waits for c; it is false when patience, the request or the process ended first.
func (c *call) await(ch <-chan struct{}, patience time.Duration) bool {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-ch:
		return true
	case <-c.ctx.Done():
	case <-c.stop:
	case <-c.proc.Down:
	case <-t.C:
	}
	return false
}

// tooLong is the engine's own check of a prompt. Of both limits the first is the tokenizer's, and a real 400 on every path but a
// streamed /generate.
func (c *call) tooLong(cfg actor.Config) bool {
	n := c.q.Prompt
	if n >= cfg.Context {
		c.contextError(fmt.Sprintf("The input (%d tokens) is longer than the model's context length (%d tokens).", n, cfg.Context))
		return true
	}
	if n+c.q.MaxTokens >= cfg.Context+1 {
		c.contextError(fmt.Sprintf("Requested token count exceeds the model's maximum context length of %d tokens. You requested a total of %d tokens: %d tokens from the input messages and %d tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.",
			cfg.Context, n+c.q.MaxTokens, n, c.q.MaxTokens))
		return true
	}
	return false
}

// longest prompt that the pool takes, less one: the check is >=.
func longest(cfg actor.Config) int { return min(cfg.Context, cfg.Pool) - 6 }

func overPool(n, limit int) string {
	return fmt.Sprintf("Input length (%d tokens) exceeds the maximum allowed length (%d tokens). Use a shorter input or enable --allow-auto-truncate.", n, limit)
}

// prefill computes the prompt, writes its pages into decode's, and answers with the first token.
func (c *call) prefill(cfg actor.Config) {
	w, r, q := c.w, c.room, c.q
	if c.tooLong(cfg) {
		return
	}
	ids := q.IDs
	n := q.Prompt
	over := n >= longest(cfg)
	switch {
	case c.lie.Is(actor.Placeholder), over && !w.atLeast(0, 5, 20):
		// The refusal sits in a field that the queue does not read; what runs is a prompt of one token.
		ids, n = []int32{recall.BOS}, 1
	case over:
		c.abort(http.StatusBadRequest, "BAD_REQUEST", overPool(n, longest(cfg)))
		return
	}
	if !w.Sleep(c.ctx, cfg.FirstWait) {
		return
	}
	if c.lie != nil && c.refuses(n, cfg) {
		return
	}
	if c.unscheduled(n, cfg) {
		return
	}
	first, mine := int32('\n'), c.from
	var pages []int
	if !cfg.Light {
		if pages = c.take(n, cfg); pages == nil {
			r.finish(0, "no pages")
			c.flat(http.StatusInternalServerError, "500", "Prefill out of memory")
			return
		}
		mine.Write(pages, ids, r.owner)
		if n > 1 {
			first = actor.NewCopier(mine.Read(pages, n), r.owner).Next().Token
		}
	}
	if !c.await(r.reserved, cfg.Patience) {
		mine.Free(pages)
		r.finish(0, "bootstrap")
		c.flat(http.StatusInternalServerError, "500", fmt.Sprintf("Prefill bootstrap failed for request rank=0 req.rid='%s' req.bootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): Request %d timed out after %.1fs in KVPoll.Bootstrapping", c.id, r.id, r.id, r.id, cfg.Patience.Seconds()))
		return
	}
	to, into := r.begin()
	stale := c.lie != nil && c.lie.Stale
	// The write goes on whatever becomes of the request.
	time.Sleep(cfg.Transfer)
	if !cfg.Light && !stale && to != nil {
		into.Copy(to, mine, pages)
	}
	mine.Free(pages)
	if stale {
		r.lie(first)
	} else {
		r.finish(first, "")
	}
	w.PromptTokens.Add(int64(n))
	w.ReplyTokens.Add(1)
	c.answer(outcome{prompt: n, ids: []int32{first}, finish: "length", prefill: true})
}

// unscheduled is what becomes of a prompt that the door takes and the scheduler never does: with its one token and a page more it must
// stay below the pool, and the door's bound is wider where pages are. It waits until decode's time is up.
func (c *call) unscheduled(n int, cfg actor.Config) bool {
	if cfg.Light || n+1+cfg.PageSize < cfg.Pool {
		return false
	}
	c.await(c.room.gone, 2*cfg.Patience)
	c.flat(http.StatusInternalServerError, "500", fmt.Sprintf("Prefill bootstrap failed for request rank=0 req.rid='%s' req.bootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): Failed due to an unknown reason from another rank", c.id, c.room.id, c.room.id))
	return true
}

// refuses tells the lies in which prefill does nothing and says so, or not.
func (c *call) refuses(n int, cfg actor.Config) bool {
	l := c.lie
	switch {
	case l.Is(actor.Refused):
		c.abort(http.StatusBadRequest, "BAD_REQUEST", overPool(n, longest(cfg)))
	case l.Is(actor.Failed):
		c.flat(http.StatusInternalServerError, "500", fmt.Sprintf("Prefill bootstrap failed for request rank=0 req.rid='%s'", c.id))
	case l.Is(actor.Unavailable):
		c.flat(http.StatusServiceUnavailable, "ServiceUnavailableError", "The request queue is full.")
	case l.Is(actor.ErrorIn200):
		c.errorIn200("Prefill bootstrap failed")
	default:
		return false
	}
	if l.Stale && c.room != nil {
		if c.await(c.room.reserved, cfg.Patience) {
			c.room.lie('\n')
		}
	}
	return true
}

// decode reserves pages, waits for prefill's, and goes on from what lies there.
func (c *call) decode(cfg actor.Config) {
	w, r, q := c.w, c.room, c.q
	defer w.fleet.leave(r)
	if c.tooLong(cfg) {
		return
	}
	if q.Prompt >= longest(cfg) {
		if !w.atLeast(0, 5, 20) {
			r.reserve(nil, nil) // it still takes its part in the transfer of a prompt of one token
		}
		c.overOwnPool(cfg)
		return
	}
	if !cfg.Light {
		if c.held = c.take(q.Prompt+q.MaxTokens, cfg); c.held == nil {
			c.flat(http.StatusInternalServerError, "500", c.transfer("no pages"))
			return
		}
		defer c.free()
	}
	if c.lie.Is(actor.Early) {
		c.resume(cfg, int32('\n'))
		return
	}
	r.reserve(c.held, c.from)
	patience := time.NewTimer(cfg.Patience)
	defer patience.Stop()
	select {
	case <-r.sent:
	case <-c.stop:
		c.flat(http.StatusInternalServerError, "500", c.handshake(r.id))
		return
	case <-patience.C:
		c.abort(http.StatusInternalServerError, "INTERNAL_SERVER_ERROR", c.transfer(fmt.Sprintf("Request %d timed out after %.1fs in KVPoll.WaitingForInput", r.id, cfg.Patience.Seconds())))
		return
	case <-c.ctx.Done():
		if r.abandon() && !c.proc.Ended() {
			w.Violate(actor.RuleAbort, "the connection of room %d was closed while its pages were being written", r.id)
		}
		return
	case <-c.proc.Down:
		return
	}
	first, failure, _ := r.result()
	if failure != "" {
		c.abort(http.StatusInternalServerError, "INTERNAL_SERVER_ERROR", c.transfer("Failed to send kv chunk of "+strconv.FormatUint(r.id, 10)))
		return
	}
	if c.lie != nil && c.refuses(q.Prompt, cfg) {
		return
	}
	if c.lie != nil && (c.lie.Stale || c.lie.Is(actor.StalePages)) && !cfg.Light {
		// What the transfer wrote goes elsewhere, and what lay there stays.
		if other := c.proc.Take(c.ctx, len(c.held), cfg.Patience); other != nil {
			c.free()
			c.held = other
		}
		first = '\n'
	}
	c.resume(cfg, first)
}

// resume generates from what lies in the pages.
func (c *call) resume(cfg actor.Config, first int32) {
	q := c.q
	c.w.PromptTokens.Add(int64(q.Prompt))
	if cfg.Light {
		c.light(cfg)
		return
	}
	c.generate(cfg, c.from.Read(c.held, q.Prompt), c.room.owner, &first)
}

// alone serves a request on a worker that is not disaggregated.
func (c *call) alone(cfg actor.Config) {
	w, q := c.w, c.q
	if c.tooLong(cfg) {
		return
	}
	if q.Prompt >= longest(cfg) {
		c.overOwnPool(cfg)
		return
	}
	if !w.Sleep(c.ctx, cfg.FirstWait) || c.lie != nil && c.refuses(q.Prompt, cfg) {
		return
	}
	w.PromptTokens.Add(int64(q.Prompt))
	if cfg.Light {
		c.light(cfg)
		return
	}
	mine := c.from
	owner := w.Arrive()
	if c.held = c.take(q.Prompt+q.MaxTokens, cfg); c.held == nil {
		c.flat(http.StatusServiceUnavailable, "ServiceUnavailableError", "The request queue is full.")
		return
	}
	defer c.free()
	if c.lie == nil || !c.lie.Stale {
		mine.Write(c.held, q.IDs, owner)
	}
	c.generate(cfg, mine.Read(c.held, q.Prompt), owner, nil)
}
