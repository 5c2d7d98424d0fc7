package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/check/facts"
)

const (
	argsP   = `[2026-09-02 10:00:01] server_args={'model_path': 'glm-5.3', 'context_length': 1048576, 'page_size': 64, 'allow_auto_truncate': False, 'disaggregation_mode': 'prefill', 'host': '0.0.0.0', 'port': 30000}`
	argsD   = `[2026-09-02 10:00:01] server_args={'model_path': 'glm-5.3', 'context_length': 1048576, 'page_size': 64, 'allow_auto_truncate': False, 'disaggregation_mode': 'decode', 'host': '0.0.0.0', 'port': 30001}`
	poolP   = `[2026-09-02 10:00:55 TP0] max_total_num_tokens=681280, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, context_len=1048576, available_gpu_mem=11.42 GB`
	poolD   = `[2026-09-02 10:00:55 TP0] max_total_num_tokens=2040000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, context_len=1048576, available_gpu_mem=11.42 GB`
	readyUp = `[2026-09-02 10:00:58] The server is fired up and ready to roll!`
)

// readLog reads text as the file name.
func readLog(t *testing.T, name, text string) Inventory {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := Read(context.Background(), []string{p}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// brief is a node in one line.
func brief(n *facts.Node) string {
	return fmt.Sprintf("%s %s %s pool %d context %d page %d", n.Name, n.Text(facts.Engine), n.Text(facts.Role), n.Int(facts.Pool), n.Int(facts.Context), n.Int(facts.PageSize))
}

func wantNodes(t *testing.T, inv Inventory, want ...string) {
	t.Helper()
	var got []string
	for _, n := range inv.Nodes {
		got = append(got, brief(n))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("nodes:\n%s\nwant:\n%s\nproblems %v", strings.Join(got, "\n"), strings.Join(want, "\n"), inv.Problems)
	}
}

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

func TestLogsKeepTheirMeaningInsideEachWrapping(t *testing.T) {
	for name, wrap := range map[string]func(string) string{
		"plain": func(l string) string { return l },
		"CRLF":  func(l string) string { return l + "\r" },
		"ANSI": func(l string) string {
			return "\x1b[32m" + strings.Replace(l, "=681280", "=\x1b[1m681280\x1b[0m", 1) + "\x1b[0m"
		},
		"CRI":        func(l string) string { return "2026-09-02T10:00:01.123456789Z stdout F " + l },
		"timestamps": func(l string) string { return "2026-09-02T10:00:01.123456789Z " + l },
		"docker": func(l string) string {
			return `{"log":"` + strings.ReplaceAll(l, `"`, `\"`) + `\n","stream":"stderr","time":"2026-09-02T10:00:01.1Z"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, "node.log", lines(wrap(argsP), wrap(poolP), wrap(readyUp)))
			wantNodes(t, inv, "node sglang prefill pool 681280 context 1048576 page 64")
		})
	}
}

func TestSeveralNodesInOneLogAreToldApart(t *testing.T) {
	for name, wrap := range map[string]func(pod, l string) string{
		"kubectl --prefix": func(p, l string) string { return "[pod/" + p + "/sglang] " + l },
		"docker compose":   func(p, l string) string { return p + "  | " + l },
		"stern":            func(p, l string) string { return p + " sglang " + l },
		"journald":         func(p, l string) string { return "Sep 02 10:00:01 " + p + " sglang[123]: " + l },
		"fluent":           func(p, l string) string { return fmt.Sprintf(`{"log":%q,"kubernetes":{"pod_name":%q}}`, l, p) },
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, "all.log", lines(wrap("prefill-0", argsP), wrap("decode-0", argsD), wrap("prefill-0", poolP), wrap("decode-0", poolD)))
			suffix := ""
			if name == "journald" {
				suffix = "/sglang"
			}
			wantNodes(t, inv, "decode-0"+suffix+" sglang decode pool 2040000 context 1048576 page 64", "prefill-0"+suffix+" sglang prefill pool 681280 context 1048576 page 64")
		})
	}
	t.Run("tail headers", func(t *testing.T) {
		inv := readLog(t, "all.log", lines("==> /var/log/p0.log <==", argsP, poolP, "", "==> /var/log/d0.log <==", argsD, poolD))
		wantNodes(t, inv, "d0 sglang decode pool 2040000 context 1048576 page 64", "p0 sglang prefill pool 681280 context 1048576 page 64")
	})
	t.Run("one behind the other", func(t *testing.T) {
		inv := readLog(t, "all.log", lines(argsP, poolP, readyUp, argsD, poolD, readyUp))
		wantNodes(t, inv, "all/decode sglang decode pool 2040000 context 1048576 page 64", "all/prefill sglang prefill pool 681280 context 1048576 page 64")
	})
	t.Run("each line twice", func(t *testing.T) {
		inv := readLog(t, "all.log", lines(argsP, poolP, poolP, readyUp, readyUp))
		wantNodes(t, inv, "all sglang prefill pool 681280 context 1048576 page 64")
	})
	t.Run("summary lines alone", func(t *testing.T) {
		inv := readLog(t, "all.log", lines(poolP, poolD))
		wantNodes(t, inv, "all/1 sglang  pool 681280 context 1048576 page 0", "all/2 sglang  pool 2040000 context 1048576 page 0")
	})
}

func TestMixedNodesWithoutAPrefixAreSaidToBeMixed(t *testing.T) {
	inv := readLog(t, "all.log", lines(argsP, argsD, poolP, poolD))
	blind := 0
	for _, n := range inv.Nodes {
		for _, note := range n.Notes {
			if note.Blind && strings.Contains(note.Text, "mixed") {
				blind++
			}
		}
	}
	if len(inv.Nodes) != 2 || blind != 2 {
		t.Errorf("%d nodes, %d say that they are mixed", len(inv.Nodes), blind)
	}
}

func TestRanksAreOneNodeWithItsSmallestPool(t *testing.T) {
	rank := func(dp, pool int) string {
		return fmt.Sprintf("[2026-09-02 10:00:55 DP%d TP0 EP0] max_total_num_tokens=%d, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, context_len=1048576, available_gpu_mem=11.42 GB", dp, pool)
	}
	inv := readLog(t, "node.log", lines(argsP, rank(1, 1200000), rank(0, 1310720), rank(3, 681280), rank(2, 1310720)))
	wantNodes(t, inv, "node sglang prefill pool 681280 context 1048576 page 64")
	if m := inv.Nodes[0].RankValues(facts.Pool); len(m) != 4 || m["DP3"].Value != "681280" {
		t.Errorf("ranks %v", m)
	}
}

func TestTheLastBootCountsAndTheChangeIsKept(t *testing.T) {
	second := strings.Replace(strings.Replace(poolP, "681280", "1310720", 1), "10:00:55", "11:30:55", 1)
	for name, text := range map[string]string{
		"with arguments":    lines(argsP, poolP, readyUp, strings.Replace(argsP, "10:00", "11:30", 1), second, readyUp),
		"without arguments": lines(argsP, poolP, readyUp, second),
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, "node.log", text)
			wantNodes(t, inv, "node sglang prefill pool 1310720 context 1048576 page 64")
			if b := inv.Nodes[0].Boots; len(b) != 1 || b[0].Pool != 681280 {
				t.Errorf("boots %+v", b)
			}
		})
	}
	t.Run("a crash loop", func(t *testing.T) {
		inv := readLog(t, "node.log", lines(argsP, poolP, argsP, argsP))
		wantNodes(t, inv, "node sglang prefill pool 0 context 1048576 page 64") // the last start has no pool yet
		if len(inv.Nodes[0].Boots) != 2 {
			t.Errorf("boots %+v", inv.Nodes[0].Boots)
		}
	})
	t.Run("vLLM", func(t *testing.T) {
		v := func(pool string) string {
			return lines("INFO 02-19 23:56:50 [api_server.py:1] vLLM API server version 0.11.0", "INFO 02-19 23:56:51 [utils.py:1] non-default args: {'model': 'm', 'max_model_len': 2048, 'port': 8000}",
				"INFO 02-19 23:56:55 [kv_cache_utils.py:1] GPU KV cache size: "+pool+" tokens", "INFO 02-19 23:56:55 [kv_cache_utils.py:2] Maximum concurrency for 2,048 tokens per request: 10.00x")
		}
		inv := readLog(t, "node.log", v("4,096")+v("1,024"))
		wantNodes(t, inv, "node vllm both pool 1024 context 2048 page 0")
		if b := inv.Nodes[0].Boots; len(b) != 1 || b[0].Pool != 4096 || inv.Nodes[0].Text(facts.Version) != "0.11.0" {
			t.Errorf("boots %+v version %s", b, inv.Nodes[0].Text(facts.Version))
		}
	})
}

func TestHalfALogSaysWhatIsMissing(t *testing.T) {
	inv := readLog(t, "node.log", argsP[:len(argsP)-60])
	if len(inv.Nodes) != 1 || inv.Nodes[0].Int(facts.Pool) != 0 || inv.Nodes[0].Int(facts.Context) != 1048576 {
		t.Errorf("%v %v", inv.Nodes, inv.Problems)
	}
}

func TestTextWithoutFactsIsAProblem(t *testing.T) {
	for name, text := range map[string]string{
		"prose.txt": "hello\nworld\n", "empty.log": "", "other.json": `{"a": 1}`, "broken.json": `{"model_path": "m", "max_total`, "list.json": `[1, 2]`,
		"other.yaml": "a: 1\n", "broken.yaml": "a: [1\n", "binary.bin": "\x00\x01\x02", "utf16.log": "\xff\xfeh\x00", "other.metrics": "# HELP up x\nup 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, name, text)
			if len(inv.Nodes) != 0 || len(inv.Problems) != 1 || !inv.Problems[0].Blind {
				t.Errorf("nodes %d, problems %+v", len(inv.Nodes), inv.Problems)
			}
		})
	}
	inv, err := Read(context.Background(), []string{"/does/not/exist"}, Options{})
	if err != nil || len(inv.Problems) != 1 || !strings.Contains(inv.Problems[0].Text, "no such file") {
		t.Errorf("%v %v", inv.Problems, err)
	}
}

func TestLinkedFilesOfAFolderAreRead(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "0.log"), []byte(lines(argsP, poolP)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(other, "0.log"), filepath.Join(dir, "prefill-0_default_sglang.log")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(other, "gone.log"), filepath.Join(dir, "gone.log")); err != nil {
		t.Fatal(err)
	}
	inv, err := Read(context.Background(), []string{dir}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	wantNodes(t, inv, "prefill-0_default_sglang sglang prefill pool 681280 context 1048576 page 64")
	if len(inv.Problems) != 1 || !inv.Problems[0].Blind {
		t.Errorf("a link to nothing: %v", inv.Problems)
	}
}

func TestPackedLogsAreRead(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, lines(argsP, poolP))
	z.Close()
	inv := readLog(t, "node.log.gz", b.String())
	wantNodes(t, inv, "node sglang prefill pool 681280 context 1048576 page 64")
	inv = readLog(t, "cut.log.gz", b.String()[:b.Len()-12])
	if len(inv.Problems) == 0 {
		t.Error("a cut archive is no problem")
	}
}

// endless gives a line of n bytes without an end, and then a tail.
type endless struct {
	n    int64
	tail io.Reader
}

func (e *endless) Read(p []byte) (int, error) {
	if e.n > 0 {
		k := min(int64(len(p)), e.n)
		for i := range p[:k] {
			p[i] = 'x'
		}
		e.n -= k
		return int(k), nil
	}
	return e.tail.Read(p)
}

func TestALineOfAnyLengthTakesConstantMemory(t *testing.T) {
	size := int64(10 << 30)
	if testing.Short() || os.Getenv("SLUICE_LONG") == "" {
		size = 256 << 20 // SLUICE_LONG=1 makes it 10 GB
	}
	s := newLogScan("big.log", "big", "big")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := s.scan(&endless{size, strings.NewReader("\n" + lines(argsP, poolP))}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
		t.Errorf("%d bytes allocated", got)
	}
	ns := s.finish()
	if len(ns) != 1 || ns[0].Int(facts.Pool) != 681280 || len(ns[0].Notes) != 1 || !strings.Contains(ns[0].Notes[0].Text, "longer than") {
		t.Errorf("%v", ns)
	}
}

func TestOlderAndOtherForms(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"2024":               {"[gpu_id=0] max_total_num_tokens=440880, max_prefill_tokens=16384, context_len=131072", "n sglang  pool 440880 context 131072 page 0"},
		"JSON":               {`{"level":"info","max_total_num_tokens": 681280, "context_len": 1048576}` + "\n" + `{"level":"info","x":1}`, "n sglang  pool 681280 context 1048576 page 0"},
		"underscores":        {"max_total_num_tokens=681_280, context_len=1_048_576", "n sglang  pool 681280 context 1048576 page 0"},
		"vLLM V0 cuda":       {"INFO 02-01 10:00:00 executor_base.py:110] # cuda blocks: 5691, # CPU blocks: 2048\nINFO 02-01 10:00:00 executor_base.py:115] Maximum concurrency for 8192 tokens per request: 11.12x", "n vllm  pool 91056 context 8192 page 16"},
		"vLLM refusal V0":    {"ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (58288). Try increasing", "n vllm  pool 58288 context 131072 page 0"},
		"vLLM CPU":           {"(EngineCore pid=1) INFO [kv_cache_utils.py:2327] CPU KV cache size: 32,768 tokens, Maximum concurrency for 8,192 tokens per request: 4.00x", "n vllm  pool 32768 context 8192 page 0"},
		"vLLM roles":         {"INFO 02-19 23:56:51 [utils.py:1] non-default args: {'model': 'm', 'max_model_len': 2048, 'block_size': 32, 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', engine_id='x', kv_role='kv_producer', kv_load_failure_policy='fail')}\nGPU KV cache size: 9,999 tokens", "n vllm prefill pool 9999 context 2048 page 32"},
		"vLLM data parallel": {"(EngineCore_DP0 pid=1) INFO 12-11 00:06:53 [kv_cache_utils.py:1286] GPU KV cache size: 686,320 tokens\n(EngineCore_DP1 pid=2) INFO 12-11 00:06:53 [kv_cache_utils.py:1286] GPU KV cache size: 600,000 tokens\n(EngineCore_DP0 pid=1) INFO 12-11 00:06:54 [kv_cache_utils.py:1291] Maximum concurrency for 100,000 tokens per request: 6.86x", "n vllm  pool 600000 context 100000 page 0"},
		"vLLM config apart":  {"Initializing an LLM engine (v0.5.4) with config\nmodel='/mnt/m', speculative_config=None, dtype=torch.float16, max_seq_len=131072, kv_cache_dtype=auto\n# GPU blocks: 10000, # CPU blocks: 1\nMaximum concurrency for 131072 tokens per request: 1.22x", "n vllm  pool 160000 context 131072 page 16"},
		"vLLM Namespace":     {"INFO 06-01 10:00:00 api_server.py:178] args: Namespace(host=None, port=8000, model='acme/m', max_model_len=4096, block_size=16, kv_transfer_config=None)\nGPU KV cache size: 8,192 tokens", "n vllm both pool 8192 context 4096 page 16"},
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, "n.log", c.text+"\n")
			wantNodes(t, inv, c.want)
		})
	}
}

