package source

import (
	"testing"

	"github.com/sluicekv/sluice/internal/check/facts"
)

func TestLaunchCommandsAreTakenApart(t *testing.T) {
	inv := readLog(t, "start.sh", `#!/bin/bash
# the prefill leg
export SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=1
SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1 python3 -m sglang.launch_server \
  --model-path acme/m --context-length=1048576 \
  --max-total-tokens 681280 --page-size 64 \
  --disaggregation-mode prefill --api-key "s3cret value" --enable-metrics &
docker run --rm -e VLLM_SERVER_DEV_MODE=1 vllm/vllm-openai:v0.11.0 --model acme/v --max-model-len 8k --no-enable-prefix-caching
`)
	if len(inv.Nodes) != 2 {
		t.Fatalf("%d nodes, %v", len(inv.Nodes), inv.Problems)
	}
	byEngine := map[string]*facts.Node{}
	for _, n := range inv.Nodes {
		byEngine[n.Text(facts.Engine)] = n
	}
	p := byEngine["sglang"]
	for k, want := range map[facts.Key]string{facts.Role: "prefill", facts.Context: "1048576", facts.PoolCap: "681280", facts.PageSize: "64", facts.APIKey: "true",
		facts.Metrics: "true", facts.HeaderOverrides: "true", facts.AutoTruncate: "false", facts.PrefixCache: "true", facts.Model: "acme/m"} {
		if got := p.Text(k); got != want {
			t.Errorf("%s = %q, want %q", k, got, want)
		}
	}
	if at := p.At(facts.PoolCap); at.Line != 6 {
		t.Errorf("--max-total-tokens at %s, want line 6", at)
	}
	v := byEngine["vllm"]
	for k, want := range map[facts.Key]string{facts.Version: "0.11.0", facts.Context: "8000", facts.PrefixCache: "false", facts.DevMode: "true", facts.Model: "acme/v"} {
		if got := v.Text(k); got != want {
			t.Errorf("vllm %s = %q, want %q", k, got, want)
		}
	}
}

func TestOtherWaysToStart(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"systemd":      {"n.service", "[Service]\nExecStart=/opt/venv/bin/python -m sglang.launch_server --model-path m --context-length 8192 --max-total-tokens 4096 --disaggregation-mode decode\n", "n sglang decode pool 0 context 8192 page 0"},
		"Dockerfile":   {"Dockerfile", "FROM lmsysorg/sglang:v0.5.19\nCMD [\"python3\", \"-m\", \"sglang.launch_server\", \"--model-path\", \"m\", \"--context-length\", \"8192\"]\n", "Dockerfile sglang both pool 0 context 8192 page 0"},
		"vllm serve":   {"n.cmd", "vllm serve acme/m --max-model-len 8192 --block-size 32 --kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_consumer\"}'\n", "n vllm decode pool 0 context 8192 page 32"},
		"dynamo":       {"n.sh", "export CTX=131072\npython3 -m dynamo.sglang --model-path /m --context-length $CTX --disaggregation-mode prefill --page-size 64\n", "n sglang prefill pool 0 context 131072 page 64"},
		"dynamo vllm":  {"n.sh", "python3 -m dynamo.vllm --model m --max_model_len 8192 --is-prefill-worker\n", "n vllm prefill pool 0 context 8192 page 0"},
		"sglang serve": {"n.cmd", "sglang serve --model-path m --context-length 8192\n", "n sglang both pool 0 context 8192 page 0"},
	} {
		t.Run(name, func(t *testing.T) { wantNodes(t, readLog(t, c.file, c.text), c.want) })
	}
}

func TestImagesNameReleases(t *testing.T) {
	for image, want := range map[string]string{
		"lmsysorg/sglang:v0.5.19": "0.5.19", "lmsysorg/sglang:v0.5.19-cu126": "0.5.19", "lmsysorg/sglang:latest": "latest", "vllm/vllm-openai:v0.11.0": "0.11.0",
		"registry.local:5000/vllm/vllm-openai:v0.8.5.post1": "0.8.5.post1", "lmsysorg/sglang": "", "lmsysorg/sglang@sha256:abc": "",
		"lmsysorg/sglang:nightly-dev-20261101": "nightly-dev-20261101", "lmsysorg/sglang:v0.5.19-acme": "0.5.19",
	} {
		n := &facts.Node{}
		applyImage(n, imageEngine(image), image, facts.Source{Name: "f"})
		if got := n.Text(facts.Version); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: prefill}
spec:
  template:
    spec:
      initContainers:
      - {name: wait, image: "busybox:1"}
      containers:
      - name: sglang
        image: lmsysorg/sglang:v0.5.19
        command: ["python3", "-m", "sglang.launch_server"]
        args:
        - --model-path=acme/m
        - --context-length
        - "1048576"
        - --max-total-tokens
        - "$(POOL)"
        - --disaggregation-mode
        - prefill
        env:
        - {name: POOL, value: "681280"}
        - {name: SGLANG_RUST_SERVER, value: "1"}
---
apiVersion: v1
kind: Service
metadata: {name: prefill}
spec:
  type: LoadBalancer
  ports:
  - {name: http, port: 30000}
  - {name: bootstrap, port: 8998}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: decode}
