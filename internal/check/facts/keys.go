package facts

import (
	"path"
	"strings"

	"github.com/sluicekv/sluice/internal/capacity"
)

// Key names a fact. The names are what predicates of advisories use.
type Key string

// The keys. Numbers are tokens unless said; yes-or-no facts read as true or false.
const (
	Engine           Key = "engine"
	Version          Key = "version"
	Role             Key = "role" // prefill | decode | both
	Pool             Key = "pool_tokens"
	PoolCap          Key = "pool_cap" // asked for: the pool is at most this
	SWAPool          Key = "swa_pool_tokens"
	Context          Key = "context"
	MaxPrompt        Key = "max_prompt"
	PageSize         Key = "page_size"
	KVDType          Key = "kv_dtype"
	DType            Key = "dtype"
	Model            Key = "model"
	Served           Key = "served_model"
	Revision         Key = "revision"
	WeightVersion    Key = "weight_version"
	Tokenizer        Key = "tokenizer"
	Template         Key = "chat_template"
	Quantization     Key = "quantization"
	Speculative      Key = "speculative"
	Connector        Key = "connector" // mooncake, nixl, NixlConnector, …
	LoadPolicy       Key = "load_failure_policy"
	Allocation       Key = "allocation_policy"
	AutoTruncate     Key = "auto_truncate"
	Checksum         Key = "checksum"
	DeferredRelease  Key = "deferred_release"
	PrefixCache      Key = "prefix_cache"
	PrefixHash       Key = "prefix_hash"
	Metrics          Key = "metrics"
	APIKey           Key = "api_key"   // set or not; the key itself is never kept
	AdminKey         Key = "admin_key" // set or not
	DevMode          Key = "dev_mode"
	LoRA             Key = "lora"
	HiCache          Key = "hicache"
	HiCacheStorage   Key = "hicache_storage"
	Offload          Key = "offload_kv"
	ChunkedPrefill   Key = "chunked_prefill"
	Overlap          Key = "overlap_schedule"
	TP               Key = "tp"
	DP               Key = "dp"
	PP               Key = "pp"
	DCP              Key = "dcp"
	Nodes            Key = "nnodes"
	NodeRank         Key = "node_rank"
	Host             Key = "host"
	Port             Key = "port"
	BootstrapPort    Key = "bootstrap_port"
	SideChannelPort  Key = "side_channel_port"
	SideChannelHost  Key = "side_channel_host"
	MemFraction      Key = "mem_fraction"
	RoleSwitch       Key = "role_switch"
	HeaderOverrides  Key = "header_overrides"
	RustServer       Key = "rust_server"
	GRPC             Key = "grpc"
	Canary           Key = "kv_canary"
	Hybrid           Key = "hybrid" // sliding window, Mamba or another state beside the KV of full attention
	Architecture     Key = "architecture"
	Multimodal       Key = "multimodal"
	PromptEmbeds     Key = "prompt_embeds"
	StreamingSession Key = "streaming_session"
	KVRole           Key = "kv_role" // vLLM: kv_producer | kv_consumer | kv_both
	PD               Key = "pd"      // one leg of a disaggregated fleet
	Refused          Key = "refused_to_start"
	BlocksOverride   Key = "blocks_override"
	EncoderDisagg    Key = "encoder_disagg"
	Device           Key = "device"
	Starlette        Key = "starlette_version"
	LMCache          Key = "lmcache_version"
	V1               Key = "v1_engine"
	XFormers         Key = "attention_backend"
	Unauthenticated  Key = "unauthenticated"   // an endpoint that tells everything answered without a key
	BootstrapOpen    Key = "bootstrap_open"    // address that took a connection
	SideChannelOpen  Key = "side_channel_open" // address that took a connection
	PromptTokens     Key = "prompt_tokens_total"
	BootTime         Key = "boot_time"     // process start, seconds since the epoch
	Startup          Key = "startup"       // SGLang: how long the process took to start, to the microsecond, and its seed: another process has others
	WeightsGB        Key = "weights_gb"    // a rank
	KVGB             Key = "kv_gb"         // a rank, of the pool
	TotalGB          Key = "total_gb"      // free on the device before weights, a rank
	AfterWeightsGB   Key = "after_weights" // free after weights, a rank
	FreeGB           Key = "free_gb"       // free when all was set up, a rank
	AfterPoolGB      Key = "after_pool"    // free right after the pool, a rank
	AvailableKVGiB   Key = "available_kv"  // vLLM
	NeededKVGiB      Key = "needed_kv"     // vLLM, for one sequence of the context
	MaxConcurrency   Key = "max_concurrency"
)

