// Package checkpoint writes the copying model (internal/llm/recall) in the form that other engines load: a Llama checkpoint with
// safetensors, a tokenizer of bytes and a chat template. What such an engine answers shows whose KV it read.
package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/llm/recall"
)

// Options of a checkpoint. The zero value is the model as it is.
type Options struct {
	// MinMatch as in recall.Config. -1: it never says that a text ends, so a leak cannot be hidden by silence.
	MinMatch int
	// BeginIsZero exchanges token 0 with the token that begins a text, as in some published vocabularies. An engine that puts token 0
	// in the place of a prompt that it refused then computes the beginning of a text, and what is decoded from there is what lies in
	// the pages behind it.
	BeginIsZero bool
	Context     int // longest sequence, in tokens; 0: 131072
}

// tensors of one layer, by their names in a GGUF file.
var layer = map[string]string{
	"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
	"attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

type tensor struct {
	name  string
	shape []uint64 // rows, columns
	data  []byte   // float32, little endian
}

// Write makes the checkpoint in dir, which is made if it is not there.
func Write(dir string, o Options) error {
	if o.Context == 0 {
		o.Context = 1 << 17
	}
	f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: o.MinMatch, F32: true}))
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	x := export{file: f, begin: recall.BOS}
	if o.BeginIsZero {
		x.begin = 0
	}
	if err := x.read(); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	files, err := x.files(o.Context)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	return nil
}

type export struct {
	file    *gguf.File
	begin   int // the id that begins a text
	tensors []tensor
}

// read takes the weights, in the other form's names and order of rows.
func (x *export) read() error {
	for _, t := range x.file.Tensors() {
		out := tensor{shape: slices.Clone(t.Dims)}
		slices.Reverse(out.shape)
		if err := x.file.Read(t, func(b []byte) error { out.data = bytes.Clone(b); return nil }); err != nil {
			return err
		}
		name := strings.TrimSuffix(t.Name, ".weight")
		switch name {
		case "token_embd":
			out.name = "model.embed_tokens"
			out.exchange(x.begin, recall.BOS)
		case "output_norm":
			out.name = "model.norm"
		default:
			parts := strings.Split(name, ".")
			if len(parts) != 3 || layer[parts[2]] == "" {
				return fmt.Errorf("tensor %s is not known", t.Name)
			}
			out.name = "model.layers." + parts[1] + "." + layer[parts[2]]
			if parts[2] == "attn_q" || parts[2] == "attn_k" {
				out.unpair()
			}
		}
		out.name += ".weight"
		x.tensors = append(x.tensors, out)
	}
	slices.SortFunc(x.tensors, func(a, b tensor) int { return strings.Compare(a.name, b.name) })
	return nil
}

func (t *tensor) row(i int) []byte {
	n := int(t.shape[1]) * 4
	return t.data[i*n : (i+1)*n]
}

// exchange two rows.
func (t *tensor) exchange(i, j int) {
	a := bytes.Clone(t.row(i))
	copy(t.row(i), t.row(j))
	copy(t.row(j), a)
}

// unpair puts the dimensions of each head that turn together half a head apart: there, not side by side, the other form has them.
func (t *tensor) unpair() {
	out := make([]byte, 0, len(t.data))
	for h := 0; h < int(t.shape[0]); h += recall.HeadDim {
		for first := range 2 {
			for d := first; d < recall.HeadDim; d += 2 {
				out = append(out, t.row(h+d)...)
			}
		}
	}
	t.data = out
}