func TestWhatIsNotThePoolIsNotTaken(t *testing.T) {
	for name, c := range map[string]struct {
		text []string
		pool int
	}{
		"reserved addresses": {[]string{"[2026-09-02 10:00:42 TP0] KV Cache VA upper bound. dtype: torch.float8_e4m3fn, #tokens: 1021888, KV size: 42.00 GB"}, 0},
		"sized after capture": {[]string{"[2026-09-02 10:00:42 TP0] KV Cache VA upper bound. dtype: x, #tokens: 1021888, KV size: 42.00 GB",
			"[2026-09-02 10:00:52 TP0] Post-capture KV sizing: KV cache allocated. dtype: x, #tokens: 681280, KV size: 30.86 GB"}, 681280},
		"a draft model's": {[]string{"[2026-09-12 00:22:48 TP0] KV Cache is allocated. #tokens: 454112, K size: 3.46 GB, V size: 3.46 GB",
			"[2026-09-12 00:22:48 TP0] KV Cache is allocated. #tokens: 1000, K size: 1.08 GB, V size: 1.08 GB"}, 454112},
		"a window's": {[]string{"[2026-01-31 13:50:39 TP0] Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288",
			"[2026-01-31 13:50:39 TP1] KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB"}, 375360},
	} {
		t.Run(name, func(t *testing.T) {
			inv := readLog(t, "n.log", lines(append([]string{argsP}, c.text...)...))
			if got := inv.Nodes[0].Int(facts.Pool); got != c.pool {
				t.Errorf("pool %d, want %d", got, c.pool)
			}
		})
	}
}

