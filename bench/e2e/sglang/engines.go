package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/bench/e2e/checkpoint"
	"github.com/sluicekv/sluice/bench/e2e/engine"
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
	model, err := filepath.Abs(b.path("model"))
	if err != nil {
		return 0, err
	}
	args := append([]string{
		filepath.Join(b.env, "venv", "bin", "python"), "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", "recall",
		"--host", "127.0.0.1", "--port", strconv.Itoa(b.ports + leg), "--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph",
		"--skip-server-warmup", "--mem-fraction-static", "0.5", "--dtype", "float32", "--page-size", strconv.Itoa(pageSize),
		"--max-total-tokens", strconv.Itoa(pool), "--context-length", strconv.Itoa(contextLen), "--enable-metrics",
		"--disaggregation-mode", legs[leg], "--disaggregation-transfer-backend", "mooncake",
	}, more...)
	lib, err := filepath.Abs(filepath.Join(b.env, "lib"))
	if err != nil {
		return 0, err
	}
	vars := []string{
		"LD_LIBRARY_PATH=" + lib, "SGLANG_USE_CPU_ENGINE=1", "TRITON_INTERPRET=1", "MC_FORCE_TCP=1", "SGLANG_HOST_IP=127.0.0.1", "CUDA_VISIBLE_DEVICES=",
		"OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX=0",
		fmt.Sprintf("SGLANG_DISAGGREGATION_WAITING_TIMEOUT=%d", int(waitKV.Seconds())),
	}
	if release != "0.5.19" {
		overlay, err := filepath.Abs(filepath.Join(b.env, release))
		if err != nil {
			return 0, err
		}
		vars = append(vars, "PYTHONPATH="+overlay)
	}
	// Compiled files are kept, or each of six processes compiles 20,000 of them.
	return engine.Start(args, b.path(legs[leg]+".log"), []string{"PYTHONDONTWRITEBYTECODE", "PYTHONPATH"}, vars)
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
		// Ids of processes are used again.
		if !engine.Runs(group, "sglang") {
			continue
		}
		if err := engine.Stop(group); err != nil {
			return fmt.Errorf("%s: %w", legs[leg], err)
		}
	}
	return os.Remove(b.path("results", "pair.json"))
}

// memory is what the pair's processes hold together.
func (b *bed) memory() int64 {
	r, ok := b.state()
	if !ok {
		return 0
	}
	return engine.Resident(r.Groups[:]...)
}

// counter reads a counter or a gauge of a worker, summed over its labels.
func (b *bed) counter(ctx context.Context, leg int, name string) (sum float64, err error) {
	a := send(ctx, request{method: http.MethodGet, url: b.url(leg) + "/metrics", within: 10 * time.Second})
	if a.status != http.StatusOK {
		return 0, errors.New(legs[leg] + " shows no metrics")
	}
	return engine.Total(engine.Counters(a.body, name)), nil
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
