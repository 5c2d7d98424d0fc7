// Package fit derives what fits: the largest safe context of a pool, or what would make a wanted context fit, from a
// model's shapes and the memory figures of a start-up log. Every step is shown as arithmetic that can be redone by hand.
// Pure: no clock, no socket; files are read by Load alone.
package fit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sluicekv/sluice/internal/gguf"
)

// Shape is what of a model decides the size of its KV cache.
type Shape struct {
	Name       string
	Layers     int // that keep KV of every token
	KVHeads    int
	KeyDim     int // a head
	ValueDim   int // a head
	Latent     int // MLA: the compressed row that replaces K and V of all heads; 0 otherwise
	Rope       int // MLA: beside the latent
	Index      int // sparse attention: bytes of index a token and layer
	Positions  int // the longest context the model was made for
	Sliding    int // layers that keep a window only
	Window     int
	Linear     int // layers with a recurrent state, no KV
	TorchBytes int // of the weights' type
}

// maxConfig bounds a config.json, in bytes.
const maxConfig = 16 << 20

// Load reads a model's config.json or a GGUF file.
func Load(file string) (Shape, error) {
	st, err := os.Stat(file)
	if err != nil {
		return Shape{}, err
	}
	if st.IsDir() {
		return Load(file + "/config.json")
	}
	f, err := os.Open(file)
	if err != nil {
		return Shape{}, err
	}
	magic := make([]byte, 4)
	n, _ := f.Read(magic)
	f.Close()
	if bytes.Equal(magic[:n], []byte("GGUF")) {
		g, err := gguf.Open(file)
		if err != nil {
			return Shape{}, err
		}
		s, err := fromGGUF(g)
		return s, errors.Join(err, g.Close())
	}
	if st.Size() > maxConfig {
		return Shape{}, fmt.Errorf("%s: %d bytes; a config.json has at most %d", file, st.Size(), maxConfig)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return Shape{}, err
	}
	s, err := Parse(b)
	if err != nil {
		return s, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// Parse reads a config.json as Hugging Face models have it. A multimodal model's text part counts.
func Parse(b []byte) (Shape, error) {
	var c struct {
		Text          json.RawMessage `json:"text_config"`
		LLM           json.RawMessage `json:"llm_config"`
		Architectures []string        `json:"architectures"`
		ModelType     string          `json:"model_type"`
		Layers        int             `json:"num_hidden_layers"`
		NLayer        int             `json:"n_layer"`
		Heads         int             `json:"num_attention_heads"`
		KVHeads       *int            `json:"num_key_value_heads"`
		HeadDim       *int            `json:"head_dim"`
		VHeadDim      *int            `json:"v_head_dim"`
		Hidden        int             `json:"hidden_size"`
		Latent        *int            `json:"kv_lora_rank"`
		Rope          *int            `json:"qk_rope_head_dim"`
		IndexDim      *int            `json:"index_head_dim"`
		Positions     int             `json:"max_position_embeddings"`
		Window        *int            `json:"sliding_window"`
		UseSliding    *bool           `json:"use_sliding_window"`
		Types         []string        `json:"layer_types"`
		Torch         string          `json:"torch_dtype"`
		DType         string          `json:"dtype"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return Shape{}, err
	}
	for _, inner := range []json.RawMessage{c.Text, c.LLM} {
		if len(inner) > 2 && c.Layers == 0 {
			return Parse(inner)
		}
	}
	s := Shape{Layers: c.Layers, Positions: c.Positions, TorchBytes: 2}
	if s.Layers == 0 {
		s.Layers = c.NLayer
	}
	if len(c.Architectures) > 0 {
		s.Name = c.Architectures[0]
	} else {
		s.Name = c.ModelType
	}
	if strings.Contains(c.Torch+c.DType, "float32") {
		s.TorchBytes = 4
	}
	s.KVHeads = c.Heads
	if c.KVHeads != nil {
		s.KVHeads = *c.KVHeads
	}
	switch {
	case c.HeadDim != nil && *c.HeadDim > 0:
		s.KeyDim = *c.HeadDim
	case c.Heads > 0:
		s.KeyDim = c.Hidden / c.Heads
	}
	s.ValueDim = s.KeyDim
	if c.VHeadDim != nil && c.Latent == nil {
		s.ValueDim = *c.VHeadDim
	}
	if c.Latent != nil && *c.Latent > 0 {
		s.Latent = *c.Latent
		s.Rope = 64
		if c.Rope != nil {
			s.Rope = *c.Rope
		}
		if c.IndexDim != nil {
			s.Index = *c.IndexDim + 4 // FP8 keys and a scale
		}
	}
	for _, t := range c.Types {
		switch {
		case strings.Contains(t, "sliding"):
			s.Sliding++
		case strings.Contains(t, "linear"), strings.Contains(t, "mamba"), strings.Contains(t, "recurrent"):
			s.Linear++
		}
	}
	if s.Sliding+s.Linear > s.Layers {
		return s, errors.New("layer_types lists more layers than num_hidden_layers")
	}
	s.Layers -= s.Sliding + s.Linear
	if c.Window != nil {
		s.Window = *c.Window
	}
	return s, s.check()
}

func (s Shape) check() error {
	const bound = 1 << 24
	for _, f := range []struct {
		name string
		v    int
	}{{"layers", s.Layers}, {"key-value heads", s.KVHeads}, {"head size", s.KeyDim}} {
		if f.v < 0 || f.v > bound || f.v == 0 && s.Latent == 0 || f.name == "layers" && f.v == 0 {
			return fmt.Errorf("its %s are missing or make no sense (%d)", f.name, f.v)
		}
	}
	if s.Latent < 0 || s.Latent > bound || s.Rope < 0 || s.Rope > bound || s.ValueDim < 0 || s.ValueDim > bound {
		return errors.New("its attention sizes make no sense")
	}
	return nil
}

func fromGGUF(g *gguf.File) (Shape, error) {
	arch, err := g.String("general.architecture")
	if err != nil {
		return Shape{}, err
	}
	num := func(key string) int {
		v, err := g.Uint(arch + "." + key)
		if err != nil || v > 1<<24 {
			return 0
		}
		return int(v)
	}
	s := Shape{Name: arch, Layers: num("block_count"), KVHeads: num("attention.head_count_kv"), KeyDim: num("attention.key_length"),
		ValueDim: num("attention.value_length"), Positions: num("context_length"), Latent: num("attention.kv_lora_rank"), TorchBytes: 2}
	heads := num("attention.head_count")
	if s.KVHeads == 0 {
		s.KVHeads = heads
	}
	if s.KeyDim == 0 && heads > 0 {
		s.KeyDim = num("embedding_length") / heads
	}
	if s.ValueDim == 0 {
		s.ValueDim = s.KeyDim
	}
	if s.Latent > 0 {
		s.Rope = num("rope.dimension_count")
	}
	return s, s.check()
}

// PerToken is the bytes of one token's KV on one rank, and the arithmetic.
func (s Shape) PerToken(elem, tp int) (n int, how string) {
	tp = max(tp, 1)
	if s.Latent > 0 { // the latent is not split over ranks
		n = s.Layers * ((s.Latent+s.Rope)*elem + s.Index)
		how = fmt.Sprintf("%d layers x ((%d latent + %d rope) x %d bytes", s.Layers, s.Latent, s.Rope, elem)
		if s.Index > 0 {
			how += fmt.Sprintf(" + %d bytes of index", s.Index)
		}
		return n, how + fmt.Sprintf(") = %d bytes a token, on every rank", n)
	}
	heads := max(s.KVHeads/tp, 1)
	n = s.Layers * heads * (s.KeyDim + s.ValueDim) * elem
	how = fmt.Sprintf("%d layers x %d KV heads", s.Layers, s.KVHeads)
	if tp > 1 {
		how += fmt.Sprintf(" / %d ranks (at least 1)", tp)
	}
	how += fmt.Sprintf(" x (%d + %d) x %d bytes = %d bytes a token", s.KeyDim, s.ValueDim, elem, n)
	if tp > 1 {
		how += " on a rank"
	}
	return n, how
}
