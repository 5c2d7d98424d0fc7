package vllm

import (
	"net/http"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/jsonedit"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

// arrive brings a leg to its transfer.
func (c *call) arrive(d *jsonedit.Doc, cfg actor.Config) *meeting {
	w := c.w
	kv := d.Get("kv_transfer_params")
	if !kv.Said() {
		w.Violate(actor.RuleNoHandle, "the %s leg has no kv_transfer_params", cfg.Leg)
		c.internal()
		return nil
	}
	id, _ := kv.Get("transfer_id").Text()
	if len(id) < 16 {
		w.Violate(actor.RuleTransferID, "the transfer id is missing or can be guessed")
		c.internal()
		return nil
	}
	send, _ := kv.Get("do_remote_decode").Bool()
	load, _ := kv.Get("do_remote_prefill").Bool()
	if send != (cfg.Leg == actor.Prefill) || load != (cfg.Leg == actor.Decode) {
		w.Violate(actor.RuleHandle, "kv_transfer_params are another leg's")
	}
	if cfg.Leg == actor.Decode && !c.atBootstrap(kv) {
		c.internal()
		return nil
	}
	m, fresh := w.fleet.meet(w, string(id), cfg.Leg, c.q)
	if !fresh {
		c.internal()
		return nil
	}
	return m
}

// atBootstrap checks that decode is sent to a prefill of the fleet, as it is now.
func (c *call) atBootstrap(kv jsonedit.Value) bool {
	engine, _ := kv.Get("remote_engine_id").Text()
	addr, _ := kv.Get("remote_bootstrap_addr").Text()
	c.w.fleet.mu.Lock()
	p := c.w.fleet.engines[string(engine)]
	c.w.fleet.mu.Unlock()
	switch {
	case p == nil:
		c.w.Violate(actor.RuleHandle, "remote_engine_id is no prefill's of the fleet")
		return false
	case p.EngineID() != string(engine):
		c.w.Violate(actor.RuleEngineStale, "remote_engine_id is that of a process that has ended")
		return false
	}
	if p.Bootstrap() != string(addr) {
		c.w.Violate(actor.RuleBootstrap, "remote_bootstrap_addr is not that prefill's")
		return false
	}
	return true
}

// mooncakePrefill computes a prompt, waits for decode, and sends it the pages, if it finished by length.
func (c *call) mooncakePrefill(d *jsonedit.Doc, cfg actor.Config) {
	c.prefillLeg()
	m := c.arrive(d, cfg)
	if m == nil {
		return
	}
	stale := c.lie != nil && c.lie.Stale
	nothing := "prefill refused"
	if stale {
		nothing = "" // the lie: decode goes on as if something had come
	}
	if !c.w.Sleep(c.ctx, cfg.FirstWait) || c.out.Silenced() || c.lie != nil && c.refuses() {
		m.finish(nil, nil, c.lie, nothing)
		return
	}
	pages, mine, ok := c.memory(m.owner, c.q.Prompt, true)
	if !ok {
		m.finish(nil, nil, c.lie, "no pages")
		return
	}
	first, seen := c.first(pages, mine, m.owner)
	o := outcome{prompt: c.q.Prompt, ids: []int32{first}, finish: "length", context: seen}
	if first == recall.EOS && !c.q.IgnoreEOS {
		o.finish = "stop"
		mine.Free(pages)
		m.finish(nil, nil, c.lie, "prefill stopped")
	} else {
		m.finish(pages, mine, c.lie, "")
		go c.w.keep(m, pages, mine)
	}
	c.w.PromptTokens.Add(int64(c.q.Prompt))
	c.w.ReplyTokens.Add(1)
	c.answer(o)
}

// keep frees a transfer's pages once decode has taken them, or never comes.
func (w *Worker) keep(m *meeting, pages []int, mine *actor.Pages) {
	t := time.NewTimer(w.Config().Patience)
	defer t.Stop()
	select {
	case <-m.read:
	case <-t.C:
		m.mu.Lock()
		m.pages, m.why = nil, "the transfer expired"
		m.mu.Unlock()
	}
	mine.Free(pages)
}

// mooncakeDecode reserves pages, waits for prefill's, and goes on from what lies there.
func (c *call) mooncakeDecode(d *jsonedit.Doc, cfg actor.Config) {
	w := c.w
	m := c.arrive(d, cfg)
	if m == nil {
		return
	}
	if c.out.Silenced() {
		close(m.read)
		return
	}
	pages, mine, ok := c.memory(m.owner, c.q.Prompt+c.q.MaxTokens, false)
	if !ok {
		return
	}
	c.held = pages
	defer c.free()
	if c.lie.Is(actor.Early) {
		c.reply(cfg, pages, mine, m.owner)
		return
	}
	t := time.NewTimer(cfg.Patience)
	defer t.Stop()
	select {
	case <-m.sent:
	case <-t.C:
		c.internal()
		return
	case <-c.ctx.Done():
		return
	case <-c.proc.Down:
		return
	}
	m.mu.Lock()
	from, memory, lie, why := m.pages, m.memory, m.lie, m.why
	m.moving = true
	m.mu.Unlock()
	if why != "" {
		close(m.read)
		if c.q.Stream && c.q.Endpoint == actor.Chat {
			c.roleChunk(outcome{prompt: c.q.Prompt})
		}
		c.internal()
		return
	}
	time.Sleep(cfg.Transfer)
	if c.ctx.Err() != nil && memory != nil && !c.proc.Ended() { // else nothing is written
		w.Violate(actor.RuleAbort, "the connection of a transfer was closed while its pages were being written")
	}
	stale := c.lie != nil && (c.lie.Stale || c.lie.Is(actor.StalePages)) || lie != nil && lie.Stale
	if !cfg.Light && !stale && memory != nil {
		mine.Copy(pages, memory, from)
	}
	close(m.read)
	if c.lie != nil && c.refuses() {
		return
	}
	w.PromptTokens.Add(int64(c.q.Prompt))
	c.reply(cfg, pages, mine, m.owner)
}

// internal is the engine's 500, in band where the stream has begun or would.
func (c *call) internal() {
	if c.q != nil && c.q.Stream {
		c.out.Event(spaced("Internal server error"), false)
		c.out.Done()
		return
	}
	c.out.Whole(http.StatusInternalServerError, errorBody("Internal server error", "InternalServerError", "null", 500))
}