func TestEventsAreCountedWithTheirPlaces(t *testing.T) {
	reject := "[2026-09-02 11:00:00 TP0] Input length (900000 tokens) exceeds the maximum allowed length (681274 tokens). Use a shorter input or enable --allow-auto-truncate., self.rid='x'"
	inv := readLog(t, "n.log", lines(argsP, poolP, reject, reject,
		"[2026-09-02 11:00:01] Deferred KV release for room 7 timed out after 30.0s without a full drain ack from prefill; releasing anyway.",
		"[2026-09-02 11:00:02] Decode transfer failed for request rank=0 with exception KVTransferError(bootstrap_room=7): Lost connection"))
	n := inv.Nodes[0]
	if e := n.Events[EventRejected]; e == nil || e.Count != 2 || e.Largest != 900000 || e.First.Line != 3 || e.Last.Line != 4 {
		t.Errorf("%+v", n.Events[EventRejected])
	}
	if n.Events[EventLateRelease] == nil || n.Events[EventTransfer] == nil {
		t.Errorf("%v", n.Events)
	}
}

// Collectors cut long lines in pieces; the argument list is longer than 16 KB.
func TestLinesThatACollectorHasCutAreJoined(t *testing.T) {
	a := strings.Replace(argsP, "'model_path'", "'long': '"+strings.Repeat("x", 40000)+"', 'model_path'", 1)
	var cri, docker strings.Builder
	for rest := a; rest != ""; {
		n := min(len(rest), 16384)
		tag, end := "P", ""
		if n == len(rest) {
			tag, end = "F", `\n`
		}
		fmt.Fprintf(&cri, "2026-09-02T10:00:01.123456789Z stdout %s %s\n", tag, rest[:n])
		fmt.Fprintf(&docker, `{"log":"%s%s","stream":"stdout","time":"2026-09-02T10:00:01.1Z"}`+"\n", rest[:n], end)
		rest = rest[n:]
	}
	for name, text := range map[string]string{
		"CRI":    cri.String() + "2026-09-02T10:00:01.123456789Z stdout F " + poolP + "\n",
		"docker": docker.String() + `{"log":"` + poolP + `\n","stream":"stdout","time":"x"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			wantNodes(t, readLog(t, "node.log", text), "node sglang prefill pool 681280 context 1048576 page 64")
		})
	}
}

func TestBatchLinesTellTheRole(t *testing.T) {
	for want, line := range map[string]string{
		"prefill": "[2026-09-02 11:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 16, #cached-token: 0, #bootstrap-req: 0, #inflight-req: 1",
		"decode":  "[2026-09-02 11:00:00 TP0] Decode batch, #running-req: 1, #token: 1024, pre-allocated usage: 0.09, #prealloc-req: 0, #transfer-req: 1",
		"":        "[2026-09-02 11:00:00 TP0] Decode batch, #running-req: 1, #token: 1024, token usage: 0.12",
	} {
		inv := readLog(t, "n.log", lines(poolP, line))
		if got := inv.Nodes[0].Text(facts.Role); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestALineOfAllRanksIsOneEvent(t *testing.T) {
	l := func(tp int) string {
		return fmt.Sprintf("[2025-03-03 06:49:28 TP%d] Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens). Use a shorter input", tp)
	}
	inv := readLog(t, "n.log", lines(l(5), l(1), l(0), l(5)))
	if e := inv.Nodes[0].Events[EventRejected]; e.Count != 2 || e.Largest != 160062 {
		t.Errorf("%+v", e)
	}
}

func TestSecretsAreNotKept(t *testing.T) {
	inv := readLog(t, "n.log", lines(strings.Replace(argsP, "'host'", "'api_key': 'sk-very-secret', 'admin_api_key': 'sk-more-secret', 'host'", 1), poolP))
	for _, f := range inv.Nodes[0].Facts {
		if strings.Contains(f.Value, "secret") {
			t.Errorf("%s keeps a key", f.Key)
		}
	}
	if yes, known := inv.Nodes[0].Bool(facts.AdminKey); !yes || !known {
		t.Error("that a key is set is not known")
	}
}

func FuzzLog(f *testing.F) {
	for _, s := range []string{lines(argsP, poolP, readyUp), lines(argsD, poolD), "==> a <==\n" + poolP, `{"log":"` + "x" + `"}`, "GPU KV cache size: 1,024 tokens\nMaximum concurrency for 8,192 tokens per request: 1.00x",
		"# GPU blocks: 10, # CPU blocks: 3", "non-default args: {'a': KV(b='", "[pod/a/b] \x1b[1m" + poolP, "Initializing a V1 LLM engine (v0.1) with config: model='", "To serve at least one request with the models's max seq len (9), (1 GiB KV cache is needed"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newLogScan("f", "f", "f")
		if err := s.scan(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		for _, n := range s.finish() {
			complete(n)
			n.Disagreements()
			n.Capacity(0)
			for _, x := range n.Facts {
				if x.At.Name == "" {
					t.Errorf("%s has no source", x.Key)
				}
			}
		}
	})
}

func FuzzPairs(f *testing.F) {
	f.Add([]byte(`ServerArgs(a='x', b=[1, (2)], c=Foo(d="e"))`))
	f.Add([]byte(`{'a': 'x\'', "b": None`))
	f.Fuzz(func(t *testing.T, b []byte) {
		pairs(b, func(k string, v []byte) {
			if k == "" && len(v) > len(b) {
				t.Error("more than there is")
			}
		})
	})
}
