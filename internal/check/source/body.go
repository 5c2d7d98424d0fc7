package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// errNoFacts says that a body is well formed but is none that states facts of an engine.
var errNoFacts = errors.New("no answer of an engine that states facts")

// readBody reads a JSON answer of an engine: SGLang's /server_info, /get_server_info, /model_info and bootstrap /route,
// vLLM's /server_info and /version, and /v1/models of both. A captured response may have its head before it.
func readBody(n *facts.Node, b []byte, at facts.Source) error {
	b = withoutHead(b)
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("no JSON object: %w", err)
	}
	has := func(keys ...string) bool {
		for _, k := range keys {
			if _, ok := m[k]; !ok {
				return false
			}
		}
		return true
	}
	switch {
	case has("vllm_config"):
		return readVLLMConfig(n, m, at)
	case has("max_total_num_tokens"), has("internal_states"), has("disaggregation_mode", "tp_size"):
		readServerInfo(n, m, at)
	case has("max_context_length", "max_req_input_len"): // gRPC GetModelInfo: the first is the pool
		readModelInfo(n, m, at)
		pool, limit := rawInt(m["max_context_length"]), rawInt(m["max_req_input_len"])
		putInt(n, facts.Pool, pool, at, facts.Said)
		putInt(n, facts.MaxPrompt, limit, at, facts.Said)
		if limit > 0 && limit+6 < pool {
			putInt(n, facts.Context, limit+6, at, facts.Total)
		}
	case has("model_path", "is_generation"):
		readModelInfo(n, m, at)
	case has("attn_tp_size", "page_size"): // bootstrap GET /route
		n.Put(facts.Engine, "sglang", at, facts.Said)
		n.Put(facts.Role, "prefill", at, facts.Args)
		n.Put(facts.PD, "true", at, facts.Args)
		putInt(n, facts.PageSize, rawInt(m["page_size"]), at, facts.Said)
		n.Put(facts.KVDType, rawString(m["kv_cache_dtype"]), at, facts.Args)
	case rawString(m["object"]) == "list" && has("data"):
		return readModels(n, m["data"], at)
	case has("version") && len(m) == 1:
		n.Put(facts.Engine, "vllm", at, facts.Args)
		n.Put(facts.Version, rawString(m["version"]), at, facts.Said)
	default:
		return errNoFacts
	}
	return nil
}

// withoutHead drops a captured status line and headers.
func withoutHead(b []byte) []byte {
	b = bytes.TrimLeft(b, "\ufeff \t\r\n")
	if !bytes.HasPrefix(b, []byte("HTTP/")) {
		return b
	}
	for _, sep := range []string{"\r\n\r\n", "\n\n"} {
		if i := bytes.Index(b, []byte(sep)); i >= 0 {
			return bytes.TrimLeft(b[i:], "\r\n")
		}
	}
	return b
}

// readServerInfo reads SGLang's flat answer: all arguments, the scheduler's numbers, and a state per data-parallel rank.
// Keys and tokens in it are looked at for presence only.
func readServerInfo(n *facts.Node, m map[string]json.RawMessage, at facts.Source) {
	n.Whole = true
	n.Put(facts.Engine, "sglang", at, facts.Said)
	n.Put(facts.Version, rawString(m["version"]), at, facts.Said)
	for k, raw := range m {
		if _, ok := sglangArgs[k]; !ok {
			switch k {
			case "disaggregation_mode", "api_key", "admin_api_key", "disable_radix_cache", "disable_overlap_schedule", "lora_paths", "encoder_only", "language_only":
			default:
				continue
			}
		}
		apply(n, "sglang", k, rawText(raw), at, facts.Args)
	}
	putInt(n, facts.Pool, rawInt(m["max_total_num_tokens"]), at, facts.Said)
	limit := rawInt(m["max_req_input_len"])
	putInt(n, facts.MaxPrompt, limit, at, facts.Said)
	var states []struct {
		Pool   int `json:"max_total_num_tokens"`
		Memory struct {
			Capacity    int  `json:"token_capacity"`
			CapacitySWA *int `json:"token_capacity_swa"`
		} `json:"memory_usage"`
	}
	if json.Unmarshal(m["internal_states"], &states) == nil {
		for i, s := range states {
			rank := ""
			if len(states) > 1 {
				rank = "DP" + strconv.Itoa(i)
			}
			if s.Pool > 0 {
				n.PutRank(facts.Pool, itoa(s.Pool), at, facts.Said, rank)
			}
			if s.Memory.Capacity > 0 {
				n.PutRank(facts.Pool, itoa(s.Memory.Capacity), at, facts.Said, rank)
			}
			if s.Memory.CapacitySWA != nil && *s.Memory.CapacitySWA > 0 {
				n.PutRank(facts.SWAPool, itoa(*s.Memory.CapacitySWA), at, facts.Said, rank)
				n.Put(facts.Hybrid, "true", at, facts.Said)
			}
		}
	}
	if pool := n.Int(facts.Pool); limit > 0 && limit+6 < pool && n.Text(facts.Context) == "" {
		putInt(n, facts.Context, limit+6, at, facts.Total)
	}
	n.Starts = n.Starts || rawString(m["status"]) == "ready"
	var start struct {
		Tokenizer float64 `json:"tokenizer_e2e"`
	}
	if json.Unmarshal(m["startup_time"], &start) == nil && start.Tokenizer > 0 {
		n.Put(facts.Startup, strconv.FormatFloat(start.Tokenizer, 'f', -1, 64)+" "+rawText(m["random_seed"]), at, facts.Said)
	}
}

