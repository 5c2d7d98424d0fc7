package vllm

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

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

// facts wraps a page of facts in what workers may do instead of saying them.
func (w *Worker) facts(page http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		c := w.Config()
		switch {
		case c.Facts.Hang:
			w.Sleep(r.Context(), c.Patience*100)
		case c.Facts.Gone:
			send(rw, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		case c.Facts.Garbage:
			send(rw, http.StatusOK, []byte("{\"version\": \xff\xfe"))
		case c.APIKey != "" && strings.HasPrefix(r.URL.Path, "/v1") && r.Header.Get("Authorization") != "Bearer "+c.APIKey:
			send(rw, http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
		default:
			page(rw, r)
		}
	}
}

func (w *Worker) models(rw http.ResponseWriter, _ *http.Request) {
	c := w.said()
	now := time.Now().Unix()
	send(rw, http.StatusOK, fmt.Appendf(nil, `{"object":"list","data":[{"id":%s,"object":"model","created":%d,"owned_by":"vllm","root":%s,"parent":null,"max_model_len":%d,"permission":[{"id":"modelperm-%016x","object":"model_permission","created":%d,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}]}`,
		quoted(c.Model), now, quoted("m/"+c.Model), c.Context, uint64(now)*0x9e3779b97f4a7c15, now))
}

// metrics are the lines that say what a worker is, and those that count.
func (w *Worker) metrics(rw http.ResponseWriter, _ *http.Request) {
	c := w.said()
	if c.Facts.Metrics != 0 {
		c.Pool = c.Facts.Metrics
	}
	boot, _ := w.Boot()
	blocks := c.Pool / c.PageSize
	var b strings.Builder
	fmt.Fprintf(&b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %s\n", strconv.FormatFloat(float64(boot.UnixMilli())/1e3, 'f', 2, 64))
	fmt.Fprintf(&b, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"%d\",cache_dtype=\"auto\",cache_hit_alignment_tokens=\"None\",effective_attention_block_size=\"%d\",enable_mamba_shared_prefix_checkpoint=\"False\",enable_prefix_caching=\"%s\",engine=\"0\",gpu_memory_utilization=\"0.92\",hash_block_size=\"None\",is_attention_free=\"False\",kv_cache_dtype_skip_layers=\"[]\",kv_cache_layout=\"None\",kv_cache_max_concurrency=\"%s\",kv_cache_memory_bytes=\"1073741824\",kv_cache_size_tokens=\"%d\",kv_offloading_backend=\"native\",kv_offloading_size=\"None\",kv_sharing_fast_prefill=\"False\",mamba_block_size=\"None\",mamba_cache_dtype=\"auto\",mamba_cache_mode=\"none\",mamba_page_size_padded=\"None\",mamba_ssm_cache_dtype=\"float32\",num_cpu_blocks=\"None\",num_gpu_blocks=\"%d\",num_gpu_blocks_override=\"%d\",prefix_cache_retention_interval=\"0\",prefix_caching_hash_algo=\"sha256\",prefix_match_unit=\"None\",replayssm_buffer_len=\"16\",skip_page_size_padded=\"None\",sliding_window=\"None\",swa_bounded_replay=\"True\",use_kda_recoverssm=\"False\",use_replayssm=\"False\",user_specified_block_size=\"True\"} 1.0\n",
		c.PageSize, c.PageSize, python(w.opt.Cached), number(float64(c.Pool)/float64(c.Context)), blocks*c.PageSize, blocks, blocks)
	line := func(typ, name, labels string, v float64) {
		fmt.Fprintf(&b, "# TYPE vllm:%s %s\nvllm:%s{engine=\"0\",model_name=%q%s} %s\n", name, typ, name, c.Model, labels, number(v))
	}
	used := 0.0
	if !c.Light && blocks > 1 {
		used = float64(blocks-1-w.Pages().Available()) / float64(blocks)
	}
	line("gauge", "num_requests_running", "", 0)
	line("gauge", "num_requests_waiting", "", 0)
	line("gauge", "kv_cache_usage_perc", "", used)
	line("counter", "prompt_tokens_total", "", float64(w.PromptTokens.Load()))
	line("counter", "generation_tokens_total", "", float64(w.ReplyTokens.Load()))
	if w.opt.Connector == Nixl {
		line("counter", "nixl_num_failed_transfers_total", "", 0)
		line("counter", "nixl_num_kv_expired_reqs_total", "", float64(w.expired.Load()))
		line("counter", "nixl_num_notifications_after_expiry_total", "", float64(w.tooLate.Load()))
	}
	rw.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	rw.Write([]byte(b.String()))
}

func python(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

func number(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// tokenize counts a prompt. It needs no key, and takes no token ids.
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
	b := fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":[`, q.Prompt, w.said().Context)
	for i, id := range q.IDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	send(rw, http.StatusOK, append(b, `],"token_strs":null}`...))
}

// counts reads a prompt that is to be counted; nil: it has answered.
func (w *Worker) counts(rw http.ResponseWriter, r *http.Request, ep func(*jsonedit.Doc) actor.Endpoint) *actor.Request {
	if cfg := w.Config(); cfg.Facts.Hang {
		w.Sleep(r.Context(), cfg.Patience*100)
		return nil
	}
	body, err := actor.ReadBody(r)
	if err != nil {
		return nil
	}
	d, err := w.ReadDoc(body)
	if err != nil {
		send(rw, http.StatusBadRequest, errorBody("1 validation error", "Bad Request", "null", 400))
		return nil
	}
	w.Forged(d)
	q, err := w.Understand(ep(d), d)
	if err != nil {
		send(rw, http.StatusBadRequest, errorBody(err.Error(), "BadRequestError", "null", 400))
		return nil
	}
	return q
}
