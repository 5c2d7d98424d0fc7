package jsonedit

import (
	"fmt"
	"strings"
	"testing"
)

var engines = []Engine{SGLang, VLLMNixl, VLLMMooncake, Plain}

const chat = `"model":"m","messages":[{"role":"user","content":"hi"}]`
const text = `"model":"m","prompt":"hi"`

func read(t *testing.T, cfg Config, body string) (*Doc, *Refusal) {
	t.Helper()
	return Read([]byte(body), NewPolicy(cfg))
}

// bodyOf is a good body of the endpoint with more members behind.
func bodyOf(ep Endpoint, more string) string {
	base := text
	switch ep {
	case Chat:
		base = chat
	case AnthropicAPI:
		base = chat + `,"max_tokens":5`
	}
	if more != "" {
		base += "," + more
	}
	return "{" + base + "}"
}

func endpoints(e Engine) []Endpoint {
	if e == Plain {
		return []Endpoint{Chat, Completions, AnthropicAPI}
	}
	return []Endpoint{Chat, Completions}
}

func TestControlFieldsNeverPass(t *testing.T) {
	for _, e := range engines {
		for _, ep := range endpoints(e) {
			cfg := Config{Engine: e, Endpoint: ep}
			for _, unknown := range []UnknownFields{PassPublic, StripUnknown, RejectUnknown, PassUnknown} {
				cfg.Unknown = unknown
				policy := NewPolicy(cfg)
				for _, c := range controls {
					name := c.name
					escaped := fmt.Sprintf(`\u%04x`, name[0]) + name[1:]
					for what, more := range map[string]string{
						"plain":   `"` + name + `":1`,
						"false":   `"` + name + `":false`,
						"object":  `"` + name + `":{}`,
						"escaped": `"` + escaped + `":"x"`,
						"case":    `"` + strings.ToUpper(name) + `":1`,
						"title":   `"` + strings.ToUpper(name[:1]) + name[1:] + `":1`,
						"body":    `"extra_body":{"` + name + `":1}`,
						"deeper":  `"custom_params":[{"a":{"` + escaped + `":1}}]`,
						"params":  `"sampling_params":{"` + name + `":null}`,
					} {
						_, r := Read([]byte(bodyOf(ep, more)), policy)
						if r == nil || r.Reason != Control || r.Verdict().Code.About().Status != 400 {
							t.Errorf("%s %s, unknown %d: %s of %s: %v", e, ep, unknown, what, name, r)
						} else if !strings.HasSuffix(strings.ToLower(r.Path), name) {
							t.Errorf("%s of %s: path %q", what, name, r.Path)
						}
					}
				}
			}
		}
	}
}

func TestControlByPrefixAndFolding(t *testing.T) {
	for _, name := range []string{"bootstrap_anything", "remote_x", "do_remote_x", "lmcache.req", "_p_side_truncated", "_remote_blocks_processed", "Bootstrap_Room",
		"\u212av_transfer_params", "\u017fession_id", "RID"} {
		for _, drop := range []bool{false, true} {
			d, r := read(t, Config{Engine: Plain, Unknown: PassUnknown, DropControl: drop}, bodyOf(Chat, `"`+name+`":1`))
			if drop {
				if r != nil || string(d.Edit().Body().AppendTo(nil)) != "{"+chat+"}" {
					t.Errorf("%s dropped: %v", name, r)
				}
			} else if r == nil || r.Reason != Control {
				t.Errorf("%s: %v", name, r)
			}
		}
	}
}

// Where a name means something else it is nobody's business.
func TestControlNamesAsDataPass(t *testing.T) {
	for _, more := range []string{
		`"metadata":{"request_id":"r","rid":"x","priority":"high"}`,
		`"tools":[{"type":"function","function":{"name":"rid","parameters":{"type":"object","properties":{"session_id":{"type":"string"},"priority":{}}}}}]`,
		`"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"properties":{"bootstrap_room":{}}}}}`,
		`"stop":["rid","kv_transfer_params"]`,
		`"user":"bootstrap_room"`,
	} {
		for _, e := range engines {
			d, r := read(t, Config{Engine: e}, bodyOf(Chat, more))
			if r != nil {
				t.Errorf("%s: %s: %v", e, more, r)
				continue
			}
			if got := string(d.Edit().Body().AppendTo(nil)); got != bodyOf(Chat, more) {
				t.Errorf("%s: %s became %s", e, more, got)
			}
		}
	}
}

func TestNullSaysNothing(t *testing.T) {
	for _, e := range engines {
		for _, c := range controls {
			d, r := read(t, Config{Engine: e}, bodyOf(Chat, `"`+c.name+`":null,"temperature":null,"n":null`))
			if r != nil {
				t.Errorf("%s %s: %v", e, c.name, r)
			} else if got := string(d.Edit().Body().AppendTo(nil)); strings.Contains(got, c.name) {
				t.Errorf("%s: %s is still there: %s", e, c.name, got)
			}
		}
	}
}

