package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/invariant"
	"github.com/sluicekv/sluice/internal/openai"
	"github.com/sluicekv/sluice/internal/verdict"
)

// body of an error as clients get it.
func errorBody(message, kind, param, code string) string {
	if param != "null" {
		param = `"` + param + `"`
	}
	return `{"error":{"message":"` + message + `","type":"` + kind + `","param":` + param + `,"code":"` + code + `"}}`
}

const invalid = "invalid_request_error"

// Each bad input: the exact bytes that the client gets, and the verdict and layer of the record. No leg hears of any.
func TestBadInput(t *testing.T) {
	d := open(t, fleettest.Honest(), nil)
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for name, c := range map[string]struct {
		path, body string
		status     int
		want       string
		code       verdict.Code
		layer      verdict.Layer
	}{
		"not JSON":      {"chat", `{"model"`, 400, errorBody("the body is not JSON: it ends early, at byte 8", invalid, "null", invalid), verdict.BadRequest, verdict.Parser},
		"empty":         {"chat", ``, 400, errorBody("the body is empty", invalid, "null", invalid), verdict.BadRequest, verdict.Parser},
		"duplicate key": {"text", `{"model":"m","prompt":"a","pr\u006fmpt":"b"}`, 400, errorBody("a key appears twice in one object, the second time at byte 26", invalid, "prompt", invalid), verdict.BadRequest, verdict.Parser},
		"wrong type":    {"text", `{"model":"m","prompt":{}}`, 400, errorBody("expected a string but got an object at byte 21", invalid, "prompt", invalid), verdict.BadRequest, verdict.Parser},
		"not UTF-8":     {"text", "{\"model\":\"m\",\"prompt\":\"\xff\"}", 400, errorBody("the body is not valid UTF-8 at byte 23", invalid, "prompt", invalid), verdict.BadRequest, verdict.Parser},
		"deep":          {"text", `{"model":"m","prompt":"a","metadata":` + deep + `}`, 400, errorBody("the body is nested deeper than 64", invalid, "null", invalid), verdict.BadRequest, verdict.Parser},
		"trailing":      {"text", complete("a", "") + complete("b", ""), 400, errorBody("there is data after the JSON object, at byte 26", invalid, "null", invalid), verdict.BadRequest, verdict.Parser},
		"tools":         {"chat", `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}`, 400, errorBody("tools: this value would change the reply and is not supported", invalid, "tools", "unsupported_parameter"), verdict.Unsupported, verdict.Parser},
		"n":             {"text", complete("x", `,"n":2`), 400, errorBody("n: this value would change the reply and is not supported", invalid, "n", "unsupported_parameter"), verdict.Unsupported, verdict.Parser},
		"control field": {"text", complete("x", `,"bootstrap_room":1`), 400, errorBody("bootstrap_room: the gateway sets this field itself", invalid, "bootstrap_room", "unsupported_parameter"), verdict.Unsupported, verdict.Parser},
		"negative max":  {"text", complete("x", `,"max_tokens":-1`), 400, errorBody("must be at least 1, got -1", invalid, "max_tokens", invalid), verdict.BadRequest, verdict.Parser},
		"unknown model": {"text", `{"model":"gpt-7","prompt":"x"}`, 404, errorBody("there is no such model; GET /v1/models lists them", invalid, "model", "model_not_found"), verdict.ModelNotFound, verdict.PlanLayer},
		"empty prompt":  {"text", complete("", ""), 400, errorBody("the prompt has no tokens", invalid, "prompt", "invalid_prompt"), verdict.Encoding, verdict.Prompt},
		"unknown id":    {"text", `{"model":"m","prompt":[1,272]}`, 400, errorBody("token id 1 of the prompt is not in the vocabulary of 272", invalid, "prompt", "invalid_prompt"), verdict.Encoding, verdict.Prompt},
		"too long":      {"text", complete(strings.Repeat("x", 4096), ""), 400, errorBody("the prompt has 4097 tokens, but at most 4096 fit (set by the context of prefill p0)", invalid, "prompt", "context_length_exceeded"), verdict.ContextLength, verdict.Admission},
		"too long chat": {"chat", `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 4095) + `"}]}`, 400, errorBody("the prompt has 4097 tokens, but at most 4096 fit (set by the context of prefill p0)", invalid, "messages", "context_length_exceeded"), verdict.ContextLength, verdict.Admission},
		"too much":      {"text", complete("xx", `,"max_tokens":4095`), 400, errorBody("the prompt has 3 tokens and asks for up to 4095 more, but at most 4096 fit (set by the context of prefill p0)", invalid, "prompt", "context_length_exceeded"), verdict.ContextLength, verdict.Admission},
		"huge max":      {"text", complete("xx", `,"max_tokens":9223372036854775807`), 400, errorBody("the prompt has 3 tokens and asks for up to 2147483647 more, but at most 4096 fit (set by the context of prefill p0)", invalid, "prompt", "context_length_exceeded"), verdict.ContextLength, verdict.Admission},
	} {
		t.Run(name, func(t *testing.T) {
			path := "/v1/completions"
			if c.path == "chat" {
				path = "/v1/chat/completions"
			}
			a := d.post(path, c.body, "X-Request-Id", "r1")
			if a.status != c.status || a.body != c.want {
				t.Errorf("got %d %s\nwant %d %s", a.status, a.body, c.status, c.want)
			}
			if got, want := a.header.Get("X-Sluice-Verdict"), c.code.String()+"; layer="+c.layer.String(); got != want {
				t.Errorf("header %q, want %q", got, want)
			}
			r := d.last()
			if r.Verdict.Code != c.code || r.Verdict.Layer != c.layer || r.Verdict.Status != c.status || r.Attempt != a.header.Get("X-Sluice-Attempt") || r.Request != "r1" {
				t.Errorf("record %+v", r)
			}
			spoke := "[]"
			if c.code == verdict.ContextLength {
				spoke = fmt.Sprint([]string{"admission"})
			}
			var names []string
			for _, g := range r.Spoke {
				names = append(names, g.Name)
			}
			if fmt.Sprint(names) != spoke {
				t.Errorf("spoke %v", r.Spoke)
			}
		})
	}
	if n := len(d.pair.Attempts()); n != 0 {
		t.Errorf("%d plans were sent", n)
	}
}

// A prompt of exactly the limit is served, with room for one token; so is one that fits with what it asks for.
func TestExactlyTheLimit(t *testing.T) {
	d := open(t, fleettest.Honest(text("abcdef")...), nil)
	for _, c := range []struct {
		prompt int
		extra  string
		text   string
		max    uint32
	}{{4095, "", "a", 1}, {4094, "", "ab", 2}, {4095, `,"max_tokens":1`, "a", 1}, {4093, `,"max_tokens":3`, "abc", 3}, {4000, "", "abcdef", 16}} {
		a := d.post("/v1/completions", complete(strings.Repeat("x", c.prompt), c.extra))
		got, _ := "", ""
		if a.status == 200 {
			got, _ = textOf(t, a, false)
		}
		if got != c.text {
			t.Errorf("%d tokens%s: %d %s", c.prompt+1, c.extra, a.status, a.body)
		}
		as := d.pair.Attempts()
		if p := as[len(as)-1].Plan; p.MaxTokens != c.max {
			t.Errorf("%d tokens%s: max_tokens %d, want %d", c.prompt+1, c.extra, p.MaxTokens, c.max)
		}
	}
	if a := d.post("/v1/completions", complete(strings.Repeat("x", 4095), `,"max_tokens":2`)); a.status != 400 {
		t.Errorf("one over: %d", a.status)
	}
}

// The same request, refused for its length by each layer that can, streamed and not: one body.
func TestOneNo(t *testing.T) {
	long := verdict.TooLong(verdict.Open, 5001, 0, false, 4096, "the context of prefill p0")
	wide := func(_ *Config, p *fleettest.Pair) {
		for _, w := range []*fleettest.Worker{p.Prefill, p.Decode} {
			w.Facts.PoolTokens, w.Facts.Context = 8192, 8192
		}
	}
	doors := map[string]*door{
		"admission": open(t, fleettest.Honest(), nil),
		"decode": open(t, func(a *fleettest.Attempt) {
			a.No(decode, long)
		}, wide),
		"prefill": open(t, func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.No(prefill, long)
				a.No(decode, a.Aborted(decode))
			}
		}, wide),
		"prefill, after decode sealed": open(t, func(a *fleettest.Attempt) {
			a.Reserved()
			if a.WaitPrompt() {
				a.Sealed()
				a.Output(0, 'l')
				a.No(prefill, long.At(verdict.Prefill))
				a.No(decode, a.Aborted(decode))
			}
		}, wide),
	}
	for _, extra := range []string{"", `,"stream":true`, `,"stream":true,"stream_options":{"include_usage":true}`, `,"max_tokens":1`} {
		bodies := map[string]string{}
		for name, d := range doors {
			a := d.post("/v1/completions", complete(strings.Repeat("x", 5000), extra))
			if a.status != 400 || !strings.HasPrefix(a.header.Get("X-Sluice-Verdict"), "context_length_exceeded; layer=") {
				t.Errorf("%s: %d %s", name, a.status, a.header.Get("X-Sluice-Verdict"))
			}
			bodies[a.body] = name
			d.quiet()
			if r := d.last(); r.Verdict.Code != verdict.ContextLength || len(r.Spoke) != 1 || r.Spoke[0].Name != "admission" {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if len(bodies) != 1 {
			t.Errorf("with %q clients can tell who refused: %v", extra, bodies)
		}
	}
}

// Other refusals of the legs go the same road.
func TestRefusalsOfTheLegs(t *testing.T) {
	d := open(t, nil, nil)
	for code := verdict.BadRequest; code.Known(); code++ {
		about := code.About()
		if about.Retry || code == verdict.ClientGone {
			continue
		}
		v := verdict.Of(code, verdict.Reserve, "said so: %d", 7)
		d.pair.Set(func(a *fleettest.Attempt) { a.No(decode, v) })
		message := "said so: 7"
		if about.Status >= 500 && code != verdict.ShuttingDown && code != verdict.ModelOff {
			message += " (layer reserve)"
		}
		d.waitReady() // proof makes the pair rest
		a := d.post("/v1/completions", complete("x", ""))
		param := openai.Param(code, openai.Completions)
		if param == "" {
			param = "null"
		}
		if want := errorBody(message, about.Type, param, about.API); a.status != about.Status || a.body != want {
			t.Errorf("%v: got %d %s\nwant %d %s", code, a.status, a.body, about.Status, want)
		}
		if r := d.last(); r.Verdict != v {
			t.Errorf("record says %v, the leg %v", r.Verdict, v)
		}
		d.quiet()
	}
}

func TestNoPair(t *testing.T) {
	d := open(t, fleettest.Honest(), nil)
	d.pair.Prefill.Stop()
	fleettest.Until(t, "not ready", func() bool { return !d.g.Ready() })
	a := d.post("/v1/completions", complete("x", ""))
	want := errorBody("no pair can serve model m now: 0 of 1 prefill and 1 of 1 decode workers are usable", "server_error", "null", "overloaded")
	if a.status != 503 || a.body != want || a.header.Get("Retry-After") != "1" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if r := d.last(); r.Verdict.Code != verdict.Overloaded || r.Verdict.Layer != verdict.PlanLayer {
		t.Errorf("%+v", r.Verdict)
	}
	if a := d.get(d.url("/readyz")); a.status != 503 {
		t.Errorf("ready with %d", a.status)
	}
}

func TestRequestIDs(t *testing.T) {
	d := open(t, fleettest.Honest(), nil)
	for in, want := range map[string]string{"": "", "abc-1_2.3:4/5+6=7@8": "abc-1_2.3:4/5+6=7@8", "a b": "", "é": "", "\"": "", strings.Repeat("x", 128): strings.Repeat("x", 128), strings.Repeat("x", 129): ""} {
		a := d.post("/v1/completions", complete("x", ""), "X-Request-Id", in)
		got := a.header.Get("X-Request-Id")
		if want != "" && got != want || want == "" && (!strings.HasPrefix(got, "req-") || len(got) != 20) {
			t.Errorf("%q became %q", in, got)
		}
		if r := d.last(); r.Request != got {
			t.Errorf("record has %q", r.Request)
		}
	}
}

func TestAPIKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	line := func(id, key string) string {
		h := sha256.Sum256([]byte(key))
		return id + " " + hex.EncodeToString(h[:]) + "\n"
	}
	if err := os.WriteFile(file, []byte(line("alice", "sk-a")+line("bob", "sk-b")), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.APIKeys = file })
	want := errorBody("the API key is not known", "authentication_error", "null", "invalid_api_key")
	if a := d.post("/v1/completions", complete("x", ""), "Authorization", "Bearer sk-c"); a.status != 401 || a.body != want {
		t.Errorf("%d %s", a.status, a.body)
	}
	if r := d.last(); r.Verdict.Layer != verdict.Tenant || r.Scope != strings.Repeat("0", 32) {
		t.Errorf("%+v", r)
	}
	if a := d.get(d.url("/v1/models")); a.status != 401 {
		t.Errorf("models without a key: %d", a.status)
	}
	if a := d.get(d.url("/healthz")); a.status != 200 {
		t.Errorf("health wants a key: %d", a.status)
	}
	for _, key := range []string{"sk-a", "sk-b"} {
		if a := d.post("/v1/completions", complete("x", ""), "Authorization", "Bearer "+key); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	as := d.pair.Attempts()
	if as[0].Plan.Scope == as[1].Plan.Scope || as[0].Plan.Digest == as[1].Plan.Digest {
		t.Error("two tenants share a scope or a digest")
	}
}

// A prompt far over the limit is refused without copies of it.
func TestOverLimitPromptCostsLittleMemory(t *testing.T) {
	if invariant.Enabled {
		t.Skip("builds with checks allocate for themselves")
	}
	d := open(t, fleettest.Honest(), nil)
	for _, size := range []int{400_000, 1_000_000, 4 << 20} {
		body := complete(strings.Repeat("lorem ip", size/8), "")
		r, err := http.NewRequest("POST", d.url("/v1/completions"), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a := d.do(r)
		runtime.ReadMemStats(&after)
		if a.status != 400 || !strings.Contains(a.body, "context_length_exceeded") {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if size > provenBytes && !strings.Contains(a.body, "at least") {
			t.Errorf("counted: %s", a.body)
		}
		most := 2*len(body) + 512<<10
		if size > provenBytes {
			most = len(body) + 512<<10 // the body alone
		}
		if grew := after.TotalAlloc - before.TotalAlloc; grew > uint64(most) {
			t.Errorf("a body of %d bytes allocated %d", len(body), grew)
		}
	}
}
