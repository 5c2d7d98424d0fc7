package llm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/gguf"
)

// A model that cannot be run exactly is refused with the reason, by Load and by EstimateBytes alike.
func TestRefusals(t *testing.T) {
	pair := func(write func(*gguf.Writer)) func(*testing.T) *gguf.File {
		return func(t *testing.T) *gguf.File { return tiny.file(t, 1, write) }
	}
	// without writes the metadata by hand, one key left out or changed.
	without := func(key string, instead func(*gguf.Writer)) func(*testing.T) *gguf.File {
		return func(t *testing.T) *gguf.File {
			var w gguf.Writer
			if key != "general.architecture" {
				w.String("general.architecture", "llama")
			}
			for k, v := range map[string]uint32{"llama.block_count": 2, "llama.context_length": 4096, "llama.embedding_length": 64,
				"llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "tokenizer.ggml.eos_token_id": 3} {
				if k != key {
					w.Uint32(k, v)
				}
			}
			if key != "eps" {
				w.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
			}
			if instead != nil {
				instead(&w)
			}
			tiny.tensors(&w, 1)
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
	}
	number := func(k string, v uint32) func(*gguf.Writer) { return func(w *gguf.Writer) { w.Uint32(k, v) } }
	typed := func(kind string, typ gguf.Type) func(*testing.T) *gguf.File {
		return func(t *testing.T) *gguf.File {
			var w gguf.Writer
			tiny.metadata(&w)
			f := tiny.file(t, 1)
			for _, x := range f.Tensors() {
				if !strings.Contains(x.Name, kind) {
					f.Read(x, func(b []byte) error { w.Raw(x.Name, x.Type, x.Dims, b); return nil })
					continue
				}
				n, err := typ.Size(x.Dims)
				if err != nil {
					n = 64
				}
				w.Raw(x.Name, typ, x.Dims, make([]byte, n))
			}
			b, err := w.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			g, err := gguf.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
	}
	changed := func(change func(*shape)) func(*testing.T) *gguf.File {
		return func(t *testing.T) *gguf.File { // metadata of one shape, tensors of another
			s := tiny
			change(&s)
			var w gguf.Writer
			tiny.metadata(&w)
			s.tensors(&w, 1)
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
	}
	for _, c := range []struct {
		name, want string
		file       func(*testing.T) *gguf.File
	}{
		{"no architecture", "no such key", without("general.architecture", nil)},
		{"another architecture", `"qwen3"; llama can be run`, without("general.architecture", func(w *gguf.Writer) { w.String("general.architecture", "qwen3") })},
		{"no epsilon", "layer_norm_rms_epsilon", without("eps", nil)},
		{"epsilon of the wrong kind", "not a floating-point", without("eps", number("llama.attention.layer_norm_rms_epsilon", 1))},
		{"epsilon not finite", "positive and finite", without("eps", func(w *gguf.Writer) {
			w.Float32("llama.attention.layer_norm_rms_epsilon", float32(math.NaN()))
		})},
		{"no layers", "block_count is 0", without("llama.block_count", number("llama.block_count", 0))},
		{"no context", "no such key: llama.context_length", without("llama.context_length", nil)},
		{"heads that differ by layer", "array", without("llama.attention.head_count_kv", func(w *gguf.Writer) { w.Int32s("llama.attention.head_count_kv", []int32{2, 1}) })},
		{"heads that do not divide", "4 query heads do not divide over 3", without("llama.attention.head_count_kv", number("llama.attention.head_count_kv", 3))},
		{"width that does not divide", "does not divide into 5 heads", without("llama.attention.head_count", number("llama.attention.head_count", 5))},
		{"odd head", "a head of 12 dims", pair(number("llama.attention.key_length", 12))},
		{"values unlike keys", "keys have 16 dims and values 32", pair(number("llama.attention.value_length", 32))},
		{"experts", "mixture of 8 experts", pair(number("llama.expert_count", 8))},
		{"window", "window of 128", pair(number("llama.attention.sliding_window", 128))},
		{"not causal", "not causal", pair(func(w *gguf.Writer) { w.Bool("llama.attention.causal", false) })},
		{"other layout", "laid out", pair(func(w *gguf.Writer) { w.String("llama.tensor_data_layout", "reference") })},
		{"partial rope", "rotary embedding of 8", pair(number("llama.rope.dimension_count", 8))},
		{"yarn", `rope scaling of type "yarn"`, pair(func(w *gguf.Writer) { w.String("llama.rope.scaling.type", "yarn") })},
		{"unknown setting", "llama.logit_scale is not known", pair(func(w *gguf.Writer) { w.Float32("llama.logit_scale", 2) })},
		{"no end", "no token that ends", without("tokenizer.ggml.eos_token_id", nil)},
		{"end outside", "eos_token_id is 80", without("tokenizer.ggml.eos_token_id", number("tokenizer.ggml.eos_token_id", 80))},
		{"vocabulary of another size", "lists 2 tokens and its embedding has 80", pair(func(w *gguf.Writer) { w.Strings("tokenizer.ggml.tokens", []string{"a", "b"}) })},
		{"a type without kernels", "blk.1.ffn_up.weight is stored as BF16", typed("blk.1.ffn_up", 30)},
		{"a type that nobody knows", "blk.0.attn_k.weight is stored as type 777", typed("blk.0.attn_k", 777)},
		{"a quantized vector", "output_norm.weight is stored as Q8_0", typed("output_norm", gguf.Q8_0)},
		{"missing tensor", "blk.1.attn_norm.weight is missing", changed(func(s *shape) { s.layers = 1 })},
		{"one layer too many", "blk.2.attn_norm.weight is not known", changed(func(s *shape) { s.layers = 3 })},
		{"wrong dims", "blk.0.ffn_gate.weight has dimensions [64 128], not [64 96]", changed(func(s *shape) { s.ff = 128 })},
		{"bias", "blk.0.attn_q.bias is not known", pair(func(w *gguf.Writer) { w.Tensor("blk.0.attn_q.bias", gguf.F32, []uint64{64}, make([]float32, 64)) })},
		{"rope factor 0", "rope_freqs.weight holds 0", pair(func(w *gguf.Writer) { w.Tensor("rope_freqs.weight", gguf.F32, []uint64{8}, make([]float32, 8)) })},
		{"rope factors of another head", "rope_freqs.weight has dimensions [4], not [8]", pair(func(w *gguf.Writer) { w.Tensor("rope_freqs.weight", gguf.F32, []uint64{4}, make([]float32, 4)) })},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.file(t)
			_, err := Load(f)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if _, err2 := EstimateBytes(f); err2 == nil || err2.Error() != err.Error() {
				t.Errorf("EstimateBytes says %v", err2)
			}
		})
	}
}

func TestConfigAndMemory(t *testing.T) {
	s := tiny
	s.vocab = 77 // the last panel is filled up
	s.types = map[string]gguf.Type{"": gguf.Q8_0}
	tokens, types := make([]string, 77), make([]int32, 77)
	tokens[5], types[5] = "<|im_end|>", 3
	tokens[6], types[6] = "<|eot_id|>", 1 // an ordinary token of that text ends nothing
	f := s.file(t, 1, func(w *gguf.Writer) {
		w.Strings("tokenizer.ggml.tokens", tokens)
		w.Int32s("tokenizer.ggml.token_type", types)
		w.Uint32("tokenizer.ggml.eot_token_id", 2)
		w.String("llama.rope.scaling.type", "none")
		w.Uint32("llama.attention.sliding_window", 4096)
	})
	guess, err := EstimateBytes(f)
	if err != nil {
		t.Fatal(err)
	}
	m := load(t, f)
	if m.WeightBytes() > guess || m.WeightBytes() < guess*98/100 {
		t.Errorf("%d bytes, estimated %d", m.WeightBytes(), guess)
	}
	c := m.Config()
	if c.Name != "random" || c.Dim != 64 || c.Layers != 2 || c.Heads != 4 || c.KVHeads != 2 || c.HeadDim != 16 || c.FF != 96 || c.Vocab != 77 || c.Context != 4096 || !slices.Equal(c.EOS, []int32{2, 3, 5}) {
		t.Errorf("%+v", c)
	}
	c.EOS[0] = 99
	if m.Config().EOS[0] == 99 {
		t.Error("Config hands out its own slice")
	}
	if g := m.Geometry(16); g.Validate() != nil || g.Bytes() != 16*2*2*16*2*2 {
		t.Errorf("%v: %d bytes", g, g.Bytes())
	}
	want, _ := f.Fingerprint()
	if m.Fingerprint() != want {
		t.Error("the fingerprint is not the file's")
	}
}

// A chunk that fails is named, and does no harm to the others.
func TestChunksThatFail(t *testing.T) {
	s := tiny
	f := s.file(t, 1)
	m := load(t, f)
	r := newRunner(t, m, RunnerOptions{Threads: 1, MaxRows: 32})
	chunk := func(tokens ...int32) Chunk {
		return Chunk{Tokens: tokens, KV: newMemory(m, 16, 32), Logits: make([]float32, s.vocab)}
	}
	var ce *ChunkError
	err := r.Forward([]Chunk{chunk(1), chunk(1, 80), chunk(-1), chunk(2)})
	if !errors.Is(err, ErrToken) || !errors.As(err, &ce) || !slices.Equal(ce.Chunks, []int{1, 2}) {
		t.Errorf("got %v", err)
	}
	good := chunk(1, 2, 3)
	if err := r.Forward([]Chunk{good}); err != nil {
		t.Fatal(err)
	}
	bad := chunk(7)
	bad.KV.(*memory).poison()
	bad.Pos = 16
	again := chunk(1, 2, 3)
	err = r.Forward([]Chunk{again, bad})
	if !errors.Is(err, ErrNotFinite) || !errors.As(err, &ce) || !slices.Equal(ce.Chunks, []int{1}) {
		t.Errorf("got %v", err)
	}
	if !sameBits(good.Logits, again.Logits) {
		t.Error("a chunk's logits changed because another in its batch was not finite")
	}
	for want, batch := range map[string][]Chunk{
		"33 rows in a runner of 32": {chunk(make([]int32, 20)...), chunk(make([]int32, 13)...)},
		"0 tokens at 0":             {chunk()},
		"room for 3 logits":         {{Tokens: []int32{1}, KV: newMemory(m, 16, 16), Logits: make([]float32, 3)}},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			}()
			r.Forward(batch)
		}()
	}
	if err := r.Forward(nil); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
}

// poison fills the pages with halves that are not numbers.
func (k *memory) poison() {
	for _, b := range k.raw {
		for i := 0; i < len(b); i += 2 {
			b[i], b[i+1] = 0xff, 0x7f
		}
	}
}