func readModelInfo(n *facts.Node, m map[string]json.RawMessage, at facts.Source) {
	n.Put(facts.Engine, "sglang", at, facts.Args)
	n.Put(facts.Model, rawString(m["model_path"]), at, facts.Said)
	n.Put(facts.Tokenizer, rawString(m["tokenizer_path"]), at, facts.Said)
	n.Put(facts.Served, rawString(m["served_model_name"]), at, facts.Said)
	n.Put(facts.WeightVersion, rawString(m["weight_version"]), at, facts.Said)
	if mode, ok := m["disaggregation_mode"]; ok {
		applyRole(n, rawText(mode), at, facts.Said)
	}
	var arch []string
	if json.Unmarshal(m["architectures"], &arch) == nil && len(arch) > 0 {
		n.Put(facts.Architecture, arch[0], at, facts.Said)
	}
	if rawText(m["has_image_understanding"]) == "true" {
		n.Put(facts.Multimodal, "true", at, facts.Said)
	} else if _, ok := m["has_image_understanding"]; ok {
		n.Put(facts.Multimodal, "false", at, facts.Said)
	}
}

func readModels(n *facts.Node, data json.RawMessage, at facts.Source) error {
	var cards []struct {
		ID      string  `json:"id"`
		OwnedBy string  `json:"owned_by"`
		Root    string  `json:"root"`
		Parent  *string `json:"parent"`
		MaxLen  *int    `json:"max_model_len"`
	}
	if err := json.Unmarshal(data, &cards); err != nil || len(cards) == 0 {
		return errNoFacts
	}
	for _, c := range cards {
		if c.Parent != nil && *c.Parent != "" { // an adapter
			n.Put(facts.LoRA, "true", at, facts.Said)
			continue
		}
		switch c.OwnedBy {
		case "vllm", "sglang":
			n.Put(facts.Engine, c.OwnedBy, at, facts.Said)
		}
		n.Put(facts.Served, c.ID, at, facts.Said)
		n.Put(facts.Model, c.Root, at, facts.Args)
		if c.MaxLen != nil {
			putInt(n, facts.Context, *c.MaxLen, at, facts.Said)
		}
	}
	return nil
}

