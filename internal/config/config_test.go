package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

type settings struct {
	listen string
	tokens int
	small  bool
	urls   []string
}

func flags() (*pflag.FlagSet, *settings) {
	var s settings
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	fs.StringVar(&s.listen, "listen", "127.0.0.1:8080", "")
	fs.IntVar(&s.tokens, "decode-kv-tokens", 0, "")
	fs.BoolVar(&s.small, "serve-smaller-context", false, "")
	fs.StringSliceVar(&s.urls, "url", nil, "")
	fs.String("config", "", "")
	return fs, &s
}

func write(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPrecedenceIsFlagThenEnvironmentThenFile(t *testing.T) {
	file := write(t, "listen: file:1\ndecode_kv_tokens: 1\nserve_smaller_context: true\nurl: [a, b]\n")
	t.Setenv("SLUICE_DECODE_KV_TOKENS", "2")
	t.Setenv("SLUICE_LISTEN", "env:1")
	fs, s := flags()
	if err := fs.Parse([]string{"--listen", "flag:1"}); err != nil {
		t.Fatal(err)
	}
	if err := Load(fs, file, nil, "config"); err != nil {
		t.Fatal(err)
	}
	if s.listen != "flag:1" || s.tokens != 2 || !s.small || strings.Join(s.urls, "+") != "a+b" {
		t.Fatalf("%+v", *s)
	}
}

func TestMistakesNameTheirLine(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":  {"listen: x\n\ndecode_kv_token: 5\n", `:3: unknown key "decode_kv_token"; did you mean "decode_kv_tokens"?`},
		"dashes":       {"decode-kv-tokens: 5\n", `:1: unknown key "decode-kv-tokens"; did you mean "decode_kv_tokens"?`},
		"config":       {"config: x\n", `unknown key "config"`},
		"wrong type":   {"# hello\ndecode_kv_tokens: many\n", ":2: decode_kv_tokens: "},
		"mapping":      {"listen: {a: b}\n", ":1: listen: must be a value"},
		"twice":        {"listen: a\nlisten: b\n", ":2: "},
		"not a map":    {"- a\n", ":1: the top of the file must be a mapping"},
		"two docs":     {"listen: a\n---\nlisten: b\n", "more than one document"},
		"no value":     {"listen:\n", ":1: listen: no value"},
		"broken":       {"listen: [a\n", "line 1"},
		"section":      {"models:\n  - name: a\n    engin: x\n", `:3: unknown key "engin"; did you mean "engine"?`},
		"section list": {"models: 7\n", ":1: must be a list"},
		"section type": {"models:\n  - name: a\n    pages: lots\n", ":3: "},
	} {
		t.Run(name, func(t *testing.T) {
			fs, s := flags()
			var models []struct {
				Name   string `yaml:"name"`
				Engine string `yaml:"engine"`
				Pages  int    `yaml:"pages"`
			}
			err := Load(fs, write(t, c.text), map[string]Section{"models": func(n *yaml.Node) error { return Strict(n, &models) }}, "config")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v\nwant %s", err, c.want)
			}
			if s.listen != "127.0.0.1:8080" {
				t.Errorf("a file with a mistake changed a setting: %q", s.listen)
			}
		})
	}
}

func TestAnEnvironmentMistakeNamesTheVariable(t *testing.T) {
	t.Setenv("SLUICE_DECODE_KV_TOKENS", "x")
	fs, _ := flags()
	if err := Load(fs, "", nil, "config"); err == nil || !strings.Contains(err.Error(), "SLUICE_DECODE_KV_TOKENS") {
		t.Fatal(err)
	}
}

func TestAnEmptyFileIsNoMistake(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n"} {
		fs, _ := flags()
		if err := Load(fs, write(t, text), nil, "config"); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("a: 1\nb: [x, y]\n"))
	f.Add([]byte("models:\n - {name: a}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := ParseBytes("f", b)
		if err != nil || n == nil {
			return
		}
		var m struct {
			Models []struct {
				Name string `yaml:"name"`
			} `yaml:"models"`
		}
		_ = Strict(n, &m)
		fs, _ := flags()
		_ = loadNode(fs, "f", n, nil, map[string]bool{}, nil)
	})
}

// A device has no size to ask for, and no end.
func TestAFileWithoutEndIsRefused(t *testing.T) {
	if _, err := Parse("/dev/zero"); err == nil || !strings.Contains(err.Error(), "at most 4194304 bytes") {
		t.Fatal(err)
	}
}
