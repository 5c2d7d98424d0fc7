// Package peer starts the gateways that sluice is compared with, as their manuals say, and sluice itself beside them: each in a
// process of its own in front of the same workers.
package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluicekv/sluice/bench/trio"
	"github.com/sluicekv/sluice/internal/fake"
)

// Names of the gateways.
const (
	SMG          = "smg"
	SGLangRouter = "sglang-router"
	VLLMRouter   = "vllm-router"
	Sluice       = "sluice"
)

// Versions that bench/peers/install.sh installs.
var Versions = map[string]string{SMG: "1.13.0", SGLangRouter: "0.3.2", VLLMRouter: "0.1.17"}

// For lists the gateways that can stand in front of an engine's workers, ours last.
func For(engine string) []string {
	switch engine {
	case fake.SGLang:
		return []string{SMG, SGLangRouter, Sluice}
	case fake.VLLMNixl, fake.VLLMMooncake:
		return []string{SMG, VLLMRouter, Sluice}
	}
	return []string{SMG, SGLangRouter, VLLMRouter, Sluice}
}

// Fleet is the workers that a gateway is put in front of.
type Fleet struct {
	Engine          string // as package fake names it
	Prefill, Decode string // URLs; Prefill is "" where one worker does all
	Bootstrap       int
	EngineID        string // Mooncake
	Context         int    // pinned for sluice, which reads it where it is 0
}

// Options of a start.
type Options struct {
	Env    string   // directory of the environments that install.sh made
	Binary string   // sluice
	CPUs   string   // processors of the gateway, for taskset; "": any
	Flags  []string // more flags of sluice gateway
	Config string   // more lines of its fleet.yaml
}

// Gateway is one that runs.
type Gateway struct {
	Name    string
	URL     string
	Admin   string // sluice
	Process *trio.Process
	dir     string
}

// Close ends it.
func (g *Gateway) Close() {
	g.Process.Stop()
	os.RemoveAll(g.dir)
}

// Start runs a gateway and waits until it serves. One that ends at once is started again: a free port may be taken before it is used.
func Start(ctx context.Context, name string, f Fleet, o Options) (g *Gateway, err error) {
	for range 4 {
		if g, err = start(ctx, name, f, o); err == nil || !errors.Is(err, errEnded) {
			return g, err
		}
	}
	return nil, err
}

var errEnded = errors.New("it ended")