// readVLLMConfig reads /server_info, which vLLM offers in its development mode only: as JSON, or as one text.
func readVLLMConfig(n *facts.Node, m map[string]json.RawMessage, at facts.Source) error {
	n.Put(facts.Engine, "vllm", at, facts.Said)
	n.Put(facts.DevMode, "true", at, facts.Said)
	n.Whole = true
	var text string
	if json.Unmarshal(m["vllm_config"], &text) == nil {
		pairs([]byte("("+text), func(k string, v []byte) { apply(n, "vllm", k, plain(v), at, facts.Args) })
		return nil
	}
	var c struct {
		Cache struct {
			BlockSize  int     `json:"block_size"`
			DType      string  `json:"cache_dtype"`
			Prefix     *bool   `json:"enable_prefix_caching"`
			Hash       string  `json:"prefix_caching_hash_algo"`
			Blocks     int     `json:"num_gpu_blocks"`
			Override   *int    `json:"num_gpu_blocks_override"`
			Tokens     int     `json:"kv_cache_size_tokens"`
			Concurrent float64 `json:"kv_cache_max_concurrency"`
		} `json:"cache_config"`
		Scheduler struct {
			Multimodal *bool `json:"is_multimodal_model"`
		} `json:"scheduler_config"`
		Parallel struct {
			TP, DP, PP, DCP, Nodes int
		} `json:"-"`
		ParallelRaw map[string]json.RawMessage `json:"parallel_config"`
		Transfer    map[string]json.RawMessage `json:"kv_transfer_config"`
		Model       struct {
			Model        string  `json:"model"`
			Tokenizer    string  `json:"tokenizer"`
			Revision     *string `json:"revision"`
			DType        string  `json:"dtype"`
			MaxLen       int     `json:"max_model_len"`
			Served       any     `json:"served_model_name"`
			PromptEmbeds *bool   `json:"enable_prompt_embeds"`
		} `json:"model_config"`
	}
	if err := json.Unmarshal(m["vllm_config"], &c); err != nil {
		return fmt.Errorf("vllm_config: %w", err)
	}
	putInt(n, facts.PageSize, c.Cache.BlockSize, at, facts.Said)
	n.Put(facts.KVDType, c.Cache.DType, at, facts.Args)
	putBool(n, facts.PrefixCache, c.Cache.Prefix, at)
	n.Put(facts.PrefixHash, c.Cache.Hash, at, facts.Said)
	switch {
	case c.Cache.Tokens > 0:
		putInt(n, facts.Pool, c.Cache.Tokens, at, facts.Said)
	case c.Cache.Blocks > 0:
		putInt(n, facts.Pool, c.Cache.Blocks*c.Cache.BlockSize, at, facts.Said)
	}
	if c.Cache.Override != nil {
		putInt(n, facts.BlocksOverride, *c.Cache.Override, at, facts.Said)
	}
	putBool(n, facts.Multimodal, c.Scheduler.Multimodal, at)
	for k, key := range map[string]facts.Key{"tensor_parallel_size": facts.TP, "data_parallel_size": facts.DP, "pipeline_parallel_size": facts.PP,
		"decode_context_parallel_size": facts.DCP, "nnodes": facts.Nodes} {
		putInt(n, key, rawInt(c.ParallelRaw[k]), at, facts.Said)
	}
	if len(c.Transfer) == 0 {
		n.Put(facts.PD, "false", at, facts.Said)
	}
	for k, raw := range c.Transfer {
		applyTransferField(n, k, rawString(raw), at, facts.Said)
	}
	n.Put(facts.Model, c.Model.Model, at, facts.Said)
	n.Put(facts.Tokenizer, c.Model.Tokenizer, at, facts.Said)
	if c.Model.Revision != nil {
		n.Put(facts.Revision, *c.Model.Revision, at, facts.Said)
	}
	n.Put(facts.DType, c.Model.DType, at, facts.Said)
	putInt(n, facts.Context, c.Model.MaxLen, at, facts.Said)
	if s, ok := c.Model.Served.(string); ok {
		n.Put(facts.Served, s, at, facts.Said)
	}
	putBool(n, facts.PromptEmbeds, c.Model.PromptEmbeds, at)
	return nil
}

func putInt(n *facts.Node, k facts.Key, v int, at facts.Source, w facts.Weight) {
	if v > 0 {
		n.Put(k, itoa(v), at, w)
	}
}

func putBool(n *facts.Node, k facts.Key, v *bool, at facts.Source) {
	if v != nil {
		n.Put(k, strconv.FormatBool(*v), at, facts.Said)
	}
}

func rawString(r json.RawMessage) string {
	var s string
	_ = json.Unmarshal(r, &s) // another type is no string
	return s
}

// rawText is a JSON scalar as text: "" for null.
func rawText(r json.RawMessage) string {
	if len(r) > 0 && r[0] == '"' {
		return rawString(r)
	}
	s := strings.TrimSpace(string(r))
	if s == "null" {
		return ""
	}
	return s
}

func rawInt(r json.RawMessage) int {
	var f float64
	if json.Unmarshal(r, &f) != nil || f < 0 || f > 1<<53 {
		return 0
	}
	return int(f)
}
