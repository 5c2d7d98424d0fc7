package guardmodes

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
)

var engines = []string{fake.SGLang, fake.VLLMNixl, fake.VLLMMooncake}

// controls that a client may try, with values that the fakes know for a client's.
var controls = []string{
	"bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "rid", "request_id", "kv_transfer_params", "ec_transfer_params",
	"transfer_id", "remote_host", "remote_block_ids", "do_remote_prefill", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank",
	"extra_key", "priority", "session_id", "session_params", "lora_path", "custom_logit_processor", "input_embeds", "prompt_embeds", "vllm_xargs",
}

// spellings of a name that some parser would take for it.
func spellings(name string) []string {
	return []string{
		`"` + name + `"`, `"` + strings.ToUpper(name) + `"`, `"` + strings.ToUpper(name[:1]) + name[1:] + `"`,
		fmt.Sprintf(`"\u%04x%s"`, name[0], name[1:]), fmt.Sprintf(`"%s\u%04X"`, name[:len(name)-1], name[len(name)-1]),
	}
}

// A control field of a client's is refused in any spelling, at the top and wherever an engine or an SDK would unpack it; no leg is asked.
func TestControlFieldsNeverComeFromClients(t *testing.T) {
	for _, engine := range engines {
		r := newRig(t, fake.Options{Engine: engine}, nil)
		base := `{"model":"recall","max_tokens":2,"prompt":"A. A"`
		for _, name := range controls {
			for _, key := range spellings(name) {
				for _, body := range []string{
					base + `,` + key + `:"` + actor.ForgedText + `"}`,
					`{` + key + `:{"a":1},` + base[1:] + `}`,
					base + `,"extra_body":{` + key + `:1}}`,
					base + `,"nvext":{"x":[{` + key + `:1}]}}`,
				} {
					if a := r.post("/v1/completions", body); a.status != 400 || !strings.Contains(a.body, "unsupported_parameter") || strings.Contains(a.body, actor.ForgedText) {
						t.Errorf("%s: %s: %d %s", engine, body, a.status, a.body)
					}
				}
			}
		}
		for _, body := range []string{
			base + `,"metadata":{"bootstrap_room":1}}`, base + `,"metadata":{"a":{"Kv_Transfer_Params":{}}}}`, // what engines do not unpack
			base + `,"prompt":"B"}`, base + `,"\u0070rompt":"B"}`, base + `,"metadata":{"a":1,"a":2}}`, // twice
			base + `} ` + "\x00", base + `}{}`, base + `},`, base + `,"user":"\ud800"}`, "\ufeff" + base + `}`, base + ",\"user\":\"\xff\"}", // not strict
			base + `,"prompt_logprobs":0}`, base + `,"truncate_prompt_tokens":1}`, base + `,"n":2}`, base + `,"best_of":3}`,
		} {
			if a := r.post("/v1/completions", body); a.status != 400 && !(engine == fake.SGLang && strings.Contains(body, "prompt_") && a.status == 200) {
				t.Errorf("%s: %s: %d %s", engine, body, a.status, a.body)
			}
		}
		// In a chat metadata are a field of the public API.
		for _, more := range []string{`,"metadata":{"bootstrap_room":1}`, `,"metadata":{"a":[{"Kv_Transfer_Params":{}}]}`} {
			if a := r.ask(true, false, "hi", more); a.status != 400 {
				t.Errorf("%s: %s: %d %s", engine, more, a.status, a.body)
			}
		}
		if engine != fake.SGLang {
			if a := r.ask(true, false, "hi", `,"echo":true`); a.status != 400 {
				t.Errorf("%s: echo: %d %s", engine, a.status, a.body)
			}
		}
		// People's own words are not the gateway's.
		if a := r.post("/v1/completions", base+`,"metadata":{"priority":"high","request_id":"x","session_id":"y"}}`); a.status != 200 {
			t.Errorf("%s: honest metadata: %d %s", engine, a.status, a.body)
		}
	}
}

