package jsonedit

import (
	"fmt"
	"strings"
)

// The tables. What an engine reads was taken from the released packages: sglang 0.5.9 to 0.5.23
// (srt/entrypoints/openai/protocol.py, srt/managers/io_struct.py) and vllm 0.32.0 (entrypoints/openai/*/protocol.py,
// entrypoints/generate/base/serving.py). Names are matched exactly by both: pydantic and msgspec fold no case, and no field has
// an alias.
//
// A field is here for one of three reasons: the engine reads it and it may pass; the gateway owns it; or it would change what the
// gateway checks (how many tokens, how many sequences). Everything else is unknown.

// required fields of an endpoint.
var required = map[Endpoint][]string{
	Chat:         {"model", "messages"},
	Completions:  {"model", "prompt"},
	AnthropicAPI: {"model", "messages", "max_tokens"},
}

// public fields of the API itself.
var public = map[Endpoint]map[string]bool{
	Chat: set("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens",
		"messages", "metadata", "modalities", "model", "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
		"prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store",
		"stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
		"web_search_options"),
	Completions: set("best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "model", "n", "presence_penalty",
		"prompt", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user"),
	AnthropicAPI: set("max_tokens", "messages", "metadata", "model", "output_config", "service_tier", "stop_sequences", "stream", "system",
		"temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"),
}

// carriers are fields that SDKs, engines or their extensions unpack. They are looked into even where they are stripped: a control
// name inside one is an attempt.
var carriers = set("extra_body", "extra_args", "extra_params", "vllm_xargs", "sampling_params", "custom_params", "nvext", "kwargs")

// controls are the gateway's own fields, on any engine: refused everywhere, whichever engine is behind.
//
//   - SGLang: the pairing of the legs (bootstrap_*), ids, ranks, cache partitions, sessions (they continue another request's
//     pages), adapters by path, code (custom_logit_processor), priorities and everything else of facts 2.5.
//   - vLLM: transfer parameters of any connector, ids, sessions, cache partitions, priorities, extension arguments.
var controls = []law{
	{name: "bootstrap_host", note: "pairs the legs"},
	{name: "bootstrap_port", note: "pairs the legs"},
	{name: "bootstrap_room", note: "pairs the legs; a bearer secret"},
	{name: "bootstrap_pair_key", note: "pairs the legs"},
	{name: "rid", note: "request id"},
	{name: "request_id", note: "request id"},
	{name: "conversation_id", note: "routing"},
	{name: "routing_key", note: "routing"},
	{name: "data_parallel_rank", note: "rank"},
	{name: "routed_dp_rank", note: "rank"},
	{name: "disagg_prefill_dp_rank", note: "rank"},
	{name: "decode_tp_size", note: "rank"},
	{name: "priority", note: "scheduling"},
	{name: "extra_key", note: "cache partition: the scope's"},
	{name: "lora_path", note: "adapters are chosen by the model's name"},
	{name: "lora_id", note: "adapters are chosen by the model's name"},
	{name: "session_id", note: "continues another request's state"},
	{name: "session_params", note: "continues another request's state"},
	{name: "custom_logit_processor", note: "code"},
	{name: "custom_labels", note: "metrics"},
	{name: "watermark", note: "holds a key"},
	{name: "http_worker_ipc", note: "internal"},
	{name: "background", note: "internal"},
	{name: "log_metrics", note: "internal"},
	{name: "no_logs", note: "internal"},
	{name: "external_trace_header", note: "internal"},
	{name: "received_time", note: "internal"},
	{name: "input_embeds", note: "not a prompt that can be counted"},
	{name: "prompt_embeds", note: "not a prompt that can be counted"},
	{name: "positional_embed_overrides", note: "internal"},
	{name: "need_wait_for_mm_inputs", note: "internal"},
	{name: "need_wait_for_image", note: "internal"},
	{name: "num_items_assigned", note: "internal"},
	{name: "mm_data_mooncake", note: "names a host"},
	{name: "encoder_urls", note: "names hosts"},
	{name: "mm_hashes", note: "cache keys"},
	{name: "mm_content_hashes", note: "cache keys"},
	{name: "kv_hints", note: "internal"},
	{name: "token_indices_to_pool", note: "internal"},
	{name: "kv_transfer_params", note: "names memory of another worker; a bearer secret"},
	{name: "ec_transfer_params", note: "names memory of another worker"},
	{name: "transfer_id", note: "pairs the legs"},
	{name: "do_remote_prefill", note: "transfer parameter"},
	{name: "do_remote_decode", note: "transfer parameter"},
	{name: "remote_engine_id", note: "transfer parameter"},
	{name: "remote_block_ids", note: "transfer parameter"},
	{name: "remote_request_id", note: "transfer parameter"},
	{name: "remote_host", note: "transfer parameter"},
	{name: "remote_port", note: "transfer parameter"},
	{name: "remote_num_tokens", note: "transfer parameter"},
	{name: "remote_bootstrap_addr", note: "transfer parameter"},
	{name: "disagg_spec", note: "transfer parameter"},
	{name: "vllm_xargs", note: "extension arguments", carrier: true},
}

// controlPrefixes begin names that connectors read: every name with one is control.
var controlPrefixes = []string{"bootstrap_", "do_remote_", "remote_", "lmcache.", "_p_side_", "_remote_"}

// isPairing reports whether a name pairs the legs or names a worker's memory, on any engine: one that no honest field holds anywhere.
// Shorter names of the gateway's (priority, request_id) are words that people use in their own data.
func isPairing(name []byte) bool {
	f := fold(name)
	switch f {
	case "kv_transfer_params", "ec_transfer_params", "transfer_id", "disagg_spec":
		return true
	}
	for _, prefix := range []string{"bootstrap_", "do_remote_", "remote_"} {
		if strings.HasPrefix(f, prefix) {
			return true
		}
	}
	return false
}

// cacheSalt is removed, not refused: a client may part its own cache further, inside its scope. The gateway mixes what it reads.
var cacheSalt = law{name: "cache_salt", action: take, note: "cache partition: mixed into the scope's"}

// shared is what the gateway reads, and the public fields that every engine reads.
func shared(ep Endpoint, pd bool) []law {
	t := append(passing("temperature", "top_p"),
		law{name: "model", check: model, note: "read"},
		law{name: "stream", check: boolean, note: "read"},
		law{name: "max_tokens", check: wholeFrom(1), note: "read"},
		cacheSalt)
	if ep == AnthropicAPI {
		return append(t, passing("system", "stop_sequences", "thinking", "top_k", "output_config", "service_tier", "metadata", "tools",
			"tool_choice")...)
	}
	t = append(t, passing("seed", "stop", "frequency_penalty", "presence_penalty", "logit_bias", "user", "response_format")...)
	t = append(t, law{name: "stream_options", check: streamOptions, note: "read; usage is asked for and hidden again"})
	n, best := law{name: "n"}, law{name: "best_of"}
	if pd {
		n = law{name: "n", check: only(oneSequence, "1"), note: "1 only: a leg answers for one sequence"}
		best = law{name: "best_of", check: only(oneSequence, "1"), note: "1 only"}
	}
	t = append(t, n)
	if ep == Completions {
		return append(t, best, law{name: "suffix"}, law{name: "logprobs", check: wholeFrom(-1), note: "read"},
			law{name: "echo", check: boolean, note: "not together with logprobs on two legs"},
			law{name: "prompt", check: prompted, note: "read; one a request on two legs"})
	}
	t = append(t, law{name: "logprobs", check: boolean, note: "read"}, law{name: "top_logprobs", check: wholeFrom(-1), note: "read"})
	t = append(t, passing("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort")...)
	return append(t, law{name: "max_completion_tokens", check: wholeFrom(1), note: "read"})
}

func tableOf(e Engine, ep Endpoint) []law {
	if ep == AnthropicAPI && e != Plain {
		panic(fmt.Sprintf("jsonedit: %s has no table for %s", e, ep))
	}
	t := shared(ep, e.disaggregated())
	if ep != Completions {
		t = append(t, law{name: "messages", check: chatted, note: "read"})
	}
	switch e {
	case SGLang:
		t = append(t, sglang(ep)...)
	case VLLMNixl, VLLMMooncake:
		t = append(t, vllm(ep)...)
	case Plain:
		t = append(t, plainWorker(ep)...)
	default:
		panic(fmt.Sprintf("jsonedit: no table for engine %q", e))
	}
	for _, c := range controls {
		c.action = control
		t = append(t, c)
	}
	return t
}

// sglang: srt/entrypoints/openai/protocol.py of 0.5.9, 0.5.13, 0.5.16, 0.5.19, 0.5.21 and 0.5.23.
func sglang(ep Endpoint) []law {
	t := append(passing("top_k", "min_p", "min_tokens", "regex", "ebnf", "repetition_penalty", "stop_token_ids", "stop_regex", "no_stop_trim", "ignore_eos",
		"skip_special_tokens", "return_cached_tokens_details"),
		law{name: "return_hidden_states", check: only("hidden states are not passed on", "false"), note: "false only"},
		law{name: "return_routed_experts", check: only("routing is not passed on", "false"), note: "false only"},
		law{name: "return_spec_tokens_details", since: "0.5.19"},
		law{name: "return_token_ids", since: "0.5.19"},
		law{name: "images_config", since: "0.5.16"},
		law{name: "mm_processor_kwargs", since: "0.5.23"},
	)
	if ep == Completions {
		return append(t, law{name: "json_schema"})
	}
	return append(t,
		law{name: "continue_final_message"},
		law{name: "separate_reasoning"},
		law{name: "stream_reasoning"},
		law{name: "chat_template_kwargs", check: templateArguments, note: "no other template"},
		law{name: "reasoning", note: "read before the fields are"},
		law{name: "max_dynamic_patch"},
		law{name: "min_dynamic_patch"},
		law{name: "use_audio_in_video", since: "0.5.13"},
		law{name: "video_config", since: "0.5.19"},
		law{name: "task", since: "0.5.13"},
		law{name: "thinking", since: "0.5.23"},
		law{name: "return_prompt_token_ids", since: "0.5.13"},
		law{name: "return_meta_info", check: only("engine details are not passed on", "false"), note: "false only", since: "0.5.13"},
		law{name: "input_ids", check: only(ownPrompt), note: "replaces the messages, which are what is counted", since: "0.5.13"},
	)
}

// vllm: entrypoints/openai/{chat_completion,completion}/protocol.py of 0.32.0.
func vllm(ep Endpoint) []law {
	t := append(passing("top_k", "min_p", "min_tokens", "repetition_penalty", "length_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
		"skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "logprob_token_ids", "structured_outputs",
		"repetition_detection", "thinking_token_budget", "stream_interval", "add_special_tokens", "return_tokens_as_token_ids",
		"return_token_ids"),
		law{name: "use_beam_search", check: only(oneSequence, "false"), note: "false only"},
		law{name: "truncate_prompt_tokens", check: only(fullCount), note: "changes the count, which /tokenize does not see"},
		law{name: "truncation_side", check: only(fullCount), note: "belongs to truncate_prompt_tokens"},
		law{name: "prompt_logprobs", check: only("only a leg that computes the prompt has them"), note: "not on two legs"},
	)
	if ep == Completions {
		return t
	}
	return append(t,
		law{name: "include_reasoning"},
		law{name: "echo", check: only("only a leg that computes the prompt can repeat it", "false"), note: "false only: asks for logprobs of the prompt"},
		law{name: "add_generation_prompt"},
		law{name: "continue_final_message"},
		law{name: "documents"},
		law{name: "chat_template", check: only("the model's own chat template is used"), note: "a program"},
		law{name: "chat_template_kwargs", check: templateArguments, note: "no other template"},
		law{name: "mm_processor_kwargs"},
	)
}

// plainWorker takes what one leg can answer for by itself.
func plainWorker(ep Endpoint) []law {
	var t []law
	if ep != AnthropicAPI {
		t = passing("top_k", "min_p", "min_tokens", "repetition_penalty", "stop_token_ids", "ignore_eos", "skip_special_tokens",
			"structured_outputs", "return_token_ids")
	}
	if ep == Chat {
		t = append(t, law{name: "chat_template", check: only("the model's own chat template is used"), note: "a program"},
			law{name: "chat_template_kwargs", check: templateArguments, note: "no other template"})
	}
	return append(t, law{name: "truncate_prompt_tokens", check: only(fullCount), note: "changes the count"})
}

// templateArguments are variables of the chat template. Two names are no variables: they would replace the template itself or what
// comes out of it.
func templateArguments(_ *Doc, v Value) (n no) {
	if v.Kind() != Object && v.Kind() != Null {
		return invalid("must be an object, not %s", v.Kind())
	}
	v.Each(func(name []byte, m Value) bool {
		switch fold(name) {
		case "chat_template", "tokenize", "tokenizer", "return_dict", "return_tensors", "truncation", "max_length", "padding":
			n = no{Unsupported, "the model's own chat template is used, whole"}
		}
		return n.reason == 0
	})
	return n
}

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

func passing(names ...string) (t []law) {
	for _, n := range names {
		t = append(t, law{name: n})
	}
	return t
}

func controlNames() map[string]bool {
	m := map[string]bool{}
	for _, c := range controls {
		m[c.name] = true
	}
	return m
}

// Names that a refusal may repeat: the tables' own, and no client's.
func init() {
	knownFields = map[string]bool{}
	for _, e := range []Engine{SGLang, VLLMNixl, Plain} {
		for _, ep := range []Endpoint{Chat, Completions} {
			for _, l := range tableOf(e, ep) {
				knownFields[l.name] = true
			}
		}
	}
	for _, names := range []map[string]bool{public[Chat], public[Completions], public[AnthropicAPI], carriers} {
		for n := range names {
			knownFields[n] = true
		}
	}
}
