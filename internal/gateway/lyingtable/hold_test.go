package lyingtable

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gateway"
)

// A reply that is longer than what may be held passes whole, whenever its count comes, and a client that waits for prefill gets it all.
func TestLongRepliesPassUnderBackPressure(t *testing.T) {
	for _, engine := range engines {
		for _, late := range []bool{false, true} {
			p := workers(t, engine)
			p.noUsage = late
			p.lie = lie{text: strings.Repeat("word ", 2000), prefill: func(http.ResponseWriter, map[string]any) bool { time.Sleep(50 * time.Millisecond); return false }}
			g := door(t, p, gateway.Enforce, func(c *gateway.Config) { c.Models[0].Guarded.Hold.Bytes = 2048 })
			a := ask(t, g, true, true, "")
			if a.status != 200 || clean(a.body) != p.lie.text || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
				t.Errorf("%s, usage late %v: %d, %d bytes", engine, late, a.status, len(a.body))
			}
		}
	}
}

// A handle is good for one attempt: the same one again is refused, and decode is not asked.
func TestAHandleIsUsedOnce(t *testing.T) {
	p := workers(t, nixl)
	again := handleWith("remote_request_id", "cmpl-of-their-own-7")
	p.lie.prefill = func(w http.ResponseWriter, a map[string]any) bool {
		a["id"] = "cmpl-of-their-own" // one that makes its ids from ours has to name ours in the handle, too
		return again(w, a)
	}
	g := door(t, p, gateway.Enforce, nil)
	if a := ask(t, g, true, false, ""); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	p.forget()
	if a := ask(t, g, true, false, ""); a.status != 502 || !incidents(t, g, "prefill-handle", "enforce") {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, r := range p.seen() {
		if r.leg == "decode" {
			t.Error("decode got a handle that was used before")
		}
	}
}

// Where an operator says so, a stream begins before decode's count is known, and is still compared at its end.
func TestUsageAtTheEnd(t *testing.T) {
	p := workers(t, sg)
	p.noUsage = true
	g := door(t, p, gateway.Enforce, func(c *gateway.Config) { c.Models[0].Guarded.Hold.UsageAtEnd = true })
	p.lie.chunks = func(es []string) []string {
		for i := range es {
			es[i] = strings.Replace(es[i], `"prompt_tokens":70`, `"prompt_tokens":71`, 1)
		}
		return es
	}
	if a := ask(t, g, true, true, ""); strings.Contains(a.body, "[DONE]") || !strings.Contains(a.body, "legs_disagree") {
		t.Errorf("%d %s", a.status, a.body)
	}
}
