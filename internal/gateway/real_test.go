package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet"
	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/gguf"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/llm"
	"github.com/sluicekv/sluice/internal/llm/recall"
	"github.com/sluicekv/sluice/internal/prompt"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
	"github.com/sluicekv/sluice/internal/worker"
)

// copier is the built-in model, which continues the longest recent match: what it answers is what it attended to.
var copier = sync.OnceValues(func() (*llm.Model, *prompt.Encoder) {
	f, err := gguf.Parse(recall.Build(recall.Config{MinMatch: -1}))
	if err != nil {
		panic(err)
	}
	m, err := llm.Load(f)
	if err != nil {
		panic(err)
	}
	e, err := prompt.New(f)
	if err != nil {
		panic(err)
	}
	return m, e
})

// real is a gateway in front of real workers, on sockets, in one process.
type real struct {
	*door
	workers map[string]*worker.Worker
	ids     map[string]keyring.Identity
	fleet   *keyring.Fleet
	at      map[string]string
}

func openReal(t *testing.T, change func(*Config)) *real {
	t.Helper()
	model, enc := copier()
	ring := trace.NewRing(1 << 18)
	r := &real{door: &door{t: t, client: newClient(), trace: ring}, workers: map[string]*worker.Worker{}, at: map[string]string{"p0": "127.0.0.1:0", "d0": "127.0.0.1:0"}}
	r.fleet, r.ids = keyring.Ephemeral(keyring.Node{Name: "gw", Role: wire.RoleGateway}, keyring.Node{Name: "p0", Role: wire.RolePrefill}, keyring.Node{Name: "d0", Role: wire.RoleDecode})
	cfg := Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: r.ids["gw"], Keys: r.fleet,
		Models: []ModelConfig{{Name: "m", Encoder: enc, Fingerprint: model.Fingerprint(), Temperature: new(float32)}},
		Timing: fleet.Timing{PauseMin: time.Millisecond, PauseMax: 20 * time.Millisecond}}
	// Cleanups run last first: the gateway is closed, then the workers, then the whole trace is replayed.
	t.Cleanup(r.replay)
	for name, role := range map[string]capacity.Role{"p0": capacity.Prefill, "d0": capacity.Decode} {
		r.start(t, name)
		cfg.Models[0].Workers = append(cfg.Models[0].Workers, WorkerAddr{Name: name, Role: role, Addr: r.at[name]})
	}
	if change != nil {
		change(&cfg)
	}
	cfg.Trace = ring
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		g.Close()
	})
	r.g = g
	r.waitReady()
	return r
}

func (r *real) start(t *testing.T, name string) {
	t.Helper()
	model, _ := copier()
	c := worker.Config{Role: capacity.Prefill, Name: name, Listen: r.at[name], Model: model, PageTokens: 16, PoolPages: 256, Context: 2048, Threads: 1, Chunk: 64,
		Identity: r.ids[name], Fleet: r.fleet, Trace: r.trace}
	if name[0] == 'd' {
		c.Role, c.Data = capacity.Decode, "127.0.0.1:0"
	}
	w, err := worker.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	r.workers[name], r.at[name] = w, w.Addr().String()
	t.Cleanup(func() { w.Close() })
}

// settled waits until all pages are back, and asserts that they are zero.
func (r *real) settled() {
	r.t.Helper()
	var st fleetStatus
	fleettest.Until(r.t, "all pages free", func() bool {
		a := r.get(r.admin("/admin/fleet?scan=1"))
		if err := json.Unmarshal([]byte(a.body), &st); err != nil {
			r.t.Fatal(err)
		}
		return st.Free == st.Total && st.Total == 512 && st.Pins == 0
	})
	if *st.Nonzero != 0 {
		r.t.Errorf("%d bytes of free pages are not zero", *st.Nonzero)
	}
}

