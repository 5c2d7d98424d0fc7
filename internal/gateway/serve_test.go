package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

const fingerprint = "fp_5a00000000000000"

func TestChatWhole(t *testing.T) {
	d := open(t, fleettest.Honest(text("Hi \"you\"")...), nil)
	a := d.post("/v1/chat/completions", chatBody, "X-Request-Id", "client-7")
	want := `{"id":"chatcmpl-ID","object":"chat.completion","created":T,"model":"m","system_fingerprint":"` + fingerprint + `","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"Hi \"you\"","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":7,"completion_tokens":8,"total_tokens":15}}`
	if a.status != 200 || fixed(a.body) != want {
		t.Errorf("%d %s\nwant %s", a.status, fixed(a.body), want)
	}
	for h, want := range map[string]string{"X-Request-Id": "client-7", "X-Sluice-Verdict": "ok; layer=decode", "Content-Type": "application/json", "X-Sluice-Unsafe": unsafeLabel()} {
		if got := a.header.Get(h); got != want {
			t.Errorf("%s: %q, want %q", h, got, want)
		}
	}
	plan := d.pair.Attempts()[0]
	if a.header.Get("X-Sluice-Attempt") != plan.Plan.Attempt.String() || !strings.Contains(a.body, "chatcmpl-"+plan.Plan.Attempt.String()) {
		t.Error("the attempt of the header is not the plan's")
	}
	if d := cmp.Diff(append([]int32{recall.BOS, recall.User}, text("hello")...), plan.IDs); d != "" {
		t.Error(d)
	}
	p := plan.Plan
	if p.Request != "client-7" || p.PromptTokens != 7 || p.LastToken != 'o' || p.MaxTokens != 1024 || p.Limit != 4096 || p.Sampling.Temperature != 0 || p.Sampling.TopP != 1 ||
		p.Prefill.Name != "p0" || p.Decode.Name != "d0" || p.Decode.Data != "127.0.0.1:1" || p.Digest != admission.Digest(p.Scope, plan.IDs) {
		t.Errorf("%+v", p)
	}
	d.quiet()
	r := d.last()
	wantRec := record.Record{Attempt: p.Attempt.String(), Request: "client-7", Scope: fmt.Sprintf("%x", p.Scope), Model: "m", Revision: d.g.catalog().find("m").fleet.Fingerprint(),
		Pair: record.Pair{Prefill: "p0", Decode: "d0"}, Digest: p.Digest, ManifestRoot: fleettest.Root, Verdict: verdict.Served(verdict.Decode), Spoke: []record.Guard{}}
	wantRec.Boots[0], wantRec.Boots[1] = d.pair.Prefill.Hello.Boot, d.pair.Decode.Hello.Boot
	wantRec.Tokens.Planned, wantRec.Tokens.PrefillComputed, wantRec.Tokens.DecodeSealed, wantRec.Tokens.Completion = 7, 7, 7, 8
	wantRec.Pages.Reserved, wantRec.Pages.Written = 1, 1
	times := r.Times
	r.Times, r.Start = record.Times{}, wantRec.Start
	if d := cmp.Diff(wantRec, r); d != "" {
		t.Error(d)
	}
	for ph, dur := range times {
		if dur <= 0 {
			t.Errorf("no time for phase %v", record.Phase(ph))
		}
	}
}

