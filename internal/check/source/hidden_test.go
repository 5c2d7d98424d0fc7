package source

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/check/facts"
)

// These are places in which a small pool could hide: each passed once.

func TestASecondNodeInAListIsRead(t *testing.T) {
	const a = `{"model_path":"m","context_length":131072,"tp_size":8,"page_size":64,"disaggregation_mode":"prefill","max_total_num_tokens":500000}`
	b := strings.Replace(a, "500000", "100000", 1)
	for name, text := range map[string]string{"one line": "[" + a + "," + b + "]", "indented": "[\n  " + a + ",\n  " + b + "\n]\n"} {
		t.Run(name, func(t *testing.T) {
			wantNodes(t, readLog(t, "p.json", text), "p/1 sglang prefill pool 500000 context 131072 page 64", "p/2 sglang prefill pool 100000 context 131072 page 64")
		})
	}
	inv := readLog(t, "p.json", "["+a+`,{"detail":"Not Found"}]`)
	if len(inv.Problems) != 1 || !inv.Problems[0].Blind {
		t.Errorf("an error among the answers: %v", inv.Problems)
	}
}

func TestEverySummaryOfALineIsRead(t *testing.T) {
	bad := strings.Replace(poolP, "681280", "100000", 1)
	wantNodes(t, readLog(t, "n.log", poolD+" "+bad+"\n"), "n/1 sglang  pool 2040000 context 1048576 page 0", "n/2 sglang  pool 100000 context 1048576 page 0")
}

func TestRanksOfInternalStatesCount(t *testing.T) {
	wantNodes(t, readLog(t, "p.json", `{"context_length":131072,"tp_size":8,"disaggregation_mode":"prefill","max_total_num_tokens":500000,"internal_states":[{"max_total_num_tokens":500000},{"max_total_num_tokens":100000}]}`),
		"p sglang prefill pool 100000 context 131072 page 0")
}

func TestRanksOfContextParallelismAreOneNode(t *testing.T) {
	rank := func(cp, pool string) string {
		return strings.Replace(strings.Replace(poolP, " TP0]", " ATTN_CP"+cp+" TP"+cp+"]", 1), "681280", pool, 1)
	}
	wantNodes(t, readLog(t, "n.log", lines(argsP, rank("0", "2000000"), rank("1", "1000000"))), "n sglang prefill pool 1000000 context 1048576 page 64")
}

func TestAContextAtACutEndIsNotBelieved(t *testing.T) {
	cut, _, _ := strings.Cut(poolP, "8576, available")
	inv := readLog(t, "n.log", lines(argsP)+cut) // context_len=104
	wantNodes(t, inv, "n sglang prefill pool 681280 context 1048576 page 64")
	inv = readLog(t, "n.log", cut) // no arguments
	if len(inv.Nodes) != 1 || len(inv.Nodes[0].Notes) != 1 || !inv.Nodes[0].Notes[0].Blind {
		t.Errorf("a cut context without arguments passes: %+v", inv.Nodes)
	}
	inv = readLog(t, "n.log", cut+"8576, available_gpu_mem=11.42 GB") // whole, without a line end
	if len(inv.Nodes) != 1 || len(inv.Nodes[0].Notes) != 0 {
		t.Errorf("a whole line is doubted: %+v", inv.Nodes)
	}
}

func TestLogsOfNodesAlikePutTogetherAreNoRestart(t *testing.T) {
	later := func(s, by string) string { return strings.Replace(s, "10:00:", by, 1) }
	bad := strings.Replace(poolP, "681280", "100000", 1)
	other := strings.Replace(strings.Replace(argsP, "10:00:01", "10:00:03", 1), "10:00:00", "10:00:03", 1)
	wantNodes(t, readLog(t, "p.log", lines(argsP, bad, readyUp, other, poolP, readyUp)),
		"p/prefill#1 sglang prefill pool 100000 context 1048576 page 64", "p/prefill#2 sglang prefill pool 681280 context 1048576 page 64")
	wantNodes(t, readLog(t, "p.log", lines(argsP, bad, readyUp, later(argsP, "11:00:"), later(poolP, "11:00:"))), "p sglang prefill pool 681280 context 1048576 page 64")
	v := func(sec, pool string) string {
		return lines("INFO 02-19 23:56:"+sec+" [api_server.py:1] vLLM API server version 0.11.0", "INFO 02-19 23:56:"+sec+" [utils.py:1] non-default args: {'model': 'm', 'max_model_len': 2048, 'port': 8000}",
			"INFO 02-19 23:56:55 [kv_cache_utils.py:1] GPU KV cache size: "+pool+" tokens", "INFO 02-19 23:56:55 [kv_cache_utils.py:2] Maximum concurrency for 2,048 tokens per request: 10.00x")
	}
	wantNodes(t, readLog(t, "v.log", v("10", "1,024")+v("12", "4,096")), "v/1 vllm both pool 1024 context 2048 page 0", "v/2 vllm both pool 4096 context 2048 page 0")
}