func TestUnknownFields(t *testing.T) {
	more := `"no_such":{"a":1},"top_k":5,"metadata":{"a":"b"},"TOP_K":6,"Model":"x"`
	for unknown, want := range map[UnknownFields]string{
		PassPublic:    `,"top_k":5,"metadata":{"a":"b"}`,
		StripUnknown:  `,"top_k":5`,
		PassUnknown:   `,"no_such":{"a":1},"top_k":5,"metadata":{"a":"b"}`,
		RejectUnknown: "no_such",
	} {
		d, r := read(t, Config{Engine: SGLang, Unknown: unknown}, bodyOf(Chat, more))
		if unknown == RejectUnknown {
			if r == nil || r.Reason != Unknown || r.Path != want || strings.Contains(r.Verdict().Reason, want) {
				t.Errorf("reject: %v", r)
			}
			continue
		}
		if r != nil {
			t.Fatal(r)
		}
		if got := string(d.Edit().Body().AppendTo(nil)); got != "{"+chat+want+"}" {
			t.Errorf("unknown %d: %s", unknown, got)
		}
	}
	for _, s := range []string{"", "reject", "strip", "pass"} {
		if _, err := ParseUnknown(s); err != nil {
			t.Error(err)
		}
	}
	if _, err := ParseUnknown("no"); err == nil {
		t.Error("no")
	}
}

// What would change the count, the number of sequences or the prompt itself, per engine: + passes, - is refused.
func TestValuesThatChangeWhatIsChecked(t *testing.T) {
	type row struct {
		ep     Endpoint
		more   string
		sglang byte
		vllm   byte
		plain  byte
	}
	for _, c := range []row{
		{Chat, `"n":1`, '+', '+', '+'}, {Chat, `"n":2`, '-', '-', '+'}, {Chat, `"n":"1"`, '-', '-', '+'}, {Chat, `"n":1.0`, '-', '-', '+'},
		{Completions, `"best_of":1`, '+', '+', '+'}, {Completions, `"best_of":3`, '-', '-', '+'},
		{Chat, `"use_beam_search":false`, '~', '+', '~'}, {Chat, `"use_beam_search":true`, '~', '-', '~'}, {Chat, `"use_beam_search":1`, '~', '-', '~'},
		{Chat, `"truncate_prompt_tokens":null`, '~', '+', '+'}, {Chat, `"truncate_prompt_tokens":5`, '~', '-', '-'},
		{Completions, `"prompt_logprobs":1`, '~', '-', '~'}, {Completions, `"prompt_embeds":"AA"`, '-', '-', '-'},
		{Completions, `"echo":true`, '+', '+', '+'}, {Completions, `"echo":true,"logprobs":1`, '-', '-', '+'}, {Completions, `"echo":"yes"`, '-', '-', '-'},
		{Chat, `"input_ids":[1]`, '-', '~', '~'}, {Chat, `"chat_template":"{{1}}"`, '~', '-', '-'},
		{Chat, `"chat_template_kwargs":{"thinking":true}`, '+', '+', '+'}, {Chat, `"chat_template_kwargs":{"chat_template":"x"}`, '-', '-', '-'},
		{Chat, `"chat_template_kwargs":{"Tokenize":true}`, '-', '-', '-'}, {Chat, `"chat_template_kwargs":[]`, '-', '-', '-'},
		{Chat, `"stream":true`, '+', '+', '+'}, {Chat, `"stream":"true"`, '-', '-', '-'}, {Chat, `"stream":1`, '-', '-', '-'},
		{Chat, `"max_tokens":16`, '+', '+', '+'}, {Chat, `"max_tokens":0`, '-', '-', '-'}, {Chat, `"max_tokens":"16"`, '-', '-', '-'}, {Chat, `"max_tokens":1e2`, '-', '-', '-'},
		{Chat, `"max_tokens":99999999999999999999`, '-', '-', '-'}, {Chat, `"max_completion_tokens":-1`, '-', '-', '-'},
		{Chat, `"max_tokens":5,"max_completion_tokens":5`, '+', '+', '+'}, {Chat, `"max_tokens":5,"max_completion_tokens":6`, '-', '-', '-'},
		{Chat, `"stream_options":{"include_usage":true}`, '-', '-', '-'}, {Chat, `"stream":true,"stream_options":{"include_usage":true}`, '+', '+', '+'},
		{Chat, `"stream":true,"stream_options":{"include_usage":1}`, '-', '-', '-'}, {Chat, `"stream":true,"stream_options":[]`, '-', '-', '-'},
		{Chat, `"return_hidden_states":true`, '-', '~', '~'}, {Chat, `"vllm_xargs":{}`, '-', '-', '-'},
	} {
		for e, want := range map[Engine]byte{SGLang: c.sglang, VLLMNixl: c.vllm, VLLMMooncake: c.vllm, Plain: c.plain} {
			d, r := read(t, Config{Engine: e, Endpoint: c.ep}, bodyOf(c.ep, c.more))
			got := byte('-')
			if r == nil {
				got = '~' // stripped
				if string(d.Edit().Body().AppendTo(nil)) == bodyOf(c.ep, c.more) {
					got = '+'
				}
			}
			if got != want {
				t.Errorf("%s %s %s: %c, want %c (%v)", e, c.ep, c.more, got, want, r)
			}
		}
	}
}

