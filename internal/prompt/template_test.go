package prompt

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func rendered(t *testing.T, src string, ls ...line) string {
	t.Helper()
	tm, err := newTemplate(src, map[string]string{"bos_token": "<s>"})
	if err != nil {
		t.Fatalf("%q: %v", src, err)
	}
	s, err := tm.render(ls)
	if err != nil {
		t.Fatalf("%q: %v", src, err)
	}
	return s
}

// Blanks and escapes are Jinja2's. The wanted texts are what jinja2 3.1 prints with trim_blocks and lstrip_blocks.
func TestBlanksAndEscapes(t *testing.T) {
	for src, want := range map[string]string{
		"a\n":                                     "a",
		"a\n\n":                                   "a\n",
		"{% if true %}\nx\n{% endif %}\ny":        "x\ny",
		"{% if true %}{{ 'v' }}\n{% endif %}y":    "v\ny",
		"  {% if true %}\n  x\n  {% endif %}\ny":  "  x\ny",
		"a  {% if true %}b{% endif %}":            "a  b",
		"a \n\t {%- if true -%} \n b {% endif %}": "ab ",
		"{%+ if true %}x{% endif %}":              "x",
		"  {%+ if true %}x{% endif +%}\ny":        "  x\ny",
		"{{ 'a' }}\n{{ 'b' -}}\n c":               "a\nbc",
		"a {#- note -#} b":                        "ab",
		"a\n  {# note #}\nb":                      "a\nb",
		"{% raw %}{{ x }}{% if %}{% endraw %}!":   "{{ x }}{% if %}!",
		"{% raw -%}  {{ x }}  {%- endraw %} z":    "{{ x }} z",
		`{{ "\u00e9\x41\t\r\\\'" }}`:              "\u00e9A\t\r\\'",
		`{{ 'it\'s' ~ "\q" }}`:                    `it's\q`,
		"{{ {'a': {'b': 'c'}}.a.b }}":             "c",
		"{{ '%}' ~ '}}' }}{# }} #}.":              "%}}}.",
		"{{ bos_token }}{% for i in range(2, 8, 3) %}{{ i }},{% endfor %}":                                                             "<s>2,5,",
		"{%- macro f(a, b='!') -%} {{ a }}{{ b }} {%- endmacro -%}\n{{ f('x') }}":                                                      "x!",
		"{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ messages[0]['role'] }}": "1user",
		"{{ tools is none }}{{ add_generation_prompt }}{{ nothing is defined }}":                                                       "TrueTrueFalse",
		"\r\n{% if true %}\r\nx{% endif %}":                                                                                            "\nx",
	} {
		if got := rendered(t, src, line{"user", "hi"}); got != want {
			t.Errorf("%q: got %q, want %q", src, got, want)
		}
	}
}

func TestTemplatesThatCouldRunAwayAreRefused(t *testing.T) {
	for src, want := range map[string]string{
		strings.Repeat("x", maxSource+1):        "bytes",
		"{{ 'x' * 1000000000000 }}":             "multiplies",
		"{{ 2 ** 3 }}":                          "multiplies",
		"{{ " + strings.Repeat("(", 5000) + "1": "",
		"{{ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }}": "nests",
		"{{ " + strings.Repeat("not ", 5000) + "1 }}":                               "nests",
		"{{ " + strings.Repeat("- ", 5000) + "1 }}":                                 "nests",
		strings.Repeat("{% if true %}", 5000):                                       "nests",
		"{% macro f(a=f()) %}{% endmacro %}{{ f() }}":                               "default",
		"{{ 'x }}":    "no end",
		"{{ x":        "no end",
		"{% raw %}":   "no end",
		"{% bogus %}": "",
		"\xff":        "UTF-8",
	} {
		if _, err := newTemplate(src, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", src, err)
		}
	}
}

// A running template is stopped: by time, by steps, by depth; its panics and its size are errors.
func TestRunningTemplatesAreStopped(t *testing.T) {
	for src, want := range map[string]string{
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}":                                                                  "without end",
		"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}":                            "without end",
		"{% for a in range(1000) %}{% for b in range(900) %}{% for c in range(900) %}{% endfor %}{% endfor %}{% endfor %}": "too long",
		"{% for a in range(2000000) %}{% endfor %}":                                                                        "range()",
		"{% for a in range(1, 2, 0) %}{% endfor %}":                                                                        "by 0",
		"{{ range('x') }}": "whole numbers",
		"{% for a in range(100) %}{{ messages[0].content }}{% endfor %}":               "bytes of",
		"{{ messages.append(messages) }}{{ raise_exception('Roles must alternate') }}": `"Roles must alternate"`,
		"{{ raise_exception('secret: ' + messages[0].content) }}":                      "it raised an exception",
		"{{ messages | nofilter }}":                                                    "does not work",
	} {
		tm, err := newTemplate(src, nil)
		if err != nil {
			t.Errorf("%q: %v", src, err)
			continue
		}
		if want == "too long" {
			tm.limit = 100 * time.Millisecond
		}
		var failed *TemplateFailed
		start := time.Now()
		_, err = tm.render([]line{{"user", strings.Repeat("canary ", 20_000)}})
		if !errors.As(err, &failed) || !strings.Contains(failed.Reason, want) {
			t.Errorf("%q: %v", src, err)
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: the error quotes the prompt", src)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%q: took %v", src, took)
		}
	}
}

func TestPanicsOfTheEngineAreErrors(t *testing.T) {
	if err := guarded(func() error { panic("x") }); err == nil {
		t.Error("no error")
	}
}