// files of the checkpoint, by name.
func (x *export) files(context int) (map[string][]byte, error) {
	base, err1 := x.file.Float("llama.rope.freq_base")
	eps, err2 := x.file.Float("llama.attention.layer_norm_rms_epsilon")
	template, err3 := x.file.String("tokenizer.chat_template")
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, err
		}
	}
	spelling, tokenizer, err := x.tokenizer()
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{"model.safetensors": x.safetensors()}
	for name, v := range map[string]any{
		"config.json": map[string]any{
			"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "vocab_size": recall.Vocab, "max_position_embeddings": context,
			"hidden_size": recall.Dim, "intermediate_size": recall.FF, "num_hidden_layers": recall.Blocks, "num_attention_heads": recall.Heads,
			"num_key_value_heads": recall.KVHeads, "head_dim": recall.HeadDim, "hidden_act": "silu", "rms_norm_eps": short(float32(eps)),
			"rope_theta": short(float32(base)), "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": short(float32(base))},
			"attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false, "tie_word_embeddings": true, "initializer_range": 0.02,
			"bos_token_id": x.begin, "eos_token_id": recall.EOS, "pad_token_id": recall.Pad, "dtype": "float32", "torch_dtype": "float32", "use_cache": true,
		},
		"generation_config.json": map[string]any{"bos_token_id": x.begin, "eos_token_id": recall.EOS, "pad_token_id": recall.Pad, "do_sample": false},
		"tokenizer.json":         tokenizer,
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": spelling[recall.BOS], "eos_token": spelling[recall.EOS], "pad_token": spelling[recall.Pad],
			"model_max_length": context, "clean_up_tokenization_spaces": false, "chat_template": template,
		},
	} {
		if out[name], err = marshal(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// short is a float32 as a number of the same few digits.
func short(v float32) json.Number {
	b, _ := json.Marshal(v)
	return json.Number(b)
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// tokenizer of bytes: without merges every byte of a text is a token. spelling is by the model's own ids.
func (x *export) tokenizer() (spelling []string, file any, err error) {
	if spelling, err = x.file.Strings("tokenizer.ggml.tokens"); err != nil {
		return nil, nil, err
	}
	id := func(t int) int {
		switch t {
		case x.begin:
			return recall.BOS
		case recall.BOS:
			return x.begin
		}
		return t
	}
	vocabulary := map[string]int{}
	type added struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	}
	var specials []added
	for t, s := range spelling {
		if t >= recall.BOS {
			specials = append(specials, added{ID: id(t), Content: s, Special: true})
		}
		// Specials need no entry, but one whose id is among the bytes' would leave a hole.
		if t < recall.BOS || id(t) < recall.BOS {
			vocabulary[s] = id(t)
		}
	}
	slices.SortFunc(specials, func(a, b added) int { return a.ID - b.ID })
	begin := spelling[recall.BOS]
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	special := map[string]any{"SpecialToken": map[string]any{"id": begin, "type_id": 0}}
	sequence := func(s string, n int) any { return map[string]any{"Sequence": map[string]any{"id": s, "type_id": n}} }
	return spelling, map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": specials, "normalizer": nil, "pre_tokenizer": level, "decoder": level,
		"post_processor": map[string]any{
			"type": "TemplateProcessing", "single": []any{special, sequence("A", 0)}, "pair": []any{special, sequence("A", 0), sequence("B", 1)},
			"special_tokens": map[string]any{begin: map[string]any{"id": begin, "ids": []int{x.begin}, "tokens": []string{begin}}},
		},
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil, "fuse_unk": false,
			"byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": []string{},
		},
	}, nil
}

// safetensors is the weights' file: the length of a head, the head (JSON: where each tensor lies), the tensors.
func (x *export) safetensors() []byte {
	head := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	at := 0
	for _, t := range x.tensors {
		head[t.name] = map[string]any{"dtype": "F32", "shape": t.shape, "data_offsets": [2]int{at, at + len(t.data)}}
		at += len(t.data)
	}
	h, _ := json.Marshal(head) // maps of strings and numbers
	h = append(h, bytes.Repeat([]byte(" "), -len(h)&7)...)
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(h)+at), uint64(len(h)))
	out = append(out, h...)
	for _, t := range x.tensors {
		out = append(out, t.data...)
	}
	return out
}