func TestOnePromptOnTwoLegs(t *testing.T) {
	for prompt, want := range map[string]string{
		`"a"`: "++", `[1,2]`: "++", `["a"]`: "++", `[[1,2]]`: "++", `["a","b"]`: "-+", `[[1],[2]]`: "-+", `["a",1]`: "-+", `5`: "--", `null`: "--", `{}`: "--",
	} {
		for i, e := range []Engine{VLLMNixl, Plain} {
			_, r := read(t, Config{Engine: e, Endpoint: Completions}, `{"model":"m","prompt":`+prompt+`}`)
			if got := r == nil; got != (want[i] == '+') {
				t.Errorf("%s, prompt %s: %v", e, prompt, r)
			}
		}
	}
	for _, body := range []string{`{"prompt":"a"}`, `{"model":"m"}`, `{"model":5,"prompt":"a"}`, `{"model":"","prompt":"a"}`, `{"model":null,"prompt":"a"}`,
		`{"model":"` + strings.Repeat("m", 257) + `","prompt":"a"}`} {
		if _, r := read(t, Config{Engine: SGLang, Endpoint: Completions}, body); r == nil || r.Reason != Invalid {
			t.Errorf("%s: %v", body, r)
		}
	}
	if _, r := read(t, Config{Engine: SGLang}, `{"model":"m","messages":"hi"}`); r == nil || r.Path != "messages" {
		t.Error(r)
	}
}

func TestMediaByAddress(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}]}`
	_, r := read(t, Config{Engine: Plain}, body)
	if r == nil || r.Reason != Unsupported || r.Path != "messages[0].content[1].image_url.url" {
		t.Errorf("%+v", r)
	}
	if d, r := read(t, Config{Engine: Plain, RemoteMedia: true}, body); r != nil || d.Media() != (Media{1, 1}) {
		t.Error(r)
	}
	if _, r := read(t, Config{Engine: VLLMNixl}, `{"model":"m","messages":[{"content":[{"type":"image_embeds","image_embeds":"AA"}]}]}`); r == nil || r.Reason != Unsupported {
		t.Error(r)
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{"0.5.9": false, "0.5.13": false, "0.5.22": false, "0.5.23": true, "0.6.0": true, "0.5.23.post1": true, "": true, "main": true,
		"0.5.22.post1": false, "v0.5.9": false, "0.5.24rc1": true, "0.5": false} {
		d, r := read(t, Config{Engine: SGLang, Version: version}, bodyOf(Chat, `"thinking":{"type":"adaptive"}`))
		if r != nil {
			t.Fatal(r)
		}
		if got := d.Removed() == 0; got != want {
			t.Errorf("thinking on %q: %v", version, got)
		}
	}
}

// A refusal that goes to logs names no field of the client's own invention and repeats no value.
func TestVerdictsHoldNothingOfTheClients(t *testing.T) {
	const secret = "s3cret"
	for _, more := range []string{`"` + secret + `":1,"` + secret + `":2`, `"x":{"` + secret + `":{"rid":1}},"extra_body":{"` + secret + `":{"rid":"` + secret + `"}}`,
		`"n":"` + secret + `"`, `"metadata":{"` + secret + `":nul}`, `"` + secret + `":1`, `"max_tokens":"` + secret + `"`} {
		_, r := read(t, Config{Engine: VLLMNixl, Unknown: RejectUnknown}, bodyOf(Chat, more))
		if r == nil {
			t.Errorf("%s: taken", more)
		} else if v := r.Verdict(); strings.Contains(v.Reason, secret) || strings.Contains(r.Error(), secret) || v.Code.About().Status != 400 {
			t.Errorf("%s: %v", more, v)
		}
	}
	_, r := read(t, Config{Engine: VLLMNixl}, bodyOf(Chat, `"vllm_xargs":{"session_id":1}`))
	if r == nil || r.Verdict().Reason != "vllm_xargs.session_id: the gateway sets this field itself" {
		t.Error(r)
	}
}

func TestExplainNamesEveryField(t *testing.T) {
	for _, e := range engines {
		for _, ep := range endpoints(e) {
			var b strings.Builder
			if err := NewPolicy(Config{Engine: e, Endpoint: ep}).Explain(&b); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"bootstrap_room", "kv_transfer_params", "model", "cache_salt", "control", "take"} {
				if !strings.Contains(b.String(), want) {
					t.Errorf("%s %s: %s is missing", e, ep, want)
				}
			}
		}
	}
}
