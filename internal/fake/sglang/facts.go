package sglang

import (
	"embed"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// What the released packages say of themselves: /server_info and /model_info of a decode worker, whose values a worker replaces by
// its own.
//
//go:embed wire/*.json
var wire embed.FS

// page is a recorded page of the nearest release.
func (w *Worker) page(name string) *jsonedit.Doc {
	v := "0.5.19"
	if w.atLeast(0, 5, 21) {
		v = "0.5.23"
	}
	body, err := wire.ReadFile("wire/" + name + "-" + v + ".json")
	if err != nil {
		panic("sglang: " + err.Error())
	}
	d, no := jsonedit.Read(body, nil)
	if no != nil {
		panic("sglang: wire/" + name + ": " + no.Error())
	}
	return d
}

// said is the configuration as the worker's pages say it.
func (w *Worker) said() actor.Config {
	c := w.Config()
	f := c.Facts
	if f.Pool != 0 {
		c.Pool = f.Pool
	}
	if f.Context != 0 {
		c.Context = f.Context
	}
	if f.PageSize != 0 {
		c.PageSize = f.PageSize
	}
	if f.Version != "" {
		c.Version = f.Version
	}
	return c
}

func mode(c actor.Config) string {
	switch {
	case c.Facts.Leg != "":
		return c.Facts.Leg
	case c.Leg == actor.Both:
		return "null"
	}
	return c.Leg.String()
}

// facts wraps a page of facts in what workers may do instead of saying them.
func (w *Worker) facts(page http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		c := w.Config()
		switch {
		case c.Facts.Hang:
			w.Sleep(r.Context(), c.Patience*100)
			return
		case c.Facts.Gone:
			http.NotFound(rw, r)
			return
		case c.Facts.Garbage:
			rw.Header().Set("Content-Type", "application/json")
			rw.Write([]byte("{\"version\": \xff\xfe"))
			return
		}
		if c.APIKey != "" && r.URL.Path != "/metrics" && r.Header.Get("Authorization") != "Bearer "+c.APIKey {
			rw.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(rw, `{"error":"Unauthorized"}`)
			return
		}
		page(rw, r)
	}
}

func send(rw http.ResponseWriter, b []byte) {
	rw.Header()["Content-Type"] = []string{"application/json"}
	rw.Header()["Content-Length"] = []string{strconv.Itoa(len(b))}
	rw.Write(b)
}

func (w *Worker) serverInfo(rw http.ResponseWriter, _ *http.Request) {
	c := w.said()
	boot, boots := w.Boot()
	d := w.page("server_info")
	e := d.Edit()
	own := func(e *jsonedit.Edit) *jsonedit.Edit {
		if c.Leg == actor.Prefill {
			e.Set("hicache_ratio", []byte("2.0")).SetBool("disable_radix_cache", false).SetText("load_balance_method", "follow_bootstrap_room").
				Set("disaggregation_decode_extra_slots", []byte("null"))
		}
		if _, port := w.Bootstrap(); port != 0 {
			e.SetInt("disaggregation_bootstrap_port", int64(port))
		}
		_, port, _ := net.SplitHostPort(c.Addr)
		n, _ := strconv.ParseInt(port, 10, 64)
		return e.SetText("model_path", c.Model).SetText("served_model_name", c.Model).SetText("tokenizer_path", c.Model).
			SetInt("context_length", int64(c.Context)).SetInt("page_size", int64(c.PageSize)).SetInt("max_total_tokens", int64(c.Pool)).
			SetText("disaggregation_mode", mode(c)).SetInt("dp_size", int64(c.Ranks)).SetInt("port", n).SetInt("random_seed", int64(boots)*7919)
	}
	if c.Leg == actor.Prefill {
		e.Set("disaggregation_decode_retraction_backup", []byte("null"))
	}
	own(e).SetInt("max_total_num_tokens", int64(c.Pool)).SetInt("max_req_input_len", int64(longest(c))).SetText("version", c.Version)
	e.Set("startup_time", fmt.Appendf(nil, `{"load_weight":0.04,"kv_cache_allocation":0.51,"scheduler_e2e":16.63,"cuda_graph":{"prefill":0.0,"decode":0.0,"target_verify":0.0,"draft_prefill":0.0,"draft_decode":0.0,"draft_extend":0.0},"tokenizer_e2e":%.6f}`, float64(boot.UnixMicro()%1e9)/1e6))
	e.Set("internal_states", w.states(c, d.Get("internal_states"), own))
	send(rw, e.Body().AppendTo(nil))
}

// states is internal_states: one entry a rank, each with the arguments once more.
func (w *Worker) states(c actor.Config, recorded jsonedit.Value, own func(*jsonedit.Edit) *jsonedit.Edit) []byte {
	var one jsonedit.Value
	recorded.Each(func(_ []byte, v jsonedit.Value) bool { one = v; return false })
	d, no := jsonedit.Read(one.Raw(), nil)
	if no != nil {
		panic("sglang: internal_states: " + no.Error())
	}
	memory, no := jsonedit.Read(d.Get("memory_usage").Raw(), nil)
	if no != nil {
		panic("sglang: memory_usage: " + no.Error())
	}
	m := memory.Edit().SetInt("token_capacity", int64(c.Pool)).Body().AppendTo(nil)
	state := own(d.Edit()).Set("memory_usage", m).Body().AppendTo(nil)
	b := append([]byte{'['}, state...)
	for range c.Ranks - 1 {
		b = append(append(b, ','), state...)
	}
	return append(b, ']')
}

