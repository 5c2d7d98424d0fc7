package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
)

// misuse runs what must not work: at the engines, where the foreign text must be seen or nothing is shown, then at the gateway. An
// engine that the control ends is started again; one that ends behind the gateway is a failure.
func (b *bed) misuse(ctx context.Context) error {
	straight, err := b.drive(ctx, b.decode.port, !b.cache)
	if err != nil {
		return err
	}
	ended := !alive(ctx, b.decode)
	if ended {
		fmt.Println("the control ended decode; starting it again")
		if err := b.mend(ctx, b.decode); err != nil {
			return err
		}
	}
	if !alive(ctx, b.prefill) {
		if err := b.mend(ctx, b.prefill); err != nil {
			return err
		}
	}
	g, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	_, port, _ := strings.Cut(b.door, ":")
	at, _ := strconv.Atoi(port)
	through, err := b.drive(ctx, at, true)
	if err != nil {
		return err
	}
	fmt.Printf("\n%-74s %-14s %s\n", "case", "at the engines", "at the gateway")
	leaks, passed, differ := 0, 0, 0
	for i, s := range straight {
		t := row{}
		if i < len(through) {
			t = through[i]
		}
		fmt.Printf("%-74s %-14s %s\n", s.what, s, t)
		if s.code && !s.own {
			leaks++
		}
		if t.code {
			passed++
		}
		if t.status != http.StatusBadRequest && !strings.Contains(s.what, "control") && !strings.Contains(s.what, "prefix cache") && !strings.Contains(s.what, "cache_salt") {
			differ++
		}
	}
	bodies, err := b.carriers(ctx, g)
	if err != nil {
		return err
	}
	recorded, err := b.recorded(ctx, g)
	if err != nil {
		return err
	}
	lives := alive(ctx, b.prefill) && alive(ctx, b.decode)
	fmt.Printf("foreign text: %d of %d cases at the engines, %d at the gateway; decode ended: %v at the engines, %v at the gateway\n", leaks, len(straight), passed, ended, !lives)
	if err := b.note(func(r *results, date string) {
		r.Misuse = append(r.Misuse, misused{date, b.cache, len(straight), leaks, passed, ended, !lives, bodies, recorded})
	}); err != nil {
		return err
	}
	switch {
	case leaks == 0:
		return fmt.Errorf("the control saw no foreign text at the engines: nothing is shown")
	case !b.cache && !ended:
		return fmt.Errorf("the control did not end decode: nothing is shown about that")
	case passed > 0:
		return fmt.Errorf("%d cases got foreign text through the gateway", passed)
	case differ > 0:
		return fmt.Errorf("%d cases were not refused with 400 at the gateway", differ)
	case !lives:
		return fmt.Errorf("an engine ended behind the gateway")
	}
	return nil
}

// row is one case of the driver.
type row struct {
	what   string
	status int
	code   bool // the code was in the reply
	own    bool // and was the client's own
}

func (r row) String() string {
	if r.code {
		return fmt.Sprintf("%d, the code", r.status)
	}
	return fmt.Sprintf("%d, -", r.status)
}

var printed = regexp.MustCompile(`^(.{74}) (\d+) (code|-)\s`)

// drive runs the shared driver with a decode of its own choice. Handles it always takes from the real prefill.
func (b *bed) drive(ctx context.Context, decode int, kill bool) (rows []row, err error) {
	driver, err := b.script("scripts/pd_misuse.py")
	if err != nil {
		return nil, err
	}
	args := []string{driver, "--prefill", strconv.Itoa(b.prefill.port), "--decode", strconv.Itoa(decode)}
	if kill {
		args = append(args, "--kill")
	}
	out, err := exec.CommandContext(ctx, "python3", args...).Output()
	for l := range strings.Lines(string(out)) {
		if m := printed.FindStringSubmatch(l); m != nil {
			what := strings.TrimSpace(m[1])
			status, _ := strconv.Atoi(m[2])
			rows = append(rows, row{what, status, m[3] == "code", strings.HasPrefix(what, "owner's")})
		}
	}
	if err != nil || len(rows) < 8 {
		return nil, fmt.Errorf("%s printed %d cases: %w\n%s", driver, len(rows), err, out)
	}
	return rows, nil
}

