package prompt

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gguf"
)

func TestTextLimit(t *testing.T) {
	for _, bos := range []bool{false, true} {
		e := spec{pre: "gpt-2", merges: 60, addBOS: bos}.encoder(t)
		s := strings.Repeat("the quick brown fox jumps. ", 20)
		all, err := e.Text(s, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := e.Count(s); n != len(all) || err != nil {
			t.Errorf("Count is %d, Text gives %d (%v)", n, len(all), err)
		}
		if ids, err := e.Text(s, len(all)); len(ids) != len(all) || err != nil {
			t.Errorf("at the limit: %d ids, %v", len(ids), err)
		}
		var long *TooLong
		if _, err := e.Text(s, len(all)-1); !errors.As(err, &long) || *long != (TooLong{Tokens: len(all), Limit: len(all) - 1}) {
			t.Errorf("one over: %v", err)
		}
	}
}

// A prompt far over the limit is refused soon, and without memory to speak of: not by holding its ids, nor by copying it.
func TestOverLimitCostsLittle(t *testing.T) {
	e := spec{pre: "llama-bpe", merges: 80, template: chatML}.encoder(t)
	size := 100_000
	if racing {
		size = 30_000
	}
	unbroken := strings.Repeat("othersthefoxes", 3*size)
	prose := strings.Repeat("the quick brown fox <|im_end|> jumps over ", size)
	for name, run := range map[string]func() error{
		"text":          func() error { _, err := e.Text(prose, 2_000); return err },
		"text, wide":    func() error { _, err := e.Text(prose, 9*size); return err },
		"chat":          func() error { _, err := e.Chat([]Message{{"user", prose}}, 2_000); return err },
		"chat, wide":    func() error { _, err := e.Chat([]Message{{"user", prose}}, 9*size); return err },
		"unbroken":      func() error { _, err := e.Text(unbroken, 2_000); return err },
		"unbroken,wide": func() error { _, err := e.Text(unbroken, 9*size); return err },
	} {
		run()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		err := run()
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		var long *TooLong
		if !errors.As(err, &long) || !long.AtLeast || long.Tokens <= long.Limit {
			t.Fatalf("%s: %v", name, err)
		}
		if long.Limit == 2_000 && long.Tokens < 20_000 {
			t.Errorf("%s: a prompt of megabytes is said to have at least %d tokens", name, long.Tokens)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 512<<10 {
			t.Errorf("%s: %d bytes were allocated", name, got)
		}
		if took > 2*time.Second && !racing { // 0.1 s on a quiet machine
			t.Errorf("%s: took %v", name, took)
		}
	}
}

// What atLeast says is never more than the tokens there are.
func TestAtLeastIsABound(t *testing.T) {
	e := spec{pre: "llama-bpe", merges: 120, user: []string{"            "}}.encoder(t)
	for _, s := range []string{corpus, strings.Repeat(" ", 1000), strings.Repeat("the", 999), "x", strings.Repeat("aaaaaaaa", 100), "漢字",
		strings.Repeat("\n ", 500) + "the fox" + strings.Repeat(" \n", 500)} {
		var counts [256]int
		for i := range len(s) {
			counts[s[i]]++
		}
		n, err := e.Count(s)
		if least := e.v.atLeast(&counts); err != nil || least > n || least == 0 && len(s) > 500 {
			t.Errorf("%.20q…: at least %d, there are %d (%v)", s, least, n, err)
		}
		trimmed, err := e.Count(strings.TrimSpace(s))
		least := e.AtLeast([]byte(s))
		if err != nil || least > trimmed {
			t.Errorf("%.20q…: AtLeast is %d of %d (%v)", s, least, trimmed, err)
		}
	}
}

func TestKeepsContent(t *testing.T) {
	for template, want := range map[string]bool{
		chatML:                      true,
		shapes["trims"]:             true,
		shapes["thinks"]:            false, // looks into content
		shapes["counts"]:            false,
		"{{ messages[0].content }}": false,
		"{% for m in messages[1:] %}{{ m.content }}{% endfor %}":            false,
		"{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}": false,
	} {
		if got := (spec{pre: "gpt-2", template: template}).encoder(t).KeepsContent(); got != want {
			t.Errorf("%q: %v", template, got)
		}
	}
	if (spec{pre: "gpt-2"}).encoder(t).KeepsContent() {
		t.Error("without a template")
	}
}

func TestTextRefusals(t *testing.T) {
	e := spec{pre: "gpt-2", addBOS: true}.encoder(t)
	var utf *InvalidUTF8
	if _, err := e.Text("", 0); !errors.Is(err, ErrEmpty) {
		t.Errorf("empty: %v", err)
	}
	if _, err := e.Text("é\xe2\x82", 0); !errors.As(err, &utf) || *utf != (InvalidUTF8{-1, 2}) {
		t.Errorf("UTF-8: %v", err)
	}
	if _, err := e.Count("\x80"); !errors.As(err, &utf) || utf.Offset != 0 {
		t.Errorf("UTF-8: %v", err)
	}
}

func TestIDs(t *testing.T) {
	e := spec{pre: "gpt-2"}.encoder(t)
	top := int32(e.Vocab())
	if ids, err := e.IDs([]int32{0, top - 1}, 2); err != nil || len(ids) != 2 {
		t.Errorf("%v, %v", ids, err)
	}
	var bad *BadID
	for _, id := range []int32{-1, top, 1 << 30} {
		if _, err := e.IDs([]int32{1, id}, 0); !errors.As(err, &bad) || bad.Index != 1 {
			t.Errorf("%d: %v", id, err)
		}
	}
	var long *TooLong
	if _, err := e.IDs([]int32{1, 2, 3}, 2); !errors.As(err, &long) || *long != (TooLong{Tokens: 3, Limit: 2}) {
		t.Errorf("too long: %v", err)
	}
	if _, err := e.IDs(nil, 0); !errors.Is(err, ErrEmpty) {
		t.Errorf("empty: %v", err)
	}
}

func TestStops(t *testing.T) {
	e := spec{pre: "gpt-2"}.encoder(t)
	for i, id := range e.EOS() { // the file names <|im_end|> alone
		if want := []int32{0, 2, 3}[i]; id != want {
			t.Errorf("stop %d is %q", i, e.v.text[id])
		}
	}
}

// A byte without a token is lost; the rest of its word is not.
func TestLackingByte(t *testing.T) {
	e := spec{pre: "gpt-2", merges: 60}.encoder(t)
	e.v.bytes['q'], e.v.lacking = -1, true
	delete(e.bpe.words, " quick")
	ids, err := e.Text("the quick"+strings.Repeat("qz", 3000), 0)
	if got, want := e.spell(ids), "the uick"+strings.Repeat("z", 3000); got != want || err != nil {
		t.Errorf("got %.60q (%v)", got, err)
	}
}

func TestUnknownFilesAreRefused(t *testing.T) {
	var none gguf.Writer
	none.String("general.architecture", "llama")
	var spm gguf.Writer
	spm.String("tokenizer.ggml.model", "llama")
	var short gguf.Writer
	short.String("tokenizer.ggml.model", "gpt2")
	short.Strings("tokenizer.ggml.tokens", []string{"a", "b"})
	short.Int32s("tokenizer.ggml.token_type", []int32{1})
	var odd gguf.Writer
	odd.String("tokenizer.ggml.model", "gpt2")
	odd.Strings("tokenizer.ggml.tokens", []string{"a"})
	odd.Int32s("tokenizer.ggml.token_type", []int32{9})
	var far gguf.Writer
	far.String("tokenizer.ggml.model", "gpt2")
	far.Strings("tokenizer.ggml.tokens", []string{"a"})
	far.Uint32("tokenizer.ggml.eos_token_id", 1)
	var bos gguf.Writer
	bos.String("tokenizer.ggml.model", "gpt2")
	bos.Strings("tokenizer.ggml.tokens", []string{"a"})
	bos.Bool("tokenizer.ggml.add_bos_token", true)
	for want, w := range map[string]*gguf.Writer{
		"tokenizer.ggml.model":               &none,
		`tokenizer "llama"`:                  &spm,
		"2 tokens but 1":                     &short,
		"token 0 is of unknown type 9":       &odd,
		"eos_token_id is 1":                  &far,
		"asks for a bos token but names non": &bos,
	} {
		b, err := w.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := New(spec{pre: "tekken"}.file(t)); err == nil || !strings.Contains(err.Error(), `"tekken"`) {
		t.Errorf("pre-tokenizer: %v", err)
	}
	if _, err := New(spec{pre: "gpt-2", template: "{% for %}"}.file(t)); err == nil || !strings.Contains(err.Error(), "template") {
		t.Errorf("template: %v", err)
	}
}

func TestDetokenizer(t *testing.T) {
	e := spec{pre: "gpt-2", user: []string{"<think>"}}.encoder(t)
	d := e.Detokenizer()
	var got []string
	for _, b := range []byte("a€😀") {
		got = append(got, d.Add(e.v.bytes[b]))
	}
	if want := "a|||€||||😀"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", strings.Join(got, "|"), want)
	}
	if s := d.Add(2) + d.Add(-1) + d.Add(1<<30) + d.Flush(); s != "" {
		t.Errorf("a control token and ids outside have the text %q", s)
	}
	if s := d.Add(int32(e.Vocab() - 1)); s != "<think>" {
		t.Errorf("a user-defined token has the text %q", s)
	}
	// A character that is broken off, and bytes that are part of none.
	if s := d.Add(e.v.bytes[0xe2]) + d.Add(e.v.bytes[0x82]) + d.Add(e.v.bytes['x']) + d.Add(e.v.bytes[0xff]) + d.Add(e.v.bytes[0xf0]) + d.Flush() + d.Flush(); s != "\ufffd\ufffdx\ufffd\ufffd" {
		t.Errorf("got %q", s)
	}
}