func TestLaunchesWithoutNumbersAreNodes(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		launch     bool
	}{
		"an array of arguments": {"start.sh", "ARGS=(--context-length 131072)\npython -m sglang.launch_server \"${ARGS[@]}\"\n", true},
		"an image's own start":  {"p.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: \"acme/sglang:v0.5.19\"}]}\n", true},
		"a script elsewhere":    {"p.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: \"acme/sglang:v0.5.19\", command: [bash, /start.sh]}]}\n", true},
		"a download":            {"p.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: \"acme/sglang:v0.5.19\", command: [hf, download, m]}]}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, c.file, c.text)
			if len(inv.Nodes) != 1 || inv.Nodes[0].Launch != c.launch {
				t.Errorf("%+v, %v", inv.Nodes, inv.Problems)
			}
		})
	}
}

func TestAnchorsAndShellVariablesAreFollowed(t *testing.T) {
	const want = "p sglang both pool 0 context 131072 page 0"
	for name, text := range map[string]string{
		"an alias":     "x: &a [--context-length, '131072', --max-total-tokens, '100000']\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: 'acme/sglang:v0.5.19', command: [python3, -m, sglang.launch_server], args: *a}]}\n",
		"a merge key":  "x: &a\n  image: acme/sglang:v0.5.19\n  command: python3 -m sglang.launch_server --context-length 131072 --max-total-tokens 100000\nservices:\n  p:\n    <<: *a\n    ports: []\n",
		"a shell":      "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - image: acme/sglang:v0.5.19\n    command: [bash, -c]\n    args:\n    - |\n      export CTX=131072\n      POOL=${POOL:-100000}\n      python3 -m sglang.launch_server --context-length $CTX --max-total-tokens ${POOL}\n",
		"itself again": "x: &a\n  <<: *a\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{image: 'acme/sglang:v0.5.19', args: [--context-length, '131072', --max-total-tokens, '100000']}]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, "p.yaml", text)
			for _, n := range inv.Nodes {
				if n.Name == "p" && brief(n) == want && n.Int(facts.PoolCap) == 100000 {
					return
				}
			}
			if name == "itself again" && len(inv.Problems) > 0 { // refused by the YAML package
				return
			}
			for _, n := range inv.Nodes {
				t.Errorf("%s, cap %d", brief(n), n.Int(facts.PoolCap))
			}
			t.Errorf("problems %v", inv.Problems)
		})
	}
}

func TestLengthsWithAPoint(t *testing.T) {
	for in, want := range map[string]string{"131.072k": "131072", "25.6k": "25600", "681280.0": "681280", "1.5K": "1536", "1.5": "", "1.x": ""} {
		if got := wholeNumber(in); got != want {
			t.Errorf("%s is %q, want %q", in, got, want)
		}
	}
}

func TestMachinesOfOneNodeInOneLog(t *testing.T) {
	machine := func(rank string) string {
		return strings.Replace(argsP, "'page_size'", "'nnodes': 2, 'node_rank': "+rank+", 'page_size'", 1)
	}
	inv := readLog(t, "n.log", lines(machine("0"), machine("1"), poolP))
	for _, n := range inv.Nodes {
		if want := map[string]int{"": 681280, "0": 681280, "1": 0}[n.Text(facts.NodeRank)]; n.Int(facts.Pool) != want || len(n.Notes) > 0 {
			t.Errorf("machine %q has pool %d, want %d; %v", n.Text(facts.NodeRank), n.Int(facts.Pool), want, n.Notes)
		}
	}
}

func TestALogWithAHoleIsRead(t *testing.T) {
	wantNodes(t, readLog(t, "n.log", strings.Repeat("\x00", 3000)+lines(argsP, poolP)), "n sglang prefill pool 681280 context 1048576 page 64")
	if inv := readLog(t, "n.log", lines(argsP)+"\x00"+lines(poolP)); len(inv.Nodes) == 0 && len(inv.Problems) == 0 {
		t.Error("passed over")
	}
}

func TestASidecarAmongInitContainersIsRead(t *testing.T) {
	pod := func(policy string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  initContainers:\n  - {name: e, image: 'acme/sglang:v0.5.19', " + policy + "args: [--context-length, '8192']}\n  containers: [{name: c, image: 'busybox:1'}]\n"
	}
	wantNodes(t, readLog(t, "p.yaml", pod("restartPolicy: Always, ")), "p sglang both pool 0 context 8192 page 0")
	wantNodes(t, readLog(t, "p.yaml", pod("")))
}

func TestMergeKeysWithoutEndTakeNoTime(t *testing.T) {
	text := "a0: &a0 {x: 1}\n"
	for i := 1; i < 12; i++ { // each merges the last one thirty times
		text += fmt.Sprintf("a%d: &a%d\n  <<: [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 30), ", "))
	}
	begin := time.Now()
	readLog(t, "p.yaml", text+"apiVersion: v1\n")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("took %s", d)
	}
}

func TestMetricsBehindALogAreRead(t *testing.T) {
	wantNodes(t, readLog(t, "n.log", lines(argsP, poolD, readyUp)+"# HELP x\nsglang:max_total_num_tokens{tp_rank=\"0\"} 100000.0\n"), "n sglang prefill pool 100000 context 1048576 page 64")
	wantNodes(t, readLog(t, "n.log", lines("INFO 02-19 23:56:55 [k.py:2] Maximum concurrency for 2,048 tokens per request: 10.00x", `vllm:cache_config_info{block_size="16",num_gpu_blocks="64"} 1.0`)),
		"n vllm  pool 1024 context 2048 page 16")
}
