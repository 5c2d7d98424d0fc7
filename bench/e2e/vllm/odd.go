package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// odd fields, each added to an ordinary body of either endpoint, streamed and not. Some are public, some an engine's own; some are wrong.
var odd = []string{
	`"prompt_logprobs":1`, `"prompt_logprobs":0`, `"prompt_logprobs":-1`, `"echo":true`, `"echo":true,"logprobs":1`, `"logprobs":0`, `"logprobs":20`, `"logprobs":1000`, `"logprobs":-1`, `"logprobs":true,"top_logprobs":20`, `"top_logprobs":2`,
	`"n":1`, `"n":2`, `"n":0`, `"best_of":2`, `"best_of":1`, `"use_beam_search":true`, `"length_penalty":2`, `"suffix":"x"`,
	`"logit_bias":{"65":100}`, `"logit_bias":{"99999":1}`, `"logit_bias":{"-1":1}`, `"logit_bias":{"x":1}`, `"allowed_token_ids":[65,66]`, `"allowed_token_ids":[]`, `"allowed_token_ids":[999999]`, `"bad_words":["a"," "]`, `"bad_words":[""]`,
	`"min_tokens":5`, `"min_tokens":1000000`, `"min_tokens":-1`, `"stop_token_ids":[65]`, `"stop_token_ids":[-5]`, `"stop_token_ids":[9999999999]`, `"stop":""`, `"stop":[]`, `"stop":["a","b","c","d","e"]`, `"include_stop_str_in_output":true`, `"ignore_eos":true`,
	`"top_k":0`, `"top_k":-1`, `"top_k":1000000`, `"top_p":0`, `"top_p":1.5`, `"min_p":1`, `"min_p":2`, `"temperature":2`, `"temperature":1e308`, `"temperature":1e-300`, `"repetition_penalty":0`, `"repetition_penalty":1e-30`, `"presence_penalty":2`, `"frequency_penalty":-2`,
	`"seed":-1`, `"seed":9223372036854775807`, `"seed":99999999999999999999`, `"response_format":{"type":"json_object"}`, `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object","properties":{"a":{"type":"integer"}}}}}`,
	`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"$ref":"#/x"}}}`, `"response_format":{"type":"structural_tag"}`, `"structured_outputs":{"regex":"[0-9]+"}`, `"structured_outputs":{"regex":"("}`, `"structured_outputs":{"choice":["a","b"]}`, `"structured_outputs":{"grammar":"root ::= \"a\""}`,
	`"structured_outputs":{"grammar":"x"}`, `"structured_outputs":{}`, `"guided_regex":"a+"`, `"spaces_between_special_tokens":false`, `"skip_special_tokens":false`, `"add_special_tokens":false`, `"add_generation_prompt":false`, `"continue_final_message":true`, `"chat_template":"{{ 1/0 }}"`,
	`"chat_template_kwargs":{"x":1}`, `"documents":[{"title":"a","text":"b"}]`, `"mm_processor_kwargs":{"x":1}`, `"return_token_ids":true`, `"return_tokens_as_token_ids":true`, `"prompt_token_ids":[65,66]`, `"thinking_token_budget":1`, `"reasoning_effort":"high"`, `"include_reasoning":false`,
	`"truncate_prompt_tokens":4`, `"truncate_prompt_tokens":-1`, `"tools":[{"type":"function","function":{"name":"f"}}]`, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`, `"tool_choice":"auto"`, `"parallel_tool_calls":true`,
	`"stream_options":{"include_usage":false}`, `"stream_options":{"continuous_usage_stats":true}`, `"stream_options":null`, `"user":"` + strings.Repeat("u", 10000) + `"`, `"metadata":{"a":"b"}`, `"store":true`, `"service_tier":"auto"`, `"prediction":{"type":"content","content":"x"}`,
	`"cache_salt":""`, `"cache_salt":"x"`, `"cache_salt":7`, `"priority":-1`, `"request_id":"x"`, `"repetition_detection":{"max_pattern_size":4}`, `"logits_processors":["x.y"]`, `"vllm_xargs":{"a":1}`, `"bogus":` + strings.Repeat("[", 200) + strings.Repeat("]", 200), `"max_completion_tokens":1`, `"min_tokens":4,"stop":"a"`,
}

// bare bodies that are no ordinary ones.
var bare = []string{
	`"prompt":""`, `"prompt":[]`, `"prompt":[[]]`, `"prompt":["a","b"]`, `"prompt":[[65],[66]]`, `"prompt":[-1]`, `"prompt":[99999]`, `"prompt":[1e99]`, `"prompt":[1.5]`, `"prompt":[256]`, `"prompt":[257,257,257]`, `"prompt":null`, `"prompt":{"a":1}`, `"prompt":"\u0000"`, `"prompt":"\ud83d\ude42"`,
	`"prompt":"\ud800"`, `"prompt":"<|end|><|begin|><|pad|>"`, `"messages":[]`, `"messages":[{}]`, `"messages":[{"role":"user"}]`, `"messages":[{"role":"user","content":null}]`, `"messages":[{"role":"user","content":[]}]`, `"messages":[{"role":"x","content":"a"}]`, `"messages":[{"role":"assistant","content":"a"}]`,
	`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1:1/x.png"}}]}]`, `"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"zzz"}]}]`, `"messages":[{"role":"tool","content":"a"}]`, `"messages":[{"role":"user","content":""}]`,
	`"messages":[{"role":"assistant","content":"a","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{"}}]},{"role":"user","content":"b"}]`, `"messages":"x"`, `"messages":[{"role":"user","content":"a","name":"n"},{"role":"user","content":"b"}]`,
}

// oddities sends what clients may send, right or wrong: each is answered, and both engines compute on.
func (b *bed) oddities(ctx context.Context) error {
	g, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	statuses, n := map[int]int{}, 0
	one := func(path, body string) error {
		c, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		s, answer, err := send(c, http.MethodPost, g.url()+path, []byte(body), nil)
		if err != nil {
			return fmt.Errorf("%.200s: %w", body, err)
		}
		if s >= 500 {
			fmt.Printf("%d %.160s\n    %.300s\n", s, body, answer)
		}
		n++
		statuses[s]++
		for _, e := range b.engines() {
			if !healthy(ctx, e) {
				return fmt.Errorf("%s is not well after %.300s", e.name, body)
			}
		}
		return nil
	}
	for _, stream := range []string{"", `,"stream":true`} {
		for _, more := range odd {
			for path, prompt := range map[string]string{"/v1/completions": `"prompt":"abcdefgh abc"`, "/v1/chat/completions": `"messages":[{"role":"user","content":"abcdefgh abc"}]`} {
				if err := one(path, `{"model":"recall",`+prompt+`,"max_tokens":6,`+more+stream+`}`); err != nil {
					return err
				}
			}
		}
		for _, field := range bare {
			path := "/v1/completions"
			if strings.HasPrefix(field, `"messages"`) {
				path = "/v1/chat/completions"
			}
			if err := one(path, `{"model":"recall","max_tokens":6,`+field+stream+`}`); err != nil {
				return err
			}
		}
	}
	incidents, err := g.counters(ctx, "sluice_incidents_total")
	if err != nil {
		return err
	}
	fmt.Printf("%d odd bodies, by status: %v; incidents: %g\n%s\n", n, statuses, total(incidents), lines(incidents))
	for _, e := range b.engines() {
		if !alive(ctx, e) {
			return fmt.Errorf("%s does not compute any more", e.name)
		}
	}
	return b.note(func(r *results, date string) {
		r.Odd = fmt.Sprintf("%s: %d odd bodies, by status %v; incidents: %g; both engines compute on", date, n, statuses, total(incidents))
	})
}
