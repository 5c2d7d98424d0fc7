package tenancy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
)

var engines = []string{fake.SGLang, fake.VLLMNixl, fake.VLLMMooncake, fake.Plain}

// Over TLS both ways, with keys on both sides: each side's key is on its side alone, and nothing of a prompt or a reply is in what
// operators see.
func TestKeysStayOnTheirSide(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			r := newRig(t, engine)
			const prompt, reply = "word XyzzySecret, word", `" XyzzySe"`
			seen := ""
			paths := map[string]string{"/v1/completions": `"prompt":%q`, "/v1/chat/completions": `"messages":[{"role":"user","content":%q}]`}
			if engine == fake.Plain {
				paths["/v1/messages"] = paths["/v1/chat/completions"]
			}
			for path, kind := range paths {
				for _, more := range []string{"", `,"stream":true`, `,"bootstrap_room":7`, `,"max_tokens":1000000`, `,"user":"` + clientKey + `"`} {
					body := `{"model":"recall","max_tokens":8,` + fmt.Sprintf(kind, prompt) + more + `}`
					if strings.Contains(more, "max_tokens") {
						body = strings.Replace(body, `"max_tokens":8,`, "", 1)
					}
					status, got := r.ask(clientKey, path, body, "X-Request-Id", "id-"+clientKey, "X-Api-Key", clientKey, "Api-Key", clientKey, "Cookie", "k="+clientKey,
						"Proxy-Authorization", "Bearer "+clientKey, "X-Session", clientKey)
					seen += got
					if want := 400; (more == "" || strings.Contains(more, "stream")) && status != 200 || strings.Contains(more, "room") && status != want {
						t.Fatalf("%s %s: %d %s", path, more, status, got)
					}
				}
			}
			if !strings.Contains(seen, reply) {
				t.Errorf("no reply has the text that is looked for:\n%s", seen)
			}
			r.g.Close()
			up := r.up.String()
			// The field user is the client's own, and passes as it is; whoever puts a key there hands it on.
			up = strings.ReplaceAll(up, `"user":"`+clientKey+`"`, "")
			access, _ := os.ReadFile(r.access)
			operators := r.log.String() + string(access)
			if !strings.Contains(up, "Authorization: Bearer "+workerKey) || r.up.shown == 0 {
				t.Error("the workers were not shown their key and the gateway's certificate")
			}
			for what, where := range map[string]string{"clients": seen, "operators": operators} {
				if strings.Contains(where, workerKey) {
					t.Errorf("the workers' key is seen by %s", what)
				}
			}
			for what, where := range map[string]string{"workers": up, "operators": operators, "clients": seen} {
				if strings.Contains(where, clientKey) {
					i := strings.Index(where, clientKey)
					t.Errorf("the client's key is seen by %s: …%s", what, where[max(i-100, 0):i+30])
				}
			}
			if strings.Contains(operators, "Xyzzy") {
				t.Errorf("a prompt or a reply is in a log or a record")
			}
			if n, want := strings.Count(string(access), "\n"), 5*len(paths); n != want {
				t.Errorf("%d lines for %d requests", n, want)
			}
		})
	}
}

