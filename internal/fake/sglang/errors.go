package sglang

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

// flat is an error in the engine's usual shape.
func (c *call) flat(status int, typ, message string) {
	said := status
	if c.lie.Is(actor.ErrorIn200) {
		said = http.StatusOK
	}
	if c.out.Named {
		c.out.Whole(said, messageError(status, typ, message))
		return
	}
	c.out.Whole(said, fmt.Appendf(nil, `{"object":"error","message":%s,"type":%s,"param":null,"code":%d}`, quoted(message), quoted(typ), status))
}

// contextError is the tokenizer's refusal of a prompt.
func (c *call) contextError(message string) {
	switch {
	case c.q.Endpoint == actor.Messages && c.q.Stream:
		c.messageFails(http.StatusBadRequest, message)
	case c.q.Endpoint == actor.Generate && c.q.Stream:
		c.out.Event(fmt.Appendf(nil, `{"error":{"message":%s,"type":"invalid_request_error","code":400,"retryable":false}}`, quoted(message)), false)
		c.out.Done()
	case c.q.Endpoint == actor.Generate:
		c.out.Whole(http.StatusBadRequest, fmt.Appendf(nil, `{"error":{"message":%s}}`, quoted(message)))
	default:
		c.flat(http.StatusBadRequest, "BadRequestError", message)
	}
}

// abort is the scheduler's end of a request: a status where the answer is not streamed, and a 200 where it is. name is the status's
// own, for streams.
func (c *call) abort(status int, name, message string) {
	switch {
	case c.q.Stream && c.q.Endpoint == actor.Generate:
		c.out.Event(c.aborted(status, "null", message), true)
		c.out.Done()
	case c.q.Endpoint == actor.Messages && c.q.Stream && name != "":
		c.messageFails(status, message)
	case c.q.Stream && name != "":
		c.out.Event(spaced(name, status, message), false)
		if c.q.Usage && !c.w.atLeast(0, 5, 21) { // seen in 0.5.20, and not in 0.5.23
			c.out.Event(append(c.usage(append(c.streamHead(), `"choices":[],"usage":`...), outcome{prompt: c.q.Prompt}, true), '}'), false)
		}
		c.out.Done()
	case c.q.Endpoint == actor.Generate && status == http.StatusBadRequest:
		c.out.Whole(status, fmt.Appendf(nil, `{"error":{"message":%s}}`, quoted(message)))
	case status == http.StatusBadRequest:
		c.flat(status, "BadRequestError", message)
	default:
		c.flat(status, strconv.Itoa(status), message)
	}
}

// aborted is a chunk of /generate that says no.
func (c *call) aborted(status int, typ, message string) []byte {
	now := strconv.FormatFloat(float64(time.Now().UnixMicro())/1e6, 'f', 6, 64)
	b := fmt.Appendf(nil, `{"text":"","output_ids":[],"meta_info":{"id":%s,"finish_reason":{"type":"abort","message":%s,"status_code":%d,"err_type":%s},"prompt_tokens":%d,"weight_version":"default","num_retractions":0,"queue_time":0.0,"reasoning_tokens":0,"completion_tokens":0,"cached_tokens":0,"weight_versions":[{"version":"default","start":0,"end":0}],"cached_tokens_details":null,"dp_rank":null,"e2e_latency":%f,"request_received_ts":%s`,
		quoted(c.id), quoted(message), status, typ, c.q.Prompt, time.Since(c.came).Seconds(), now)
	if c.w.atLeast(0, 5, 23) {
		b = fmt.Appendf(b, `,"first_token_latency":%f`, time.Since(c.came).Seconds())
	}
	return fmt.Appendf(b, `,"api_server_dispatch_finish_ts":%s,"request_finished_ts":%s,"response_sent_to_client_ts":%s}}`, now, now, now)
}

// spaced is the error event of a stream: Python's json.dumps puts spaces in.
func spaced(name string, status int, message string) []byte {
	m, _ := json.Marshal(message)
	return fmt.Appendf(nil, `{"error": {"object": "error", "message": %s, "type": "%s", "param": null, "code": %d}}`, m, name, status)
}

// overOwnPool is decode's (or a lone worker's) refusal of a prompt over its own pool. A stream gets it in band, with a token that
// means nothing.
func (c *call) overOwnPool(cfg actor.Config) {
	message := overPool(c.q.Prompt, longest(cfg))
	if c.q.Stream && c.q.Endpoint == actor.Generate && !c.w.atLeast(0, 5, 20) {
		b := c.native(nil, outcome{prompt: 1, ids: []int32{'\n'}, prefill: true}, "\n", true)
		no := fmt.Appendf(nil, `{"type":"abort","message":%s,"status_code":400,"err_type":"BadRequestError"}`, quoted(message))
		b = []byte(strings.Replace(string(b), `{"type":"length","length":0}`, string(no), 1))
		if at := strings.Index(string(b), `,"prefill_finished_time":`); at >= 0 {
			end := at + 1 + strings.IndexByte(string(b[at+1:]), ',')
			b = append(b[:at:at], b[end:]...)
		}
		c.out.Event(b, true)
		c.out.Done()
		return
	}
	c.abort(http.StatusBadRequest, "BAD_REQUEST", message)
}

// errorIn200 is an error whose status says that all is well.
func (c *call) errorIn200(message string) {
	if c.q.Stream && c.out.Named {
		c.messageFails(http.StatusInternalServerError, message)
		return
	}
	if c.q.Stream {
		c.out.Event(spaced("INTERNAL_SERVER_ERROR", 500, message), false)
		c.out.Done()
		return
	}
	c.flat(http.StatusInternalServerError, "500", message)
}
