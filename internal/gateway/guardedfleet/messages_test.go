package guardedfleet

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/gateway/tenant"
)

const asked = `{"model":"recall","max_tokens":24,"system":"Be brief.","messages":[{"role":"user","content":[{"type":"text","text":"My name is Alice. My name is"}]}]`

func (r *rig) message(body string, headers ...string) reply {
	r.Helper()
	req, _ := http.NewRequest(http.MethodPost, "http://"+r.g.Addr()+"/v1/messages", strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(b), resp.Header}
}

func newMessages(t *testing.T, engine string, change ...func(*gateway.Config)) *rig {
	r := newFakes(t, 1, fake.Options{Engine: engine, Decode: fake.Leg{Pool: 4096, Context: 4096}})
	r.model.Messages = true
	return r.open(change...)
}

// text is what a message says, whole or streamed.
func text(body string) (all string) {
	for _, part := range strings.Split(body, `"text":"`)[1:] {
		one, _, _ := strings.Cut(part, `"}`)
		all += one
	}
	return all
}

// A plain worker's message comes as it said it, whole and as named events in their order.
func TestMessages(t *testing.T) {
	for engine, stopped := range map[string]string{fake.Plain: "stop_sequence", fake.PlainSGLang: "end_turn"} {
		r := newMessages(t, engine)
		whole := r.message(asked + `}`)
		if whole.status != 200 || !strings.HasPrefix(text(whole.body), " Alice.") || !strings.Contains(whole.body, `"input_tokens":`) {
			t.Fatalf("%s: %d %s", engine, whole.status, whole.body)
		}
		s := r.message(asked + `,"stream":true}`)
		if s.status != 200 || text(s.body) != text(whole.body) {
			t.Errorf("%s: streamed %q, whole %q\n%s", engine, text(s.body), text(whole.body), s.body)
		}
		if !strings.HasPrefix(s.body, "event: message_start\ndata: {") || !strings.HasSuffix(s.body, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n") {
			t.Errorf("%s: %s", engine, s.body)
		}
		stop := r.message(asked + `,"stop_sequences":["ice"]}`)
		if text(stop.body) != " Al" || !strings.Contains(stop.body, `"stop_reason":"`+stopped+`"`) {
			t.Errorf("%s: %d %s", engine, stop.status, stop.body)
		}
		if m := r.admin("/metrics"); strings.Contains(m, "sluice_incidents_total{") || !strings.Contains(m, `endpoint="messages"`) {
			t.Errorf("%s: an honest worker made incidents, or nothing was counted:\n%s", engine, r.admin("/admin/incidents"))
		}
	}
}

