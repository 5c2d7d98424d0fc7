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
	"time"

	"github.com/sluicekv/sluice/bench/e2e/checkpoint"
	engines "github.com/sluicekv/sluice/bench/e2e/engine"
)

// engine is one worker of the pair: a process group of its own that outlives this program.
type engine struct {
	name, role string
	port, side int
}

func (e engine) url() string { return "http://127.0.0.1:" + strconv.Itoa(e.port) }

// Shape of the pair: a context that the pool holds four times, in blocks of 32 tokens.
const (
	context0 = 8192
	block    = 32
	blocks   = 1024
)

// patience for a pair to come up on a machine that does other work, too.
const patience = 15 * time.Minute

func (b *bed) up(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(b.env, "venv", "bin", "vllm")); err != nil {
		return fmt.Errorf("no vLLM in %s: run bench/e2e/vllm/install.sh %s", b.env, b.env)
	}
	model := filepath.Join(b.dir, "model")
	if _, err := os.Stat(filepath.Join(model, "model.safetensors")); err != nil {
		// It always copies: a model that is quiet could hide a leak.
		if err := checkpoint.Write(model, checkpoint.Options{MinMatch: -1}); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, e := range b.engines() {
		if err := b.begin(e); err != nil {
			return err
		}
	}
	for _, e := range b.engines() {
		if err := b.await(ctx, e); err != nil {
			return err
		}
		fmt.Printf("%s up after %s\n", e.name, time.Since(began).Round(time.Second))
	}
	return b.note(func(r *results, _ string) { r.Start = time.Since(began).Seconds() })
}

func (b *bed) engines() []engine { return []engine{b.prefill, b.decode} }

// begin starts an engine if it does not run.
func (b *bed) begin(e engine) error {
	if b.pid(e) > 0 {
		return nil
	}
	transfer, _ := json.Marshal(map[string]any{
		"kv_connector": "NixlConnector", "kv_role": e.role, "kv_buffer_device": "cpu", "kv_load_failure_policy": "fail",
		"kv_connector_extra_config": map[string]any{"backends": []string{"UCX"}, "kv_lease_duration": int(b.lease.Seconds())},
	})
	args := []string{
		filepath.Join(b.env, "venv", "bin", "vllm"), "serve", filepath.Join(b.dir, "model"), "--served-model-name", "recall", "--dtype", "float32",
		"--enforce-eager", "--host", "127.0.0.1", "--port", strconv.Itoa(e.port), "--kv-transfer-config", string(transfer),
		"--max-model-len", strconv.Itoa(context0), "--block-size", strconv.Itoa(block), "--num-gpu-blocks-override", strconv.Itoa(blocks),
	}
	if !b.cache {
		args = append(args, "--no-enable-prefix-caching")
	}
	group, err := engines.Start(append([]string{"nice"}, args...), filepath.Join(b.dir, e.name+".log"),
		// Each engine is three Python processes: without byte code each compiles 8,000 files at every start.
		[]string{"PYTHONDONTWRITEBYTECODE"},
		[]string{
			"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "VLLM_CPU_KVCACHE_SPACE=1",
			"VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "UCX_TLS=tcp,sm,self", "UCX_NET_DEVICES=lo", "VLLM_HOST_IP=127.0.0.1",
			"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(e.side),
		})
	if err != nil {
		return err
	}
	return os.WriteFile(b.pidFile(e), []byte(strconv.Itoa(group)), 0o644)
}

func (b *bed) pidFile(e engine) string { return filepath.Join(b.dir, e.name+".pid") }

// pid of an engine that runs, else 0. A number that meanwhile is another program's is nobody's.
func (b *bed) pid(e engine) int {
	text, err := os.ReadFile(b.pidFile(e))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(text))
	if !engines.Runs(pid, filepath.Join(b.dir, "model")) {
		return 0
	}
	return pid
}

func (b *bed) await(ctx context.Context, e engine) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if healthy(ctx, e) {
			return nil
		}
		if b.pid(e) == 0 {
			return fmt.Errorf("%s ended; its log is %s:\n%s", e.name, filepath.Join(filepath.Base(b.dir), e.name+".log"), b.tail(e))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not up; its log is %s:\n%s", e.name, filepath.Join(filepath.Base(b.dir), e.name+".log"), b.tail(e))
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (b *bed) tail(e engine) string {
	text, _ := os.ReadFile(filepath.Join(b.dir, e.name+".log"))
	return string(text[max(len(text)-4000, 0):])
}

func healthy(ctx context.Context, e engine) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, _, err := send(ctx, http.MethodGet, e.url()+"/health", nil, nil)
	return err == nil && s == http.StatusOK
}

// well reports whether an engine says within a minute that it is: one that has just compiled something is silent for a while, and one
// that has ended stays so.
func well(ctx context.Context, e engine) bool {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		if healthy(ctx, e) {
			return true
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
	}
}

// alive reports whether an engine still computes: one that has lost its core can go on answering, and one that hangs does not end.
func alive(ctx context.Context, e engine) bool {
	if !well(ctx, e) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, _, err := send(ctx, http.MethodPost, e.url()+"/v1/completions", []byte(`{"model":"recall","prompt":"abcabc","max_tokens":2,"temperature":0}`), nil)
	return err == nil && s == http.StatusOK
}

// mend starts again an engine that a control has ended.
func (b *bed) mend(ctx context.Context, e engine) error {
	if err := b.stop(e); err != nil {
		return err
	}
	if err := b.begin(e); err != nil {
		return err
	}
	return b.await(ctx, e)
}

func (b *bed) down(context.Context) error {
	return errors.Join(b.stop(b.prefill), b.stop(b.decode))
}

// stop ends an engine's process group.
func (b *bed) stop(e engine) error {
	if pid := b.pid(e); pid > 0 {
		if err := engines.Stop(pid); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	_ = os.Remove(b.pidFile(e))
	return nil
}
