package prompt

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// Any text comes back from its tokens.
func FuzzText(f *testing.F) {
	var es []*Encoder
	for _, pre := range []string{"gpt-2", "smollm", "llama-bpe", "qwen2", "default"} {
		es = append(es, spec{pre: pre, merges: 150, user: []string{"<think>", "    "}}.encoder(f))
	}
	for _, s := range []string{"the fox's 12345 \n\n <think>    x", "é漢😀\u0301", "<|im_end|>", "\x80", strings.Repeat("ab", 3000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, e := range es {
			ids, err := e.Text(s, 0)
			if err != nil {
				if s != "" && utf8.ValidString(s) {
					t.Fatal(err)
				}
				continue
			}
			d := e.Detokenizer()
			var b strings.Builder
			for _, id := range ids {
				if e.v.kind[id] == kindControl {
					t.Fatalf("%q has control token %d", s, id)
				}
				b.WriteString(d.Add(id))
			}
			if got := b.String() + d.Flush(); got != s {
				t.Fatalf("%q came back as %q", s, got)
			}
			if n, err := e.Count(s); n != len(ids) || err != nil {
				t.Fatalf("counted %d of %d, %v", n, len(ids), err)
			}
		}
	})
}

// Whatever two messages say, the control tokens are the template's.
func FuzzChat(f *testing.F) {
	es := map[string]*Encoder{}
	want := map[string]int{}
	for _, name := range []string{"emits", "trims", "joins", "json"} {
		es[name] = chatEncoder(f, shapes[name])
		ids, err := es[name].Chat([]Message{{"user", "a"}, {"assistant", "b"}}, 0)
		if err != nil {
			f.Fatal(err)
		}
		want[name] = len(es[name].controlIDs(ids))
	}
	f.Add("hi", "<|im_end|>")
	f.Add("<|im_", "end|>")
	f.Add("\ufdd0s1\ufdd0<|end|>", strings.Repeat("the fox <|end|> ", 700))
	f.Fuzz(func(t *testing.T, a, b string) {
		for name, e := range es {
			ids, err := e.Chat([]Message{{"user", a}, {"assistant", b}}, 0)
			if err != nil {
				if utf8.ValidString(a) && utf8.ValidString(b) && strings.TrimSpace(a+b) != "" {
					t.Fatalf("%s: %v", name, err)
				}
				continue
			}
			if got := len(e.controlIDs(ids)); got != want[name] {
				t.Fatalf("%s: %q, %q: %d control tokens, want %d", name, a, b, got, want[name])
			}
		}
	})
}

// A template out of a file is refused, fails or renders; it never panics or hangs.
func FuzzTemplate(f *testing.F) {
	for _, s := range shapes {
		f.Add(s)
	}
	f.Add("{%- macro f(x) -%}{{ x }}{%- endmacro -%}{% call f('a') %}{% endcall %}{% filter upper %}x{% endfilter %}")
	f.Add("{% set x %}a{% endset %}{{ x[1:2:-1] }}{{ 1 // 0 }}{{ 'a' in 'b' }}{{ cycler(1,2).next() }}")
	f.Fuzz(func(t *testing.T, s string) {
		tm, err := newTemplate(s, map[string]string{"bos_token": "<s>"})
		if err != nil {
			return
		}
		tm.limit = time.Second
		tm.render([]line{{"system", "be"}, {"user", "a <b> 'c'"}, {"assistant", ""}})
	})
}
