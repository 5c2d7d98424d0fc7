package recall

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
)

// A hop head's score has its only high peak at its own distance: the runner-up within the whole context is more than 20 logits down.
func TestHopGap(t *testing.T) {
	most := Context
	if testing.Short() {
		most = 1 << 16
	}
	var turns [clockLen]float64
	for i := range turns {
		turns[i] = math.Pow(10, -float64(i))
	}
	for _, distance := range []int{1, 2, 3, 6} {
		peak, next := 0.0, math.Inf(-1)
		for _, g := range hopGain {
			peak += g
		}
		for d := -distance; d <= most; d++ {
			if d == 0 {
				continue
			}
			s := 0.0
			for i, g := range hopGain {
				s += g * math.Cos(turns[i]*float64(d))
			}
			next = max(next, s)
		}
		if gap := peak - next; gap < 20 {
			t.Errorf("distance %d: the runner-up is only %.1f logits down", distance, gap)
		}
	}
}

func TestKeyCodesLieApart(t *testing.T) {
	codes := keyCodes()
	if codes[BOS] != (keyCode{}) {
		t.Error("BOS has a key code: an empty slot would match it")
	}
	for a := range codes {
		for b := range codes {
			if a == BOS || b == BOS {
				continue
			}
			d := codes[a].dot(codes[b])
			if a == b && (d < 3.9 || d > keyNorm) || a != b && d > 3.3 {
				t.Fatalf("codes %d and %d: dot product %v", a, b, d)
			}
		}
	}
}

func TestValueCodesLieApart(t *testing.T) {
	codes := valueCodes()
	for a := range codes {
		for b := range codes {
			d := float32(0)
			for i, v := range codes[a] {
				d += v * codes[b][i]
			}
			if a == b && d != valueDim || a != b && (d > 8 || d < -8) {
				t.Fatalf("codes %d and %d: dot product %v", a, b, d)
			}
		}
	}
}

func TestBuild(t *testing.T) {
	image := Build(Config{})
	if !bytes.Equal(image, Build(Config{MinMatch: 1})) {
		t.Error("two builds differ")
	}
	if bytes.Equal(image, Build(Config{MinMatch: 2})) {
		t.Error("MinMatch changes nothing")
	}
	if len(image) > 1<<20 {
		t.Errorf("%d bytes", len(image))
	}
	f, err := gguf.Parse(image)
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := f.Uint("llama.context_length")
	if ctx != 1<<20 || err != nil {
		t.Error(ctx, err)
	}
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range tokens {
		seen[s] = true
	}
	if len(tokens) != Vocab || len(seen) != Vocab {
		t.Errorf("%d tokens, %d different", len(tokens), len(seen))
	}
	for id, want := range map[int]string{' ': "Ġ", '\n': "Ċ", 'a': "a", 0: "Ā", 0xad: "Ń", 0xff: "ÿ", BOS: "<|begin|>", EOS: "<|end|>", Pad: "<|pad|>", 263: "<|reserved_0|>"} {
		if tokens[id] != want {
			t.Errorf("token %d is %q, want %q", id, tokens[id], want)
		}
	}
	template, err := f.String("tokenizer.chat_template")
	if err != nil || !strings.Contains(template, "bos_token") {
		t.Error(template, err)
	}
	if _, untied := f.Tensor("output.weight"); untied {
		t.Error("the output matrix is there though it is tied")
	}
}

func TestEncodeDecode(t *testing.T) {
	const s = "Größe\x00<|end|>"
	ids := Encode(s)
	if ids[0] != BOS || len(ids) != 1+len(s) {
		t.Fatal(ids)
	}
	if got := Decode(append(ids, EOS, 263, 9999)); got != "<|begin|>"+s+"<|end|><|reserved_0|><|9999?|>" {
		t.Errorf("%q", got)
	}
}
