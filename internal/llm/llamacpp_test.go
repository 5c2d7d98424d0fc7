package llm

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
)

// Prompts for the comparison with llama.cpp, as SmolLM2's token ids, so that no tokenizer stands between.
var smolPrompts = [][]int32{
	// "1, 2, 3, 4, 5, 6, 7, 8,"
	{33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28, 216, 38, 28, 216, 39, 28, 216, 40, 28},
	// "The capital of France is"
	{504, 3575, 282, 4649, 314},
	// "What is gravity?" in the chat template
	{1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 9354, 47, 2, 198, 1, 520, 9531, 198},
}

// smolModel opens the model that SLUICE_SMOLLM2 names: SmolLM2-135M-Instruct.Q4_1.gguf.
func smolModel(t testing.TB) (*Model, *gguf.File) {
	path := os.Getenv("SLUICE_SMOLLM2")
	if path == "" {
		t.Skip("SLUICE_SMOLLM2 does not name the model's file")
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	start := time.Now()
	m := load(t, f)
	t.Logf("%d bytes of weights, loaded in %v, path %s", m.WeightBytes(), time.Since(start).Round(time.Millisecond), kernel.Path())
	return m, f
}

// TestLlamaCpp prints greedy continuations, a JSON object a line: prompt and reply as token ids, and beside each token of the reply by how
// many logits it won. llama.cpp's greedy reply must be the same up to a token that won by less than the noise of quantized
// activations, which is some tenths of a logit (two builds of llama.cpp differ from each other by as much).
// SLUICE_PROMPTS may name a JSON file of prompts, a list of lists of ids.
func TestLlamaCpp(t *testing.T) {
	m, f := smolModel(t)
	prompts := smolPrompts
	if path := os.Getenv("SLUICE_PROMPTS"); path != "" {
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &prompts)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(t, m, RunnerOptions{})
	for _, prompt := range prompts {
		var line struct {
			Prompt  []int32   `json:"prompt"`
			Reply   []int32   `json:"reply"`
			Margins []float32 `json:"margins"`
		}
		var text strings.Builder
		kv := newMemory(m, 64, len(prompt)+48)
		logits := prefill(t, r, kv, prompt, 0, 512)
		for pos := len(prompt); ; pos++ {
			id := argmax(logits)
			line.Reply, line.Margins = append(line.Reply, id), append(line.Margins, margin(logits, id))
			text.WriteString(tokens[id])
			if len(line.Reply) == 48 || slices.Contains(m.cfg.EOS, id) {
				break
			}
			logits = prefill(t, r, kv, []int32{id}, pos, 1)
		}
		line.Prompt = prompt
		b, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s\n", b)
		t.Log(strings.NewReplacer("Ġ", " ", "Ċ", "\n").Replace(text.String()))
	}
}

// margin is by how much id beats the second.
func margin(logits []float32, id int32) float32 {
	second := float32(-1e30)
	for i, v := range logits {
		if int32(i) != id {
			second = max(second, v)
		}
	}
	return logits[id] - second
}
