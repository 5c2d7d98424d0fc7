package main

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/llm"
)

func readFleet(t *testing.T, text string) ([]modelEntry, error) {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	var f fleetFile
	err := f.section(n.Content[0])
	return f.models, err
}

func TestAFleetOfAnotherEngine(t *testing.T) {
	ms, err := readFleet(t, `
- name: recall
  engine: sglang
  aliases: [adapter]
  hold: {headers: commit-after, commit_after: 5s}
  workers:
    - {role: prefill, url: "http://127.0.0.1:9101", bootstrap_port: 9102, pool_tokens: 4096, context: 8192}
    - {role: decode,  url: "http://127.0.0.1:9103"}
`)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ms[0].open()
	if err != nil || len(out.Aliases) != 1 || out.Aliases[0] != "adapter" {
		t.Fatalf("%v %v", out, err)
	}
	g := out.Guarded
	w := g.Fleet.Workers[0]
	if g.Fleet.Engine != foreign.SGLang || w.Role != capacity.Prefill || w.BootstrapPort != 9102 || w.PoolTokens != 4096 || w.Context != 8192 || w.URL.Host != "127.0.0.1:9101" || g.Hold.CommitAfter.String() != "5s" {
		t.Errorf("%+v", g)
	}
}

// TestAGatewayNamesTheModelOfItsWorkers: workers that were started with --recall-min-match run another model, and the gateway that names the
// same one has its fingerprint.
func TestAGatewayNamesTheModelOfItsWorkers(t *testing.T) {
	fingerprint := func(line string) [32]byte {
		t.Helper()
		ms, err := readFleet(t, `
- name: recall
  engine: native
`+line+`
  workers:
    - {role: prefill, url: "sluice://127.0.0.1:9101"}
    - {role: decode,  url: "sluice://127.0.0.1:9103"}
`)
		if err != nil {
			t.Fatal(err)
		}
		out, err := ms[0].open()
		if err != nil {
			t.Fatal(err)
		}
		return out.Fingerprint
	}
	for line, n := range map[string]int{"": 1, "  recall_min_match: 1": 1, "  recall_min_match: 5": 5, "  recall_min_match: -1": -1} {
		f, err := openModel("recall", n)
		if err != nil {
			t.Fatal(err)
		}
		m, err := llm.Load(f.File)
		if err != nil {
			t.Fatal(err)
		}
		if fingerprint(line) != m.Fingerprint() {
			t.Errorf("%q is not the model of a worker with --recall-min-match %d", line, n)
		}
	}
	if _, err := readFleet(t, "\n- {name: x, engine: native, model: a.gguf, recall_min_match: 2, workers: [{role: prefill, url: 'sluice://h:1'}, {role: decode, url: 'sluice://h:2'}]}\n"); err == nil {
		t.Error("another model has a recall_min_match")
	}
}

func TestMistakesOfAFleetAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		`[{name: m, engine: tgi}]`: `engine "tgi"`,
		`[{name: m, engine: sglang, workers: [{role: both, url: "http://h:1"}]}]`:                                                          "must be prefill or decode",
		`[{name: m, engine: sglang, workers: [{role: prefill, url: "http://h:1"}]}]`:                                                       "at least one prefill and one decode",
		`[{name: m, engine: plain, workers: [{role: decode, url: "http://h:1"}]}]`:                                                         "a plain worker is both",
		`[{name: m, engine: plain, workers: [{url: "ftp://h"}]}]`:                                                                          "must be http://",
		`[{name: m, engine: plain, workers: [{url: "http://u:p@h:1"}]}]`:                                                                   "without a user",
		`[{name: m, engine: plain, hold: {headers: never}, workers: [{url: "http://h:1"}]}]`:                                               "strict or commit-after",
		`[{name: m, engine: plain, unknown: maybe, workers: [{url: "http://h:1"}]}]`:                                                       "reject, strip or pass",
		`[{name: m, engine: plain, workers: [{url: "http://h:1", pool: 4}]}]`:                                                              "pool",
		`[{name: m, engine: plain, workers: [{url: "http://h:1"}]}, {name: n, engine: plain, aliases: [m], workers: [{url: "http://h"}]}]`: `two models are called "m"`,
	} {
		if _, err := readFleet(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
