package sglang

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

const code = "The vault code of Ada is 3QY9DPNCRFU8. "

func generate(text string, n int) string {
	return fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":%d,"temperature":0}}`, text, n)
}

func textIn(t *testing.T, r reply) string {
	t.Helper()
	var b struct {
		Text    string
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
	}
	if err := json.Unmarshal(r.body, &b); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	for _, c := range b.Choices {
		b.Text += c.Text + c.Message.Content
	}
	return b.Text
}

// The incident, on content: up to 0.5.19 a prompt over prefill's pool brings out what the tenant before had asked; from 0.5.20 it is
// refused, and decode waits in vain.
func TestTheIncident(t *testing.T) {
	for _, c := range []struct {
		version string
		leaks   bool
	}{{"0.5.19", true}, {"0.5.20", false}, {"0.5.23", false}} {
		r := newRig(t, c.version, nil)
		for range 3 {
			if p, d := r.send("/generate", generate(strings.Repeat(code, 24), 2)); p.status != 200 || d.status != 200 {
				t.Fatal(p, d)
			}
		}
		p, d := r.send("/generate", generate(textOf(1500), 64))
		if leaked := d.status == 200 && strings.Contains(textIn(t, d), "3QY9DPNCRFU8"); leaked != c.leaks {
			t.Errorf("%s: leaked %v: %s", c.version, leaked, d.body)
		}
		if got := len(r.fleet.Leaks()) == 1; got != c.leaks {
			t.Errorf("%s: %d leaks are on record", c.version, len(r.fleet.Leaks()))
		}
		if !c.leaks && (p.status != 400 || d.status != 500 || d.took < 250*time.Millisecond) {
			t.Errorf("%s: %d, %d after %v", c.version, p.status, d.status, d.took)
		}
		// Controls: what fits is its own, and so is everything when prefill's pool is as large.
		if _, d := r.send("/generate", generate(textOf(900), 64)); strings.Contains(textIn(t, d), "vault") {
			t.Errorf("%s: a prompt that fits leaks: %s", c.version, d.body)
		}
	}
	r := newRig(t, "0.5.19", func(p, _ *actor.Config) { p.Pool = 8192 })
	r.send("/generate", generate(strings.Repeat(code, 24), 2))
	if _, d := r.send("/generate", generate(textOf(1500), 64)); strings.Contains(textIn(t, d), "vault") || len(r.fleet.Leaks()) > 0 {
		t.Errorf("with pools alike: %s", d.body)
	}
}

func TestRepliesContinueTheMatch(t *testing.T) {
	r := newRig(t, "0.5.19", nil)
	for _, c := range []struct{ path, body, want string }{
		{"/generate", generate("My name is Alice. My name is", 7), " Alice."},
		{"/v1/completions", `{"model":"recall","prompt":"The value of x is 20. The value of y is 30. The value of x is","max_tokens":8}`, " 20. The"},
		{"/v1/chat/completions", `{"model":"recall","messages":[{"role":"system","content":"Be short."},{"role":"user","content":"My name is Alice. My name is"}],"max_tokens":7}`, " Alice."},
		{"/v1/chat/completions", `{"model":"recall","messages":[{"role":"user","content":"My name is Zoë Über."},{"role":"assistant","content":"ok"},{"role":"user","content":[{"type":"text","text":"My name "},{"type":"text","text":"is"}]}],"max_tokens":99}`, " Zoë Über."},
	} {
		p, d := r.send(c.path, c.body)
		if p.status != 200 || d.status != 200 || textIn(t, d) != c.want {
			t.Errorf("%s: %d %d %q", c.body, p.status, d.status, textIn(t, d))
		}
	}
}

