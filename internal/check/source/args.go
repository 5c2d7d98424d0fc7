package source

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// sglangArgs are SGLang's arguments that are facts as they stand. Keys as in ServerArgs; a flag is the same with dashes.
var sglangArgs = map[string]facts.Key{
	"context_length": facts.Context, "page_size": facts.PageSize, "kv_cache_dtype": facts.KVDType, "max_total_tokens": facts.PoolCap,
	"model_path": facts.Model, "model": facts.Model, "tokenizer_path": facts.Tokenizer, "served_model_name": facts.Served,
	"revision": facts.Revision, "chat_template": facts.Template, "weight_version": facts.WeightVersion, "dtype": facts.DType,
	"quantization": facts.Quantization, "speculative_algorithm": facts.Speculative, "disaggregation_transfer_backend": facts.Connector,
	"disaggregation_bootstrap_port": facts.BootstrapPort, "allow_auto_truncate": facts.AutoTruncate,
	"disaggregation_enable_kv_checksum": facts.Checksum, "disaggregation_decode_allocation_policy": facts.Allocation,
	"enable_metrics": facts.Metrics, "enable_lora": facts.LoRA, "enable_hierarchical_cache": facts.HiCache,
	"hicache_storage_backend": facts.HiCacheStorage, "disaggregation_decode_enable_offload_kvcache": facts.Offload,
	"chunked_prefill_size": facts.ChunkedPrefill, "tp_size": facts.TP, "tensor_parallel_size": facts.TP, "tp": facts.TP,
	"dp_size": facts.DP, "data_parallel_size": facts.DP, "dp": facts.DP, "pp_size": facts.PP, "pipeline_parallel_size": facts.PP, "pp": facts.PP,
	"dcp_size": facts.DCP, "nnodes": facts.Nodes, "node_rank": facts.NodeRank, "host": facts.Host, "port": facts.Port,
	"mem_fraction_static": facts.MemFraction, "enable_pd_role_switch": facts.RoleSwitch, "grpc_mode": facts.GRPC, "smg_grpc_mode": facts.GRPC,
	"kv_canary": facts.Canary, "enable_multimodal": facts.Multimodal, "enable_streaming_session": facts.StreamingSession, "device": facts.Device,
	"attention_backend": facts.XFormers,
}

// vllmArgs are vLLM's.
var vllmArgs = map[string]facts.Key{
	"max_model_len": facts.Context, "max_seq_len": facts.Context, "block_size": facts.PageSize, "kv_cache_dtype": facts.KVDType, "cache_dtype": facts.KVDType,
	"model": facts.Model, "model_tag": facts.Model, "tokenizer": facts.Tokenizer, "served_model_name": facts.Served, "revision": facts.Revision,
	"chat_template": facts.Template, "dtype": facts.DType, "quantization": facts.Quantization, "num_gpu_blocks_override": facts.BlocksOverride,
	"enable_prefix_caching": facts.PrefixCache, "prefix_caching_hash_algo": facts.PrefixHash, "enable_lora": facts.LoRA,
	"tensor_parallel_size": facts.TP, "data_parallel_size": facts.DP, "pipeline_parallel_size": facts.PP,
	"decode_context_parallel_size": facts.DCP, "host": facts.Host, "port": facts.Port, "gpu_memory_utilization": facts.MemFraction,
	"enable_prompt_embeds": facts.PromptEmbeds, "enable_multimodal": facts.Multimodal, "is_multimodal_model": facts.Multimodal, "nnodes": facts.Nodes, "node_rank": facts.NodeRank,
}

// short are spellings of flags that differ from the argument's name.
var short = map[string]string{
	"tp": "tp_size", "dp": "dp_size", "pp": "pp_size", "tensor_parallel_size": "tp_size", "data_parallel_size": "dp_size",
	"pipeline_parallel_size": "pp_size", "model": "model_path", "context_len": "context_length",
}

// vllmShort are vLLM's one-letter flags.
var vllmShort = map[string]string{"tp": "tensor_parallel_size", "dp": "data_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization"}

