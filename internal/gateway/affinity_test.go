package gateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/admission"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/jsonedit"
)

// placed is the keys of a request of a tenant.
func placed(t *testing.T, cfg Guarded, name string, scope byte, session, body string) foreign.Near {
	t.Helper()
	doc, no := jsonedit.Read([]byte(body), nil)
	if no == nil {
		doc, no = jsonedit.Read([]byte(body), jsonedit.NewPolicy(jsonedit.Config{Engine: jsonedit.SGLang, Endpoint: jsonedit.Chat}))
	}
	if no != nil {
		t.Fatal(no)
	}
	r, _ := http.NewRequest(http.MethodPost, "/", http.NoBody)
	if session != "" {
		r.Header.Set("X-Session-Id", session)
	}
	x := &walk{r: r, model: &model{name: name, guarded: &guarded{cfg: cfg}}, guarded: &guardedRequest{doc: doc}}
	x.tenant.Scope = admission.Scope{scope}
	return x.near()
}

// Where a request goes depends on what it begins with, on its session, on its model, and on whose it is: one tenant's placement says
// nothing about what another sent.
func TestPlacementIsByScope(t *testing.T) {
	chat := func(texts ...string) string {
		var b strings.Builder
		for _, s := range texts {
			b.WriteString(`,{"role":"user","content":"` + s + `"}`)
		}
		return `{"model":"m","messages":[` + b.String()[1:] + `]}`
	}
	cfg := Guarded{Session: "X-Session-Id"}
	long := strings.Repeat("0123456789", 500) // 5,000 bytes
	a := placed(t, cfg, "m", 1, "s", chat(long, "one"))
	if len(a.Prefix) != 2 || a.Session == 0 {
		t.Fatalf("%+v", a)
	}
	if b := placed(t, cfg, "m", 1, "s", chat(long, "another")); !slices.Equal(a.Prefix, b.Prefix) || a.Session != b.Session {
		t.Error("the same beginning has other keys")
	}
	if b := placed(t, cfg, "m", 1, "", chat(long[:1030]+"x"+long)); b.Session != 0 || b.Prefix[len(b.Prefix)-1] != a.Prefix[1] || b.Prefix[0] == a.Prefix[0] {
		t.Error("what begins alike for 1 KiB has one key in common")
	}
	for what, b := range map[string]foreign.Near{
		"another tenant's": placed(t, cfg, "m", 2, "s", chat(long, "one")),
		"another model's":  placed(t, cfg, "adapter", 1, "t", chat(long, "one")),
	} {
		if b.Session == a.Session {
			t.Errorf("%s session has the same key", what)
		}
		for _, k := range b.Prefix {
			if slices.Contains(a.Prefix, k) {
				t.Errorf("%s beginning has the same key", what)
			}
		}
	}
	if b := placed(t, Guarded{Anywhere: true}, "m", 1, "s", chat(long)); b.Session != 0 || b.Prefix != nil {
		t.Errorf("%+v", b)
	}
	if b := placed(t, cfg, "m", 1, strings.Repeat("s", maxSession+1), chat("short")); b.Session != 0 || b.Prefix != nil {
		t.Errorf("%+v", b)
	}
}