func start(ctx context.Context, name string, f Fleet, o Options) (*Gateway, error) {
	dir, err := os.MkdirTemp("", "sluice-peer")
	if err != nil {
		return nil, err
	}
	g := &Gateway{Name: name, dir: dir}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	metrics, err := freePort()
	if err != nil {
		return nil, err
	}
	g.URL = "http://127.0.0.1:" + strconv.Itoa(port)
	args := []string{"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--prometheus-port", strconv.Itoa(metrics), "--log-level", "error"}
	two := f.Prefill != ""
	binary := filepath.Join(o.Env, name, "bin", name)
	later := false // workers are told to a running gateway
	switch name {
	case SMG, SGLangRouter:
		args = append([]string{"launch"}, args...)
		if name == SGLangRouter {
			binary = filepath.Join(o.Env, name, "bin", "python")
			args = append([]string{"-m", "sglang_router.launch_router"}, args[1:]...)
		}
		switch {
		case !two:
			args = append(args, "--worker-urls", f.Decode)
		case f.Engine == fake.SGLang:
			args = append(args, "--pd-disaggregation", "--prefill", f.Prefill, strconv.Itoa(f.Bootstrap), "--decode", f.Decode)
		default:
			// Its command line cannot name a connector: without one nothing is handed over.
			args, later = append(args, "--pd-disaggregation", "--disable-circuit-breaker"), true
		}
		args = append(args, "--max-payload-size", strconv.Itoa(64<<20))
	case VLLMRouter:
		if !two {
			args = append(args, "--worker-urls", f.Decode)
		} else {
			connector := "nixl"
			if f.Engine == fake.VLLMMooncake {
				connector = "mooncake"
			}
			prefill := []string{"--prefill", f.Prefill}
			if f.Bootstrap > 0 {
				prefill = append(prefill, strconv.Itoa(f.Bootstrap))
			}
			args = append(args, "--vllm-pd-disaggregation", "--kv-connector", connector)
			args = append(append(args, prefill...), "--decode", f.Decode)
		}
		args = append(args, "--max-payload-size", strconv.Itoa(64<<20))
	case Sluice:
		binary = o.Binary
		file := filepath.Join(dir, "fleet.yaml")
		if err := os.WriteFile(file, []byte(f.yaml()+o.Config), 0o600); err != nil {
			return nil, err
		}
		g.Admin = "http://127.0.0.1:" + strconv.Itoa(metrics)
		args = append([]string{"gateway", "--config", file, "--listen", strings.TrimPrefix(g.URL, "http://"), "--admin", strings.TrimPrefix(g.Admin, "http://"), "--log-level", "error"}, o.Flags...)
	default:
		return nil, fmt.Errorf("no gateway is named %q", name)
	}
	if _, err := os.Stat(binary); err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("%s is not installed (%s is missing): run bench/peers/install.sh", name, binary)
	}
	if o.CPUs != "" {
		args, binary = append([]string{"-c", o.CPUs, binary}, args...), "taskset"
	}
	if g.Process, err = trio.StartProcess(name, binary, []string{"XDG_STATE_HOME=" + dir, "PYTHONUNBUFFERED=1"}, args...); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if later {
		if err = g.tell(ctx, f); err != nil {
			err = fmt.Errorf("%w\n%s", err, g.Process.Output())
		}
	}
	if err == nil {
		err = g.wait(ctx)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

func (f Fleet) yaml() string {
	var b strings.Builder
	engine := f.Engine
	if engine == fake.PlainSGLang {
		engine = fake.Plain
	}
	fmt.Fprintf(&b, "models:\n  - name: recall\n    engine: %s\n    workers:\n", engine)
	more := ""
	if f.Context > 0 {
		more = fmt.Sprintf(", pool_tokens: %d, context: %d", f.Context, f.Context)
	}
	if f.Prefill == "" {
		fmt.Fprintf(&b, "      - {role: both, url: %q%s}\n", f.Decode, more)
		return b.String()
	}
	boot := ""
	if f.Bootstrap > 0 {
		boot = fmt.Sprintf(", bootstrap_port: %d", f.Bootstrap)
	}
	fmt.Fprintf(&b, "      - {role: prefill, url: %q%s%s}\n      - {role: decode, url: %q%s}\n", f.Prefill, boot, more, f.Decode, more)
	return b.String()
}

// tell names the workers to a running smg, with their connector.
func (g *Gateway) tell(ctx context.Context, f Fleet) error {
	connector := "NixlConnector"
	if f.Engine == fake.VLLMMooncake {
		connector = "MooncakeConnector"
	}
	more := ""
	if f.EngineID != "" {
		more = fmt.Sprintf(`,"bootstrap_port":%d,"kv_engine_id":%q`, f.Bootstrap, f.EngineID)
	}
	for _, w := range []string{
		fmt.Sprintf(`{"url":%q,"worker_type":"prefill","runtime_type":"vllm","model_id":"recall","kv_connector":%q,"disable_health_check":true%s}`, f.Prefill, connector, more),
		fmt.Sprintf(`{"url":%q,"worker_type":"decode","runtime_type":"vllm","model_id":"recall","kv_connector":%q,"disable_health_check":true}`, f.Decode, connector),
	} {
		for {
			status, body, err := post(ctx, g.URL+"/workers", w)
			if err == nil && status < 300 {
				break
			}
			if err == nil && status != http.StatusServiceUnavailable {
				return fmt.Errorf("%s: POST /workers: %d %s", g.Name, status, body)
			}
			if err := g.pause(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

const ping = `{"model":"recall","messages":[{"role":"user","content":"hello"}],"max_tokens":64}`

// wait returns when the gateway answers a request as a worker would.
func (g *Gateway) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	last := "it does not listen"
	for {
		status, body, err := post(ctx, g.URL+"/v1/chat/completions", ping)
		if err == nil && status == http.StatusOK {
			return nil
		}
		if err == nil {
			last = fmt.Sprintf("it answers %d %.200s", status, body)
		}
		if err := g.pause(ctx); err != nil {
			return fmt.Errorf("%s does not serve (%w): %s\n%s", g.Name, err, last, g.Process.Output())
		}
	}
}

func (g *Gateway) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-g.Process.Ended():
		return errEnded
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}

func post(ctx context.Context, url, body string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, b, err
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
