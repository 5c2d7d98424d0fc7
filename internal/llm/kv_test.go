package llm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/kernel"
	"github.com/sluicekv/sluice/internal/page"
)

// memory is a KV over ordinary memory: pages in any order, with whatever they hold.
type memory struct {
	g     page.Geometry
	raw   [][]byte
	pages []kernel.Page
	from  int // positions below it may not be written
}

func newMemory(m *Model, pageTokens, tokens int) *memory {
	k := &memory{g: m.Geometry(pageTokens)}
	for range k.g.Pages(tokens) {
		k.raw = append(k.raw, make([]byte, k.g.Bytes()))
	}
	k.point()
	return k
}

// point takes the pages' addresses again after raw was changed.
func (k *memory) point() {
	k.pages = k.pages[:0]
	for _, b := range k.raw {
		k.pages = append(k.pages, kernel.PageAt(unsafe.Pointer(&b[0])))
	}
}

func (k *memory) Pages() []kernel.Page { return k.pages }
func (k *memory) PageTokens() int      { return int(k.g.Tokens) }
func (k *memory) Slot(pos int) kernel.Slot {
	if pos < k.from {
		panic("a position that may not be written")
	}
	n := int(k.g.Tokens)
	return kernel.SlotAt(unsafe.Pointer(&k.raw[pos/n][0]), pos%n)
}

// shape of a random model.
type shape struct {
	dim, layers, heads, kvHeads, headDim, ff, vocab int
	types                                           map[string]gguf.Type // of a matrix, by the last part of its name; "" for the rest
	untied                                          bool
	freqFactors                                     bool
	linear                                          float32
	base                                            float64 // of the rotary embedding
}

var tiny = shape{dim: 64, layers: 2, heads: 4, kvHeads: 2, headDim: 16, ff: 96, vocab: 80, base: 500}

// file writes a random model. extra may add to it or, by writing first, get in the way.
func (s shape) file(t testing.TB, seed uint64, extra ...func(*gguf.Writer)) *gguf.File {
	t.Helper()
	var w gguf.Writer
	s.metadata(&w)
	for _, e := range extra {
		e(&w)
	}
	s.tensors(&w, seed)
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

func (s shape) metadata(w *gguf.Writer) {
	w.String("general.architecture", "llama")
	w.String("general.name", "random")
	w.Uint32("llama.block_count", uint32(s.layers))
	w.Uint32("llama.context_length", 4096)
	w.Uint32("llama.embedding_length", uint32(s.dim))
	w.Uint32("llama.feed_forward_length", uint32(s.ff))
	w.Uint32("llama.attention.head_count", uint32(s.heads))
	w.Uint32("llama.attention.head_count_kv", uint32(s.kvHeads))
	if s.headDim != s.dim/s.heads {
		w.Uint32("llama.attention.key_length", uint32(s.headDim))
		w.Uint32("llama.attention.value_length", uint32(s.headDim))
	}
	w.Float32("llama.rope.freq_base", float32(s.base))
	w.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
	w.Uint32("tokenizer.ggml.eos_token_id", 3)
	if s.linear != 0 {
		w.String("llama.rope.scaling.type", "linear")
		w.Float32("llama.rope.scaling.factor", s.linear)
	}
}

func (s shape) tensors(w *gguf.Writer, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	put := func(kind, name string, in, out int, scale float64) {
		v := make([]float32, in*out)
		for i := range v {
			v[i] = float32(r.NormFloat64() * scale)
		}
		typ, ok := s.types[kind]
		if !ok {
			typ = s.types[""]
		}
		w.Tensor(name, typ, []uint64{uint64(in), uint64(out)}, v)
	}
	vec := func(name string, n int) {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(1 + r.NormFloat64()/5)
		}
		w.Tensor(name, gguf.F32, []uint64{uint64(n)}, v)
	}
	put("token_embd", "token_embd.weight", s.dim, s.vocab, 1)
	for l := range s.layers {
		n := "blk." + string(rune('0'+l)) + "."
		q, kv := s.heads*s.headDim, s.kvHeads*s.headDim
		vec(n+"attn_norm.weight", s.dim)
		put("attn_q", n+"attn_q.weight", s.dim, q, 0.14)
		put("attn_k", n+"attn_k.weight", s.dim, kv, 0.14)
		put("attn_v", n+"attn_v.weight", s.dim, kv, 0.15)
		put("attn_output", n+"attn_output.weight", q, s.dim, 0.15)
		vec(n+"ffn_norm.weight", s.dim)
		put("ffn_gate", n+"ffn_gate.weight", s.dim, s.ff, 0.15)
		put("ffn_up", n+"ffn_up.weight", s.dim, s.ff, 0.15)
		put("ffn_down", n+"ffn_down.weight", s.ff, s.dim, 0.15)
	}
	vec("output_norm.weight", s.dim)
	if s.untied {
		put("output", "output.weight", s.dim, s.vocab, 0.3)
	}
	if s.freqFactors {
		v := make([]float32, s.headDim/2)
		for i := range v {
			v[i] = 1 + float32(i)
		}
		w.Tensor("rope_freqs.weight", gguf.F32, []uint64{uint64(len(v))}, v)
	}
}

func load(t testing.TB, f *gguf.File) *Model {
	t.Helper()
	m, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newRunner(t testing.TB, m *Model, opt RunnerOptions) *CPU {
	r := NewRunner(m, opt)
	t.Cleanup(r.Close)
	return r
}

// prefill runs tokens in chunks from position pos on and returns the last one's logits.
func prefill(t testing.TB, r *CPU, kv KV, tokens []int32, pos, chunk int) []float32 {
	t.Helper()
	logits := make([]float32, r.m.cfg.Vocab)
	for len(tokens) > 0 {
		n := min(chunk, len(tokens))
		c := Chunk{Tokens: tokens[:n], Pos: pos, KV: kv}
		if n == len(tokens) {
			c.Logits = logits
		}
		if err := r.Forward([]Chunk{c}); err != nil {
			t.Fatal(err)
		}
		tokens, pos = tokens[n:], pos+n
	}
	return logits
}

// generate continues after prefill: n tokens, or fewer if one ends the reply (it is kept).
func generate(t testing.TB, r *CPU, kv KV, logits []float32, pos, n int) (reply []int32) {
	t.Helper()
	for {
		id := argmax(logits)
		reply = append(reply, id)
		if len(reply) == n || slices.Contains(r.m.cfg.EOS, id) {
			return reply
		}
		logits = prefill(t, r, kv, []int32{id}, pos, 1)
		pos++
	}
}

func argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

func randomTokens(n, vocab int, seed uint64) []int32 {
	r := rand.New(rand.NewPCG(seed, 2))
	t := make([]int32, n)
	for i := range t {
		t[i] = int32(r.IntN(vocab))
	}
	return t
}
