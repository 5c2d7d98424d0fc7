package web

import "testing"

// What taking logprobs out of a chunk costs, beside a chunk that has none.
func BenchmarkCostLogprobs(b *testing.B) {
	const entry = `{"token":"token_id:1234","logprob":-1.25,"bytes":[116,111]}`
	for name, logprobs := range map[string]string{"none": "null", "five": `{"content":[{"token":"token_id:1234","logprob":-1.25,"bytes":[116],"top_logprobs":[` + entry + "," + entry + "," + entry + "," + entry + "," + entry + `]}]}`} {
		data := []byte(`{"id":"chatcmpl-slc-00","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"},"logprobs":` + logprobs + `,"finish_reason":null}],"usage":{"prompt_tokens":10,"total_tokens":11,"completion_tokens":1}}`)
		b.Run(name, func(b *testing.B) {
			r := &Run{plan: Plan{Stream: true, Hold: 1 << 20, Logprobs: Logprobs{Read: true, Hide: true}}, wake: make(chan struct{}, 1)}
			r.space.L = &r.mu
			for b.Loop() {
				doc := docOf(b, string(data))
				r.forClient(doc, data)
			}
		})
	}
}
