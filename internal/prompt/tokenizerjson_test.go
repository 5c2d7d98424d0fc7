package prompt

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reference is a tokenizer and what the reference implementation made of texts (testdata/tokenizerjson/make.py).
type reference struct {
	name      string
	Tokenizer json.RawMessage `json:"tokenizer"`
	Texts     [][3]any        `json:"texts"`
}

func references(t testing.TB) (out []reference) {
	t.Helper()
	files, _ := filepath.Glob("testdata/tokenizerjson/*.json")
	if len(files) < 5 {
		t.Fatalf("%d tokenizers in testdata", len(files))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		r := reference{name: filepath.Base(f)}
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func counterOf(t testing.TB, file []byte) *Counter {
	t.Helper()
	c, err := NewCounter(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Each count is the one of the reference implementation, with what is put around a text and without.
func TestCounterCountsAsTheReferenceDoes(t *testing.T) {
	texts := 0
	for _, r := range references(t) {
		c := counterOf(t, r.Tokenizer)
		for _, x := range r.Texts {
			text, with, without := x[0].(string), int(x[1].(float64)), int(x[2].(float64))
			if got := c.Count(text, true); got != with {
				t.Errorf("%s: %.60q has %d tokens, counted %d", r.name, text, with, got)
			}
			if got := c.Count(text, false); got != without {
				t.Errorf("%s: %.60q has %d tokens alone, counted %d", r.name, text, without, got)
			}
			texts++
		}
	}
	t.Logf("%d texts", texts)
}

// Wherever a text is put, it adds no more tokens than Most says, and Most is worth more than the bytes on long texts.
func TestMostHoldsInsideOfAnyText(t *testing.T) {
	around := []string{"", "<|begin|>user\n", "x", "\n\n", " ", "1", "'", "<|end|>", "don", "Ä", "  \n"}
	rnd := rand.New(rand.NewPCG(3, 4))
	pieces := []string{"word", " ", "  ", "\n", "\n\n", "12", "'s", "ä", "日本", "!!", "<|end|>", "<tool>", "a b c", "\u0301", "\t", "Hello there friend "}
	for _, r := range references(t) {
		c := counterOf(t, r.Tokenizer)
		for range 1500 {
			var b strings.Builder
			for range rnd.IntN(12) {
				b.WriteString(pieces[rnd.IntN(len(pieces))])
			}
			text := b.String()
			most := c.Most(text)
			for range 4 {
				left, right := around[rnd.IntN(len(around))], around[rnd.IntN(len(around))]
				for _, in := range []string{text, strings.TrimSpace(text)} {
					// Of what stands around, every byte may be a token.
					if got := c.Count(left+in+right, false); got > most+len(left)+len(right) {
						t.Fatalf("%s: %q in %q %q: %d tokens, at most %d+%d were promised", r.name, in, left, right, got, most, len(left)+len(right))
					}
				}
			}
		}
		long := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 200)
		if most := c.Most(long); most > len(long)/2 {
			t.Errorf("%s: the bound on %d bytes is %d", r.name, len(long), most)
		}
	}
}

// What is not byte-level BPE as it is known here is refused, by name.
func TestCounterRefusesWhatItDoesNotKnow(t *testing.T) {
	good := string(references(t)[0].Tokenizer)
	for name, c := range map[string]struct{ old, new, want string }{
		"another model":         {`"type":"BPE"`, `"type":"Unigram"`, `model "Unigram"`},
		"byte fallback":         {`"byte_fallback":false`, `"byte_fallback":true`, "byte_fallback"},
		"dropout":               {`"dropout":null`, `"dropout":0.1`, "dropout"},
		"an unknown token":      {`"unk_token":null`, `"unk_token":"<unk>"`, "unknown token"},
		"subword prefix":        {`"continuing_subword_prefix":null`, `"continuing_subword_prefix":"##"`, "prefixes"},
		"another normalizer":    {`"normalizer":null`, `"normalizer":{"type":"NFKC"}`, `normalizer "NFKC"`},
		"another pattern":       {`"Regex":"'s`, `"Regex":"'z|'s`, "pattern"},
		"prefix space":          {`"add_prefix_space":false`, `"add_prefix_space":true`, `pre-tokenizer "ByteLevel"`},
		"another pre-tokenizer": {`"type":"Digits"`, `"type":"Whitespace"`, `pre-tokenizer "Whitespace"`},
		"digits together":       {`"individual_digits":true`, `"individual_digits":false`, `pre-tokenizer "Digits"`},
		"another post":          {`"post_processor":null`, `"post_processor":{"type":"RobertaProcessing"}`, `post-processor "RobertaProcessing"`},
		"blanks around":         {`"lstrip":false`, `"lstrip":true`, "blanks"},
		"no JSON":               {`{`, `[`, "tokenizer.json"},
	} {
		found := false
		for _, r := range references(t) {
			f := strings.Replace(string(r.Tokenizer), c.old, c.new, 1)
			if f == string(r.Tokenizer) {
				continue
			}
			found = true
			if _, err := NewCounter([]byte(f)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s (%s): %v", name, r.name, err)
			}
		}
		if !found {
			t.Errorf("%s: nothing was replaced in any tokenizer", name)
		}
	}
	if _, err := NewCounter([]byte(good)); err != nil {
		t.Error(err)
	}
}

func FuzzNewCounter(f *testing.F) {
	for _, r := range references(f) {
		f.Add([]byte(r.Tokenizer)[:min(len(r.Tokenizer), 40<<10)], "some text 12")
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"e":0},"merges":[]},"pre_tokenizer":{"type":"ByteLevel"}}`), "eee")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		c, err := NewCounter(file)
		if err != nil {
			return
		}
		if n := c.Count(text, false); n < 0 || n > 3*len(text) {
			t.Fatalf("%d tokens of %d bytes", n, len(text))
		}
	})
}