func TestChatStreamed(t *testing.T) {
	d := open(t, fleettest.Honest(text("ab")...), nil)
	a := d.post("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true,"max_tokens":2,"stream_options":{"include_usage":true}}`)
	if a.status != 200 || a.err != nil || a.header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Fatalf("%d %v %v", a.status, a.err, a.header)
	}
	ev, raw := events(fixed(a.body)), events(a.body)
	const head = `{"id":"chatcmpl-ID","object":"chat.completion.chunk","created":T,"model":"m","system_fingerprint":"` + fingerprint + `","choices":[`
	if ev[0] != head+`{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}` {
		t.Errorf("first %s", ev[0])
	}
	got := ""
	for _, e := range raw[1 : len(raw)-3] {
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(e), &c); err != nil || len(c.Choices) != 1 {
			t.Fatalf("%s: %v", e, err)
		}
		got += c.Choices[0].Delta.Content
	}
	if got != "ab" {
		t.Errorf("text %q", got)
	}
	want := []string{head + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}`,
		head + `],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}`, `[DONE]`}
	if d := cmp.Diff(want, ev[len(ev)-3:]); d != "" {
		t.Error(d)
	}
	if v := a.trailer.Get("X-Sluice-Verdict"); v != "ok; layer=decode" {
		t.Errorf("trailer %q", v)
	}
	if a.header.Get("X-Sluice-Verdict") != "" {
		t.Error("a stream's head claims a verdict")
	}
}

func TestCompletions(t *testing.T) {
	d := open(t, fleettest.Honest(text("xyz")...), nil)
	a := d.post("/v1/completions", complete("hi", ""))
	want := `{"id":"cmpl-ID","object":"text_completion","created":T,"model":"m","system_fingerprint":"` + fingerprint +
		`","choices":[{"index":0,"text":"xyz","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}`
	if a.status != 200 || fixed(a.body) != want {
		t.Errorf("%d %s", a.status, fixed(a.body))
	}
	if p := d.pair.Attempts()[0].Plan; p.MaxTokens != 16 || p.Sampling.Temperature != 1 {
		t.Errorf("%+v", p)
	}
	a = d.post("/v1/completions", `{"model":"m","prompt":[104,105],"stream":true,"seed":-7,"temperature":0.5,"top_p":0.25}`)
	if ev := events(a.body); ev[len(ev)-1] != "[DONE]" || !strings.Contains(ev[0], `"text":"x`) {
		t.Errorf("%s", a.body)
	}
	second := d.pair.Attempts()[1]
	if d := cmp.Diff([]int32{104, 105}, second.IDs); d != "" {
		t.Error(d)
	}
	if s := second.Plan.Sampling; s.Seed != ^uint64(6) || s.Temperature != 0.5 || s.TopP != 0.25 {
		t.Errorf("%+v", s)
	}
	d.post("/v1/completions", complete("hi", `,"temperature":1,"top_p":0`))
	if s := d.pair.Attempts()[2].Plan.Sampling; s.Temperature != 0 {
		t.Errorf("top_p 0 is the likeliest token alone, not %+v", s)
	}
	if one, two := d.pair.Attempts()[0].Plan, second.Plan; one.Sampling.Seed == 0 || one.Attempt == two.Attempt || two.Seq != one.Seq+1 {
		t.Errorf("%+v %+v", one, two)
	}
}

// A prompt of megabytes crosses the control link in bounded frames, and arrives whole.
func TestLongPrompt(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(_ *Config, p *fleettest.Pair) {
		for _, w := range []*fleettest.Worker{p.Prefill, p.Decode} {
			w.Facts.PoolTokens, w.Facts.Context = 1<<20, 1<<20
		}
	})
	a := d.post("/v1/completions", complete(strings.Repeat("abcdefgh", 40_000), `,"max_tokens":1`))
	if a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if ids := d.pair.Attempts()[0].IDs; len(ids) != 320_001 || ids[320_000] != 'h' || ids[1] != 'a' {
		t.Errorf("%d ids", len(ids))
	}
}

