package fit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/gguf"
)

const (
	// The shapes of public configurations: grouped heads, one latent row, windows in three of four layers.
	grouped = `{"architectures":["Qwen3ForCausalLM"],"num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"hidden_size":4096,"max_position_embeddings":40960,"torch_dtype":"bfloat16"}`
	latent  = `{"architectures":["DeepseekV3ForCausalLM"],"num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,"kv_lora_rank":512,"qk_rope_head_dim":64,"v_head_dim":128,"hidden_size":7168,"max_position_embeddings":163840}`
	windows = `{"architectures":["X"],"num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":64,"hidden_size":512,"layer_types":["sliding_attention","sliding_attention","sliding_attention","full_attention"],"sliding_window":1024}`
)

func TestBytesOfOneToken(t *testing.T) {
	for name, c := range map[string]struct {
		config   string
		elem, tp int
		want     int
	}{
		"grouped":        {grouped, 2, 1, 36 * 8 * 256 * 2},
		"grouped, split": {grouped, 2, 4, 36 * 2 * 256 * 2},
		"grouped, wide":  {grouped, 2, 16, 36 * 1 * 256 * 2}, // a rank keeps at least one head
		"grouped, FP8":   {grouped, 1, 1, 36 * 8 * 256},
		"latent":         {latent, 2, 1, 61 * 576 * 2},
		"latent, split":  {latent, 2, 8, 61 * 576 * 2}, // on every rank
		"windows":        {windows, 2, 1, 1 * 4 * 128 * 2},
		"nested":         {`{"text_config":` + grouped + `}`, 2, 1, 36 * 8 * 256 * 2},
		"old names":      {`{"n_layer":2,"num_attention_heads":4,"hidden_size":32}`, 2, 1, 2 * 4 * 16 * 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse([]byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			if got, how := s.PerToken(c.elem, c.tp); got != c.want || !strings.Contains(how, "bytes a token") {
				t.Errorf("%d (%s), want %d", got, how, c.want)
			}
		})
	}
}

func TestBadShapesAreErrors(t *testing.T) {
	for _, c := range []string{``, `{}`, `[]`, `{"num_hidden_layers":-1,"num_attention_heads":4,"hidden_size":4}`, `{"num_hidden_layers":1}`,
		`{"num_hidden_layers":1,"num_attention_heads":4,"hidden_size":4,"layer_types":["sliding","sliding"]}`, `{"num_hidden_layers":99999999,"num_attention_heads":4,"hidden_size":4}`} {
		if _, err := Parse([]byte(c)); err == nil {
			t.Errorf("%s is taken", c)
		}
	}
}

func TestAGGUFGivesItsShape(t *testing.T) {
	var w gguf.Writer
	w.String("general.architecture", "llama")
	w.Uint32("llama.block_count", 36)
	w.Uint32("llama.attention.head_count", 32)
	w.Uint32("llama.attention.head_count_kv", 8)
	w.Uint32("llama.embedding_length", 4096)
	w.Uint32("llama.context_length", 40960)
	b, err := w.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(p)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := s.PerToken(2, 1); n != 36*8*256*2 || s.Positions != 40960 {
		t.Errorf("%d bytes, %d positions", n, s.Positions)
	}
}

func incident() Input {
	return Input{Node: capacity.Facts{Engine: "sglang", Role: "prefill", PoolTokens: 681280, Context: 1048576, PageSize: 64, Reserved: 128, DType: "fp8_e4m3"},
		TP: 8, TotalGiB: 138.17, AfterGiB: 48.31, PoolGiB: 30.86, AfterPool: 15.02, FreeGiB: 11.42}
}

func TestTheIncidentsArithmetic(t *testing.T) {
	p := Derive(incident())
	if p.Safe != 681152 {
		t.Errorf("safe %d", p.Safe)
	}
	all := strings.Join(p.Lines, "\n")
	for _, want := range []string{"(pool 681280 - reserve 128) / page 64 x page 64 = 681152: --context-length 681152", "30.86 GiB / 681280 tokens = 48637 bytes",
		"wanted context 1048576 needs 1048704 slots", "1048704 slots x 48637 bytes = 47.50 GiB", "16.64 GiB short"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	// What does not help is said not to: the fraction would leave less than nothing.
	for _, o := range p.Options {
		if strings.HasPrefix(o.Flag, "--mem-fraction-static") && o.Fits {
			t.Errorf("%+v", o)
		}
	}
	last := p.Options[len(p.Options)-1]
	if last.Flag != "--context-length 681152" || !last.Fits {
		t.Errorf("%+v", last)
	}
}

func TestOptionsThatFit(t *testing.T) {
	in := incident()
	in.Want = 750000
	in.Fraction = 0.8
	found := map[string]bool{}
	for _, o := range Derive(in).Options {
		if o.Fits {
			found[strings.Fields(o.Flag)[0]] = true
			if strings.HasPrefix(o.Flag, "--mem-fraction") && o.Flag != "--mem-fraction-static 0.823" { // 0.8 + 3.12 / 138.17, rounded up
				t.Error(o.Flag)
			}
		}
	}
	if !found["--mem-fraction-static"] {
		t.Errorf("%v", found)
	}
	in = incident()
	in.Node.DType = "bfloat16"
	for _, o := range Derive(in).Options {
		if strings.HasPrefix(o.Flag, "--kv-cache-dtype") && (!o.Fits || !strings.Contains(o.How, "1362560 slots")) {
			t.Errorf("%+v", o)
		}
	}
	// What fits needs nothing.
	in = incident()
	in.Want = 600000
	if p := Derive(in); len(p.Options) != 0 || !strings.Contains(p.Lines[len(p.Lines)-1], "holds it") {
		t.Errorf("%+v", p)
	}
}

func TestAShapeAndTheLogAreComparedWhenTheyDiffer(t *testing.T) {
	in := incident()
	s, err := Parse([]byte(latent))
	if err != nil {
		t.Fatal(err)
	}
	in.Shape = &s
	if all := strings.Join(Derive(in).Lines, "\n"); !strings.Contains(all, "the two differ by") {
		t.Error(all)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(grouped))
	f.Add([]byte(latent))
	f.Add([]byte(`{"text_config":{"text_config":{}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err != nil {
			return
		}
		in := incident()
		in.Shape = &s
		Derive(in)
	})
}
