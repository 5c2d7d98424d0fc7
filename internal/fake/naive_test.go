package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// naive is a router that believes everything, as routers do: it is the positive control.
type naive struct {
	pair     *Pair
	engineID string // Mooncake
	client   *http.Client
	patience time.Duration
	id       string // of the last request
}

var serial atomic.Int64

type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func newNaive(p *Pair) *naive {
	n := &naive{pair: p, patience: 10 * time.Second, client: &http.Client{
		Transport:     &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if p.Engine == VLLMMooncake {
		host, port := p.Bootstrap()
		resp, err := http.Get(fmt.Sprintf("http://%s:%d/query", host, port))
		if err != nil {
			panic(err)
		}
		var q map[string]struct {
			EngineID string `json:"engine_id"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&q); err != nil {
			panic(err)
		}
		resp.Body.Close()
		n.engineID = q["0"].EngineID
	}
	return n
}

const most = 4 << 20 // bytes of an answer that the naive router reads

func (n *naive) post(url, id, body string) (r reply) {
	ctx, cancel := context.WithTimeout(context.Background(), n.patience)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Request-Id", id)
	resp, err := n.client.Do(q)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	r.status, r.header = resp.StatusCode, resp.Header
	r.body, r.err = io.ReadAll(io.LimitReader(resp.Body, most))
	return r
}

func with(body, name, value string) string {
	return strings.TrimSuffix(body, "}") + `,"` + name + `":` + value + "}"
}

// ask runs a request: the answers of both legs. Of a plain worker prefill's is empty.
func (n *naive) ask(path, body string, stream bool, tokens int) (p, d reply) {
	k := serial.Add(1)
	id := fmt.Sprintf("attempt-%08d", k)
	n.id = id
	first, second := body, with(body, "max_tokens", fmt.Sprint(tokens))
	if stream {
		second = with(second, "stream", `true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)
	}
	room := fmt.Sprint(1<<40 + k*7919)
	both := func(a, b string) {
		var wg sync.WaitGroup
		wg.Go(func() { p = n.post(n.pair.Prefill.URL()+path, id, a) })
		wg.Go(func() { d = n.post(n.pair.Decode.URL()+path, id, b) })
		wg.Wait()
	}
	switch n.pair.Engine {
	case SGLang:
		host, port := n.pair.Bootstrap()
		meet := func(b string) string {
			return with(with(with(b, "bootstrap_host", `"`+host+`"`), "bootstrap_port", fmt.Sprint(port)), "bootstrap_room", room)
		}
		both(meet(with(first, "max_tokens", fmt.Sprint(tokens))), meet(second))
	case VLLMMooncake:
		host, port := n.pair.Bootstrap()
		xfer := "xfer-" + strings.Repeat("0", 16) + room
		both(with(with(first, "max_tokens", "1"), "kv_transfer_params", fmt.Sprintf(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":%q}`, xfer)),
			with(second, "kv_transfer_params", fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":%q,"remote_bootstrap_addr":"http://%s:%d","transfer_id":%q}`, n.engineID, host, port, xfer)))
	case VLLMNixl:
		p = n.post(n.pair.Prefill.URL()+path, id, with(with(first, "max_tokens", "1"), "kv_transfer_params",
			`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`))
		var b struct {
			KV json.RawMessage `json:"kv_transfer_params"`
		}
		json.NewDecoder(bytes.NewReader(p.body)).Decode(&b)
		if len(b.KV) == 0 {
			b.KV = []byte("null")
		}
		d = n.post(n.pair.Decode.URL()+path, id, with(second, "kv_transfer_params", string(b.KV)))
	default:
		d = n.post(n.pair.Decode.URL()+path, id, second)
	}
	return p, d
}

// bodyOf is a request with a prompt.
func bodyOf(path, text string) string {
	if path == "/v1/completions" {
		return fmt.Sprintf(`{"model":"recall","prompt":%q}`, text)
	}
	return fmt.Sprintf(`{"model":"recall","messages":[{"role":"user","content":%q}]}`, text)
}

// textOf joins the texts of an answer, of whatever is JSON in it.
func textOf(r reply) (out string) {
	for _, e := range strings.Split(string(r.body), "\n") {
		var b struct {
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
			}
		}
		if json.NewDecoder(strings.NewReader(strings.TrimPrefix(e, "data: "))).Decode(&b) == nil {
			for _, c := range b.Choices {
				out += c.Text + c.Message.Content + c.Delta.Content
			}
		}
	}
	return out
}