// The end of stop strings is found across tokens; nothing behind them is sent, and decode is asked to stop.
func TestStopStrings(t *testing.T) {
	script := func(reply string) fleettest.Script {
		return func(a *fleettest.Attempt) {
			if !a.Prefilled() {
				return
			}
			n := 0
			for _, id := range text(reply) {
				a.Output(n, id)
				n++
			}
			select {
			case <-a.Stopped():
			case <-a.Done():
				return
			}
			a.Ends(decode, a.Outcome(decode, n))
		}
	}
	for _, c := range []struct{ reply, stop, want string }{
		{"one STOP two", `["STOP"]`, "one "},
		{"one STSTOP two", `["STOP"]`, "one ST"},
		{"aXbYc", `["Y","Xb"]`, "a"},
		{"STOP", `"STOP"`, ""},
		{"über ↯ x", `["↯"]`, "über "},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", c.reply, stream), func(t *testing.T) {
				d := open(t, script(c.reply), nil)
				a := d.post("/v1/completions", complete("x", fmt.Sprintf(`,"stop":%s,"stream":%v,"max_tokens":100`, c.stop, stream)))
				got, finish := textOf(t, a, stream)
				if got != c.want || finish != "stop" {
					t.Errorf("got %q (%s), want %q\n%s", got, finish, c.want, a.body)
				}
				if r := d.last(); int(r.Tokens.Completion) != len(c.reply) {
					t.Errorf("%d tokens recorded, %d were made", r.Tokens.Completion, len(c.reply))
				}
			})
		}
	}
}

