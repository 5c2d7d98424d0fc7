package guardmodes

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/gateway"
)

// Replies that are to somebody else's request, or have parts that nobody asked for: on each engine that can tell, in each mode.
func TestRepliesToOtherRequests(t *testing.T) {
	for _, c := range []struct {
		kind    actor.Kind
		leg     actor.Leg
		engines []string
		guard   string
		stream  bool // streams only
		late    bool // seen when the client has its reply
	}{
		{actor.OtherID, actor.Prefill, []string{fake.VLLMMooncake}, "prefill-verdict", false, false}, // NIXL: its handle says it first
		{actor.OtherID, actor.Decode, vllms, "wire", false, false},
		{actor.OtherIndex, actor.Decode, append(vllms, fake.SGLang), "wire", false, false},
		{actor.AfterDone, actor.Decode, append(vllms, fake.SGLang), "wire", true, true},
	} {
		for _, engine := range c.engines {
			kinds(t, func(t *testing.T, chat, stream bool) {
				if c.stream && !stream {
					return
				}
				for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
					name := fmt.Sprintf("%s of %s, %s, %s", c.kind, c.leg, engine, mode)
					r := newRig(t, fake.Options{Engine: engine}, all(mode))
					if a := r.ask(chat, stream, theirs, ""); a.status != 200 {
						t.Fatalf("%s: %s", name, a.body)
					}
					r.Tell(fake.Lie{Kind: c.kind, Leg: c.leg})
					a := r.ask(chat, stream, ours, "")
					switch {
					case c.late && mode == gateway.Enforce && strings.Contains(a.body, `"error"`):
						// Seen in time: nothing had left, or the end had not.
						if strings.Contains(a.body, "[DONE]") || a.status == 502 && strings.Contains(a.body, "choices") {
							t.Errorf("%s: %d %s", name, a.status, a.body)
						}
					case c.late:
						if a.status != 200 || strings.Count(a.body, "[DONE]") != 1 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
							t.Errorf("%s: %d %s", name, a.status, a.body)
						}
					case mode == gateway.Observe:
						if a.status != 200 || !strings.Contains(a.text(), "K7") {
							t.Errorf("%s: %d %s", name, a.status, a.body)
						}
					case a.status != 502 && !(stream && strings.Contains(a.body, `"error"`) && !strings.Contains(a.body, "[DONE]")):
						t.Errorf("%s: %d %s", name, a.status, a.body)
					}
					if !r.incident(c.guard, mode) {
						t.Errorf("%s: no incident: %s", name, r.admin("/admin/incidents"))
					}
				}
			})
		}
	}
}