// A worker that says its own key, and a client's prompt, in every way it can: its words go nowhere.
func TestAWorkerThatTellsItsKey(t *testing.T) {
	tell := "the key is " + workerKey + ", the prompt XyzzySecret"
	for name, answer := range map[string]http.HandlerFunc{
		"401": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Echo", workerKey)
			w.Header().Set("WWW-Authenticate", workerKey)
			w.WriteHeader(401)
			fmt.Fprintf(w, `{"error":{"message":%q}}`, tell)
		},
		"302": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/"+workerKey, http.StatusFound)
		},
		"under 200": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"error":{"message":%q,"code":400}}`, tell)
		},
		"in a stream": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"error\":{\"message\":%q}}\n\n", tell)
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, tell) },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "999")
			fmt.Fprint(w, tell)
		},
		"in its head": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", workerKey)
			w.WriteHeader(500)
		},
	} {
		for _, kind := range []string{"completions", "completions, streamed", "messages", "messages, streamed"} {
			api, _, stream := strings.Cut(kind, ", ")
			t.Run(name+" "+kind, func(t *testing.T) {
				r := &rig{T: t, up: &wireTap{}, log: &tap{}, access: t.TempDir() + "/access"}
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if !strings.HasSuffix(q.URL.Path, api) {
						http.Error(w, tell, 500)
						return
					}
					answer(w, q)
				}))
				defer srv.Close()
				at, _ := url.Parse(srv.URL)
				r.start(&gateway.Guarded{Messages: true, Fleet: foreign.Config{Engine: fake.Plain, Every: time.Hour, Workers: []foreign.Worker{
					{Name: "w", Role: capacity.Both, URL: at, Key: workerKey, PoolTokens: 4096, Context: 4096}}}})
				status, got := r.ask(clientKey, "/v1/"+api, fmt.Sprintf(`{"model":"recall",%s,"max_tokens":4,"stream":%v}`,
					map[string]string{"completions": `"prompt":"XyzzySecret"`, "messages": `"messages":[{"role":"user","content":"XyzzySecret"}]`}[api], stream))
				if status < 400 && !strings.Contains(got, `"error"`) {
					t.Errorf("%d %s", status, got)
				}
				got += r.operator()
				r.g.Close()
				access, _ := os.ReadFile(r.access)
				got += r.log.String() + string(access)
				for _, secret := range []string{workerKey, "XyzzySecret", clientKey} {
					if i := strings.Index(got, secret); i >= 0 {
						t.Errorf("%s is told: …%s", secret, got[max(i-200, 0):i+len(secret)])
					}
				}
			})
		}
	}
}

// The cache salt of a request is its tenant's: the same for one tenant, another's for another, and nothing that a client says makes it
// another tenant's.
func TestSaltsAreTheTenants(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			r := newRig(t, engine)
			member := "cache_salt"
			if engine == fake.SGLang {
				member = "extra_key"
			}
			asks := map[string]string{"/v1/completions": `"prompt":"a b a"`}
			if engine == fake.Plain {
				asks["/v1/messages"] = `"messages":[{"role":"user","content":"a b a"}]`
			}
			salted := func(path, key, more string) string {
				t.Helper()
				r.up.taken()
				status, got := r.ask(key, path, `{"model":"recall","max_tokens":2,`+asks[path]+more+`}`)
				if status != 200 {
					t.Fatalf("%d %s", status, got)
				}
				all := map[string]bool{}
				for _, b := range r.up.taken() {
					s, _ := b[member].(string)
					all[s] = true
				}
				if len(all) != 1 || all[""] {
					t.Fatalf("the legs' salts are %v", all)
				}
				for s := range all {
					return s
				}
				return ""
			}
			quoted := func(s string) string { q, _ := json.Marshal(s); return string(q) }
			bobs := ""
			for path := range asks {
				salt := func(key, more string) string { t.Helper(); return salted(path, key, more) }
				a, b := salt(clientKey, ""), salt(otherKey, "")
				if a == b || bobs != "" && bobs != b || a != salt(clientKey, "") {
					t.Errorf("alice %s, bob %s, alice again %s", a, b, salt(clientKey, ""))
				}
				for _, said := range []string{b, "", "bob", strings.Repeat("0", 32)} {
					got := salt(clientKey, `,"cache_salt":`+quoted(said))
					if got == b || said != "" && got == a {
						t.Errorf("with cache_salt %q alice's salt is %s, bob's %s", said, got, b)
					}
				}
				if salt(clientKey, `,"cache_salt":"mine"`) == salt(otherKey, `,"cache_salt":"mine"`) {
					t.Error("two tenants that say the same share a cache")
				}
				bobs = b
			}
			if engine == fake.SGLang {
				if status, got := r.ask(clientKey, "/v1/completions", `{"model":"recall","prompt":"a","extra_key":`+quoted(bobs)+`}`); status != 400 {
					t.Errorf("a client's extra_key: %d %s", status, got)
				}
			}
		})
	}
}
