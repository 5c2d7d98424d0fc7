// Package vllm makes plans for pairs of vLLM workers.
//
// With NixlConnector the legs run one after the other: prefill's answer holds a handle (kv_transfer_params), with which decode
// reads prefill's memory. The handle is a bearer secret: it is taken from the worker that was asked, checked (handle.go), given to
// one decode, once, and to no client. With MooncakeConnector both legs get a transfer id at once, and prefill writes.
package vllm

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// Engine makes plans; it remembers which handles were used.
type Engine struct {
	used    used
	engines engines
}

// one makes prefill's body: the same prompt, one token, no stream, and nothing that could end it before that token.
func one(a web.Asked, params []byte) *jsonedit.Edit {
	e := web.Whole(a.Edit()).
		Delete("min_tokens", "stop", "stop_token_ids", "logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs", "echo").
		SetInt("max_tokens", 1).Set("kv_transfer_params", params)
	if l := logprobs(a); l.Read {
		askFirst(a, e, l.Hide)
		if n, ok := a.Doc.Get("min_tokens").Int(); ok && n > 0 {
			e.SetInt("min_tokens", 1) // what it keeps decode from choosing first, it keeps prefill from choosing
		}
	}
	if a.Doc.Get("max_completion_tokens").Said() {
		e.SetInt("max_completion_tokens", 1)
	}
	return salted(a, e)
}

func salted(a web.Asked, e *jsonedit.Edit) *jsonedit.Edit {
	if a.Salt != "" {
		e.SetText("cache_salt", a.Salt)
	}
	return e
}

var askNixl = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)

// Nixl makes the plan of an attempt with NixlConnector.
func (g *Engine) Nixl(a web.Asked) web.Plan {
	p := a.Plan()
	p.Logprobs, p.Kept = logprobs(a), kept(a)
	p.Prefill = a.Call(a.Pair.Prefill, one(a, askNixl).Body())
	decode := func() *jsonedit.Edit { return forDecode(a, p.Logprobs) }
	era := a.Pair.Prefill.Era()
	p.Hand = func(answer *jsonedit.Doc, age time.Duration) (legs.Handle, *web.Call) {
		params := answer.Get("kv_transfer_params")
		h := g.judge(a, era, answer, params, age)
		if h.State != legs.Ours {
			return h, nil
		}
		return h, a.Call(a.Pair.Decode, decode().Set("kv_transfer_params", whole(params)).Body())
	}
	if a.GoOn {
		// Without the handle decode computes the prompt by itself: slower, and nobody's memory is read.
		p.Alone = func() *web.Call { return a.Call(a.Pair.Decode, decode().Body()) }
	}
	return p
}

// Mooncake makes the plan of an attempt with MooncakeConnector.
func (g *Engine) Mooncake(a web.Asked) web.Plan {
	var b [16]byte
	rand.Read(b[:])
	id := "xfer-" + hex.EncodeToString(b[:])
	to := a.Pair.Prefill.Handover()
	if to.Port == 0 {
		to.Port = defaultBootstrap
	}
	addr, _ := jsontext.AppendQuote(nil, "http://"+net.JoinHostPort(to.Host, strconv.Itoa(to.Port)))
	read := []byte(`{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"` + id + `","remote_bootstrap_addr":` + string(addr))
	if to.EngineID != "" {
		engine, _ := jsontext.AppendQuote(nil, to.EngineID)
		read = append(append(read, `,"remote_engine_id":`...), engine...)
	}
	read = append(read, '}')

	p := a.Plan()
	p.Logprobs = logprobs(a)
	// A prefill that stops at its first token sends nothing: it is asked for a token whatever that is.
	prefill := one(a, []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`+id+`"}`)).SetBool("ignore_eos", true)
	var rank [][2]string
	if to.DP > 1 {
		rank = append(rank, [2]string{"X-Data-Parallel-Rank", "0"}) // the rank whose engine id was read
	}
	p.Prefill = a.Call(a.Pair.Prefill, prefill.Body(), rank...)
	p.Decode = a.Call(a.Pair.Decode, forDecode(a, p.Logprobs).Set("kv_transfer_params", read).Body())
	p.Hand = func(answer *jsonedit.Doc, _ time.Duration) (legs.Handle, *web.Call) {
		// The id was minted here. Prefill has nothing to add; one that names another transfer has done another's.
		params := answer.Get("kv_transfer_params")
		if params.Kind() == jsonedit.Object {
			if t := params.Get("transfer_id"); t.Said() {
				if said, _ := t.Text(); string(said) != id {
					return legs.Handle{State: legs.Foreign, Why: "its transfer_id"}, nil
				}
			}
			if why := names(params, a.Pair.Prefill); why != "" {
				return legs.Handle{State: legs.Foreign, Why: why}, nil
			}
		}
		return legs.Handle{State: legs.Ours}, nil
	}
	return p
}

// defaultBootstrap is the engine's own default port.
const defaultBootstrap = 8998