// Every rule that a gateway can break is heard, by its name.
func TestViolations(t *testing.T) {
	ok := `{"model":"recall","prompt":"abcabc","max_tokens":2}`
	host := func(r *rig) (string, int) { return r.prefill.Bootstrap() }
	for name, c := range map[string]struct {
		rule actor.Rule
		do   func(r *rig)
	}{
		"two keys": {actor.RuleBody, func(r *rig) { post(r.decode.URL()+"/v1/completions", `{"a":1,"a":2}`) }},
		"admin":    {actor.RulePath, func(r *rig) { post(r.decode.URL()+"/flush_cache", ``) }},
		"no room":  {actor.RuleRoom, func(r *rig) { post(r.decode.URL()+"/v1/completions", ok) }},
		"guessed room": {actor.RuleRoom, func(r *rig) {
			h, p := host(r)
			post(r.decode.URL()+"/v1/completions", fmt.Sprintf(`{"model":"recall","prompt":"a","bootstrap_host":%q,"bootstrap_port":%d,"bootstrap_room":7}`, h, p))
		}},
		"text for a room":   {actor.RuleRoom, func(r *rig) { post(r.decode.URL()+"/v1/completions", member(ok, "bootstrap_room", `"x"`)) }},
		"no room below 0":   {actor.RuleRoom, func(r *rig) { post(r.decode.URL()+"/v1/completions", member(ok, "bootstrap_room", "-99999999999999")) }},
		"abort of all":      {actor.RulePath, func(r *rig) { post(r.decode.URL()+"/abort_request", `{"abort_all":true}`) }},
		"key for a keyless": {actor.RuleKey, func(r *rig) { r.header("Authorization", "Bearer sk-client", ok) }},
		"room reused": {actor.RuleRoomReused, func(r *rig) {
			b := r.meet(ok)
			go post(r.prefill.URL()+"/v1/completions", b)
			post(r.decode.URL()+"/v1/completions", b)
			post(r.decode.URL()+"/v1/completions", b)
		}},
		"elsewhere": {actor.RuleBootstrap, func(r *rig) {
			post(r.decode.URL()+"/v1/completions", member(member(member(ok, "bootstrap_host", `"10.1.1.1"`), "bootstrap_port", "8998"), "bootstrap_room", "99999999999999"))
		}},
		"forged":      {actor.RuleForged, func(r *rig) { r.send("/v1/completions", member(ok, "extra_key", `"`+actor.ForgedText+`"`)) }},
		"forged room": {actor.RuleForged, func(r *rig) { r.send("/v1/completions", member(ok, "priority", fmt.Sprint(actor.ForgedInt))) }},
		"control":     {actor.RuleControl, func(r *rig) { r.send("/v1/completions", member(ok, "session_params", `{"id":"x"}`)) }},
		"handle":      {actor.RuleControl, func(r *rig) { r.send("/v1/completions", member(ok, "kv_transfer_params", `{}`)) }},
		"model":       {actor.RuleModel, func(r *rig) { r.send("/v1/completions", strings.Replace(ok, "recall", "recall:x", 1)) }},
		"n":           {actor.RuleSequences, func(r *rig) { r.send("/v1/completions", member(ok, "n", "2")) }},
		"rank":        {actor.RuleRank, func(r *rig) { r.send("/v1/completions", member(ok, "routed_dp_rank", "1")) }},
		"health id":   {actor.RuleID, func(r *rig) { r.send("/v1/completions", member(ok, "rid", `"HEALTH_CHECK_1"`)) }},
		"same id": {actor.RuleID, func(r *rig) {
			r.send("/v1/completions", member(ok, "rid", `"a"`))
			r.send("/v1/completions", member(ok, "rid", `"a"`))
		}},
		"streamed leg": {actor.RulePrefillLeg, func(r *rig) { r.send("/v1/completions", member(ok, "stream", "true")) }},
		"legs differ": {actor.RuleLegs, func(r *rig) {
			b := r.meet(ok)
			go post(r.prefill.URL()+"/v1/completions", strings.Replace(b, "abcabc", "abcabd", 1))
			post(r.decode.URL()+"/v1/completions", b)
		}},
		"header": {actor.RuleHeader, func(r *rig) {
			r.header("X-Override-Rid", "x", ok)
		}},
		"closed amid a transfer": {actor.RuleAbort, func(r *rig) {
			b := r.meet(ok)
			go post(r.prefill.URL()+"/v1/completions", b)
			c := http.Client{Timeout: 50 * time.Millisecond}
			c.Post(r.decode.URL()+"/v1/completions", "application/json", strings.NewReader(b))
			time.Sleep(20 * time.Millisecond)
		}},
		"abort amid a transfer": {actor.RuleAbort, func(r *rig) {
			b := r.meet(member(ok, "rid", `"slow"`))
			go post(r.prefill.URL()+"/v1/completions", b)
			go post(r.decode.URL()+"/v1/completions", b)
			time.Sleep(60 * time.Millisecond)
			post(r.decode.URL()+"/abort_request", `{"rid":"slow"}`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "0.5.19", func(p, _ *actor.Config) {
				p.Ranks, p.Transfer = 1, 200*time.Millisecond
			})
			r.fleet.Quiet()
			c.do(r)
			heard := false
			for _, v := range r.fleet.Violations() {
				heard = heard || v.Rule == c.rule
			}
			if !heard {
				t.Errorf("%v", r.fleet.Violations())
			}
		})
	}
	// And what a gateway does right is heard by nobody.
	r := newRig(t, "0.5.19", nil)
	for i := range 20 {
		r.send("/v1/completions", member(member(ok, "rid", fmt.Sprintf(`"r%d"`, i)), "cache_salt", `"s"`))
	}
	if v := r.fleet.Violations(); len(v) > 0 {
		t.Error(v)
	}
}

