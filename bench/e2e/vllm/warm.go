package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// features of the engines that they compile, or load, when first asked for: on a CPU a worker stands still for half a minute then, and
// prefill's lease is over meanwhile. That is another step's subject.
var features = []string{
	`"logprobs":2`, `"logprobs":0`, `"prompt_logprobs":1`, `"temperature":1,"n":3,"logprobs":1`, `"temperature":1,"n":2`, `"temperature":1,"seed":7`, `"temperature":1,"top_k":3`, `"temperature":1,"top_p":0.5`, `"temperature":1,"min_p":0.1`,
	`"logit_bias":{"65":5}`, `"allowed_token_ids":[65,66]`, `"bad_words":["a"]`, `"min_tokens":2`, `"repetition_penalty":1.1,"presence_penalty":1,"frequency_penalty":1`, `"response_format":{"type":"json_object"}`,
	`"structured_outputs":{"regex":"[0-9]+"}`, `"structured_outputs":{"choice":["a","b"]}`, `"structured_outputs":{"grammar":"root ::= \"a\""}`,
}

// warm asks both engines for each feature, alone and in a batch.
func (b *bed) warm(ctx context.Context) error {
	began := time.Now()
	var slow atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, len(b.engines()))
	for i, e := range b.engines() {
		wg.Go(func() {
			for _, s := range []shape{{}, {chat: true}} {
				for _, f := range features {
					if s.chat {
						f = strings.Replace(f, `"logprobs":`, `"logprobs":true,"top_logprobs":`, 1)
					}
					asked := time.Now()
					// temperature stands there twice where a feature names it: the last counts.
					status, answer, err := send(ctx, http.MethodPost, e.url()+s.path(), s.body("abcabc", ","+f), nil)
					if err != nil {
						errs[i] = fmt.Errorf("%s: %s: %w", e.name, f, err)
						return
					}
					if status != http.StatusOK {
						fmt.Printf("%s does not do %s: %d %.200s\n", e.name, f, status, answer)
					}
					if time.Since(asked) > 5*time.Second {
						slow.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	fmt.Printf("both engines have done everything once, after %s; %d requests took over 5 s\n", time.Since(began).Round(time.Second), slow.Load())
	return errors.Join(errs...)
}
