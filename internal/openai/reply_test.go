package openai

import (
	"encoding/json"
	"testing"

	"github.com/sluicekv/sluice/internal/verdict"
)

func TestReplyBodies(t *testing.T) {
	chat := Reply{Endpoint: Chat, ID: "chatcmpl-1", Created: 7, Model: "m", Fingerprint: "fp"}
	text := Reply{Endpoint: Completions, ID: "cmpl-1", Created: 7, Model: "m", Fingerprint: "fp", Usage: true}
	const ch = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp",`
	const tc = `{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","system_fingerprint":"fp",`
	for name, c := range map[string]struct{ got, want string }{
		"chat": {string(chat.AppendWhole(nil, "a\"b\n", FinishStop, UsageOf(3, 4))),
			`{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","system_fingerprint":"fp","choices":[{"index":0,"message":{"role":"assistant","content":"a\"b\n","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`},
		"text":        {string(text.AppendWhole(nil, "a", FinishLength, UsageOf(3, 4))), tc + `"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`},
		"role":        {string(chat.AppendRole(nil)), ch + `"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]}`},
		"delta":       {string(chat.AppendText(nil, "a")), ch + `"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}`},
		"text delta":  {string(text.AppendText(nil, "a")), tc + `"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}],"usage":null}`},
		"finish":      {string(chat.AppendFinish(nil, FinishStop)), ch + `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`},
		"text finish": {string(text.AppendFinish(nil, FinishLength)), tc + `"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}],"usage":null}`},
		"usage":       {string(text.AppendUsage(nil, UsageOf(1, 2))), tc + `"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`},
		"models":      {string(AppendModels(nil, []Model{{"m", 7, 4096}})), `{"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"sluice","max_model_len":4096}]}`},
	} {
		if c.got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, c.got, c.want)
		}
		if !json.Valid([]byte(c.got)) {
			t.Errorf("%s is not JSON", name)
		}
	}
}

// A refusal reads the same whichever layer refused; a failure names its layer.
func TestErrorBodies(t *testing.T) {
	for l := verdict.Body; l <= verdict.Legs; l++ {
		got := string(AppendError(nil, verdict.TooLong(l, 9, 0, false, 8, "the KV pool of prefill p0"), Param(verdict.ContextLength, Chat)))
		want := `{"error":{"message":"the prompt has 9 tokens, but at most 8 fit (set by the KV pool of prefill p0)","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`
		if got != want {
			t.Errorf("layer %v:\n got %s\nwant %s", l, got, want)
		}
	}
	got := string(AppendError(nil, verdict.Of(verdict.PeerLost, verdict.Prefill, "the control link ended"), ""))
	want := `{"error":{"message":"the control link ended (layer prefill)","type":"server_error","param":null,"code":"worker_lost"}}`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}
