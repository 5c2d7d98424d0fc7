package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/sluicekv/sluice/bench/e2e/engine"
)

// gateway is sluice gateway in front of the pair, for one step.
type gateway struct {
	bed *bed
	cmd *exec.Cmd
}

// tenants of the gateway: A's text must never reach B.
const tenantA, tenantB = "key-of-tenant-a", "key-of-tenant-b"

// open starts the gateway. pinned is what the configuration states of prefill's pool; 0: it is read from the worker. keys are more lines of
// the model.
func (b *bed) open(ctx context.Context, pinned int, mode, keys string) (*gateway, error) {
	binary := b.path("sluice")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "./cmd/sluice")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	pool := ""
	if pinned > 0 {
		pool = fmt.Sprintf(", pool_tokens: %d", pinned)
	}
	config := fmt.Sprintf("mode: %s\nmodels:\n  - name: recall\n    engine: sglang\n%s    workers:\n      - {role: prefill, url: %q, bootstrap_port: %d%s}\n      - {role: decode, url: %q}\n",
		mode, keys, b.url(0), b.bootstrap(), pool, b.url(1))
	clients := ""
	for id, key := range map[string]string{"a": tenantA, "b": tenantB} {
		clients += fmt.Sprintf("%s %x\n", id, sha256.Sum256([]byte(key)))
	}
	for name, text := range map[string]string{"fleet.yaml": config, "keys": clients} {
		if err := os.WriteFile(b.path(name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(b.path("gateway.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	g := &gateway{b, exec.Command(binary, "gateway", "--config", b.path("fleet.yaml"), "--listen", b.door, "--admin", b.admin, "--api-keys", b.path("keys"), "--records", b.path("records.jsonl"))}
	g.cmd.Stdout, g.cmd.Stderr = log, log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	if err := g.ready(ctx); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// ready waits until a pair can serve.
func (g *gateway) ready(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if g.admin(ctx, "/readyz").status == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("the gateway is not ready; see %s", filepath.Join(g.bed.dir, "gateway.log"))
}

func (g *gateway) close() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	t := time.AfterFunc(time.Minute, func() { _ = g.cmd.Process.Kill() })
	_ = g.cmd.Wait()
	t.Stop()
}

func (g *gateway) admin(ctx context.Context, path string) answer {
	return send(ctx, request{method: http.MethodGet, url: "http://" + g.bed.admin + path, within: 10 * time.Second})
}

// ask sends a request of a tenant to the gateway.
func (g *gateway) ask(ctx context.Context, key string, a api, body map[string]any) answer {
	return send(ctx, request{url: "http://" + g.bed.door + a.path(), body: body, key: key})
}

// incidents is what the gateway counted, by "guard (mode)".
func (g *gateway) incidents(ctx context.Context) map[string]int {
	out := map[string]int{}
	for labels, n := range engine.Counters(g.admin(ctx, "/metrics").body, "sluice_incidents_total") {
		out[value(labels, "guard")+" ("+value(labels, "mode")+")"] += int(n)
	}
	return out
}

// canaries that the gateway sent to ejected pairs, by what came of them.
func (g *gateway) canaries(ctx context.Context) map[string]int {
	out := map[string]int{}
	for labels, n := range engine.Counters(g.admin(ctx, "/metrics").body, "sluice_canaries_total") {
		out[value(labels, "result")] += int(n)
	}
	return out
}

// value of a label.
func value(labels, name string) string {
	for _, m := range label.FindAllStringSubmatch(labels, -1) {
		if m[1] == name {
			return m[2]
		}
	}
	return ""
}

var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// newest is what the newest incident says.
func (g *gateway) newest(ctx context.Context) (detail string) {
	var list struct{ Incidents []struct{ Detail string } }
	if json.Unmarshal(g.admin(ctx, "/admin/incidents").body, &list) != nil || len(list.Incidents) == 0 {
		return ""
	}
	return list.Incidents[0].Detail
}

// quiet waits until no attempt of the gateway is under way: what comes late can still be an incident.
func (g *gateway) quiet(ctx context.Context) error {
	for end := time.Now().Add(2 * waitKV); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var st struct {
			Models []struct {
				Workers []struct {
					Load *int `json:"load_tokens"`
				}
			}
		}
		a := g.admin(ctx, "/admin/fleet")
		if err := json.Unmarshal(a.body, &st); err != nil {
			return fmt.Errorf("/admin/fleet cannot be read: %w", err)
		}
		busy, seen := 0, 0
		for _, m := range st.Models {
			for _, w := range m.Workers {
				if w.Load != nil {
					seen++
					busy += *w.Load
				}
			}
		}
		if seen > 0 && busy == 0 {
			return nil
		}
	}
	return errors.New("the gateway's attempts do not end")
}
