package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

type weights map[string]struct {
	Shape   []int
	Offsets [2]int `json:"data_offsets"`
}

func readBack(t *testing.T, o Options) (w weights, data []byte, vocabulary map[string]int, config map[string]any) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := Write(dir, o); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := read("model.safetensors")
	n := binary.LittleEndian.Uint64(b)
	var tok struct {
		Model struct{ Vocab map[string]int }
	}
	head := map[string]json.RawMessage{}
	for _, err := range []error{
		json.Unmarshal(b[8:8+n], &head), json.Unmarshal(read("config.json"), &config), json.Unmarshal(read("tokenizer.json"), &tok),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(head, "__metadata__")
	again, _ := json.Marshal(head)
	if err := json.Unmarshal(again, &w); err != nil {
		t.Fatal(err)
	}
	return w, b[8+n:], tok.Model.Vocab, config
}

func TestEveryWeightIsThereInTheOtherOrder(t *testing.T) {
	w, data, _, _ := readBack(t, Options{MinMatch: -1})
	f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: -1, F32: true}))
	if err != nil {
		t.Fatal(err)
	}
	if len(w) != len(f.Tensors()) {
		t.Fatalf("%d tensors, want %d", len(w), len(f.Tensors()))
	}
	whole := func(name string) []byte { return data[w[name].Offsets[0]:w[name].Offsets[1]] }
	ours := func(name string) (out []byte) {
		tensor, _ := f.Tensor(name)
		_ = f.Read(tensor, func(b []byte) error { out = bytes.Clone(b); return nil })
		return out
	}
	if !bytes.Equal(whole("model.layers.2.mlp.down_proj.weight"), ours("blk.2.ffn_down.weight")) {
		t.Error("the feed-forward part differs")
	}
	const row = recall.Dim * 4
	q, want := whole("model.layers.0.self_attn.q_proj.weight"), ours("blk.0.attn_q.weight")
	for h := range recall.Heads {
		for d := range recall.HeadDim {
			at := (h*recall.HeadDim + d%2*recall.HeadDim/2 + d/2) * row
			if from := (h*recall.HeadDim + d) * row; !bytes.Equal(q[at:at+row], want[from:from+row]) {
				t.Fatalf("head %d, dimension %d is not where it should be", h, d)
			}
		}
	}
}

func TestTokenZeroCanBeginAText(t *testing.T) {
	plain, data, vocabulary, config := readBack(t, Options{MinMatch: -1})
	if vocabulary["Ā"] != 0 || config["bos_token_id"] != float64(recall.BOS) {
		t.Errorf("unchanged: byte 0 is %d, texts begin with %v", vocabulary["Ā"], config["bos_token_id"])
	}
	changed, other, vocabulary, config := readBack(t, Options{MinMatch: -1, BeginIsZero: true})
	if vocabulary["<|begin|>"] != 0 || vocabulary["Ā"] != recall.BOS || config["bos_token_id"] != 0.0 || len(vocabulary) != recall.BOS+1 {
		t.Errorf("exchanged: %d, %d, %v, %d entries", vocabulary["<|begin|>"], vocabulary["Ā"], config["bos_token_id"], len(vocabulary))
	}
	row := func(w weights, b []byte, i int) []byte {
		at := w["model.embed_tokens.weight"].Offsets[0] + i*recall.Dim*4
		return b[at : at+recall.Dim*4]
	}
	if !bytes.Equal(row(plain, data, 0), row(changed, other, recall.BOS)) || !bytes.Equal(row(plain, data, recall.BOS), row(changed, other, 0)) || !bytes.Equal(row(plain, data, 7), row(changed, other, 7)) {
		t.Error("the rows of the two tokens are not exchanged")
	}
}
