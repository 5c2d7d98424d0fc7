package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	engines "github.com/sluicekv/sluice/bench/e2e/engine"
)

// loadClients runs the public load clients against the gateway as their users do. All requests must be served, and none may be an
// incident.
func (b *bed) loadClients(ctx context.Context) error {
	g, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	out := filepath.Join(b.dir, "clients")
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	model := filepath.Join(b.dir, "model")
	var said []string
	for _, c := range []loadClient{
		{"vllm bench serve", []string{
			filepath.Join(b.env, "venv", "bin", "vllm"), "bench", "serve", "--backend", "openai", "--base-url", g.url(), "--endpoint", "/v1/completions", "--model", "recall",
			"--tokenizer", model, "--dataset-name", "random", "--random-input-len", "200", "--random-output-len", "8", "--num-prompts", "40", "--request-rate", "8",
			"--save-result", "--result-dir", out, "--result-filename", "bench.json",
		}, 40, true, benchServed(filepath.Join(out, "bench.json"))},
		{"vllm bench serve, chat", []string{
			filepath.Join(b.env, "venv", "bin", "vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", g.url(), "--endpoint", "/v1/chat/completions", "--model", "recall",
			"--tokenizer", model, "--dataset-name", "random", "--random-input-len", "200", "--random-output-len", "8", "--num-prompts", "40", "--request-rate", "8",
			"--save-result", "--result-dir", out, "--result-filename", "chat.json",
		}, 40, true, benchServed(filepath.Join(out, "chat.json"))},
		{"guidellm", []string{
			filepath.Join(b.clients, "guidellm", "bin", "guidellm"), "run", "--backend", "kind=openai_http,target=" + g.url() + ",model=recall", "--profile", "kind=concurrent,streams=2",
			"--constraint", "kind=max_requests,count=20", "--tokenizer", "kind=huggingface_auto,model=" + model, "--data", "kind=synthetic_text,prompt_tokens=100,output_tokens=8",
			"--output", "kind=json,path=" + filepath.Join(out, "guidellm.json"), "--disable-console-interactive",
		}, 20, true, guidellmServed(filepath.Join(out, "guidellm.json"))},
		{"aiperf", []string{
			filepath.Join(b.clients, "aiperf", "bin", "aiperf"), "profile", "--model", "recall", "--tokenizer", model, "--url", g.url(), "--endpoint-type", "chat",
			"--endpoint", "/v1/chat/completions", "--streaming", "--concurrency", "2", "--request-count", "20", "--synthetic-input-tokens-mean", "100", "--output-tokens-mean", "8",
			"--ui", "none", "--artifact-dir", filepath.Join(out, "aiperf"),
		}, 20, false, aiperfServed(filepath.Join(out, "aiperf"))},
	} {
		before, err := g.counters(ctx, "sluice_attempts_total")
		if err != nil {
			return err
		}
		began := time.Now()
		if err := c.run(ctx, filepath.Join(out, strings.NewReplacer(" ", "_", ",", "").Replace(c.name)+".log")); err != nil {
			return err
		}
		served, failed, err := c.served()
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		after, err := g.counters(ctx, "sluice_attempts_total")
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s: %d served, %d failed; %g attempts at the gateway; %s", c.name, served, failed, engines.Total(after)-engines.Total(before), time.Since(began).Round(time.Second))
		fmt.Println(line)
		said = append(said, line)
		if served < c.asked || failed > 0 {
			return fmt.Errorf("%s: %d of %d served, %d failed", c.name, served, c.asked, failed)
		}
	}
	incidents, err := g.counters(ctx, "sluice_incidents_total")
	if err != nil {
		return err
	}
	if err := b.note(func(r *results, _ string) { r.Clients = said }); err != nil {
		return err
	}
	if n := engines.Total(incidents); n > 0 {
		return fmt.Errorf("%g incidents:\n%s", n, lines(incidents))
	}
	return nil
}

// loadClient is a public program and how to read what it counted.
type loadClient struct {
	name    string
	args    []string
	asked   int
	offline bool // it may be told that there is no hub; the others fail if they are told
	served  func() (served, failed int, err error)
}

func (c loadClient) run(ctx context.Context, log string) error {
	if _, err := os.Stat(c.args[0]); err != nil {
		return fmt.Errorf("%s is not there (%w): make e2e-clients installs it", c.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nice", c.args...)
	cmd.Dir = filepath.Dir(log)
	cmd.Env = os.Environ()
	if c.offline {
		cmd.Env = append(cmd.Env, "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1")
	}
	cmd.Env = append(cmd.Env, "DO_NOT_TRACK=1", "VLLM_NO_USAGE_STATS=1")
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log)
		return fmt.Errorf("%s: %w\n%s", strings.Join(c.args, " "), err, said[max(0, len(said)-3000):])
	}
	return nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func benchServed(path string) func() (int, int, error) {
	return func() (int, int, error) {
		var r struct{ Completed, Failed int }
		err := readJSON(path, &r)
		return r.Completed, r.Failed, err
	}
}

func guidellmServed(path string) func() (int, int, error) {
	return func() (served, failed int, err error) {
		var r struct {
			Benchmarks []struct {
				Metrics struct {
					Totals struct{ Successful, Errored int } `json:"request_totals"`
				}
			}
		}
		if err := readJSON(path, &r); err != nil {
			return 0, 0, err
		}
		if len(r.Benchmarks) == 0 {
			return 0, 0, errors.New("its file holds no benchmark")
		}
		for _, b := range r.Benchmarks {
			served, failed = served+b.Metrics.Totals.Successful, failed+b.Metrics.Totals.Errored
		}
		return served, failed, nil
	}
}

func aiperfServed(dir string) func() (int, int, error) {
	return func() (int, int, error) {
		files, _ := filepath.Glob(filepath.Join(dir, "*", "profile_export_aiperf.json"))
		direct, _ := filepath.Glob(filepath.Join(dir, "profile_export_aiperf.json"))
		if files = append(files, direct...); len(files) != 1 {
			return 0, 0, fmt.Errorf("%d profiles in %s", len(files), dir)
		}
		var r struct {
			Requests struct{ Avg float64 } `json:"request_count"`
			Errors   []struct{ Count int } `json:"error_summary"`
		}
		if err := readJSON(files[0], &r); err != nil {
			return 0, 0, err
		}
		failed := 0
		for _, e := range r.Errors {
			failed += e.Count
		}
		return int(r.Requests.Avg), failed, nil
	}
}