// apply records one argument of an engine. val is plain text, "" for none.
func apply(n *facts.Node, engine, key, val string, at facts.Source, w facts.Weight) {
	key = strings.ReplaceAll(strings.TrimLeft(key, "-"), "-", "_")
	if engine == "vllm" {
		applyVLLM(n, key, val, at, w)
		return
	}
	applySGLang(n, key, val, at, w)
}

func applySGLang(n *facts.Node, key, val string, at facts.Source, w facts.Weight) {
	switch key {
	case "disaggregation_mode":
		applyRole(n, val, at, w)
		return
	case "api_key":
		n.Put(facts.APIKey, strconv.FormatBool(val != ""), at, w)
		return
	case "admin_api_key":
		n.Put(facts.AdminKey, strconv.FormatBool(val != ""), at, w)
		return
	case "disable_radix_cache":
		n.Put(facts.PrefixCache, negate(val), at, w)
		return
	case "disable_overlap_schedule":
		n.Put(facts.Overlap, negate(val), at, w)
		return
	case "encoder_only", "language_only":
		if val == "true" {
			n.Put(facts.EncoderDisagg, "true", at, w)
		}
		return
	case "lora_paths":
		if val != "" && val != "[]" && val != "{}" {
			n.Put(facts.LoRA, "true", at, w)
		}
		return
	}
	k, ok := sglangArgs[key]
	if !ok || val == "" {
		return
	}
	switch k {
	case facts.Context, facts.PageSize, facts.PoolCap:
		val = wholeNumber(val)
	case facts.Speculative:
		val = strings.ToUpper(val)
	}
	n.Put(k, val, at, w)
}

// applyRole records a disaggregation mode; "null" is SGLang's word for none.
func applyRole(n *facts.Node, val string, at facts.Source, w facts.Weight) {
	switch strings.ToLower(val) {
	case "prefill", "decode":
		n.Put(facts.Role, strings.ToLower(val), at, w)
		n.Put(facts.PD, "true", at, w)
	case "null", "none", "":
		n.Put(facts.Role, "both", at, w)
		n.Put(facts.PD, "false", at, w)
	}
}

func applyVLLM(n *facts.Node, key, val string, at facts.Source, w facts.Weight) {
	if s, ok := vllmShort[key]; ok {
		key = s
	}
	switch key {
	case "kv_transfer_config":
		applyTransfer(n, val, at, w)
		return
	case "kv_role", "kv_connector", "kv_load_failure_policy":
		applyTransferField(n, key, val, at, w)
		return
	case "api_key":
		n.Put(facts.APIKey, strconv.FormatBool(val != "" && val != "[]"), at, w)
		return
	case "is_prefill_worker", "is_decode_worker": // Dynamo's
		if val == "true" {
			applyRole(n, strings.TrimSuffix(strings.TrimPrefix(key, "is_"), "_worker"), at, w)
		}
		return
	case "disaggregation_mode": // Dynamo's
		applyRole(n, val, at, w)
		return
	case "speculative_config", "speculative_model":
		if val == "" || val == "None" {
			return
		}
		n.Put(facts.Speculative, speculation(val), at, w)
		return
	}
	k, ok := vllmArgs[key]
	if !ok || val == "" {
		return
	}
	switch k {
	case facts.Context, facts.PageSize, facts.BlocksOverride:
		val = wholeNumber(val)
		if val == "0" {
			return
		}
	case facts.Served:
		val = strings.Trim(strings.SplitN(strings.Trim(val, "[]"), ",", 2)[0], "'\" ")
	}
	n.Put(k, val, at, w)
}

// speculation names what a vLLM speculative configuration uses: its method, else that there is one.
func speculation(val string) string {
	for _, key := range []string{"method", "model"} {
		if r, ok := value([]byte(val), key); ok {
			if t := token(r); t != "" && t != "None" {
				return t
			}
		}
	}
	return "on"
}

