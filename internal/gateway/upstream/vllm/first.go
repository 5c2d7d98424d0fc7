package vllm

import (
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// logprobs says what is done about the first token's logprobs. Decode recomputes the prompt's last position from the KV that it was
// handed (vllm/v1/core/sched: a request whose whole prompt came from outside computes its last token), so both legs can say how likely
// each token is there. A client that asks for logprobs itself gets its own, unchanged, and those are compared.
func logprobs(a web.Asked) (l web.Logprobs) {
	if a.First <= 0 {
		return l
	}
	asked, own := a.Doc.Get("logprobs"), false
	switch {
	case a.Doc.Get("logprob_token_ids").Said():
		return l // chosen tokens, not the likeliest
	case a.Chat:
		own, _ = asked.Bool()
		if n := a.Doc.Get("top_logprobs"); !own && n.Said() && string(n.Raw()) != "0" {
			return l // the engine refuses this, and should
		}
	default:
		own = asked.Said()
		if echo, _ := a.Doc.Get("echo").Bool(); echo {
			return l // would become logprobs of the prompt
		}
	}
	empty, _ := a.Doc.Get("return_token_ids").Bool()
	return web.Logprobs{Read: true, Hide: !own, Empty: empty}
}

// askFirst asks a leg for the likeliest tokens. By id, where no client sees it: several tokens may have one text.
func askFirst(a web.Asked, e *jsonedit.Edit, byID bool) {
	if a.Chat {
		e.SetBool("logprobs", true).SetInt("top_logprobs", int64(a.First))
	} else {
		e.SetInt("logprobs", int64(a.First))
	}
	if byID {
		e.SetBool("return_tokens_as_token_ids", true)
	}
}

// forDecode begins decode's body.
func forDecode(a web.Asked, l web.Logprobs) *jsonedit.Edit {
	e := salted(a, a.AskUsage(a.Edit()))
	if l.Hide {
		askFirst(a, e, true)
	}
	return e
}
