package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/guard"
)

// guardedDoor is a gateway process in front of fakes.
type guardedDoor struct {
	*process
	t          *testing.T
	file       string
	url, admin string
}

func openDoor(t *testing.T, text string, args ...string) *guardedDoor {
	t.Helper()
	d := &guardedDoor{t: t, file: filepath.Join(t.TempDir(), "fleet.yaml")}
	d.write(text)
	d.process = start(t, nil, append([]string{"gateway", "--config", d.file, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)...)
	d.url = d.expect(`API on (http://[^ ]+)$`)
	d.admin = d.expect(`admin on (http://[^ ]+)`)
	return d
}

func (d *guardedDoor) write(text string) {
	d.t.Helper()
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// reload changes the file and waits for what the log says of it.
func (d *guardedDoor) reload(text, outcome string) {
	d.t.Helper()
	d.write(text)
	d.kill(syscall.SIGHUP)
	d.expect(outcome)
}

func (d *guardedDoor) get(path string) (status int, body string) {
	d.t.Helper()
	at := d.url
	if strings.HasPrefix(path, "/admin") {
		at = d.admin
	}
	resp, err := http.Get(at + path)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func (d *guardedDoor) post(path, body string) (status int, answer string) {
	d.t.Helper()
	at := d.url
	if strings.HasPrefix(path, "/admin") {
		at = d.admin
	}
	resp, err := http.Post(at+path, "application/json", strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func (d *guardedDoor) complete(model string) (status int, answer string) {
	d.t.Helper()
	return d.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"My name is Alice. My name is","max_tokens":4}`, model))
}

// until waits for a condition that comes by itself.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}

// workersOf is the lines of a pair's workers.
func workersOf(p *fake.Pair) string {
	_, ws, _ := strings.Cut(p.YAML(false), "workers:\n")
	return ws
}

func skipUnsafe(t *testing.T) {
	if guard.Unsafe || testing.Short() {
		t.Skip("a process each; the release build, in full")
	}
}

// Everything of the file that can change does at SIGHUP, all of it or nothing, and the log says what.
func TestReloadOfEverything(t *testing.T) {
	skipUnsafe(t)
	f := fake.NewFleet(t)
	a, err := f.Pair(fake.Options{Engine: fake.SGLang, TokenWait: 20 * time.Millisecond, Prefill: fake.Leg{Name: "a-prefill"}, Decode: fake.Leg{Name: "a-decode"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Pair(fake.Options{Engine: fake.SGLang, Prefill: fake.Leg{Name: "b-prefill", Pool: 4096}, Decode: fake.Leg{Name: "b-decode"}})
	if err != nil {
		t.Fatal(err)
	}
	other := fake.NewPair(t, fake.Options{Engine: fake.Plain, Model: "second"})
	t.Cleanup(a.Close)
	t.Cleanup(b.Close)
	d := openDoor(t, "models:\n"+a.YAML(false))
	d.expect(`worker's facts.*decode`)
	until(t, "the pair serves", func() bool { s, _ := d.complete("recall"); return s == 200 })

	// A bad file changes nothing and says why.
	for text, why := range map[string]string{
		"models:\n" + strings.Replace(a.YAML(false), "engine: sglang", "engine: sglang\n    hold: {bytes: -1}", 1): `not taken.*hold: bytes is negative`,
		"models:\n  - name: recall\n    engine: sgl":                                                               `not taken.*engine \\"sgl\\"`,
		"mode: observe\nmodels: []\n":                                                                              `not taken.*at least one`,
		"mode: maybe\nmodels:\n" + a.YAML(false):                                                                   `not taken.*observe`,
		"models:\n" + b.YAML(false) + "  - {name: x, engine: plain, workers: [{url: \"http://h:1\", api_key_file: /none/there}]}\n": `not taken.*/none/there`,
		"{": `not taken`,
	} {
		d.reload(text, why)
		if s, body := d.complete("recall"); s != 200 {
			t.Fatalf("after a bad file: %d %s", s, body)
		}
	}
	if b.Prefill.Requests.Load() != 0 {
		t.Error("a worker of a bad file was used")
	}

	// A stream that runs on what is taken out ends well on it.
	long := strings.Repeat("abcdefgh", 60)
	resp, err := http.Post(d.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"recall","stream":true,"max_tokens":100,"prompt":"`+long+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Scan()

	next := "mode: observe\nwebhook: http://127.0.0.1:1/hook\nmax_body: 1KiB\nlog_level: debug\nguards: {plausibility: enforce}\nmodels:\n" +
		strings.Replace(b.YAML(false), "engine: sglang", "engine: sglang\n    aliases: [adapter]\n    budget_tokens: 100000\n    hold: {bytes: 4096}", 1) + other.YAML(false)
	d.reload(next, `reload: done`)
	out := d.output()
	for _, want := range []string{
		"model recall: budget_tokens was 0, now 100000", "model recall: hold.bytes was 0, now 4096", "model second added", "model adapter added",
		"worker prefill " + b.Prefill.Addr() + " added", "worker prefill " + a.Prefill.Addr() + " removed", "guard prompt-agree was enforce, now observe",
		"guard plausibility was observe, now enforce", "webhook changed", "max_body was 32MiB, now 1KiB", `needs a restart and stays as it is" setting="log_level was info, now debug"`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	until(t, "the new pair serves", func() bool { s, _ := d.complete("recall"); return s == 200 })
	body := ""
	for lines.Scan() {
		body += lines.Text() + "\n"
	}
	if !strings.Contains(body, "data: [DONE]") {
		t.Errorf("the stream did not end well: %s", body)
	}
	asked := a.Prefill.Requests.Load()
	for range 5 {
		if s, body := d.complete("recall"); s != 200 {
			t.Errorf("%d %s", s, body)
		}
	}
	if now := a.Prefill.Requests.Load(); now != asked {
		t.Errorf("a worker that was taken out got %d requests", now-asked)
	}
	until(t, "the other model serves", func() bool { s, _ := d.complete("second"); return s == 200 })
	message := `{"model":"second","max_tokens":4,"messages":[{"role":"user","content":"My name is Alice. My name is"}]}`
	if s, body := d.post("/v1/messages", message); s != 200 || !strings.Contains(body, `" Ali`) {
		t.Errorf("a message: %d %s", s, body)
	}
	d.reload(strings.Replace(next, "messages: true", "messages: false", 1), `model second: messages was true, now false`)
	if s, body := d.post("/v1/messages", message); s != 404 || !strings.Contains(body, "not_found_error") {
		t.Errorf("a message that is not offered any more: %d %s", s, body)
	}
	if s, body := d.post("/v1/completions", `{"model":"recall","prompt":"`+strings.Repeat("x", 2000)+`"}`); s != 413 {
		t.Errorf("max_body: %d %s", s, body)
	}
	if _, body := d.get("/v1/models"); !strings.Contains(body, `"second"`) || !strings.Contains(body, `"adapter"`) || !strings.Contains(body, `"max_model_len":4064`) {
		t.Error(body)
	}

	// What is pinned changes without a gap; a model that is gone is gone, and its switch with it.
	d.reload("models:\n"+strings.Replace(b.YAML(false), `", bootstrap`, `", pool_tokens: 2048, bootstrap`, 1), `pool_tokens was not pinned, now 2048`)
	if s, body := d.complete("recall"); s != 200 {
		t.Errorf("%d %s", s, body)
	}
	until(t, "the log says what was removed", func() bool { return strings.Contains(d.output(), "model second removed") })
	if _, body := d.get("/v1/models"); !strings.Contains(body, `"max_model_len":2016`) {
		t.Error(body)
	}
	if s, body := d.complete("second"); s != 404 {
		t.Errorf("%d %s", s, body)
	}
}

// An operator's drain: no new attempt, what is in flight ends, and back.
func TestDrainOfAWorker(t *testing.T) {
	skipUnsafe(t)
	f := fake.NewFleet(t)
	text := "models:\n  - name: recall\n    engine: vllm-nixl\n    workers:\n"
	var pairs []*fake.Pair
	for i := range 2 {
		p, err := f.Pair(fake.Options{Engine: fake.VLLMNixl, Prefill: fake.Leg{Name: fmt.Sprint("p", i)}, Decode: fake.Leg{Name: fmt.Sprint("d", i)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		pairs = append(pairs, p)
		text += workersOf(p)
	}
	d := openDoor(t, text)
	usable := func() int {
		_, body := d.get("/admin/fleet")
		var st struct {
			Models []struct {
				Counts map[string]int `json:"pair_counts"`
			}
		}
		if err := json.Unmarshal([]byte(body), &st); err != nil {
			t.Fatal(err)
		}
		return st.Models[0].Counts["usable"]
	}
	until(t, "four pairs", func() bool { return usable() == 4 })
	name := "decode " + pairs[0].Decode.Addr()
	if s, body := d.post("/admin/workers/"+url.PathEscape(name)+"/drain", ""); s != 200 || !strings.Contains(body, `"draining"`) {
		t.Fatalf("%d %s", s, body)
	}
	before := pairs[0].Decode.Requests.Load()
	for range 20 {
		if s, body := d.complete("recall"); s != 200 {
			t.Fatalf("%d %s", s, body)
		}
	}
	if n := pairs[0].Decode.Requests.Load() - before; n != 0 || usable() != 2 {
		t.Errorf("a drained worker got %d requests; %d pairs are usable", n, usable())
	}
	d.reload(text, "reload: done")
	if usable() != 2 {
		t.Error("a reload undid a drain")
	}
	d.post("/admin/workers/"+url.PathEscape(name)+"/undrain", "")
	if usable() != 4 {
		t.Error("it does not come back")
	}
	if s, body := d.post("/admin/workers/none/drain", ""); s != 404 || !strings.Contains(body, "no such worker") {
		t.Errorf("%d %s", s, body)
	}
}
