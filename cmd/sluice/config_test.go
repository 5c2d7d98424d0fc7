package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sluice runs the program in this process and gives what it wrote to its standard output, its error and its exit code.
func sluice(args ...string) (string, string, int) {
	root := rootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return out.String(), "", 0
	}
	var exit exitError
	if errors.As(err, &exit) {
		return out.String(), err.Error(), exit.code
	}
	return out.String(), err.Error(), 1
}

// A deploy script whose command is spelled wrong must not pass.
func TestAWrongCommandFails(t *testing.T) {
	for words, want := range map[string]string{
		"chekc":            `sluice has no command "chekc"; did you mean "check"?`,
		"nothing":          `sluice has no command "nothing"`,
		"config chek":      `sluice config has no command "chek"; did you mean "check"?`,
		"advisories show2": `sluice advisories has no command "show2"; did you mean "show"?`,
	} {
		if _, err, code := sluice(strings.Fields(words)...); code != 3 || err != want {
			t.Errorf("%s: exit %d, %q, want %q", words, code, err, want)
		}
	}
	if out, err, code := sluice(); code != 0 || err != "" || !strings.Contains(out, "sluice serve") {
		t.Errorf("without a command: exit %d, %q\n%s", code, err, out)
	}
}

// What a command would refuse, config check refuses, with the line.
func TestConfigCheckReadsValues(t *testing.T) {
	for text, want := range map[string]string{
		"kv_memory: 5XB\n":                         ":1: kv_memory: ",
		"listen: 127.0.0.1:1\nkv_memory: 0\n":      ":2: kv_memory: ",
		"max_body: big\n":                          ":1: max_body: ",
		"page_tokens: 48\n":                        ":1: page_tokens: ",
		"page_tokens: 65600\n":                     ":1: page_tokens: ",
		"context: -5\n":                            ":1: context: ",
		"threads: -1\n":                            ":1: threads: ",
		"listen: nowhere\n":                        ":1: listen: ",
		"admin: nowhere\n":                         ":1: admin: ",
		"log_level: loud\n":                        ":1: log_level: ",
		"request_timeout: -5s\n":                   ":1: request_timeout: ",
		"drain_timeout: soon\n":                    ":1: drain_timeout: ",
		"role: both\n":                             ":1: role: ",
		"role: decode\ndata: x\n":                  ":2: data: ",
		"context: 8192\nprefill_kv_tokens: 4096\n": "raise --prefill-kv-tokens to at least 8192",
		"role: decode\ncontext: 8192\ndecode_kv_tokens: 4096\n":                "raise --decode-kv-tokens to at least 8192",
		"role: decode\ncontext: 100\npage_tokens: 64\ndecode_kv_tokens: 100\n": "holds 64 tokens but the context is 100",
	} {
		if _, err, code := sluice("config", "check", written(t, text)); code != 3 || !strings.Contains(err, want) {
			t.Errorf("%q: exit %d, %q, want %q", text, code, err, want)
		}
	}
	for _, text := range []string{
		"kv_memory: 1.5GiB\nmax_body: 1000\npage_tokens: 128\ncontext: 4096\nadmin: \"\"\nlog_level: warn\nrequest_timeout: 5m\n",
		"context: 8192\nprefill_kv_tokens: 4096\nserve_smaller_context: true\n",
		"role: prefill\ncontext: 8192\ndecode_kv_tokens: 4096\n", // another process's
	} {
		if out, err, code := sluice("config", "check", written(t, text)); code != 0 || !strings.Contains(out, "a good file") {
			t.Errorf("%q: exit %d, %q", text, code, err)
		}
	}
}

func written(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}