spec:
  leaderWorkerTemplate:
    leaderTemplate:
      spec:
        containers:
        - name: c
          image: lmsysorg/sglang:v0.5.19
          command: [sh, -c]
          args:
          - |
            exec python3 -m sglang.launch_server --model-path acme/m \
              --context-length 1048576 --disaggregation-mode decode --page-size 64
`

func TestManifestsAreReadWithTheirLines(t *testing.T) {
	inv := readLog(t, "all.yaml", deployment)
	wantNodes(t, inv, "decode/leader sglang decode pool 0 context 1048576 page 64", "prefill sglang prefill pool 0 context 1048576 page 0")
	p := inv.Nodes[1]
	if p.Text(facts.PoolCap) != "681280" || p.Text(facts.Version) != "0.5.19" || p.Text(facts.RustServer) != "true" {
		t.Errorf("%+v", p.Facts)
	}
	if at := p.At(facts.Context); at.Line != 16 {
		t.Errorf("context at %s, want line 16", at)
	}
	if at := inv.Nodes[0].At(facts.PageSize); at.Line != 49 {
		t.Errorf("page size at %s, want line 49", at)
	}
	if len(inv.Exposed) != 1 || inv.Exposed[0].Port != 8998 || inv.Exposed[0].Type != "LoadBalancer" {
		t.Errorf("%+v", inv.Exposed)
	}
}

func TestOtherManifests(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"compose": {"services:\n  p0:\n    image: lmsysorg/sglang:v0.5.21\n    command: python3 -m sglang.launch_server --model-path m --context-length 8192 --disaggregation-mode prefill\n    environment:\n      SGLANG_RUST_SERVER: \"0\"\n",
			"p0 sglang prefill pool 0 context 8192 page 0"},
		"values": {"decode:\n  image:\n    repository: lmsysorg/sglang\n    tag: v0.5.21\n  args: [--model-path, m, --context-length, \"8192\", --disaggregation-mode, decode]\n",
			"decode sglang decode pool 0 context 8192 page 0"},
		"list": {"apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n  metadata: {name: v}\n  spec:\n    containers:\n    - {name: c, image: \"vllm/vllm-openai:v0.11.0\", args: [\"--model\", \"m\", \"--max-model-len\", \"8192\"]}\n",
			"v vllm both pool 0 context 8192 page 0"},
	} {
		t.Run(name, func(t *testing.T) { wantNodes(t, readLog(t, "x.yaml", c.text), c.want) })
	}
}

func TestAnUnresolvedVariableIsNotGuessed(t *testing.T) {
	inv := readLog(t, "x.sh", "vllm serve acme/m --max-model-len $LEN\n")
	n := inv.Nodes[0]
	if n.Text(facts.Context) != "" || len(n.Notes) != 1 || !n.Notes[0].Blind {
		t.Errorf("%q %v", n.Text(facts.Context), n.Notes)
	}
}

func FuzzCommands(f *testing.F) {
	f.Add("docker run -e A=b lmsysorg/sglang:v1.2 python3 -m sglang.launch_server --context-length 1 \\\n --x 'y")
	f.Add("vllm serve m --kv-transfer-config '{\"kv_role\":\"kv_both\"}' | tee; # x")
	f.Add("CMD [\"vllm\", \"serve\"]")
	f.Fuzz(func(t *testing.T, s string) {
		for _, n := range readCommands(s, "f", "f", "f") {
			complete(n)
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(deployment))
	f.Add([]byte("models:\n- name: m\n  engine: sglang\n  workers:\n  - {role: prefill, url: \"http://x\", pool_tokens: 3}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		m, err := readManifest(b, "f", "f", "f")
		if err != nil {
			return
		}
		for _, n := range m.nodes {
			complete(n)
		}
	})
}
