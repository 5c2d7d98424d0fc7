package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	engines "github.com/sluicekv/sluice/bench/e2e/engine"
)

// gateway is sluice gateway in front of the pair, for one step.
type gateway struct {
	bed *bed
	cmd *exec.Cmd
}

// open starts the gateway with nothing pinned: what it knows of the pair it reads from the engines.
func (b *bed) open(ctx context.Context) (*gateway, error) {
	guards := ""
	if b.first {
		guards = "guards: {first-token: enforce}\n"
	}
	return b.openWith(ctx, guards, "")
}

// openWith starts it with more lines for all, and more keys of the model.
func (b *bed) openWith(ctx context.Context, guards, model string) (*gateway, error) {
	binary := filepath.Join(b.dir, "sluice")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "./cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	config := filepath.Join(b.dir, "fleet.yaml")
	text := guards + "models:\n  - name: recall\n    engine: vllm-nixl\n" + model + fmt.Sprintf("    workers:\n      - {role: prefill, url: %q}\n      - {role: decode, url: %q}\n", b.prefill.url(), b.decode.url())
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(b.dir, "gateway.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	g := &gateway{b, exec.Command(binary, "gateway", "--config", config, "--listen", b.door, "--admin", b.admin, "--records", filepath.Join(b.dir, "records.jsonl"))}
	g.cmd.Stdout, g.cmd.Stderr = log, log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	for range 300 {
		if s, _, err := send(ctx, http.MethodGet, "http://"+b.admin+"/readyz", nil, nil); err == nil && s == http.StatusOK {
			return g, nil
		}
		select {
		case <-ctx.Done():
			g.close()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	g.close()
	said, _ := os.ReadFile(log.Name())
	return nil, fmt.Errorf("the gateway has no pair that can serve:\n%s", said)
}

func (g *gateway) url() string { return "http://" + g.bed.door }

func (g *gateway) close() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() { _ = g.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(40 * time.Second):
		_ = g.cmd.Process.Kill()
		<-ended
	}
}

// counters are the sums of the gateway's counters of one name, by their labels.
func (g *gateway) counters(ctx context.Context, name string) (map[string]float64, error) {
	return counters(ctx, "http://"+g.bed.admin+"/metrics", name)
}

// newest is what the newest incident says, "" if there is none.
func (g *gateway) newest(ctx context.Context) string {
	var list struct{ Incidents []struct{ Detail string } }
	_, body, err := send(ctx, http.MethodGet, "http://"+g.bed.admin+"/admin/incidents", nil, nil)
	if err != nil || json.Unmarshal(body, &list) != nil || len(list.Incidents) == 0 {
		return ""
	}
	return list.Incidents[0].Detail
}

func counters(ctx context.Context, url, name string) (map[string]float64, error) {
	s, body, err := send(ctx, http.MethodGet, url, nil, nil)
	if err != nil {
		return nil, err
	}
	if s != http.StatusOK {
		return nil, fmt.Errorf("%s answers %d", url, s)
	}
	return engines.Counters(body, name), nil
}

// lines prints what is not zero, in order.
func lines(m map[string]float64) string {
	var out []string
	for k, v := range m {
		if v != 0 {
			out = append(out, fmt.Sprintf("%s %g", k, v))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, IdleConnTimeout: 2 * time.Second}}

// send makes one request and reads all of its answer.
func send(ctx context.Context, method, url string, body []byte, header http.Header) (status int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		r.Header[k] = v
	}
	resp, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	return resp.StatusCode, answer, err
}