// Before any worker is asked for a reply, what bytes and counts can bound is bounded: the results of tools too. Of images the worker's
// own answer is what there is.
func TestMessagesAreBoundedAtAdmission(t *testing.T) {
	result := func(text, more string) string {
		return `{"model":"recall","max_tokens":24,"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"Who am I?"},` +
			`{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"f","input":{"a":1}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"` + text + `"}` + more + `]}]}]}`
	}
	image := `,{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + strings.Repeat("A", 6000) + `"}}`
	for _, engine := range []string{fake.Plain, fake.PlainSGLang} {
		r := newMessages(t, engine)
		if a := r.message(result("My name is Alice. My name is", "")); a.status != 200 || !strings.HasPrefix(text(a.body), " Alice") {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
		// 3,600 bytes are over what bytes can prove with 24 more, and fit by the worker's count.
		if a := r.message(result(strings.Repeat("harbour ", 450)+" My name is Alice. My name is", "")); a.status != 200 {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
		before := r.requests()["d0"]
		a := r.message(result(strings.Repeat("harbour ", 520), ""))
		if a.status != 400 || !strings.Contains(a.body, "invalid_request_error") || !strings.Contains(a.body, "tokens") || r.requests()["d0"] != before {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
		// The system is counted with the rest, which the worker does in this dialect alone.
		long := strings.Replace(asked, "Be brief.", strings.Repeat("harbour ", 520), 1)
		if a := r.message(long + `}`); a.status != 400 || r.requests()["d0"] != before {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
		if a := r.message(result("My name is Alice. My name is", image)); a.status != 200 {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
		if a := r.message(result(strings.Repeat("harbour ", 520), image)); a.status != 400 || r.requests()["d0"] == before {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
	}
}

// What is refused at the door is refused in the dialect of the path, and no leg is asked.
func TestMessagesRefused(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(tenant.Line("alice", "sk-alice")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newMessages(t, fake.Plain, func(c *gateway.Config) { c.APIKeys = keys })
	good, key := asked+`}`, []string{"X-Api-Key", "sk-alice"}
	image := `{"model":"recall","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"image","source":{"type":"url","url":"http://10.0.0.1/"}}]}]}]}`
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
		kind    string
	}{
		"no key":             {good, nil, 401, "authentication_error"},
		"another key":        {good, []string{"X-Api-Key", "sk-bob"}, 401, "authentication_error"},
		"two keys":           {good, []string{"X-Api-Key", "sk-alice", "Authorization", "Bearer sk-bob"}, 401, "authentication_error"},
		"and the other one":  {good, []string{"X-Api-Key", "sk-bob", "Authorization", "Bearer sk-alice"}, 401, "authentication_error"},
		"two of a kind":      {good, []string{"X-Api-Key", "sk-alice", "X-Api-Key", "sk-bob"}, 401, "authentication_error"},
		"another model":      {strings.Replace(good, "recall", "other", 1), key, 404, "not_found_error"},
		"no max_tokens":      {strings.Replace(good, `"max_tokens":24,`, "", 1), key, 400, "invalid_request_error"},
		"a key twice":        {asked + `,"model":"recall"}`, key, 400, "invalid_request_error"},
		"a control field":    {asked + `,"kv_transfer_params":{"a":1}}`, key, 400, "invalid_request_error"},
		"one spelled so":     {asked + `,"\u0062ootstrap_room":1}`, key, 400, "invalid_request_error"},
		"one in a carrier":   {asked + `,"extra_body":{"rid":"a"}}`, key, 400, "invalid_request_error"},
		"a cut prompt":       {asked + `,"truncate_prompt_tokens":1}`, key, 400, "invalid_request_error"},
		"more behind":        {good + `{}`, key, 400, "invalid_request_error"},
		"no key but a word":  {good, []string{"X-Api-Key", ""}, 401, "authentication_error"},
		"an address":         {image, key, 400, "invalid_request_error"},
		"too long":           {strings.Replace(good, "Alice", strings.Repeat("x", 1<<17), 1), key, 400, "invalid_request_error"},
		"not JSON":           {`{`, key, 400, "invalid_request_error"},
		"a length, asked so": {asked + `,"max_completion_tokens":1}`, append(key, "X-Request-Id", "sk-alice"), 200, ""},
	} {
		before := r.requests()["d0"]
		a := r.message(c.body, c.headers...)
		want := `{"type":"error","error":{"type":"` + c.kind + `","message":"`
		if a.status != c.status || c.status != 200 && !strings.HasPrefix(a.body, want) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if n := r.requests()["d0"] - before; (n != 0) != (c.status == 200) {
			t.Errorf("%s: %d requests at the worker", name, n)
		}
		if strings.Contains(a.header.Get("X-Request-Id"), "sk-alice") {
			t.Errorf("%s: the key is in a header", name)
		}
	}
	if a := r.message(good, "Authorization", "Bearer sk-alice", "X-Api-Key", "sk-alice"); a.status != 200 {
		t.Errorf("one key, said twice: %d", a.status)
	}
}

// Only the models whose file says so are served there.
func TestMessagesOnlyWhereTheyAreOffered(t *testing.T) {
	for _, engine := range []string{fake.Plain, fake.SGLang} {
		r := newFakes(t, 1, fake.Options{Engine: engine})
		r.model.Messages = engine == fake.SGLang
		r.open()
		if a := r.message(asked + `}`); a.status != 404 || !strings.HasPrefix(a.body, `{"type":"error","error":{"type":"not_found_error","message":"there is no such model on /v1/messages`) {
			t.Errorf("%s: %d %s", engine, a.status, a.body)
		}
		for name, n := range r.requests() {
			if n != 0 {
				t.Errorf("%s: %s was asked", engine, name)
			}
		}
		resp, err := http.Post("http://"+r.g.Addr()+"/v1/messages/count_tokens", "application/json", strings.NewReader(asked+`}`))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 404 || string(b) != `{"type":"error","error":{"type":"not_found_error","message":"there is no such path"}}` {
			t.Errorf("%d %s", resp.StatusCode, b)
		}
	}
}
