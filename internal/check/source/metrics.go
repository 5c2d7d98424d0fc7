package source

import (
	"bytes"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// readMetrics reads a Prometheus page of an engine. It reports how many lines were of SGLang or vLLM.
func readMetrics(n *facts.Node, r io.Reader, name string) (lines int, err error) {
	var prompts float64
	var promptsAt facts.Source
	err = eachLine(r, func(b []byte, no int, _, _ bool) {
		at := facts.Source{Name: name, Line: no}
		if bytes.HasPrefix(b, []byte("process_start_time_seconds")) {
			if _, v, ok := sample(b); ok {
				n.Put(facts.BootTime, strconv.FormatFloat(v, 'f', 2, 64), at, facts.Said)
			}
			return
		}
		engine := ""
		switch {
		case bytes.HasPrefix(b, []byte("sglang:")), bytes.HasPrefix(b, []byte("sglang_")):
			engine = "sglang"
		case bytes.HasPrefix(b, []byte("vllm:")), bytes.HasPrefix(b, []byte("vllm_")):
			engine = "vllm"
		default:
			return
		}
		lines++
		end := bytes.IndexAny(b, "{ ")
		if end < 0 {
			return
		}
		metric := string(b[len(engine)+1 : end])
		if strings.HasSuffix(metric, "_bucket") || strings.HasSuffix(metric, "_created") {
			return
		}
		if lines == 1 {
			n.Put(facts.Engine, engine, at, facts.Said)
			n.Put(facts.Metrics, "true", at, facts.Said)
		}
		if metric == "prompt_tokens_total" {
			if _, v, ok := sample(b); ok {
				prompts += v
				promptsAt = at
			}
			return
		}
		if engine == "sglang" {
			sglangMetric(n, metric, b, at)
		} else {
			vllmMetric(n, metric, b, at)
		}
	})
	if promptsAt.Name != "" {
		n.Put(facts.PromptTokens, strconv.FormatFloat(prompts, 'f', 0, 64), promptsAt, facts.Said)
	}
	return lines, err
}

func sglangMetric(n *facts.Node, metric string, b []byte, at facts.Source) {
	var key facts.Key
	var event string
	switch metric {
	case "max_total_num_tokens":
		key = facts.Pool
	case "max_total_num_tokens_swa":
		key = facts.SWAPool
	case "context_len":
		key = facts.Context
	case "page_size":
		key = facts.PageSize
	case "num_transfer_failed_reqs_total", "num_transfer_failed_reqs":
		event = EventTransfer
	case "decode_deferred_kv_release_total":
		event = EventLateRelease
	case "cache_config_info":
		labels, _, ok := sample(b)
		if ok {
			if p := wholeNumber(labels["page_size"]); p != "" {
				n.Put(facts.PageSize, p, at, facts.Said)
			}
		}
		return
	default:
		return
	}
	labels, v, ok := sample(b)
	if !ok || math.IsNaN(v) {
		return
	}
	if m := labels["model_name"]; m != "" {
		n.Put(facts.Served, m, at, facts.Part)
	}
	switch t := labels["engine_type"]; t {
	case "prefill", "decode":
		applyRole(n, t, at, facts.Said)
	case "unified":
		applyRole(n, "null", at, facts.Said)
	}
	if event != "" {
		if event == EventLateRelease && labels["outcome"] != "timeout" {
			return
		}
		if v >= 1 {
			n.AddEvent(event, at, int(v))
		}
		return
	}
	if v < 1 || v > 1<<53 {
		return
	}
	rank := ""
	if dp := labels["dp_rank"]; dp != "" && dp != "None" {
		rank = "DP" + dp
	}
	n.PutRank(key, strconv.Itoa(int(v)), at, facts.Said, rank)
	if key == facts.SWAPool {
		n.Put(facts.Hybrid, "true", at, facts.Said)
	}
}

func vllmMetric(n *facts.Node, metric string, b []byte, at facts.Source) {
	event := ""
	switch metric {
	case "cache_config_info":
		if labels, _, ok := sample(b); ok {
			vllmCache(n, labels, at)
		}
		return
	case "nixl_num_notifications_after_expiry_total":
		event = EventExpiredReads
	case "nixl_num_kv_expired_reqs_total", "nixl_num_kv_expired_reqs":
		event = EventExpired
	case "nixl_num_failed_transfers_total", "nixl_num_failed_transfers":
		event = EventTransfer
	default:
		return
	}
	if strings.HasPrefix(metric, "nixl_") {
		n.Put(facts.Connector, "NixlConnector", at, facts.Part)
		n.Put(facts.PD, "true", at, facts.Part)
	}
	labels, v, ok := sample(b)
	if !ok {
		return
	}
	if m := labels["model_name"]; m != "" {
		n.Put(facts.Served, m, at, facts.Part)
	}
	if v >= 1 {
		n.AddEvent(event, at, int(v))
	}
}

// vllmCache reads the gauge whose labels are the cache configuration. The size in tokens counts; blocks times size is
// used when it is not there. Size over concurrency is the context.
func vllmCache(n *facts.Node, l map[string]string, at facts.Source) {
	rank := ""
	if e := l["engine"]; e != "" && e != "0" {
		rank = "DP" + e
	}
	page := wholeNumber(l["block_size"])
	n.Put(facts.PageSize, page, at, facts.Said)
	n.Put(facts.KVDType, l["cache_dtype"], at, facts.Args)
	switch l["enable_prefix_caching"] {
	case "True":
		n.Put(facts.PrefixCache, "true", at, facts.Said)
	case "False":
		n.Put(facts.PrefixCache, "false", at, facts.Said)
	}
	n.Put(facts.PrefixHash, none(l["prefix_caching_hash_algo"]), at, facts.Said)
	if o := wholeNumber(l["num_gpu_blocks_override"]); o != "" {
		n.Put(facts.BlocksOverride, o, at, facts.Said)
	}
	if t := wholeNumber(l["kv_cache_size_tokens"]); t != "" {
		n.PutRank(facts.Pool, t, at, facts.Said, rank)
		c, err := strconv.ParseFloat(l["kv_cache_max_concurrency"], 64)
		tokens, _ := strconv.ParseFloat(t, 64)
		if err == nil && c > 0 {
			if ctx := tokens / c; math.Abs(ctx-math.Round(ctx)) < 2 && ctx < 1<<40 {
				// The size was rounded down: the context is the next round number within a token or two.
				n.Put(facts.Context, strconv.Itoa(roundContext(ctx, c)), at, facts.Total)
			}
		}
		return
	}
	blocks, _ := strconv.Atoi(wholeNumber(l["num_gpu_blocks"]))
	size, _ := strconv.Atoi(page)
	if blocks > 0 && size > 0 {
		n.PutRank(facts.Pool, strconv.Itoa(blocks*size), at, facts.Said, rank)
	}
}

// roundContext undoes int(concurrency x context): the size may be up to one token short, which is 1/concurrency of a
// context token.
func roundContext(ctx, concurrency float64) int {
	lo, hi := int(math.Ceil(ctx-1e-6)), int(math.Floor(ctx+1/concurrency+1e-6))
	best := lo
	for v := lo; v <= hi; v++ {
		if v&(v-1) == 0 || v%1024 == 0 || v%1000 == 0 {
			best = v
			break
		}
	}
	return best
}

func none(s string) string {
	if s == "None" {
		return ""
	}
	return s
}

// sample takes one line apart: labels and value.
func sample(b []byte) (labels map[string]string, v float64, ok bool) {
	rest := b
	if i := bytes.IndexByte(b, '{'); i >= 0 {
		labels = map[string]string{}
		rest = b[i+1:]
		for {
			rest = bytes.TrimLeft(rest, ", ")
			if len(rest) == 0 {
				return nil, 0, false
			}
			if rest[0] == '}' {
				rest = rest[1:]
				break
			}
			eq := bytes.IndexByte(rest, '=')
			if eq < 0 || eq+1 >= len(rest) || rest[eq+1] != '"' {
				return nil, 0, false
			}
			end := closing(rest[eq+1:])
			if end < 0 {
				return nil, 0, false
			}
			labels[string(rest[:eq])] = string(rest[eq+2 : eq+1+end])
			rest = rest[eq+2+end:]
		}
	} else if i := bytes.IndexByte(b, ' '); i >= 0 {
		rest = b[i:]
	}
	f := bytes.Fields(rest)
	if len(f) == 0 {
		return nil, 0, false
	}
	v, err := strconv.ParseFloat(string(f[0]), 64)
	return labels, v, err == nil
}
