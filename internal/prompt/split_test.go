package prompt

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func words(p pretokenizer, s string) (out []string) {
	var walk func(s string, st []stage)
	walk = func(s string, st []stage) {
		if len(st) == 0 {
			out = append(out, s)
			return
		}
		for len(s) > 0 {
			n := st[0](s)
			walk(s[:n], st[1:])
			s = s[n:]
		}
	}
	walk(s, p.stages)
	return out
}

// What the patterns in the comments of split.go match, word by word. Checked against llama.cpp by bench/llamacpp.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		pre, in string
		want    string // words, | between them
	}{
		{"gpt-2", "Hello world's end", "Hello| world|'s| end"},
		{"gpt-2", "it'S we'RE", "it|'|S| we|'|RE"},
		{"gpt-2", "a  b   c", "a| | b|  | c"},
		{"gpt-2", "a \n b", "a| \n| b"},
		{"gpt-2", "x\n\n", "x|\n\n"},
		{"gpt-2", "12345 ab12", "12345| ab|12"},
		{"gpt-2", "¡hé! —x", "¡|hé|!| —|x"},
		{"gpt-2", "e\u0301a", "e|\u0301|a"},
		{"gpt-2", "tab\tend", "tab|\t|end"},
		{"smollm", "x12 34", "x|1|2| |3|4"},
		{"starcoder", "Ⅷ½1", "Ⅷ|½|1"},
		{"llama-bpe", "1234567", "123|456|7"},
		{"llama-bpe", "it'S WE'RE", "it|'S| WE|'RE"},
		{"llama-bpe", "a.b (c) \t.d", "a|.b| (|c|)| |\t|.d"},
		{"llama-bpe", "end.\n\nnext  \n  x", "end|.\n\n|next|  \n| | x"},
		{"llama-bpe", "x   \n", "x|   \n"},
		{"qwen2", "12 a", "1|2| a"},
		{"qwen2", "e\u0301a", "e|\u0301a"}, // a mark is no letter, but may stand before letters
		{"qwen35", "e\u0301a", "e\u0301a"},
		{"default", "a+b, 12345!", "a|+|b|,| |123|45|!"},
		{"default", "x 1a2", "x| |1|a|2"},
	} {
		if got := strings.Join(words(pretokenizers[c.pre], c.in), "|"); got != c.want {
			t.Errorf("%s: %q: got %q, want %q", c.pre, c.in, got, c.want)
		}
	}
}

var texts = rapid.Custom(func(t *rapid.T) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "B", " ", "  ", "\n", "\n\n", "\r\n", "'", "'s", "7", "12", ".", "=", "é",
		"漢", "\u0301", "\u3000", "\u00a0", "😀", "the ", " fox", "½", "\t", "<", "|", "<|end|>", "\u0085"}), 0, 40).Draw(t, "parts"), "")
})

func TestWordsAreTheText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := texts.Draw(t, "s")
		for name, p := range pretokenizers {
			if ws := words(p, s); strings.Join(ws, "") != s || slices.Contains(ws, "") {
				t.Fatalf("%s: %q became %q", name, s, ws)
			}
		}
	})
}

// Wherever boundary says so, the two halves of a text are the same words as the whole: the joiner rests on it.
func TestBoundaryIsABoundary(t *testing.T) {
	seen := 0
	rapid.Check(t, func(t *rapid.T) {
		// Two certain boundaries, wherever the drawn text has none.
		s := texts.Draw(t, "s") + "a b\nc"
		for i := range s {
			if !boundary(s, i) {
				continue
			}
			seen++
			for name, p := range pretokenizers {
				if halves := append(words(p, s[:i]), words(p, s[i:])...); !slices.Equal(halves, words(p, s)) {
					t.Fatalf("%s: cutting %q at %d gives %q, the whole %q", name, s, i, halves, words(p, s))
				}
			}
		}
	})
	if seen == 0 {
		t.Error("no boundary was tried")
	}
}
