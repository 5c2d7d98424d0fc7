package llm

import (
	"fmt"
	"math"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
)

// readLlama reads the architecture "llama": RMSNorm before each part, rotary embedding over whole heads in pairs of neighbours (the
// converters permute Q and K for that), grouped-query attention, SwiGLU, tied or untied output. Llama 1 to 3.x,
// TinyLlama, SmolLM, Mistral without a window, and the built-in model are of it.
func readLlama(r *reading) *Model {
	r.settings(
		"vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
		"attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
		"attention.layer_norm_rms_epsilon", "attention.causal", "attention.sliding_window", "tensor_data_layout",
		"rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
		"rope.scaling.original_context_length", "rope.scaling.finetuned", "expert_count", "expert_used_count",
	)
	m := &Model{cfg: llamaShape(r)}
	llamaNeutral(r, m.cfg)
	m.epsilon = float32(r.number("llama.attention.layer_norm_rms_epsilon", 0))
	m.freqs = llamaRope(r, m.cfg)
	if r.err != nil {
		return nil
	}
	c := m.cfg
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	r.matrix(&m.embed, "token_embd.weight", c.Vocab, c.Dim)
	m.blocks = make([]block, c.Layers)
	for i := range m.blocks {
		b := &m.blocks[i]
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", i, s) }
		r.vector(&b.attnNorm, name("attn_norm"), c.Dim)
		r.matrix(&b.q, name("attn_q"), q, c.Dim)
		r.matrix(&b.k, name("attn_k"), kv, c.Dim)
		r.matrix(&b.v, name("attn_v"), kv, c.Dim)
		r.matrix(&b.o, name("attn_output"), c.Dim, q)
		r.vector(&b.ffnNorm, name("ffn_norm"), c.Dim)
		r.matrix(&b.gate, name("ffn_gate"), c.FF, c.Dim)
		r.matrix(&b.up, name("ffn_up"), c.FF, c.Dim)
		r.matrix(&b.down, name("ffn_down"), c.Dim, c.FF)
	}
	r.vector(&m.outNorm, "output_norm.weight", c.Dim)
	if _, untied := r.f.Tensor("output.weight"); untied {
		r.matrix(&m.output, "output.weight", c.Vocab, c.Dim)
	}
	return m
}

func llamaShape(r *reading) (c Config) {
	const most = 1 << 20 // of any width: products stay far from overflow
	if n := r.count("llama.expert_count", 0, 0, math.MaxInt32); n > 0 {
		r.refuse("it is a mixture of %d experts", n)
	}
	c.Name = r.text("general.name")
	c.Dim = r.count("llama.embedding_length", -1, 1, most)
	c.Layers = r.count("llama.block_count", -1, 1, 1024)
	c.Heads = r.count("llama.attention.head_count", -1, 1, 1<<12)
	c.KVHeads = r.count("llama.attention.head_count_kv", c.Heads, 1, 1<<12)
	c.FF = r.count("llama.feed_forward_length", -1, 1, most)
	c.Context = r.count("llama.context_length", -1, 1, 1<<30)
	if r.err != nil {
		return c
	}
	if c.HeadDim = r.count("llama.attention.key_length", 0, 1, most); c.HeadDim == 0 {
		if c.Dim%c.Heads != 0 {
			r.refuse("a width of %d does not divide into %d heads", c.Dim, c.Heads)
		}
		c.HeadDim = c.Dim / c.Heads
	}
	if v := r.count("llama.attention.value_length", c.HeadDim, 1, most); v != c.HeadDim {
		r.refuse("keys have %d dims and values %d", c.HeadDim, v)
	}
	if c.Heads%c.KVHeads != 0 {
		r.refuse("%d query heads do not divide over %d KV heads", c.Heads, c.KVHeads)
	}
	if err := c.geometry(64).Validate(); err != nil {
		r.refuse("%v", err)
	}
	t, ok := r.f.Tensor("token_embd.weight")
	switch {
	case !ok:
		r.refuse("the tensor token_embd.weight is missing")
	case len(t.Dims) != 2 || t.Dims[1] > math.MaxInt32:
		r.refuse("the tensor token_embd.weight has dimensions %v", t.Dims)
	default:
		c.Vocab = int(t.Dims[1])
		c.EOS = endTokens(r, c.Vocab)
	}
	return c
}

// llamaNeutral refuses settings that are known and change the numbers, unless they say what is computed anyway.
func llamaNeutral(r *reading, c Config) {
	if causal, err := r.f.Bool("llama.attention.causal"); err == nil && !causal {
		r.refuse("its attention is not causal")
	}
	if w := r.count("llama.attention.sliding_window", 0, 0, math.MaxInt32); w > 0 && w < c.Context {
		r.refuse("it attends to a window of %d tokens", w)
	}
	if l := r.text("llama.tensor_data_layout"); l != "" && l != "Meta AI original pth" {
		r.refuse("its tensors are laid out as %q", l)
	}
}

// llamaRope returns the radians a position of each pair of dims: base^(-2i/dims), divided by a linear scale, and by Llama
// 3.1's factors where the file has them.
func llamaRope(r *reading, c Config) []float64 {
	if n := r.count("llama.rope.dimension_count", c.HeadDim, 1, math.MaxInt32); n != c.HeadDim {
		r.refuse("rotary embedding of %d of a head's %d dims", n, c.HeadDim)
	}
	base := r.number("llama.rope.freq_base", 10000)
	scale := r.number("llama.rope.scale_linear", 1)
	switch kind := r.text("llama.rope.scaling.type"); kind {
	case "", "none":
	case "linear":
		scale = r.number("llama.rope.scaling.factor", scale)
	default:
		r.refuse("rope scaling of type %q", kind)
	}
	if r.err != nil {
		return nil
	}
	freqs := kernel.RopeFreqs(c.HeadDim, base)
	factors := make([]float32, len(freqs))
	for i := range factors {
		factors[i] = 1
	}
	if _, ok := r.f.Tensor("rope_freqs.weight"); ok {
		t, ok := r.tensor("rope_freqs.weight", len(freqs))
		if !ok {
			return nil
		}
		if t.Type != gguf.F32 {
			r.refuse("the tensor rope_freqs.weight is stored as %s, not F32", t.Type)
			return nil
		}
		if err := r.f.Read(t, func(b []byte) error { return gguf.Decode(t.Type, b, factors) }); err != nil {
			r.refuse("%v", err)
			return nil
		}
	}
	for i := range freqs {
		f := float64(factors[i])
		if !(f > 0) || math.IsInf(f, 0) {
			r.refuse("the tensor rope_freqs.weight holds %v", factors[i])
			return nil
		}
		freqs[i] /= scale * f
	}
	return freqs
}