// applyTransfer reads a KV transfer configuration: JSON on the command line, a repr in a log.
func applyTransfer(n *facts.Node, val string, at facts.Source, w facts.Weight) {
	if val == "" || val == "None" {
		n.Put(facts.PD, "false", at, w)
		return
	}
	var m map[string]any
	if json.Unmarshal([]byte(val), &m) == nil {
		for _, k := range []string{"kv_connector", "kv_role", "kv_load_failure_policy"} {
			if s, ok := m[k].(string); ok {
				applyTransferField(n, k, s, at, w)
			}
		}
		return
	}
	pairs([]byte(val), func(k string, v []byte) { applyTransferField(n, k, plain(v), at, w) })
}

func applyTransferField(n *facts.Node, key, val string, at facts.Source, w facts.Weight) {
	if val == "" {
		return
	}
	switch key {
	case "kv_connector":
		n.Put(facts.Connector, val, at, w)
		n.Put(facts.PD, strconv.FormatBool(strings.Contains(val, "Nixl") || strings.Contains(val, "Mooncake") ||
			strings.Contains(val, "P2p") || strings.Contains(val, "PyNccl") || strings.Contains(val, "MoRI") || strings.Contains(val, "LMCache")), at, w)
	case "kv_role":
		n.Put(facts.KVRole, val, at, w)
		switch val {
		case "kv_producer":
			n.Put(facts.Role, "prefill", at, w)
		case "kv_consumer":
			n.Put(facts.Role, "decode", at, w)
		case "kv_both":
			n.Put(facts.Role, "both", at, w)
		}
	case "kv_load_failure_policy":
		n.Put(facts.LoadPolicy, val, at, w)
	}
}

// applyEnv records an environment variable of an engine.
func applyEnv(n *facts.Node, name, val string, at facts.Source, w facts.Weight) {
	on := func(v string) string {
		return strconv.FormatBool(v == "1" || strings.EqualFold(v, "true") || strings.EqualFold(v, "on"))
	}
	switch name {
	case "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE":
		n.Put(facts.DeferredRelease, on(val), at, w)
	case "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES":
		n.Put(facts.HeaderOverrides, on(val), at, w)
	case "SGLANG_RUST_SERVER":
		n.Put(facts.RustServer, on(val), at, w)
	case "VLLM_SERVER_DEV_MODE":
		n.Put(facts.DevMode, on(val), at, w)
	case "VLLM_NIXL_SIDE_CHANNEL_PORT":
		n.Put(facts.SideChannelPort, wholeNumber(val), at, w)
	case "VLLM_NIXL_SIDE_CHANNEL_HOST":
		n.Put(facts.SideChannelHost, val, at, w)
	case "VLLM_API_KEY":
		n.Put(facts.APIKey, strconv.FormatBool(val != ""), at, w)
	case "VLLM_USE_V1":
		n.Put(facts.V1, on(val), at, w)
	}
}

// wholeNumber reads what engines accept for a length: 1048576, 1,048,576, 1m, 128k (thousands), 128K (1024s). Anything
// else is "".
func wholeNumber(s string) string {
	s = strings.Trim(strings.TrimSpace(s), "'\"")
	n, rest, ok := number([]byte(s))
	if !ok {
		return ""
	}
	if len(rest) > 0 && rest[0] == '.' { // 681280.0, 25.6k
		return fraction(s)
	}
	switch string(rest) {
	case "":
	case "k":
		n *= 1000
	case "K":
		n <<= 10
	case "m":
		n *= 1_000_000
	case "M":
		n <<= 20
	default:
		return ""
	}
	return strconv.Itoa(n)
}

// fraction is wholeNumber for a number with a point; what is not a whole number of tokens is rounded down, as engines do.
func fraction(s string) string {
	unit := 1.0
	switch s[len(s)-1] {
	case 'k':
		unit = 1e3
	case 'K':
		unit = 1 << 10
	case 'm':
		unit = 1e6
	case 'M':
		unit = 1 << 20
	}
	if unit > 1 {
		s = s[:len(s)-1]
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f*unit >= 1<<53 || unit == 1 && f != math.Trunc(f) {
		return ""
	}
	return strconv.Itoa(int(math.Round(f*unit*1e6) / 1e6))
}

func negate(val string) string {
	switch strings.ToLower(val) {
	case "true", "1":
		return "false"
	case "false", "0", "":
		return "true"
	}
	return ""
}