func (w *Worker) modelInfo(rw http.ResponseWriter, _ *http.Request) {
	c := w.said()
	e := w.page("model_info").Edit().SetText("model_path", c.Model).SetText("served_model_name", c.Model).SetText("tokenizer_path", c.Model)
	switch {
	case w.atLeast(0, 5, 23):
		e.SetText("disaggregation_mode", mode(c))
	default:
		e.Delete("disaggregation_mode")
	}
	send(rw, e.Body().AppendTo(nil))
}

func (w *Worker) models(rw http.ResponseWriter, _ *http.Request) {
	c := w.said()
	send(rw, fmt.Appendf(nil, `{"object":"list","data":[{"id":%s,"object":"model","created":%d,"owned_by":"sglang","root":%s,"parent":null,"max_model_len":%d}]}`,
		quoted(c.Model), time.Now().Unix(), quoted(c.Model), c.Context))
}

func (w *Worker) loads(rw http.ResponseWriter, _ *http.Request) {
	c := w.said()
	boot, _ := w.Boot()
	used := 0
	if !c.Light {
		used = c.Pool - w.Pages().Available()*c.PageSize
	}
	send(rw, fmt.Appendf(nil, `{"timestamp":%s,"version":%s,"accelerator":null,"num_accelerators":1,"loads":[{"timestamp":%d,"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,"num_waiting_uncached_tokens":0,"num_used_tokens":%d,"num_total_tokens":%d,"num_active_tokens":0,"max_total_num_tokens":%d,"max_running_requests":2048,"token_usage":0.0,"gen_throughput":0.0,"cache_hit_rate":0.0,"utilization":0.0}]}`,
		quoted(boot.UTC().Format("2006-01-02T15:04:05.000000+00:00")), quoted(c.Version), boot.Unix(), used, used, c.Pool))
}

// route is the bootstrap server's answer to a question for all ranks.
func (w *Worker) route(rw http.ResponseWriter, r *http.Request) {
	c := w.said()
	_, port, _ := net.SplitHostPort(c.Addr)
	send(rw, fmt.Appendf(nil, `{"attn_tp_size":1,"attn_cp_size":1,"dp_size":%d,"pp_size":1,"page_size":%d,"kv_cache_dtype":"auto","follow_bootstrap_room":true,"enable_dsa_cache_layer_split":false,"prefill_http_port":%s}`,
		c.Ranks, c.PageSize, port))
}

func (w *Worker) metrics(rw http.ResponseWriter, _ *http.Request) {
	c := w.said()
	if c.Facts.Metrics != 0 {
		c.Pool = c.Facts.Metrics
	}
	typ := mode(c)
	if typ == "null" {
		typ = "unified"
	}
	var b strings.Builder
	rank := fmt.Sprintf(`engine_type=%q,model_name=%q,moe_ep_rank="0",pp_rank="0",tp_rank="0"`, typ, c.Model)
	gauge := func(name string, v float64) {
		fmt.Fprintf(&b, "# TYPE sglang:%s gauge\nsglang:%s{%s} %s\n", name, name, rank, number(v))
	}
	counter := func(name string, v int64) {
		fmt.Fprintf(&b, "# TYPE sglang:%s counter\nsglang:%s{engine_type=%q,is_streaming=\"false\",model_name=%q} %s\n", name, name, typ, c.Model, number(float64(v)))
	}
	gauge("max_total_num_tokens", float64(c.Pool))
	gauge("page_size", float64(c.PageSize))
	gauge("num_pages", float64(c.Pool/c.PageSize))
	gauge("context_len", float64(c.Context))
	gauge("num_running_reqs", 0)
	gauge("num_queue_reqs", 0)
	gauge("token_usage", 0)
	if !c.Light {
		free := w.Pages().Available() * c.PageSize
		gauge("kv_available_tokens", float64(free))
		gauge("kv_used_tokens", float64(c.Pool-free))
	}
	counter("prompt_tokens_total", w.PromptTokens.Load())
	counter("generation_tokens_total", w.ReplyTokens.Load())
	counter("num_requests_total", w.Requests.Load())
	rw.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	rw.Write([]byte(b.String()))
}

func number(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// tokenize counts a prompt.
func (w *Worker) tokenize(rw http.ResponseWriter, r *http.Request) {
	q := w.counts(rw, r, func(d *jsonedit.Doc) actor.Endpoint {
		if d.Get("prompt").Said() {
			return actor.Completions
		}
		return actor.Chat
	})
	if q == nil {
		return
	}
	b := []byte(`{"tokens":[`)
	for i, id := range q.IDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	send(rw, fmt.Appendf(b, `],"count":%d,"max_model_len":%d}`, q.Prompt, w.said().Context))
}

// counts reads a prompt that is to be counted; nil: it has answered.
func (w *Worker) counts(rw http.ResponseWriter, r *http.Request, ep func(*jsonedit.Doc) actor.Endpoint) *actor.Request {
	cfg := w.Config()
	if cfg.Facts.Hang {
		w.Sleep(r.Context(), cfg.Patience*100)
		return nil
	}
	w.CheckHeaders(r)
	body, err := actor.ReadBody(r)
	if err != nil {
		return nil
	}
	d, err := w.ReadDoc(body)
	if err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		return nil
	}
	w.Forged(d)
	q, err := w.Understand(ep(d), d)
	if err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		send(rw, fmt.Appendf(nil, `{"object":"error","message":%s,"type":"BadRequestError","param":null,"code":400}`, quoted(err.Error())))
		return nil
	}
	return q
}
