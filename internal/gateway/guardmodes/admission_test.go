package guardmodes

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/prompt"
)

// bytewise is a tokenizer.json with a token for each byte, as the fakes count, and one in front.
func bytewise(t *testing.T) *prompt.Counter {
	t.Helper()
	vocab := map[string]int{}
	next := 256
	for b := range 256 {
		r := rune(b)
		if !('!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b) {
			r = rune(next)
			next++
		}
		vocab[string(r)] = b
	}
	v, _ := json.Marshal(vocab)
	c, err := prompt.NewCounter(fmt.Appendf(nil, `{"added_tokens":[{"id":256,"content":"<|begin|>","special":true}],"normalizer":null,
		"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|begin|>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<|begin|>":{"ids":[256]}}},
		"model":{"type":"BPE","vocab":%s,"merges":[]}}`, v))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var setter = regexp.MustCompile(`set by [^)]*`)

// A prompt over the limit is refused by the same bytes on every road: whole and streamed, whichever engine would have run it, and whoever
// counted it. No leg is asked.
func TestTooLongIsOneAnswer(t *testing.T) {
	ids := strings.TrimSuffix(strings.Repeat("65,", 2001), ",")
	want := ""
	for _, engine := range []string{fake.SGLang, fake.VLLMNixl, fake.VLLMMooncake} {
		for _, tokenizer := range []*prompt.Counter{nil, bytewise(t)} {
			r := newRig(t, fake.Options{Engine: engine, Prefill: fake.Leg{Pool: 1024}}, nil, func(g *gateway.Guarded) { g.Tokenizer = tokenizer })
			for _, body := range []string{`"prompt":[` + ids + `]`, `"prompt":"` + strings.Repeat("A", 2000) + `"`, `"prompt":"` + strings.Repeat(`\u0041`, 2000) + `"`} {
				for _, stream := range []string{"", `,"stream":true`} {
					a := r.post("/v1/completions", `{"model":"recall","max_tokens":4,`+body+stream+`}`)
					got := setter.ReplaceAllString(a.body, "set by …")
					// How many fit differs between engines by what they keep back.
					got = regexp.MustCompile(`at most [0-9]+`).ReplaceAllString(got, "at most N")
					if want == "" {
						want = got
					}
					if a.status != 400 || got != want || !strings.Contains(got, `"code":"context_length_exceeded"`) || !strings.Contains(got, "2001 tokens") {
						t.Errorf("%s, tokenizer %v, %.20s: %d %s\nwant %s", engine, tokenizer != nil, body, a.status, a.body, want)
					}
				}
			}
			if n := r.Prefill.Requests.Load() + r.Decode.Requests.Load(); n != 0 {
				t.Errorf("%s: %d legs were asked", engine, n)
			}
		}
	}
}

// A prompt that is long in bytes and short in tokens is let in by the local tokenizer, where no worker would count it; without one it is
// refused, and not guessed.
func TestTheTokenizerDecidesWhereBytesDoNot(t *testing.T) {
	b, err := os.ReadFile("../../prompt/testdata/tokenizerjson/gpt2.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Tokenizer json.RawMessage }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	merging, err := prompt.NewCounter(f.Tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	short := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 30)
	for _, c := range []struct {
		tokenizer *prompt.Counter
		chat      bool
		status    int
	}{{nil, false, 400}, {nil, true, 400}, {merging, false, 200}, {merging, true, 200}} {
		// Light fakes take what comes, and SGLang's count no chats; what this one says of plain text is a byte a token.
		r := newRig(t, fake.Options{Engine: fake.SGLang, Light: true, Prefill: fake.Leg{Pool: 1200}, Decode: fake.Leg{Pool: 8192}}, nil,
			func(g *gateway.Guarded) { g.Tokenizer = c.tokenizer })
		a := r.ask(c.chat, false, short, "")
		admitted := r.Prefill.Requests.Load() > 0
		if admitted != (c.status == 200) {
			t.Errorf("tokenizer %v, chat %v: admitted %v: %d %s", c.tokenizer != nil, c.chat, admitted, a.status, a.body)
		}
	}
}

// Admission in each mode: one that observes counts what it would have refused, and the legs decide.
func TestAdmissionObserves(t *testing.T) {
	for _, mode := range []gateway.Mode{gateway.Enforce, gateway.Observe} {
		r := newRig(t, fake.Options{Engine: fake.VLLMNixl, Prefill: fake.Leg{Pool: 1024}}, map[string]gateway.Mode{"admission": mode})
		a := r.ask(false, false, strings.Repeat("A", 2000), "")
		if asked := r.Prefill.Requests.Load() > 0; asked != (mode == gateway.Observe) {
			t.Errorf("%s: prefill was asked: %v (%d %s)", mode, asked, a.status, a.body)
		}
		if mode == gateway.Observe && !r.incident("admission", mode) {
			t.Error("nobody noticed")
		}
	}
}