// header sends a decode leg with one more header.
func (r *rig) header(name, value, body string) int {
	q, _ := http.NewRequest("POST", r.decode.URL()+"/v1/completions", strings.NewReader(r.meet(body)))
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set(name, value)
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func heard(f *Fleet, rule actor.Rule) bool {
	for _, v := range f.Violations() {
		if v.Rule == rule {
			return true
		}
	}
	return false
}

func TestKeys(t *testing.T) {
	r := newRig(t, "0.5.19", func(p, d *actor.Config) { p.APIKey, d.APIKey, d.AdminKey = "up", "up", "admin" })
	r.fleet.Quiet()
	ok := `{"model":"recall","prompt":"abcabc","max_tokens":2}`
	if s := r.header("Authorization", "Bearer sk-client", ok); s != 401 || !heard(r.fleet, actor.RuleKey) {
		t.Errorf("%d, %v", s, r.fleet.Violations())
	}
	if resp, err := http.Get(r.decode.URL() + "/server_info"); err != nil || resp.StatusCode != 401 {
		t.Errorf("facts without a key: %v %v", resp.StatusCode, err)
	}
	if a := post(r.decode.URL()+"/abort_request", `{"rid":"x"}`); a.status != 401 {
		t.Errorf("an abort without the admin's key: %d", a.status)
	}
}

func TestPlainWorkersTakeNoRooms(t *testing.T) {
	f := NewFleet(actor.NewStage(nil))
	w, err := New(f, actor.Config{Leg: actor.Both}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if d := post(w.URL()+"/v1/completions", `{"model":"recall","prompt":"abc abc","max_tokens":2,"bootstrap_room":99999999999999}`); d.status != 200 || !heard(f, actor.RuleControl) {
		t.Errorf("%d %v", d.status, f.Violations())
	}
}

func TestAbortEndsWhatWaits(t *testing.T) {
	r := newRig(t, "0.5.23", func(p, d *actor.Config) { p.Patience, d.Patience = 20*time.Second, 20*time.Second })
	from := time.Now()
	done := make(chan reply)
	body := r.meet(`{"model":"recall","prompt":"abc","rid":"waits"}`)
	go func() { done <- post(r.decode.URL()+"/v1/completions", body) }()
	for r.decode.Requests.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for {
		post(r.decode.URL()+"/abort_request", `{"rid":"waits"}`)
		select {
		case d := <-done:
			if d.status != 500 || !strings.Contains(string(d.body), "AbortReq") || time.Since(from) > 5*time.Second {
				t.Errorf("%d %s", d.status, d.body)
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestRestartAndFreeze(t *testing.T) {
	r := newRig(t, "0.5.19", nil)
	before := get(t, r.prefill.URL()+"/server_info")
	if err := r.prefill.Restart(func(c *actor.Config) { c.Pool = 512 }); err != nil {
		t.Fatal(err)
	}
	after := get(t, r.prefill.URL()+"/server_info")
	if string(before) == string(after) || !strings.Contains(string(after), `"max_total_num_tokens":512`) {
		t.Error("the restart changed nothing")
	}
	if _, d := r.send("/generate", generate("abcabc", 2)); d.status != 200 {
		t.Errorf("after the restart: %d %s", d.status, d.body)
	}
	thaw := r.decode.Freeze()
	got := make(chan int)
	go func() {
		resp, err := http.Get(r.decode.URL() + "/health")
		if err != nil {
			got <- 0
			return
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		got <- resp.StatusCode
	}()
	select {
	case s := <-got:
		t.Fatalf("a frozen worker answered %d", s)
	case <-time.After(30 * time.Millisecond):
	}
	thaw()
	if s := <-got; s != 200 {
		t.Errorf("thawed: %d", s)
	}
}

// The door takes prompts of the last page below the pool, and the scheduler never does: seen with pools of 1,024 tokens in pages of 16.
func TestPromptsOfTheLastPageAreNeverScheduled(t *testing.T) {
	for n, status := range map[int]int{1000: 200, 1006: 200, 1007: 500, 1017: 500} {
		r := newRig(t, "0.5.19", nil)
		p, d := r.send("/v1/completions", fmt.Sprintf(`{"model":"recall","prompt":%q,"max_tokens":4,"temperature":0}`, textOf(n-1)))
		if p.status != status || d.status != status {
			t.Errorf("%d tokens: prefill %d, decode %d: %s", n, p.status, d.status, d.body)
		}
	}
}
