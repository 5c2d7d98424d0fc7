package openai

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// on says where a field exists.
type on uint8

const (
	both on = iota
	chat
	text
)

// field of a request. Exactly one of read, neutral, control or none of them (read over it: it changes nothing) applies.
type field struct {
	where    on
	optional bool                                      // null reads as absent
	read     func(p *parser) *Refusal                  // taken
	neutral  func(kind jsontext.Kind, raw string) bool // refused unless the value, as it is spelled, changes nothing
	control  bool                                      // belongs to the gateway: refused from a client
}

func (f field) on(e Endpoint) bool {
	return f.where == both || (f.where == chat) == (e == Chat)
}

// fields is every field that is known: those of the public API, and those that engines behind gateways take as control.
// It is filled by init to break the cycle with the readers.
var fields map[string]field

func init() {
	fields = map[string]field{
		"model":                 {read: (*parser).readModel},
		"messages":              {where: chat, read: (*parser).readMessages},
		"prompt":                {where: text, read: (*parser).readPrompt},
		"stream":                {read: (*parser).readStream, optional: true},
		"stream_options":        {read: (*parser).readStreamOptions, optional: true},
		"stop":                  {read: (*parser).readStop, optional: true},
		"max_tokens":            {read: (*parser).readMaxTokens, optional: true},
		"max_completion_tokens": {read: (*parser).readMaxCompletionTokens, optional: true},
		"temperature":           {read: (*parser).readTemperature, optional: true},
		"top_p":                 {read: (*parser).readTopP, optional: true},
		"seed":                  {read: (*parser).readSeed, optional: true},

		"n":                   {neutral: isNumber(1)},
		"best_of":             {where: text, neutral: isNumber(1)},
		"presence_penalty":    {neutral: isNumber(0)},
		"frequency_penalty":   {neutral: isNumber(0)},
		"logit_bias":          {neutral: isEmptyObject},
		"logprobs":            {neutral: isFalse},
		"top_logprobs":        {where: chat, neutral: isNumber(0)},
		"echo":                {where: text, neutral: isFalse},
		"suffix":              {where: text, neutral: isText("")},
		"tools":               {where: chat, neutral: isEmptyArray},
		"tool_choice":         {where: chat, neutral: isText("none")},
		"parallel_tool_calls": {where: chat, neutral: isFalse},
		"functions":           {where: chat, neutral: isEmptyArray},
		"function_call":       {where: chat, neutral: isText("none")},
		"response_format":     {neutral: isSpelled(`{"type":"text"}`)},
		"modalities":          {where: chat, neutral: isSpelled(`["text"]`)},
		"audio":               {where: chat, neutral: never},
		"reasoning_effort":    {where: chat, neutral: isText("none")},
		"verbosity":           {where: chat, neutral: isText("medium")},
		"web_search_options":  {where: chat, neutral: never},

		// Extensions of engines. They are not of the public API, but a client that sends one means it.
		"top_k":                  {neutral: isOneOf(-1, 0)},
		"min_p":                  {neutral: isNumber(0)},
		"repetition_penalty":     {neutral: isNumber(1)},
		"length_penalty":         {neutral: isNumber(1)},
		"min_tokens":             {neutral: isNumber(0)},
		"min_new_tokens":         {neutral: isNumber(0)},
		"ignore_eos":             {neutral: isFalse},
		"use_beam_search":        {neutral: isFalse},
		"continue_final_message": {where: chat, neutral: isFalse},
		"stop_token_ids":         {neutral: isEmptyArray},
		"bad_words":              {neutral: isEmptyArray},
		"allowed_token_ids":      {neutral: never},
		"prompt_logprobs":        {neutral: never},
		"truncate_prompt_tokens": {neutral: never},
		"chat_template":          {where: chat, neutral: never},
		"chat_template_kwargs":   {where: chat, neutral: isEmptyObject},
		"structured_outputs":     {neutral: never},
		"guided_json":            {neutral: never},
		"guided_regex":           {neutral: never},
		"guided_choice":          {neutral: never},
		"guided_grammar":         {neutral: never},
		"json_schema":            {neutral: never},
		"regex":                  {neutral: never},
		"ebnf":                   {neutral: never},

		"user":                   {},
		"store":                  {},
		"metadata":               {},
		"service_tier":           {},
		"safety_identifier":      {},
		"prompt_cache_key":       {},
		"prompt_cache_retention": {},
		"prediction":             {}, // a hint for speed
	}
	for _, name := range []string{
		"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid", "request_id", "kv_transfer_params", "transfer_id",
		"cache_salt", "extra_key", "data_parallel_rank", "disagg_prefill_dp_rank", "routed_dp_rank",
	} {
		fields[name] = field{control: true}
	}
}

func never(jsontext.Kind, string) bool { return false }

func isNumber(want float64) func(jsontext.Kind, string) bool {
	return func(k jsontext.Kind, raw string) bool {
		f, err := strconv.ParseFloat(raw, 64)
		return k == '0' && err == nil && f == want
	}
}

func isOneOf(want ...float64) func(jsontext.Kind, string) bool {
	return func(k jsontext.Kind, raw string) bool {
		for _, w := range want {
			if isNumber(w)(k, raw) {
				return true
			}
		}
		return false
	}
}

func isFalse(k jsontext.Kind, _ string) bool { return k == 'f' }

func isText(want string) func(jsontext.Kind, string) bool {
	return func(k jsontext.Kind, raw string) bool { return k == '"' && raw == `"`+want+`"` }
}

func isEmptyArray(_ jsontext.Kind, raw string) bool  { return raw == "[]" }
func isEmptyObject(_ jsontext.Kind, raw string) bool { return raw == "{}" }

func isSpelled(want string) func(jsontext.Kind, string) bool {
	return func(_ jsontext.Kind, raw string) bool { return raw == want }
}
