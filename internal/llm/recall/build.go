package recall

import (
	"cmp"
	"fmt"

	"github.com/sluicekv/sluice/internal/gguf"
)

// Name of the model in its metadata.
const Name = "recall"

// Config of the model. The zero Config is the default.
type Config struct {
	// MinMatch is about how many tokens must match for the model to copy; below that it says EOS. 0 means 1. -1: it always
	// copies, which is what tests for leaks want, since a model that is quiet can hide one.
	MinMatch      int
	StopAtNewline bool   // a newline is copied as EOS: a reply ends with the line it copies
	Untied        bool   // the output matrix is a tensor of its own
	F32           bool   // matrices are stored as F32 instead of F16
	Template      string // chat template (Jinja); empty: the model's own
}

// Build returns the model as a GGUF file. The same Config gives the same bytes on every machine of one architecture.
func Build(cfg Config) []byte {
	if cfg.MinMatch == 0 {
		cfg.MinMatch = 1
	}
	var w gguf.Writer
	metadata(&w, cfg)
	typ := gguf.F16
	if cfg.F32 {
		typ = gguf.F32
	}
	put := func(name string, m matrix) {
		w.Tensor(name+".weight", typ, []uint64{uint64(m.in), uint64(m.out)}, m.w)
	}
	norm := func(name string, v []float32) { w.Tensor(name+".weight", gguf.F32, []uint64{uint64(len(v))}, v) }
	level := func(squared float64) []float32 {
		v := make([]float32, Dim)
		for i := range v {
			v[i] = float32(normWeight(squared))
		}
		return v
	}

	value := valueCodes()
	emb := embedding(cfg, keyCodes(), value)
	put("token_embd", emb)
	for i, b := range [Blocks]block{
		hop(1, normEmbedded, normHopped),
		hop(3, normHopped, normKnowing),
		induction(cfg, value),
	} {
		p := fmt.Sprintf("blk.%d.", i)
		norm(p+"attn_norm", level(b.attnNorm))
		put(p+"attn_q", b.q)
		put(p+"attn_k", b.k)
		put(p+"attn_v", b.v)
		put(p+"attn_output", b.o)
		norm(p+"ffn_norm", level(b.ffnNorm))
		put(p+"ffn_gate", b.gate)
		put(p+"ffn_up", b.up)
		put(p+"ffn_down", b.down)
	}
	norm("output_norm", outputNorm())
	if cfg.Untied {
		put("output", emb)
	}
	image, err := w.Bytes()
	if err != nil {
		panic(fmt.Sprintf("recall: the model does not fit its format: %v", err))
	}
	return image
}

func metadata(w *gguf.Writer, cfg Config) {
	w.String("general.architecture", "llama")
	w.String("general.name", Name)
	fileType := uint32(1) // mostly F16
	if cfg.F32 {
		fileType = 0
	}
	w.Uint32("general.file_type", fileType)
	w.Uint32("llama.block_count", Blocks)
	w.Uint32("llama.context_length", Context)
	w.Uint32("llama.embedding_length", Dim)
	w.Uint32("llama.feed_forward_length", FF)
	w.Uint32("llama.attention.head_count", Heads)
	w.Uint32("llama.attention.head_count_kv", KVHeads)
	w.Uint32("llama.attention.key_length", HeadDim)
	w.Uint32("llama.attention.value_length", HeadDim)
	w.Uint32("llama.rope.dimension_count", HeadDim)
	w.Float32("llama.rope.freq_base", ropeBase)
	w.Float32("llama.attention.layer_norm_rms_epsilon", epsilon)
	w.Uint32("llama.vocab_size", Vocab)
	tokens, types := vocabulary()
	w.String("tokenizer.ggml.model", "gpt2")
	w.String("tokenizer.ggml.pre", "gpt-2")
	w.Strings("tokenizer.ggml.tokens", tokens)
	w.Int32s("tokenizer.ggml.token_type", types)
	w.Strings("tokenizer.ggml.merges", nil)
	w.Uint32("tokenizer.ggml.bos_token_id", BOS)
	w.Uint32("tokenizer.ggml.eos_token_id", EOS)
	w.Uint32("tokenizer.ggml.padding_token_id", Pad)
	w.Bool("tokenizer.ggml.add_bos_token", true)
	w.String("tokenizer.chat_template", cmp.Or(cfg.Template, chatTemplate))
}
