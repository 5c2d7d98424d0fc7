package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	engines "github.com/sluicekv/sluice/bench/e2e/engine"
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

// oddCrowd is how many odd bodies are under way at once. An engine that one of them ends took the others with it: the error names all.
const oddCrowd = 6

// oddities sends what clients may send, right or wrong: each is answered, and both engines compute on. What a body may be answered with is
// not judged, but that no guard objects to what an honest pair did.
func (b *bed) oddities(ctx context.Context) error {
	if err := b.warm(ctx); err != nil {
		return err
	}
	g, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	began := time.Now()
	o := oddRead{Statuses: map[int]int{}, Failed: map[string]int{}}
	tooLate, err := b.tooLate(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex // over o and tooLate
	one := func(path, body string) error {
		c, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		s, answer, err := send(c, http.MethodPost, g.url()+path, []byte(body), nil)
		if err != nil {
			return fmt.Errorf("%.200s: %w", body, err)
		}
		mu.Lock()
		defer mu.Unlock()
		o.Bodies++
		o.Statuses[s]++
		if s >= 500 {
			now, err := b.tooLate(ctx)
			if err != nil {
				return err
			}
			var e struct {
				Error struct{ Code, Message string }
			}
			_ = json.Unmarshal(answer, &e)
			what := fmt.Sprintf("%d %s", s, e.Error.Code)
			if now > tooLate {
				o.Lapsed++
				what += ", after prefill's lease"
			}
			tooLate = now
			o.Failed[what]++
			fmt.Printf("%s: %.160s\n    %.300s\n", what, body, answer)
		}
		for _, e := range b.engines() {
			if !well(ctx, e) {
				return fmt.Errorf("%s is not well after %.300s", e.name, body)
			}
		}
		return nil
	}
	type asked struct{ path, body string }
	var all []asked
	for _, stream := range []string{"", `,"stream":true`} {
		for _, more := range odd {
			for _, s := range []shape{{}, {chat: true}} {
				prompt := `"prompt":"abcdefgh abc"`
				if s.chat {
					prompt = `"messages":[{"role":"user","content":"abcdefgh abc"}]`
				}
				all = append(all, asked{s.path(), `{"model":"recall",` + prompt + `,"max_tokens":6,` + more + stream + `}`})
			}
		}
		for _, field := range bare {
			s := shape{chat: strings.HasPrefix(field, `"messages"`)}
			all = append(all, asked{s.path(), `{"model":"recall","max_tokens":6,` + field + stream + `}`})
		}
	}
	work := make(chan asked)
	errs := make(chan error, oddCrowd)
	for range oddCrowd {
		go func() {
			var bad error
			for a := range work {
				if bad == nil {
					bad = one(a.path, a.body)
				}
			}
			errs <- bad
		}()
	}
	for _, a := range all {
		work <- a
	}
	close(work)
	for range oddCrowd {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	if o.Incidents, err = g.counters(ctx, "sluice_incidents_total"); err != nil {
		return err
	}
	fmt.Printf("%d odd bodies, by status: %v; incidents: %g\n%s\n", o.Bodies, o.Statuses, engines.Total(o.Incidents), lines(o.Incidents))
	for _, e := range b.engines() {
		if !alive(ctx, e) {
			return fmt.Errorf("%s does not compute any more", e.name)
		}
	}
	o.Seconds = time.Since(began).Seconds()
	if err := b.note(func(r *results, date string) { o.Date, r.Odd = date, &o }); err != nil {
		return err
	}
	// A lease that was over is no false alarm, and a leg that failed is no contradiction.
	alarms := 0.0
	for labels, n := range o.Incidents {
		if !strings.Contains(labels, `guard="answered"`) && !strings.Contains(labels, `guard="prefill-handle"`) {
			alarms += n
		} else if strings.Contains(labels, `guard="prefill-handle"`) {
			alarms += max(n-float64(o.Lapsed), 0)
		}
	}
	if alarms > 0 {
		return fmt.Errorf("%g incidents that the pair gave no reason for; the newest: %s", alarms, g.newest(ctx))
	}
	return nil
}

// tooLate is how many reads of its pages came after its lease, by prefill's own count.
func (b *bed) tooLate(ctx context.Context) (float64, error) {
	m, err := counters(ctx, b.prefill.url()+"/metrics", "vllm:nixl_num_notifications_after_expiry_total")
	return engines.Total(m), err
}
