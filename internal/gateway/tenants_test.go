package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/gateway/tenant"
	"github.com/sluicekv/sluice/internal/verdict"
)

// keyed is a door with a key file; keys are the ids of the lines with a dash before it.
func keyed(t *testing.T, s fleettest.Script, lines string, change func(*Config)) (*door, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	putKeys(t, file, lines)
	return open(t, s, func(c *Config, _ *fleettest.Pair) {
		c.APIKeys = file
		if change != nil {
			change(c)
		}
	}), file
}

// putKeys writes "ID OPTIONS" lines; the key of ID is sk-ID.
func putKeys(t *testing.T, file, lines string) {
	t.Helper()
	text := ""
	for l := range strings.Lines(lines) {
		id, options, _ := strings.Cut(strings.TrimSpace(l), " ")
		text += tenant.Line(id, "sk-"+id, options)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func as(id string) []string { return []string{"Authorization", "Bearer sk-" + id} }

// holding is a script whose decode waits.
func holding(at chan bool, goOn chan bool) fleettest.Script {
	return func(a *fleettest.Attempt) {
		if !a.Prefilled() {
			return
		}
		at <- true
		<-goOn
		a.Output(0, 'x')
		a.Ends(decode, a.Outcome(decode, 1))
	}
}

func TestTenantsAreRefusedInTheAPIsShape(t *testing.T) {
	at, goOn := make(chan bool, 9), make(chan bool)
	d, _ := keyed(t, holding(at, goOn), "alice concurrency=1\nbob requests=1/h\ncarol off\ndave tokens=100/h", nil)
	for _, c := range []struct {
		name, id, body string
		status         int
		message        string
		kind, code     string
		retry          string
	}{
		{"no key", "", "x", 401, "the API key is not known", "authentication_error", "invalid_api_key", ""},
		{"a key that is off", "carol", "x", 403, "the API key carol is switched off", "permission_error", "key_off", ""},
		{"more tokens than there are", "dave", "x", 200, "", "", "", ""},
		{"and again", "dave", strings.Repeat("x", 200), 429, "the request may use 100 tokens, and 97 are left of the limit of 2/m", "rate_limit_error", "rate_limit_exceeded", "108"},
		{"requests", "bob", "x", 200, "", "", "", ""},
		{"one more", "bob", "x", 429, "the limit of 1/h requests is used up", "rate_limit_error", "rate_limit_exceeded", "3600"},
	} {
		if c.status == 200 {
			go func() { <-at; goOn <- true }()
		}
		a := d.post("/v1/completions", complete(c.body, `,"max_tokens":1`), as(c.id)...)
		if c.status == 200 {
			d.quiet()
		}
		if a.status != c.status || c.status != 200 && a.body != errorBody(c.message, c.kind, "null", c.code) {
			t.Errorf("%s: %d %s", c.name, a.status, a.body)
		}
		// The limiter's clock goes on while the test runs.
		got, _ := strconv.Atoi(a.header.Get("Retry-After"))
		if want, _ := strconv.Atoi(c.retry); got > want || got < min(want, max(want-60, 1)) {
			t.Errorf("%s: Retry-After %q, want %s", c.name, a.header.Get("Retry-After"), c.retry)
		}
		if (a.header.Get("WWW-Authenticate") == "Bearer") != (c.status == 401) {
			t.Errorf("%s: WWW-Authenticate %q", c.name, a.header.Get("WWW-Authenticate"))
		}
	}
	// One at once: the second hears 429 while the first runs, and is served after it.
	first := make(chan answer, 1)
	go func() { first <- d.post("/v1/completions", complete("x", `,"max_tokens":1`), as("alice")...) }()
	<-at
	second := make(chan answer, 1)
	go func() { second <- d.post("/v1/completions", complete("x", `,"max_tokens":1`), as("alice")...) }()
	var a answer
	select {
	case a = <-second:
	case <-at:
		close(goOn)
		t.Fatal("two requests at once came in where one may")
	}
	if a.status != 429 || a.body != errorBody("the limit of 1 requests at once is reached", "rate_limit_error", "null", "rate_limit_exceeded") || a.header.Get("Retry-After") != "1" {
		t.Errorf("%d %s %s", a.status, a.header.Get("Retry-After"), a.body)
	}
	goOn <- true
	if a := <-first; a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	go func() { <-at; goOn <- true }()
	if a := d.post("/v1/completions", complete("x", `,"max_tokens":1`), as("alice")...); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	d.quiet()
	m := d.get(d.admin("/metrics")).body
	for _, want := range []string{
		`sluice_tenant_refusals_total{limit="concurrency",tenant="alice"} 1`, `sluice_tenant_refusals_total{limit="requests",tenant="bob"} 1`,
		`sluice_tenant_refusals_total{limit="tokens",tenant="dave"} 1`, `sluice_tenant_requests_total{status="200",tenant="alice"} 2`,
		`sluice_tenant_requests_total{status="429",tenant="bob"} 1`, `sluice_tenant_requests_total{status="401",tenant=""} 1`,
		`sluice_tenant_tokens_total{kind="prompt",tenant="dave"} 2`, `sluice_tenant_tokens_total{kind="completion",tenant="dave"} 1`,
		`sluice_admission_refusals_total{code="rate_limit_exceeded",layer="tenant",model="m"} 1`,
	} {
		if !strings.Contains(m, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	status := d.get(d.admin("/admin/tenants")).body
	if !strings.Contains(status, `"tenant": "dave"`) || !strings.Contains(status, `"left": 97`) || strings.Contains(status, "sk-") {
		t.Errorf("%s", status)
	}
}

// A model that a tenant may not use is as one that there is not, to the byte, on every path.
func TestAModelOfOthersDoesNotExist(t *testing.T) {
	d, _ := keyed(t, fleettest.Honest('x'), "alice models=m\nbob models=other", func(c *Config) {
		c.Models = append(c.Models, ModelConfig{Name: "other", Encoder: encoder()})
	})
	ids := func(id string) (out []string) {
		r, _ := http.NewRequest("GET", d.url("/v1/models"), nil)
		r.Header.Set("Authorization", "Bearer sk-"+id)
		var list struct{ Data []struct{ ID string } }
		json.Unmarshal([]byte(d.do(r).body), &list)
		for _, m := range list.Data {
			out = append(out, m.ID)
		}
		return out
	}
	if a, b := ids("alice"), ids("bob"); fmt.Sprint(a, b) != "[m] [other]" {
		t.Errorf("%v %v", a, b)
	}
	for path, kind := range map[string]string{"/v1/completions": `"prompt":"x"`, "/v1/chat/completions": `"messages":[{"role":"user","content":"x"}]`} {
		ask := func(model string) answer {
			return d.post(path, `{"model":"`+model+`",`+kind+`}`, append(as("alice"), "X-Request-Id", "r")...)
		}
		hidden, none := ask("other"), ask("none")
		delete(hidden.header, "X-Sluice-Attempt")
		delete(none.header, "X-Sluice-Attempt")
		delete(hidden.header, "Date")
		delete(none.header, "Date")
		if hidden.status != 404 || hidden.body != none.body || fmt.Sprint(hidden.header) != fmt.Sprint(none.header) {
			t.Errorf("%s: %d %s %v\n%d %s %v", path, hidden.status, hidden.body, hidden.header, none.status, none.body, none.header)
		}
		if a := ask("m"); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	one := func(name string) answer {
		r, _ := http.NewRequest("GET", d.url("/v1/models/"+name), nil)
		r.Header.Set("Authorization", "Bearer sk-alice")
		return d.do(r)
	}
	if a, b := one("other"), one("none"); a.status != 404 || a.body != b.body {
		t.Errorf("%d %s, %d %s", a.status, a.body, b.status, b.body)
	}
	// Nor does a path that asks for no key name models.
	for _, path := range []string{"/readyz", "/readyz?model=other", "/readyz?model=none", "/healthz"} {
		if a := d.get(d.url(path)); a.status != 200 || strings.Contains(a.body, "other") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if r := d.last(); strings.Contains(fmt.Sprintf("%+v", r), "other") {
		t.Errorf("%+v", r)
	}
}

// The file is read again when it changes: new keys work, removed ones do not, and one with a mistake changes nothing.
func TestKeysAreFollowed(t *testing.T) {
	var log bytes.Buffer
	d, file := keyed(t, fleettest.Honest('x'), "alice\nbob", func(c *Config) {
		c.Follow = 5 * time.Millisecond
		c.Log = slog.New(slog.NewTextHandler(&locked{w: &log}, nil))
	})
	status := func(id string) int { return d.post("/v1/completions", complete("x", ""), as(id)...).status }
	if a, b, c := status("alice"), status("bob"), status("carol"); a != 200 || b != 200 || c != 401 {
		t.Fatal(a, b, c)
	}
	putKeys(t, file, "alice\ncarol")
	fleettest.Until(t, "the new key", func() bool { return status("carol") == 200 })
	if a, b := status("alice"), status("bob"); a != 200 || b != 401 {
		t.Error(a, b)
	}
	if m := d.get(d.admin("/metrics")).body; strings.Contains(m, `tenant="bob"`) || !strings.Contains(m, `sluice_renew_ok{what="keys"} 1`) {
		t.Error("the series of a tenant that is gone stay")
	}
	os.WriteFile(file, []byte("carol sk-carol\n"), 0o600)
	fleettest.Until(t, "the mistake said", func() bool {
		return strings.Contains(d.get(d.admin("/metrics")).body, `sluice_renew_failures_total{what="keys"} 1`)
	})
	if a, c := status("alice"), status("carol"); a != 200 || c != 200 {
		t.Error(a, c)
	}
	if m := d.get(d.admin("/metrics")).body; !strings.Contains(m, `sluice_renew_ok{what="keys"} 0`) {
		t.Error("a file that is not taken is not shown")
	}
	d.close()
	if s := log.String(); !strings.Contains(s, "line 1: a line is an id") || strings.Contains(s, "sk-") {
		t.Errorf("%s", s)
	}
}

// What a client that went away had computed is charged to its tenant; what was planned beyond is given back.
func TestTokensAreSettledThroughTheDoor(t *testing.T) {
	d, _ := keyed(t, fleettest.Honest(text("one two")...), "alice tokens=100000/d", nil)
	left := func() int {
		d.quiet()
		return d.g.tenants.Status()[0].Tokens.Left
	}
	if a := d.post("/v1/completions", complete("four", `,"max_tokens":5000`), as("alice")...); a.status == 200 {
		t.Fatalf("over the limit of the pair: %d", a.status)
	}
	if n := left(); n != 100000 {
		t.Errorf("%d left: a request that was refused cost something", n)
	}
	if a := d.post("/v1/completions", complete("four", `,"max_tokens":4000`), as("alice")...); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if n := left(); n < 100000-5-7-1 || n > 100000-5-7+1 {
		t.Errorf("%d left, want 100000 less 5 of the prompt and 7 of the reply", n)
	}
}

// A request id that holds the client's key is not repeated anywhere.
func TestAKeyIsNoRequestID(t *testing.T) {
	d, _ := keyed(t, fleettest.Honest('x'), "alice", nil)
	a := d.post("/v1/completions", complete("x", ""), append(as("alice"), "X-Request-Id", "mine-sk-alice-1")...)
	if got := a.header.Get("X-Request-Id"); strings.Contains(got, "sk-alice") || got == "" {
		t.Errorf("%q", got)
	}
	if r := d.last(); strings.Contains(r.Request, "sk-alice") || r.Verdict.Code != verdict.OK {
		t.Errorf("%+v", r)
	}
}
