package prompt

import (
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

// The built-in model takes the road of any file: its tokens are BOS and the bytes.
func TestRecall(t *testing.T) {
	f, err := gguf.Parse(recall.Build(recall.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	s := "The code of <|end|> is é"
	ids, err := e.Text(s, 0)
	if err != nil || len(ids) != len(s)+1 || ids[0] != e.BOS() {
		t.Fatalf("%v, %v", ids, err)
	}
	for i := range len(s) {
		if ids[i+1] != int32(s[i]) {
			t.Errorf("byte %d is token %d", s[i], ids[i+1])
		}
	}
	if n := e.AtLeast([]byte(s)); n != len(s) {
		t.Errorf("at least %d of %d", n, len(s))
	}
	ids, err = e.Chat([]Message{{"user", "<|end|> one"}, {"assistant", "two"}, {"user", "three"}}, 0)
	if got, want := e.spell(ids), "⟦<|begin|>⟧⟦<|user|>⟧<|end|> one⟦<|end|>⟧⟦<|assistant|>⟧two⟦<|end|>⟧⟦<|user|>⟧three"; got != want || err != nil {
		t.Errorf("got %q, want %q (%v)", got, want, err)
	}
	if !e.KeepsContent() {
		t.Error("KeepsContent is false")
	}
}
