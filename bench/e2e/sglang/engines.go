package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/bench/e2e/checkpoint"
)

// The pair of the incident: prefill's pool is smaller than the context, and decode's is not.
const (
	prefillPool = 1024
	decodePool  = 8192
	contextLen  = 8192
	pageSize    = 16
)

// waitKV is how long decode waits for pages before it gives up; the engine's default is 300 s.
const waitKV = 30 * time.Second

// patience for a pair to come up on a machine that does other work, too.
const patience = 8 * time.Minute

// running is the pair that runs, kept in a file between steps.
type running struct {
	Release string
	Groups  [2]int // process groups, prefill's first
	UpAfter time.Duration
}

func (b *bed) url(leg int) string { return fmt.Sprintf("http://127.0.0.1:%d", b.ports+leg) }
func (b *bed) bootstrap() int     { return b.ports + 2 }
func (b *bed) path(parts ...string) string {
	return filepath.Join(append([]string{b.dir}, parts...)...)
}

var legs = [2]string{"prefill", "decode"}

// up starts the pair of a release, unless it runs.
func (b *bed) up(ctx context.Context, release string) error {
	if r, ok := b.state(); ok {
		if r.Release == release && b.healthy(ctx, 0) && b.healthy(ctx, 1) {
			return nil
		}
		if err := b.down(ctx); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(b.env, release, "ready")); release != "0.5.19" && err != nil {
		return fmt.Errorf("no SGLang %s in %s: run bench/e2e/sglang/env/install.sh %s", release, b.env, b.env)
	}
	if _, err := os.Stat(filepath.Join(b.env, "ready")); err != nil {
		return fmt.Errorf("no SGLang in %s: run bench/e2e/sglang/env/install.sh %s", b.env, b.env)
	}
	for leg := range 5 {
		if c, err := http.Get(b.url(leg)); err == nil {
			c.Body.Close()
			return fmt.Errorf("something listens on port %d already; choose others with -port", b.ports+leg)
		}
	}
	if err := os.MkdirAll(b.path("results"), 0o755); err != nil {
		return err
	}
	// Token 0 begins a text, and a text never ends: see Options.
	if err := checkpoint.Write(b.path("model"), checkpoint.Options{MinMatch: -1, BeginIsZero: true}); err != nil {
		return err
	}
	began := time.Now()
	r := running{Release: release}
	for leg := range legs {
		group, err := b.begin(leg, release)
		if err != nil {
			return err
		}
		r.Groups[leg] = group
		b.keep("pair.json", r)
	}
	for leg := range legs {
		for !b.healthy(ctx, leg) || !b.logged(leg, "fired up and ready to roll") {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case syscall.Kill(-r.Groups[leg], 0) != nil, time.Since(began) > patience:
				return fmt.Errorf("%s did not come up; its log ends:\n%s", legs[leg], b.tail(leg, 15))
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	r.UpAfter = time.Since(began).Round(time.Second)
	b.keep("pair.json", r)
	fmt.Printf("SGLang %s: prefill %s (pool %d), decode %s (pool %d), context %d, up after %v\n", release, b.url(0), prefillPool, b.url(1), decodePool, contextLen, r.UpAfter)
	return nil
}

// begin starts one worker in a process group of its own, which outlives this program.
func (b *bed) begin(leg int, release string) (group int, err error) {
	pool, more := prefillPool, []string{"--disaggregation-bootstrap-port", strconv.Itoa(b.bootstrap())}
	if leg == 1 {
		pool, more = decodePool, []string{"--disaggregation-decode-retraction-backup", "cpu_tensor"}
	}
	log, err := os.Create(b.path(legs[leg] + ".log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	model, err := filepath.Abs(b.path("model"))
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(filepath.Join(b.env, "venv", "bin", "python"), append([]string{
		"-m", "sglang.launch_server", "--model-path", model, "--served-model-name", "recall",
		"--host", "127.0.0.1", "--port", strconv.Itoa(b.ports + leg), "--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph",
		"--skip-server-warmup", "--mem-fraction-static", "0.5", "--dtype", "float32", "--page-size", strconv.Itoa(pageSize),
		"--max-total-tokens", strconv.Itoa(pool), "--context-length", strconv.Itoa(contextLen), "--enable-metrics",
		"--disaggregation-mode", legs[leg], "--disaggregation-transfer-backend", "mooncake",
	}, more...)...)
	for _, v := range os.Environ() {
		// Compiled files are kept, or each of six processes compiles 20,000 of them.
		if !strings.HasPrefix(v, "PYTHONDONTWRITEBYTECODE=") && !strings.HasPrefix(v, "PYTHONPATH=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	lib, err := filepath.Abs(filepath.Join(b.env, "lib"))
	if err != nil {
		return 0, err
	}
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib, "SGLANG_USE_CPU_ENGINE=1", "TRITON_INTERPRET=1", "MC_FORCE_TCP=1", "SGLANG_HOST_IP=127.0.0.1", "CUDA_VISIBLE_DEVICES=",
		"OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX=0",
		fmt.Sprintf("SGLANG_DISAGGREGATION_WAITING_TIMEOUT=%d", int(waitKV.Seconds())))
	if release != "0.5.19" {
		overlay, err := filepath.Abs(filepath.Join(b.env, release))
		if err != nil {
			return 0, err
		}
		cmd.Env = append(cmd.Env, "PYTHONPATH="+overlay)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }()
	return cmd.Process.Pid, nil
}

func (b *bed) state() (r running, ok bool) {
	t, err := os.ReadFile(b.path("results", "pair.json"))
	return r, err == nil && json.Unmarshal(t, &r) == nil && r.Groups[0] > 0
}

func (b *bed) healthy(ctx context.Context, leg int) bool {
	a := send(ctx, request{method: http.MethodGet, url: b.url(leg) + "/health", within: 5 * time.Second})
	return a.status == http.StatusOK
}

func (b *bed) log(leg int) string {
	t, _ := os.ReadFile(b.path(legs[leg] + ".log"))
	return string(t)
}

func (b *bed) logged(leg int, text string) bool { return strings.Contains(b.log(leg), text) }

func (b *bed) tail(leg, n int) string {
	lines := strings.Split(strings.TrimSpace(b.log(leg)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// down stops the pair.
func (b *bed) down(context.Context) error {
	r, ok := b.state()
	if !ok {
		return nil
	}
	for leg, group := range r.Groups {
		if group == 0 || !b.ours(group) {
			continue
		}
		_ = syscall.Kill(-group, syscall.SIGTERM)
		end := time.Now().Add(15 * time.Second)
		for syscall.Kill(-group, 0) == nil && time.Now().Before(end) {
			time.Sleep(100 * time.Millisecond)
		}
		_ = syscall.Kill(-group, syscall.SIGKILL)
		for range 100 {
			if syscall.Kill(-group, 0) != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if syscall.Kill(-group, 0) == nil && b.ours(group) {
			return fmt.Errorf("%s (process group %d) does not end", legs[leg], group)
		}
	}
	return os.Remove(b.path("results", "pair.json"))
}

// ours reports whether a process group is still that of a worker: ids of processes are used again.
func (b *bed) ours(group int) bool {
	t, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", group))
	return err == nil && strings.Contains(string(t), "sglang")
}

// memory is what the pair's processes hold together, shared pages counted once.
func (b *bed) memory() (bytes int64) {
	r, ok := b.state()
	if !ok {
		return 0
	}
	found, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range found {
		t, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		// pid (name) state parent group …
		_, rest, _ := strings.Cut(string(t), ") ")
		f := strings.Fields(rest)
		if len(f) < 3 {
			continue
		}
		if g, _ := strconv.Atoi(f[2]); g != r.Groups[0] && g != r.Groups[1] {
			continue
		}
		t, _ = os.ReadFile(filepath.Join(filepath.Dir(p), "smaps_rollup"))
		for line := range strings.SplitSeq(string(t), "\n") {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				n, _ := strconv.ParseInt(f[1], 10, 64)
				bytes += n << 10
			}
		}
	}
	return bytes
}

// counter reads a counter or a gauge of a worker, summed over its labels.
func (b *bed) counter(ctx context.Context, leg int, name string) (sum float64, err error) {
	a := send(ctx, request{method: http.MethodGet, url: b.url(leg) + "/metrics", within: 10 * time.Second})
	if a.status != http.StatusOK {
		return 0, errors.New(legs[leg] + " shows no metrics")
	}
	return metric(string(a.body), name, ""), nil
}

// metric sums the values of a metric whose labels contain with.
func metric(page, name, with string) (sum float64) {
	for line := range strings.SplitSeq(page, "\n") {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' || !strings.Contains(rest, with) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err == nil {
			sum += v
		}
	}
	return sum
}

// inHand is how many requests a worker has, waiting ones among them, by its own count of this moment.
func (b *bed) inHand(ctx context.Context, leg int) (n int, err error) {
	a := send(ctx, request{method: http.MethodGet, url: b.url(leg) + "/v1/loads", within: 20 * time.Second})
	var st struct {
		Loads []struct {
			Running int `json:"num_running_reqs"`
			Waiting int `json:"num_waiting_reqs"`
			Queues  struct {
				Bootstrap int `json:"prefill_bootstrap_queue_reqs"`
				Inflight  int `json:"prefill_inflight_queue_reqs"`
				Prealloc  int `json:"decode_prealloc_queue_reqs"`
				Transfer  int `json:"decode_transfer_queue_reqs"`
				Retracted int `json:"decode_retracted_queue_reqs"`
			} `json:"disaggregation"`
		}
	}
	if a.err != nil || json.Unmarshal(a.body, &st) != nil || len(st.Loads) == 0 {
		return 0, errors.Join(errors.New(legs[leg]+" does not say what it has in hand"), a.err)
	}
	for _, l := range st.Loads {
		n += l.Running + l.Waiting + l.Queues.Bootstrap + l.Queues.Inflight + l.Queues.Prealloc + l.Queues.Transfer + l.Queues.Retracted
	}
	return n, nil
}