// Headers that engines read for control fields stay with the gateway: the fakes report every header but the usual ones.
func TestControlHeadersNeverPass(t *testing.T) {
	for _, engine := range engines {
		r := newRig(t, fake.Options{Engine: engine}, nil)
		req, _ := http.NewRequest("POST", "http://"+r.g.Addr()+"/v1/completions", strings.NewReader(`{"model":"recall","max_tokens":2,"prompt":"A. A"}`))
		for _, h := range []string{"X-Override-Rid", "X-Override-Bootstrap-Host", "X-Override-Bootstrap-Room", "X-Data-Parallel-Rank", "X-Smg-Routing-Key", "X-Body-Compressed",
			"X-Sglext-Foo", "X-Session-Id", "X-Request-Id", "X-Correlation-Id", "Authorization", "Cookie", "Forwarded", "X-Forwarded-For", "Upgrade", "Te", "Expect-Ct", "Traceparent"} {
			req.Header.Set(h, actor.ForgedText)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", engine, resp.StatusCode, b)
		}
	}
}

// Only the API's own paths exist, as they are spelled: whatever else a request line says, no leg is asked, and no admin path of an engine
// is reachable.
func TestOnlyTheAPIsPathsExist(t *testing.T) {
	for _, engine := range []string{fake.SGLang, fake.VLLMNixl} {
		r := newRig(t, fake.Options{Engine: engine}, nil)
		body := `{"model":"recall","max_tokens":2,"prompt":"A. A"}`
		send := func(line, more string) (int, string) {
			c, err := net.Dial("tcp", r.g.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprintf(c, "%s\r\nHost: gateway\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s", line, len(body), more, body)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return 0, err.Error() // cut without an answer
			}
			b, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, string(b)
		}
		for _, path := range []string{
			"/flush_cache", "/abort_request", "/server_info", "/get_server_info", "/generate", "/tokenize", "/detokenize", "/metrics", "/reset_prefix_cache", "/sleep",
			"/load_lora_adapter", "/v1/load_lora_adapter", "/pause", "/v1/responses", "/v1/embeddings", "/inference/v1/generate", "/openapi.json", "/docs", "/",
			"/v1%2Fcompletions", "/v1/%63ompletions", "/v1/completions%2f", "/v1/completions%00", "/v1//completions", "//v1/completions", "/v1/./completions", "/v1/../v1/completions",
			"/v1/%2e%2e/flush_cache", "/v1/models/..%2f..%2fflush_cache", "/v1/completions/", "/v1/completions/../../flush_cache", "/V1/completions", "/v1/Completions",
			"/v1/completions;x=1", "/v1\\completions", "/v1/completions%20", "/v1/chat/completions/render", "/admin/fleet",
			"http://" + r.Prefill.Addr() + "/v1/completions", "http://gateway/v1/completions", "*", r.Prefill.Addr(),
		} {
			for _, method := range []string{"POST", "GET", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE"} {
				status, got := send(method+" "+path+" HTTP/1.1", "")
				if status != 404 && status != 400 && status != 405 && status != 0 {
					t.Errorf("%s: %s %s: %d %s", engine, method, path, status, got)
				}
			}
		}
		for _, line := range []string{"PRI * HTTP/2.0", "POST /v1/completions HTTP/2.0", "POST /v1/completions HTTP/3.0", "CONNECT /v1/completions HTTP/1.1", "post /v1/completions HTTP/1.1"} {
			if status, got := send(line, ""); status == 200 {
				t.Errorf("%s: %s: %d %s", engine, line, status, got)
			}
		}
		if n := r.Prefill.Requests.Load() + r.Decode.Requests.Load(); n != 0 {
			t.Fatalf("%s: %d legs were asked", engine, n)
		}
		// An offer to speak another protocol is not taken up, and not passed on.
		if status, got := send("POST /v1/completions HTTP/1.1", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"); status != 200 {
			t.Errorf("%s: h2c: %d %s", engine, status, got)
		}
	}
}
