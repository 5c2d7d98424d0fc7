package prompt

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
)

// Token ids that llama.cpp gave for SmolLM2 (bench/llamacpp asks it anew, for many more). SLUICE_SMOLLM2 names the model's file (make model).
func TestSmolLM2(t *testing.T) {
	path := os.Getenv("SLUICE_SMOLLM2")
	if path == "" {
		t.Skip("SLUICE_SMOLLM2 does not name the model's file")
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Texts []struct {
			Text string
			IDs  []int32
		}
		Chats []struct {
			Messages []Message
			IDs      []int32
		}
	}
	b, err := os.ReadFile("testdata/smollm2.json")
	if err == nil {
		err = json.Unmarshal(b, &golden)
	}
	if err != nil || len(golden.Texts) == 0 || len(golden.Chats) == 0 {
		t.Fatal("no goldens: ", err)
	}
	for _, g := range golden.Texts {
		if ids, err := e.Text(g.Text, 0); err != nil || !slices.Equal(ids, g.IDs) {
			t.Errorf("%q: %v, want %v (%v)", g.Text, ids, g.IDs, err)
		}
	}
	for _, g := range golden.Chats {
		if ids, err := e.Chat(g.Messages, 0); err != nil || !slices.Equal(ids, g.IDs) {
			t.Errorf("%q: %v, want %v (%v)", g.Messages, ids, g.IDs, err)
		}
	}
	if !slices.Equal(e.EOS(), []int32{0, 2}) || e.Vocab() != 49152 || !e.KeepsContent() {
		t.Errorf("stops %v, vocabulary %d, keeps %v", e.EOS(), e.Vocab(), e.KeepsContent())
	}
}
