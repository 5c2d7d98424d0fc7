package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/drill/liar"
	"github.com/sluicekv/sluice/internal/drill/node"
	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// no is what a refused client got.
type no struct {
	status int
	kind   string // Content-Type
	body   string
}

// refusal posts a body, and reads the whole of what comes back.
func refusal(t *testing.T, d door, path string, body map[string]any, headers ...string) (no, string) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+string(d)+path, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return no{resp.StatusCode, resp.Header.Get("Content-Type"), string(all)}, resp.Header.Get("X-Sluice-Verdict")
}

// layer is where a request is refused, and what must be believed wrongly before it gets there.
type layer struct {
	name    string // of the layer as the verdict has it
	stale   string // the worker whose limit the gateway overrates
	lie     liar.Lie
	through string
}

// One request over the limit, refused at every layer that can say no to its length: by the gateway, by a worker that the gateway overrates
// when it opens the plan, in prefill's engine, in the manifest alone. In one process and in three, streamed and not, on pools of any
// proportion, prompts of one page included, the client gets the same bytes.
func TestOneNoEverywhere(t *testing.T) {
	release(t)
	together(t)
	const believed = 8192
	admission := func(model string) layer { return layer{name: "admission", through: model} }
	for _, c := range []struct {
		name   string
		z      sizes
		prompt int
		layers []layer
	}{
		{"prefill's pool is smaller", sizes{prefill: 1024, decode: 8192, liar: 1024, context: 8192, decodeContext: 8192}, 1500, []layer{
			admission("honest"), {name: "open", stale: node.Prefill, through: "honest"}}},
		{"decode's pool is smaller", sizes{prefill: 8192, decode: 1024, liar: 8192, context: 8192, decodeContext: 8192}, 1500, []layer{
			admission("honest"), {name: "open", stale: node.Decode, through: "honest"}}},
		{"one page", sizes{prefill: 64, decode: 64, liar: 64, context: 32, decodeContext: 64}, 40, []layer{
			admission("honest"), {name: "open", stale: node.Prefill, through: "honest"}}},
		{"the liar's pool is smaller", sizes{prefill: 8192, decode: 8192, liar: 1024, context: 8192, decodeContext: 8192}, 1500, []layer{
			admission("liar"), {name: "prefill", lie: liar.RefusedInEngine, through: "liar"}, {name: "prefill", lie: liar.RefusedInManifest, through: "liar"}}},
		{"one page through the liar", sizes{prefill: 64, decode: 64, liar: 64, context: 32, decodeContext: 64}, 40, []layer{
			admission("liar"), {name: "prefill", lie: liar.RefusedInEngine, through: "liar"}, {name: "prefill", lie: liar.RefusedInManifest, through: "liar"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var first no
			for _, program := range programs(t) {
				x, err := startTrio(t.Context(), program.args, 0, limits{deadline: 5000, settle: 2000, silence: 5000}, c.z)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range c.layers {
					x.believe(t, l, believed)
					for _, stream := range []bool{false, true} {
						for _, path := range []string{"/v1/completions"} {
							got, verdict := refusal(t, x.door(), path, map[string]any{"model": l.through, "prompt": strings.Repeat("x", c.prompt-1), "max_tokens": 5, "stream": stream})
							where := fmt.Sprintf("%s, refused by %s %s, stream %v", program.name, l.name, l.lie, stream)
							if first == (no{}) {
								first = got
								if got.status != 400 || !strings.Contains(got.body, fmt.Sprintf("the prompt has %d tokens, but at most", c.prompt)) || !strings.Contains(got.body, `"code":"context_length_exceeded"`) {
									t.Errorf("%s: %+v", where, got)
								}
							}
							if got != first {
								t.Errorf("%s: the client got other bytes:\n%d %s %s\n%d %s %s", where, got.status, got.kind, got.body, first.status, first.kind, first.body)
							}
							if want := "context_length_exceeded; layer=" + l.name; verdict != want {
								t.Errorf("%s: the verdict is %q, want %q", where, verdict, want)
							}
						}
					}
				}
				x.over(t)
			}
		})
	}
}

type program2 struct {
	name string
	args []string
}

// programs are one process, and three.
func programs(t *testing.T) []program2 {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []program2{{"one process", nil}, {"three processes", []string{self, "drill", NodeCommand}}}
}

// believe makes the gateway believe of a layer's worker that believed tokens fit.
func (x *trio) believe(t *testing.T, l layer, believed int) {
	t.Helper()
	for _, p := range x.workers() {
		c := node.Command{Do: node.DoRules}
		if p.cfg.Kind == l.stale {
			c.Rules = []node.Rule{{Kind: "facts", Out: true, Claim: believed}}
		}
		if _, err := p.do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	lie := l.lie
	if lie == "" {
		lie = liar.Placeholder // its facts are honest
	}
	if _, err := x.liar.do(t.Context(), node.Command{Do: node.DoTell, Lie: string(lie)}); err != nil {
		t.Fatal(err)
	}
	// The gateway hears facts when it connects.
	for _, r := range []*relay{x.toPrefill, x.toDecode, x.toLiar} {
		r.reset()
	}
	x.reconnected(t)
}

// reconnected waits until the gateway has dialled everybody anew.
func (x *trio) reconnected(t *testing.T) {
	t.Helper()
	for _, r := range []*relay{x.toPrefill, x.toDecode, x.toLiar} {
		for r.live() == 0 {
			time.Sleep(time.Millisecond) // polling another process
		}
	}
	// ready may be what was ready before: a ping goes by on the new links.
	for range 3 {
		if err := x.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // polling another process
	}
}

// over validates the fleet's trace, finds all pages back and zero, and ends it.
func (x *trio) over(t *testing.T) {
	t.Helper()
	free, total, nonzero, err := x.settled(t.Context(), 10*time.Second)
	if err != nil || free != total || total == 0 || nonzero != 0 {
		t.Errorf("%d of %d pages are free, %d bytes are not zero (%v)", free, total, nonzero, err)
	}
	if _, err := x.validate(); err != nil {
		t.Error(err)
	}
	x.close()
}

// strict is the built-in model's template with a rule of its own.
const strict = `{% if messages[0]['role'] != 'user' %}{{ raise_exception('A conversation begins with the user') }}{% endif %}` +
	`{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}`

// Other reasons to refuse go the same road: one code and one body, in one process and in three, streamed and not.
func TestOtherRefusalsGoTheSameRoad(t *testing.T) {
	release(t)
	together(t)
	ask := func(prompt any, more ...any) map[string]any {
		b := map[string]any{"model": "honest", "prompt": prompt, "max_tokens": 5}
		for i := 0; i < len(more); i += 2 {
			b[more[i].(string)] = more[i+1]
		}
		return b
	}
	type seen struct {
		first   no
		verdict string
	}
	all := map[string]*seen{}
	for _, program := range programs(t) {
		x, err := startTrio(t.Context(), program.args, 0, limits{deadline: 30_000, settle: 10_000, silence: 10_000},
			sizes{prefill: 32768, decode: decodePool, liar: prefillPool, context: contextLen, decodeContext: contextLen, template: strict, pageWait: 700})
		if err != nil {
			t.Fatal(err)
		}
		check := func(name string, status int, code string, body map[string]any, headers ...string) {
			t.Helper()
			path := "/v1/completions"
			if body["messages"] != nil {
				path = "/v1/chat/completions"
			}
			for _, stream := range []bool{false, true} {
				body["stream"] = stream
				got, verdict := refusal(t, x.door(), path, body, headers...)
				s := all[name]
				if s == nil {
					s = &seen{got, verdict}
					all[name] = s
					if got.status != status || !strings.Contains(got.body, `"code":"`+code+`"`) || !strings.HasPrefix(verdict, code+"; layer=") {
						t.Errorf("%s: %+v, verdict %q", name, got, verdict)
					}
				}
				if got != s.first || verdict != s.verdict {
					t.Errorf("%s, %s, stream %v: %+v by %q, and before %+v by %q", name, program.name, stream, got, verdict, s.first, s.verdict)
				}
			}
		}
		check("encoding", 400, "invalid_prompt", ask([]int{1, 1 << 20}))
		chat := func(role string) map[string]any {
			return map[string]any{"model": "honest", "messages": []map[string]string{{"role": role, "content": "x"}}, "max_tokens": 5}
		}
		check("template", 400, "invalid_prompt", chat("assistant"))
		if !strings.Contains(all["template"].first.body, "A conversation begins with the user") {
			t.Errorf("the template's own words are lost: %s", all["template"].first.body)
		}
		check("no such model", 404, "model_not_found", ask("x", "model", "nobody"))

		// Decode's pages are all taken by prompts whose pages do not come, and a request waits for them no longer than it may.
		x.data.hush(true)
		holding, hangUp := context.WithCancel(t.Context())
		hold := func(prompt string, tokens int) {
			go func() {
				_, _ = x.door().stream(holding, "honest", prompt, tokens, func() {})
			}()
		}
		from := x.events.now()
		hold(strings.Repeat("y", 7000), 1000)
		hold(strings.Repeat("y", 7000), 1000)
		if !x.events.wait(t.Context().Done(), from, trace.Decode, trace.PagesReserved, 2) {
			t.Fatal("nobody holds the pages")
		}
		for range x.stats(t.Context(), x.decode).Free {
			hold("y", 1)
		}
		for x.stats(t.Context(), x.decode).Free > 0 {
			time.Sleep(5 * time.Millisecond) // polling another process
		}
		check("no pages in time", 503, "kv_pool_exhausted", ask(strings.Repeat("z", 7000)))
		check("no page in time", 503, "kv_pool_exhausted", ask("z"))
		hangUp()
		x.data.mend()
		if _, _, _, err := x.settled(t.Context(), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		// Prefill's last words are lost, so the reply cannot come in time.
		if _, err := x.prefill.do(t.Context(), node.Command{Do: node.DoRules, Rules: []node.Rule{{Kind: "outcome", Out: true}, {Kind: "settled", Out: true}}}); err != nil {
			t.Fatal(err)
		}
		check("deadline", 504, "deadline_exceeded", ask("x"), "X-Request-Timeout", "0.4")
		if _, err := x.prefill.do(t.Context(), node.Command{Do: node.DoRules}); err != nil {
			t.Fatal(err)
		}
		// An operator switches the model off, and on again; then the gateway shuts down.
		x.admin(t, "/admin/models/honest/off?reason=test")
		check("model off", 503, "model_off", ask("x"))
		x.admin(t, "/admin/models/honest/on")
		if _, err := x.gateway.do(t.Context(), node.Command{Do: node.DoDrain}); err != nil {
			t.Fatal(err)
		}
		for n, _ := refusal(t, x.door(), "/v1/completions", ask("x")); n.status == 200; n, _ = refusal(t, x.door(), "/v1/completions", ask("x")) {
		}
		check("shutting down", 503, "shutting_down", ask("x"))
		x.over(t)
	}
}

// admin posts to the gateway's admin listener.
func (x *trio) admin(t *testing.T, path string) {
	t.Helper()
	resp, err := http.Post("http://"+x.gateway.up.Data+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("%s: %d", path, resp.StatusCode)
	}
}