// Shown are the facts whose sources a report lists, in order.
var Shown = []Key{Engine, Version, Role, Pool, Context, PageSize, KVDType, Connector, Model}

// Compared are the facts on which sources must agree.
var Compared = []Key{Engine, Version, Role, Pool, Context, PageSize, KVDType, Model, Revision, WeightVersion, Connector, Checksum,
	AutoTruncate, Allocation, LoadPolicy, Speculative}

// Known lists every key, for the machine check of predicates.
func Known() map[Key]bool {
	m := map[Key]bool{}
	for _, k := range []Key{Engine, Version, Role, Pool, PoolCap, SWAPool, Context, MaxPrompt, PageSize, KVDType, DType, Model, Served, Revision,
		WeightVersion, Tokenizer, Template, Quantization, Speculative, Connector, LoadPolicy, Allocation, AutoTruncate, Checksum,
		DeferredRelease, PrefixCache, PrefixHash, Metrics, APIKey, AdminKey, DevMode, LoRA, HiCache, HiCacheStorage, Offload,
		ChunkedPrefill, Overlap, TP, DP, PP, DCP, Nodes, NodeRank, Host, Port, BootstrapPort, SideChannelPort, SideChannelHost,
		MemFraction, RoleSwitch, HeaderOverrides, RustServer, GRPC, Canary, Hybrid, Architecture, Multimodal, PromptEmbeds,
		StreamingSession, KVRole, PD, Refused, BlocksOverride, EncoderDisagg, Device, Starlette, LMCache, V1, XFormers} {
		m[k] = true
	}
	return m
}

// Same reports whether two values of k mean the same.
func Same(k Key, a, b string) bool {
	if a == b {
		return true
	}
	switch k {
	case KVDType, DType:
		a, b = CanonicalDType(a), CanonicalDType(b)
		return a == b || a == "auto" || b == "auto"
	case Model, Tokenizer:
		return path.Base(strings.TrimRight(a, "/")) == path.Base(strings.TrimRight(b, "/"))
	case Version:
		return strings.TrimPrefix(a, "v") == strings.TrimPrefix(b, "v")
	case Engine, Connector:
		return strings.EqualFold(a, b)
	}
	return strings.EqualFold(a, b)
}

// CanonicalDType folds the names that engines and torch have for one type: torch.float8_e4m3fn and fp8 are fp8_e4m3.
func CanonicalDType(s string) string {
	s = strings.ToLower(strings.TrimPrefix(s, "torch."))
	switch s {
	case "float8_e4m3fn", "fp8", "fp8_e4m3", "float8_e4m3fnuz", "fp8_e4m3fn":
		return "fp8_e4m3"
	case "float8_e5m2":
		return "fp8_e5m2"
	case "bf16":
		return "bfloat16"
	case "half", "fp16":
		return "float16"
	case "float", "fp32":
		return "float32"
	}
	return s
}

// Capacity is the node as THE comparison sees it. context replaces a context that could not be had (0: none given).
func (n *Node) Capacity(context int) capacity.Facts {
	f := capacity.Facts{
		Name: n.Name, Engine: n.Text(Engine), Version: n.Text(Version), Role: capacity.Role(n.Text(Role)),
		PoolTokens: n.Int(Pool), PageSize: n.Int(PageSize), Context: n.Int(Context),
		DType: n.Text(KVDType), Model: n.Text(Model), Revision: n.Text(Revision), Connector: n.Text(Connector),
	}
	if f.PoolTokens == 0 {
		f.PoolTokens = n.Int(PoolCap)
	}
	if f.Context == 0 {
		f.Context = context
	}
	f.Reserved = capacity.Reserve(f.Engine, f.PageSize)
	return f
}

// Group names the model that a node serves, so that only nodes of one fleet are compared: the served name, else the last
// part of the model's path, else "".
func (n *Node) Group() string {
	if s := n.Text(Served); s != "" {
		return path.Base(strings.TrimRight(s, "/"))
	}
	if m := strings.TrimRight(n.Text(Model), "/"); m != "" {
		return path.Base(m)
	}
	return ""
}