// textOf reads the text and finish reason of a completion.
func textOf(t *testing.T, a answer, stream bool) (text, finish string) {
	t.Helper()
	bodies := []string{a.body}
	if stream {
		bodies = events(a.body)
		if bodies[len(bodies)-1] != "[DONE]" {
			t.Fatalf("no [DONE]: %s", a.body)
		}
		bodies = bodies[:len(bodies)-1]
	}
	for _, b := range bodies {
		var c struct {
			Choices []struct {
				Text   string
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(b), &c); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		for _, ch := range c.Choices {
			text += ch.Text
			if ch.Finish != "" {
				finish = ch.Finish
			}
		}
	}
	return text, finish
}

// Stop strings that begin and do not come are text after all.
func TestHeldBackTextComesAtTheEnd(t *testing.T) {
	d := open(t, fleettest.Honest(text("a STO")...), nil)
	for _, stream := range []bool{false, true} {
		a := d.post("/v1/completions", complete("x", fmt.Sprintf(`,"stop":"STOP","stream":%v`, stream)))
		if got, finish := textOf(t, a, stream); got != "a STO" || finish != "stop" {
			t.Errorf("%q %s", got, finish)
		}
	}
	// Half a character at the end is replaced, not lost.
	d.pair.Set(fleettest.Honest('a', 0xc3))
	if got, _ := textOf(t, d.post("/v1/completions", complete("x", "")), false); got != "a\ufffd" {
		t.Errorf("%q", got)
	}
}

func TestReplyOfNoTokens(t *testing.T) {
	d := open(t, fleettest.Honest(), nil)
	for _, stream := range []bool{false, true} {
		a := d.post("/v1/completions", complete("x", fmt.Sprintf(`,"stream":%v`, stream)))
		if got, finish := textOf(t, a, stream); a.status != 200 || got != "" || finish != "stop" {
			t.Errorf("%d %q %s", a.status, got, finish)
		}
	}
}

func TestModels(t *testing.T) {
	d := open(t, fleettest.Honest(), func(c *Config, p *fleettest.Pair) {
		p.Prefill.Facts.PoolTokens, p.Prefill.Facts.Context = 1000, 992
		c.Models = append(c.Models, ModelConfig{Name: "org/none", Encoder: encoder()})
		c.Models[1].Workers = nil
	})
	want := `{"object":"list","data":[{"id":"m","object":"model","created":T,"owned_by":"sluice","max_model_len":992},{"id":"org/none","object":"model","created":T,"owned_by":"sluice","max_model_len":0}]}`
	if a := d.get(d.url("/v1/models")); a.status != 200 || fixed(a.body) != want {
		t.Errorf("%d %s", a.status, fixed(a.body))
	}
	if a := d.get(d.url("/v1/models/org/none")); a.status != 200 || !strings.HasPrefix(a.body, `{"id":"org/none"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := d.get(d.url("/v1/models/x")); a.status != 404 || !strings.Contains(a.body, `"model_not_found"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	// One model that can serve is enough for a balancer; each can be asked about.
	none := "no pair can serve model org/none now: 0 of 0"
	for query, want := range map[string]int{"": 200, "?model=m": 200, "?model=org/none": 503, "?model=x": 503} {
		if a := d.get(d.url("/readyz" + query)); a.status != want || strings.Contains(a.body, none) != (query == "" || query == "?model=org/none") {
			t.Errorf("%q: %d %s", query, a.status, a.body)
		}
	}
	d.g.catalog().find("m").turnOff("tested")
	if a := d.get(d.url("/readyz")); a.status != 503 || a.body != "model m is switched off: tested\n"+a.body[strings.Index(a.body, none):] {
		t.Errorf("%d %s", a.status, a.body)
	}
	d.g.catalog().find("m").on()
}

func TestPaths(t *testing.T) {
	d := open(t, fleettest.Honest(), nil)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/healthz", 200, ""}, {"HEAD", "/readyz", 200, ""}, {"GET", "/v1/chat/completions", 405, "POST"}, {"DELETE", "/v1/models", 405, "GET"},
		{"POST", "/readyz", 405, "GET"}, {"GET", "/", 404, ""}, {"POST", "/v1/chat/completions/", 404, ""}, {"POST", "//v1/completions", 404, ""},
		{"POST", "/v1/../admin/fleet", 404, ""}, {"GET", "/admin/fleet", 404, ""}, {"GET", "/metrics", 404, ""}, {"POST", "/generate", 404, ""}, {"POST", "/flush_cache", 404, ""},
		{"GET", "/server_info", 404, ""}, {"POST", "/V1/completions", 404, ""},
	} {
		r, err := http.NewRequest(c.method, d.url("/"), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Path = c.path
		a := d.do(r)
		if a.status != c.status || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, allow %q", c.method, c.path, a.status, a.header.Get("Allow"))
		}
		if a.status >= 400 && c.method != "HEAD" {
			var e struct {
				Error struct{ Message, Type, Code string }
			}
			if json.Unmarshal([]byte(a.body), &e) != nil || e.Error.Code == "" || e.Error.Type != "invalid_request_error" {
				t.Errorf("%s %s: %s", c.method, c.path, a.body)
			}
		}
	}
}

// A worker that speaks with one word only, or in any order that is honest, is served the same.
func TestHonestOrders(t *testing.T) {
	for name, s := range map[string]fleettest.Script{
		"sealed before prefill's outcome": func(a *fleettest.Attempt) {
			a.Reserved()
			if !a.WaitPrompt() {
				return
			}
			a.Sealed()
			a.Output(0, 'o')
			a.Output(1, 'k')
			a.Ends(decode, a.Outcome(decode, 2))
			a.Ends(prefill, a.Outcome(prefill, 0))
		},
		"many ids a frame": func(a *fleettest.Attempt) {
			if a.Prefilled() {
				a.Output(0, 'o', 'k')
				a.Ends(decode, a.Outcome(decode, 2))
			}
		},
		"prefill settles late": func(a *fleettest.Attempt) {
			a.Reserved()
			if !a.WaitPrompt() {
				return
			}
			a.Say(prefill, a.Outcome(prefill, 0))
			a.Sealed()
			a.Output(0, 'o', 'k')
			a.Ends(decode, a.Outcome(decode, 2))
			a.Settled(prefill)
		},
		"held pages": func(a *fleettest.Attempt) {
			a.Reserved()
			if !a.WaitPrompt() {
				return
			}
			a.Ends(prefill, a.Outcome(prefill, 0))
			a.Sealed(func(s *wire.Sealed) { s.Written, s.Held = 0, s.Written })
			a.Output(0, 'o', 'k')
			a.Ends(decode, a.Outcome(decode, 2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, s, nil)
			for _, stream := range []bool{false, true} {
				a := d.post("/v1/completions", complete("x", fmt.Sprintf(`,"stream":%v`, stream)))
				if got, finish := textOf(t, a, stream); a.status != 200 || got != "ok" || finish != "stop" {
					t.Errorf("%d %q %s: %s", a.status, got, finish, a.body)
				}
			}
			d.quiet()
		})
	}
}
