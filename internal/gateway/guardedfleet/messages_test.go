package guardedfleet

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
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

func newMessages(t *testing.T, change ...func(*gateway.Config)) *rig {
	r := newFakes(t, 1, fake.Options{Engine: fake.Plain})
	r.model.Messages = true
	return r.open(change...)
}

// spoken is the text of a streamed message.
func spoken(body string) (text string) {
	for _, part := range strings.Split(body, `"text_delta","text":"`)[1:] {
		one, _, _ := strings.Cut(part, `"}`)
		text += one
	}
	return text
}

// A plain worker's message comes as it said it, whole and as named events in their order.
func TestMessages(t *testing.T) {
	r := newMessages(t)
	whole := r.message(asked + `}`)
	if whole.status != 200 || !strings.Contains(whole.body, `"type":"message"`) || !strings.Contains(whole.body, `"input_tokens":`) {
		t.Fatalf("%d %s", whole.status, whole.body)
	}
	_, text, _ := strings.Cut(whole.body, `"text":"`)
	text, _, _ = strings.Cut(text, `"}`)
	s := r.message(asked + `,"stream":true}`)
	if got := spoken(s.body); s.status != 200 || text == "" || got != text {
		t.Errorf("streamed %q, whole %q\n%s", got, text, s.body)
	}
	if !strings.HasPrefix(s.body, "event: message_start\ndata: {") || !strings.HasSuffix(s.body, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n") {
		t.Errorf("%s", s.body)
	}
	if m := r.admin("/metrics"); strings.Contains(m, "sluice_incidents_total{") || !strings.Contains(m, `endpoint="messages"`) {
		t.Error("an honest worker made incidents, or nothing was counted")
	}
}

// No lie of a worker ends as a good message, and each is an incident.
func TestLyingMessages(t *testing.T) {
	for _, kind := range []actor.Kind{actor.FinishMissing, actor.CountMissing, actor.ErrorIn200, actor.Empty, actor.OtherID, actor.Truncated,
		actor.NoDone, actor.CutMidway, actor.ErrorMidway, actor.ErrorNoDone, actor.AfterDone, actor.WrongShape, actor.Garbage} {
		for _, stream := range []bool{false, true} {
			switch kind {
			case actor.NoDone, actor.CutMidway, actor.ErrorMidway, actor.ErrorNoDone, actor.AfterDone:
				if !stream {
					continue
				}
			}
			t.Run(fmt.Sprint(kind, stream), func(t *testing.T) {
				r := newMessages(t)
				r.pairs[0].Tell(fake.Lie{Kind: kind, Leg: actor.Both})
				a := r.message(fmt.Sprintf(`%s,"stream":%v}`, asked, stream))
				ended := strings.Contains(a.body, "event: message_stop")
				switch {
				case kind == actor.AfterDone:
					if strings.Count(a.body, "event: message_delta") != 1 || !strings.HasSuffix(a.body, "{\"type\":\"message_stop\"}\n\n") {
						t.Errorf("%d %s", a.status, a.body)
					}
				case a.status == 200:
					if !stream || ended || !strings.Contains(a.body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"") {
						t.Errorf("%s", a.body)
					}
				case a.status != 502 && a.status != 500 || !strings.HasPrefix(a.body, `{"type":"error","error":{"type":"api_error","message":"`):
					t.Errorf("%d %s", a.status, a.body)
				}
				r.until("an incident", func() bool { return strings.Contains(r.admin("/metrics"), "sluice_incidents_total{") })
			})
		}
	}
}

// What is refused at the door is refused in the dialect of the path, and no leg is asked.
func TestMessagesRefused(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(tenant.Line("alice", "sk-alice")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newMessages(t, func(c *gateway.Config) { c.APIKeys = keys })
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
		"another model":      {strings.Replace(good, "recall", "other", 1), key, 404, "not_found_error"},
		"no max_tokens":      {strings.Replace(good, `"max_tokens":24,`, "", 1), key, 400, "invalid_request_error"},
		"a key twice":        {asked + `,"model":"recall"}`, key, 400, "invalid_request_error"},
		"a control field":    {asked + `,"kv_transfer_params":{"a":1}}`, key, 400, "invalid_request_error"},
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
