package prompt

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
)

const chatML = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// spec of a small model file: byte-level BPE with merges learned from a few sentences.
type spec struct {
	pre      string
	template string
	addBOS   bool
	user     []string // user-defined tokens
	control  []string // more control tokens
	merges   int
	edit     func(merges []string) []string
}

var controls = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>"}

func (s spec) file(t testing.TB) *gguf.File {
	t.Helper()
	var tokens []string
	var types []int32
	letters := toAlphabet()
	for _, c := range controls {
		tokens, types = append(tokens, c), append(types, int32(kindControl))
	}
	for b := range 256 {
		tokens, types = append(tokens, letters[b]), append(types, int32(kindNormal))
	}
	merges := learn(s.merges)
	for _, m := range merges {
		tokens, types = append(tokens, strings.Replace(m, " ", "", 1)), append(types, int32(kindNormal))
	}
	if s.edit != nil {
		merges = s.edit(merges)
	}
	for _, c := range s.control {
		tokens, types = append(tokens, c), append(types, int32(kindControl))
	}
	for _, u := range s.user {
		tokens, types = append(tokens, u), append(types, int32(kindUser))
	}
	var w gguf.Writer
	w.String("general.architecture", "llama")
	w.String("tokenizer.ggml.model", "gpt2")
	w.String("tokenizer.ggml.pre", s.pre)
	w.Strings("tokenizer.ggml.tokens", tokens)
	w.Int32s("tokenizer.ggml.token_type", types)
	w.Strings("tokenizer.ggml.merges", merges)
	w.Uint32("tokenizer.ggml.bos_token_id", 0)
	w.Uint32("tokenizer.ggml.eos_token_id", 2)
	w.Bool("tokenizer.ggml.add_bos_token", s.addBOS)
	if s.template != "" {
		w.String("tokenizer.chat_template", s.template)
	}
	b, err := w.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (s spec) encoder(t testing.TB) *Encoder {
	t.Helper()
	e, err := New(s.file(t))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func toAlphabet() (a [256]string) {
	for r, b := range alphabet {
		a[b] = string(r)
	}
	return a
}

const corpus = "the quick brown fox jumps over the lazy dog while the other foxes and the others were there in the thicket. " +
	"She said that they'd rather not; they're sure. 1234 12 123 = = == ==== aaaa aaaaaaaa bababab      while    indenting\n\n\n"

// learn trains n merges on the corpus, most frequent pair first, of equals the first in order.
func learn(n int) (merges []string) {
	letters := toAlphabet()
	var words [][]string
	for s := corpus; s != ""; {
		k := gpt2Word(s)
		var w []string
		for i := range k {
			w = append(w, letters[s[i]])
		}
		words = append(words, w)
		s = s[k:]
	}
	for range n {
		counts := map[string]int{}
		for _, w := range words {
			for i := range len(w) - 1 {
				counts[w[i]+" "+w[i+1]]++
			}
		}
		best := ""
		for m, c := range counts {
			if best == "" || c > counts[best] || c == counts[best] && m < best {
				best = m
			}
		}
		if best == "" {
			break
		}
		merges = append(merges, best)
		l, r, _ := strings.Cut(best, " ")
		for k, w := range words {
			for i := 0; i+1 < len(w); i++ {
				if w[i] == l && w[i+1] == r {
					w[i] = l + r
					w = slices.Delete(w, i+1, i+2)
				}
			}
			words[k] = w
		}
	}
	return merges
}

// decode returns all of ids as text, control tokens by name in ⟦⟧.
func (e *Encoder) spell(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch e.v.kind[id] {
		case kindControl, kindUser:
			b.WriteString("⟦" + e.v.text[id] + "⟧")
		default:
			b.WriteString(e.v.text[id])
		}
	}
	return b.String()
}
