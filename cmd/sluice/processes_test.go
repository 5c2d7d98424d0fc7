package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/guard"
)

// binary builds the program once, with the tags that this test was built with.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-test")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "sluice")
	args := []string{"build", "-o", out}
	if guard.Unsafe {
		args = append(args, "-tags", "unsafe_guards")
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, b)
	}
	return out, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil && path != "" {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// process is a running sluice.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
	line chan string
	done chan error
}

// start runs sluice with args, in an environment whose state directory is the test's.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(path, args...), line: make(chan string, 1000), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), env...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		s := bufio.NewScanner(r)
		for s.Scan() {
			p.mu.Lock()
			p.out.WriteString(s.Text() + "\n")
			p.mu.Unlock()
			select {
			case p.line <- s.Text():
			default:
			}
		}
		r.Close()
		p.done <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), p.output())
		}
	})
	return p
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// expect waits for a line that matches, and returns its first group.
func (p *process) expect(pattern string) string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(60 * time.Second)
	for {
		select {
		case l := <-p.line:
			if m := re.FindStringSubmatch(l); m != nil {
				return m[len(m)-1]
			}
		case err := <-p.done:
			p.done <- err
			p.t.Fatalf("ended with %v before %q:\n%s", err, pattern, p.output())
		case <-deadline:
			p.t.Fatalf("no line matches %q:\n%s", pattern, p.output())
		}
	}
}

func (p *process) kill(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// exit waits for the end and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case err := <-p.done:
		p.done <- err
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(60 * time.Second):
		p.t.Fatalf("still running:\n%s", p.output())
		return -1
	}
}

// trio is a gateway, a prefill and a decode worker as three processes.
type trio struct {
	t                        *testing.T
	env                      []string
	prefill, decode, gateway *process
	prefillAddr, decodeAddr  string
	dataAddr, url, admin     string
	workerArgs               []string
}

func startTrio(t *testing.T, workerArgs []string, gatewayArgs ...string) *trio {
	t.Helper()
	x := &trio{t: t, env: []string{"XDG_STATE_HOME=" + t.TempDir()}, workerArgs: workerArgs}
	x.startDecode(keptAddr(t), keptAddr(t))
	x.startPrefill(keptAddr(t))
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	model := "recall"
	for i, a := range workerArgs {
		if a == "--model" {
			model = workerArgs[i+1]
		}
	}
	text := fmt.Sprintf("models:\n  - name: m\n    engine: native\n    model: %s\n    workers:\n      - {role: prefill, url: %q}\n      - {role: decode, url: %q}\n",
		model, "sluice://"+x.prefillAddr, "sluice://"+x.decodeAddr)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	x.gateway = start(t, x.env, append([]string{"gateway", "--config", file, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, gatewayArgs...)...)
	x.url = x.gateway.expect(`API on (http://\S+)`)
	x.admin = x.gateway.expect(`admin on (http://\S+)`)
	x.ready()
	return x
}

// keptAddr is an address for a process that is started again under it: below the ports that the system gives to connections, one of which
// could have taken it meanwhile.
func keptAddr(t *testing.T) string {
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(18000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

func (x *trio) startDecode(listen, data string) {
	x.decode = start(x.t, x.env, append([]string{"worker", "--role", "decode", "--listen", listen, "--data", data}, x.workerArgs...)...)
	line := x.decode.expect(`(control on \S+, data on \S+)`)
	if _, err := fmt.Sscanf(strings.ReplaceAll(line, ",", " "), "control on %s data on %s", &x.decodeAddr, &x.dataAddr); err != nil {
		x.t.Fatal(err, line)
	}
}

func (x *trio) startPrefill(listen string) {
	x.prefill = start(x.t, x.env, append([]string{"worker", "--role", "prefill", "--listen", listen}, x.workerArgs...)...)
	x.prefillAddr = x.prefill.expect(`control on ([0-9.:]+)`)
}

// ready waits until a pair can serve.
func (x *trio) ready() {
	x.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for time.Now().Before(deadline) {
		if r, err := http.Get(x.url + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == 200 {
				return
			}
		}
		time.Sleep(20 * time.Millisecond) // polling another process
	}
	x.t.Fatal("no pair became ready")
}

// answer is a reply as a client sees it.
type answer struct {
	status int
	header http.Header
	body   []byte
	text   string
	finish string
	code   string // error.code
	usage  struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

func post(ctx context.Context, url, path string, body any) (answer, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", url+path, bytes.NewReader(b))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		return a, err
	}
	var r struct {
		Choices []struct {
			Text    string `json:"text"`
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Usage json.RawMessage `json:"usage"`
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(a.body, &r) == nil {
		a.code = r.Error.Code
		if len(r.Choices) > 0 {
			a.text, a.finish = r.Choices[0].Text+r.Choices[0].Message.Content, r.Choices[0].Finish
		}
		if r.Usage != nil {
			_ = json.Unmarshal(r.Usage, &a.usage)
		}
	}
	return a, nil
}

func (x *trio) complete(body map[string]any) answer {
	x.t.Helper()
	if body["model"] == nil {
		body["model"] = "m"
	}
	a, err := post(x.t.Context(), x.url, "/v1/completions", body)
	if err != nil {
		x.t.Fatal(err)
	}
	return a
}