// carriers sends a good handle, fresh from prefill, in every place and spelling that a client has. None may reach decode: the prompt
// beside it asks for what the handle's prompt holds.
func (b *bed) carriers(ctx context.Context, g *gateway) (n int, err error) {
	rng := rand.New(rand.NewPCG(3, 3))
	refused := 0
	for _, spell := range []func(handle string) string{
		func(h string) string { return `"kv_transfer_params":` + h },
		func(h string) string { return `"kv\u005ftransfer_params":` + h },
		func(h string) string { return `"KV_Transfer_Params":` + h },
		func(h string) string { return `"kv_transfer_params":null,"kv_transfer_params":` + h },
		func(h string) string { return `"kv_transfer_params":` + h + `,"kv_transfer_params":null` },
		func(h string) string { return `"kv_transfer_params ":` + h },
		func(h string) string { return `"extra_body":{"kv_transfer_params":` + h + `}` },
		func(h string) string { return `"vllm_xargs":{"kv_transfer_params":` + h + `}` },
		func(h string) string { return `"metadata":{"kv_transfer_params":` + h + `}` },
		func(h string) string { return `"extra_args":{"kv_transfer_params":` + h + `}` },
		func(h string) string { return `"stream_options":{"include_usage":true,"kv_transfer_params":` + h + `}` },
		func(h string) string { return `"ec_transfer_params":` + h },
		func(h string) string { return `"kv_transfer_params":{"do_remote_prefill":true}` },
		func(h string) string { return `"kv_transfer_params":[]` },
		func(h string) string { return `"kv_transfer_params":null` },
		func(h string) string { return `"kv_transfer_params":{}` },
	} {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			for _, stream := range []string{"", `,"stream":true`} {
				text, ask, code := planted(rng, []rune(letters))
				text = filler(rng, 400) + text + filler(rng, 400) + "\n" + ask
				handle, err := b.handle(ctx, text)
				if err != nil {
					return n, err
				}
				quoted, _ := json.Marshal(filler(rng, len(text)-len(ask)) + ask)
				field := `"prompt":` + string(quoted)
				if path != "/v1/completions" {
					field = `"messages":[{"role":"user","content":` + string(quoted) + `}]`
				}
				if strings.Contains(spell(""), "stream_options") {
					stream = `,"stream":true`
				}
				body := `{"model":"recall",` + field + `,"max_tokens":20,"temperature":0,` + spell(handle) + stream + `}`
				status, answer, err := send(ctx, http.MethodPost, g.url()+path, []byte(body), nil)
				if err != nil {
					return n, err
				}
				n++
				said := reply{}
				for l := range bytes.Lines(answer) {
					_ = said.hear(bytes.TrimPrefix(l, []byte("data: ")))
				}
				// A refusal may name a field that the client sent; what a handle says it may not.
				if strings.Contains(said.text, code) || status == http.StatusOK && bytes.Contains(answer, []byte("remote_")) || bytes.Contains(answer, []byte(engineOf(handle))) {
					return n, fmt.Errorf("a handle passed: %s", spell("…"))
				}
				if status != http.StatusOK {
					refused++
				}
			}
		}
	}
	fmt.Printf("a handle in %d bodies: %d refused, the others served without it; the text it points to in none\n", n, refused)
	return n, nil
}

// handle asks prefill for one, as a gateway does.
func (b *bed) handle(ctx context.Context, prompt string) (string, error) {
	body, _ := json.Marshal(map[string]any{"model": "recall", "prompt": prompt, "max_tokens": 1, "temperature": 0, "kv_transfer_params": map[string]any{
		"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
	}})
	status, answer, err := send(ctx, http.MethodPost, b.prefill.url()+"/v1/completions", body, nil)
	var a struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err == nil {
		err = json.Unmarshal(answer, &a)
	}
	if err != nil || status != http.StatusOK || len(a.Params) < 10 {
		return "", fmt.Errorf("prefill gave no handle: %d %w %s", status, err, answer)
	}
	return string(a.Params), nil
}

// engineOf is the engine that a handle names.
func engineOf(handle string) string {
	var h struct {
		Engine string `json:"remote_engine_id"`
	}
	if json.Unmarshal([]byte(handle), &h) != nil || h.Engine == "" {
		return "remote_" // there is none to look for: nothing of a handle may be there
	}
	return h.Engine
}

// recorded replays every recorded request at the gateway: whatever the engines did with it, here it ends neither of them.
func (b *bed) recorded(ctx context.Context, g *gateway) (n int, err error) {
	where, err := b.script("README.md")
	if err != nil {
		return 0, err
	}
	var files []string
	for _, dir := range []string{"http", "pd"} {
		f, _ := filepath.Glob(filepath.Join(filepath.Dir(where), dir, "*.request"))
		files = append(files, f...)
	}
	sort.Strings(files)
	statuses := map[int]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return n, err
		}
		head, body, _ := strings.Cut(string(text), "\n\n")
		first := strings.Fields(strings.SplitN(head, "\n", 2)[0])
		if len(first) < 2 {
			return n, fmt.Errorf("%s is no request", f)
		}
		c, cancel := context.WithTimeout(ctx, time.Minute)
		status, answer, err := send(c, first[0], g.url()+first[1], []byte(strings.TrimSpace(body)), nil)
		cancel()
		if err != nil {
			return n, fmt.Errorf("%s: %w", f, err)
		}
		if bytes.Contains(answer, []byte(`"remote_`)) {
			return n, fmt.Errorf("the answer to %s names memory of a worker", f)
		}
		n++
		statuses[status]++
		for _, e := range b.engines() {
			if !well(ctx, e) {
				return n, fmt.Errorf("%s is not well after %s", e.name, f)
			}
		}
	}
	fmt.Printf("%d recorded requests at the gateway, by status: %v; both engines are well\n", n, statuses)
	return n, nil
}