// planted makes a prompt that asks for a code that it holds; the model answers with the code.
func planted(rng *rand.Rand) (prompt, code string) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	word := func(n int) string {
		p := rng.Perm(len(letters))
		b := make([]byte, n)
		for i := range b {
			b[i] = letters[p[i]]
		}
		return string(b)
	}
	id := 100000 + rng.IntN(900000)
	code = word(16)
	ask := fmt.Sprintf("\nThe code of tenant %d is", id)
	return word(40) + ask + " " + code + ".\n" + word(40) + ask, code
}

func TestRealWorkers(t *testing.T) {
	r := openReal(t, nil)
	prompt, code := planted(rand.New(rand.NewPCG(1, 1)))
	want := " " + code + "."
	for _, stream := range []bool{false, true} {
		a := r.post("/v1/completions", complete(prompt, fmt.Sprintf(`,"max_tokens":18,"stream":%v`, stream)))
		if a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if got, finish := textOf(t, a, stream); got != want || finish != "length" {
			t.Errorf("%q (%s), want %q", got, finish, want)
		}
		a = r.post("/v1/completions", complete(prompt, fmt.Sprintf(`,"max_tokens":100,"stop":%q,"stream":%v`, code[8:10], stream)))
		if got, finish := textOf(t, a, stream); got != " "+code[:8] || finish != "stop" {
			t.Errorf("%q (%s)", got, finish)
		}
	}
	if a := r.post("/v1/chat/completions", `{"model":"m","max_tokens":17,"messages":[{"role":"user","content":`+string(quoted(prompt))+`}]}`); !strings.Contains(a.body, `"content":" `+code+`"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	rec := r.last()
	if rec.Tokens.PrefillComputed != rec.Tokens.Planned || rec.Tokens.DecodeSealed != rec.Tokens.Planned || rec.Tokens.Completion != 17 || rec.Pages.Written == 0 ||
		rec.ManifestRoot == (record.Hash{}) || rec.Verdict.Code != verdict.OK {
		t.Errorf("%+v", rec)
	}
	// Over the limit, by one.
	a := r.post("/v1/completions", complete(strings.Repeat("x", 2048), ""))
	if a.status != 400 || !strings.Contains(a.body, "the prompt has 2049 tokens, but at most 2048 fit") {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.settled()
}

func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}

// Many at once, some of which hang up, while a worker is killed and restarted: every reply is exact, or an error without [DONE]; at
// the end all pages are free and zero.
func TestRealWorkersUnderStorm(t *testing.T) {
	r := openReal(t, nil)
	n := 60
	if testing.Short() {
		n = 20
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	served, failed, gone := 0, 0, 0
	limit := make(chan bool, 12)
	for i := range n {
		limit <- true
		wg.Go(func() {
			defer func() { <-limit }()
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			prompt, code := planted(rng)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%5 == 0 {
				time.AfterFunc(time.Duration(rng.IntN(30))*time.Millisecond, cancel)
			}
			body, err := r.postContext(ctx, complete(prompt, `,"max_tokens":18,"stream":true`))
			mu.Lock()
			defer mu.Unlock()
			switch ev := events(body); {
			case err != nil:
				gone++
			case ev[len(ev)-1] == "[DONE]":
				served++
				if got, _ := textOf(t, answer{body: body}, true); got != " "+code+"." {
					t.Errorf("%d: %q, want %q", i, got, code)
				}
			case strings.Contains(ev[len(ev)-1], `"error"`):
				failed++
			default:
				t.Errorf("%d: neither served nor failed: %s", i, body)
			}
		})
		if i == n/2 {
			r.workers["d0"].Close()
			r.start(t, "d0")
			r.waitReady()
		}
	}
	wg.Wait()
	if served == 0 {
		t.Errorf("%d served, %d failed, %d gone", served, failed, gone)
	}
	t.Logf("%d served, %d failed, %d gone", served, failed, gone)
	r.waitReady()
	prompt, code := planted(rand.New(rand.NewPCG(3, 3)))
	if got, _ := textOf(t, r.post("/v1/completions", complete(prompt, `,"max_tokens":17`)), false); got != " "+code {
		t.Errorf("after the storm: %q", got)
	}
	r.settled()
}
