package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/pool/outside"
)

// bytesPerToken of the built-in model's KV.
const bytesPerToken = 768

// needle returns a prompt of exactly n tokens of the built-in model (a byte each, and BOS) with a code planted at a
// random depth among others, which asks for it at the end; and the code.
func needle(rng *rand.Rand, n int) (prompt, code string) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	word := func(k int) string { // no letter twice, so that any few of them are unique
		p := rng.Perm(len(letters))
		b := make([]byte, k)
		for i := range b {
			b[i] = letters[p[i]]
		}
		return string(b)
	}
	id := 1000 + rng.IntN(9000)
	code = word(16)
	ask := fmt.Sprintf("\nThe code of tenant %d is", id)
	planted := fmt.Sprintf("\nThe code of tenant %d is %s.\n", id, code)
	words := strings.Fields("the river turned slowly past old mills and the boats lay tied under grey willows while children ran along its banks with dogs")
	var b strings.Builder
	room := n - 1 - len(ask) - len(planted)
	at := rng.IntN(room)
	for done := false; b.Len() < room+len(planted); {
		if !done && b.Len() >= at {
			b.WriteString(planted)
			done = true
		}
		b.WriteString(words[rng.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:n-1-len(ask)] + ask, code
}

func TestANeedleComesBackThroughThreeProcesses(t *testing.T) {
	n := 32_000
	if testing.Short() {
		n = 4_000
	}
	x := startTrio(t, nil)
	prompt, code := needle(rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano()))), n)
	a := x.complete(map[string]any{"prompt": prompt, "max_tokens": 18, "temperature": 0})
	if a.status != 200 || a.text != " "+code+"." || a.usage.Prompt != n || a.usage.Completion != 18 {
		t.Fatalf("status %d, %q, want %q; usage %+v; %s", a.status, a.text, " "+code+".", a.usage, a.body)
	}
}

func TestTheDataSocketCarriesThePages(t *testing.T) {
	if _, err := exec.LookPath("ss"); err != nil {
		t.Skip("ss (iproute2) is not installed")
	}
	x := startTrio(t, nil)
	const n = 8_000
	prompt, code := needle(rand.New(rand.NewPCG(2, 2)), n)
	if a := x.complete(map[string]any{"prompt": prompt, "max_tokens": 17, "temperature": 0}); a.text != " "+code {
		t.Fatalf("%d %q %s", a.status, a.text, a.body)
	}
	out, err := exec.Command("ss", "-tniH", "src", x.dataAddr).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	got := 0
	for _, m := range regexp.MustCompile(`bytes_received:(\d+)`).FindAllSubmatch(out, -1) {
		v, _ := strconv.Atoi(string(m[1]))
		got += v
	}
	if want := n * bytesPerToken; got < want {
		t.Fatalf("the data socket carried %d bytes, the pages of %d tokens have %d:\n%s", got, n, want, out)
	}
}

func TestAStoppedPrefillIsNamedWithinTheDeadline(t *testing.T) {
	x := startTrio(t, nil, "--request-timeout", "4s")
	prompt, _ := needle(rand.New(rand.NewPCG(3, 3)), 32_000)
	began := time.Now()
	done := make(chan answer, 1)
	go func() {
		done <- x.complete(map[string]any{"prompt": prompt, "max_tokens": 16})
	}()
	x.midHandoff()
	x.prefill.kill(syscall.SIGSTOP)
	a := <-done
	x.prefill.kill(syscall.SIGCONT)
	took := time.Since(began)
	if a.status < 500 || !strings.Contains(string(a.body), "prefill") || a.code == "" {
		t.Fatalf("status %d after %s: %s", a.status, took, a.body)
	}
	t.Logf("answered %d after %s; the deadline was 4 s", a.status, took)
	if took > 15*time.Second { // a busy machine is late; the stopped worker would have kept it for minutes
		t.Fatalf("the answer took %s, the deadline was 4 s", took)
	}
	if v := a.header.Get("X-Sluice-Verdict"); !strings.Contains(v, "layer=") {
		t.Fatalf("no layer is named: %q", v)
	}
	x.settled()
}

// midHandoff waits until decode has pages out on lease.
func (x *trio) midHandoff() {
	x.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		if free, total := x.pools(); total > 0 && free < total {
			return
		}
		time.Sleep(5 * time.Millisecond) // polling another process
	}
	x.t.Fatal("no attempt reached decode")
}

// pools asks the admin endpoint for the pages of all pools.
func (x *trio) pools() (free, total int) {
	r, err := http.Get(x.admin + "/admin/fleet")
	if err != nil {
		x.t.Fatal(err)
	}
	defer r.Body.Close()
	var f struct {
		Free  int `json:"pool_free"`
		Total int `json:"pool_total"`
	}
	if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
		x.t.Fatal(err)
	}
	return f.Free, f.Total
}

// settled waits until all pages are free, and finds every byte of both arenas zero from outside the processes.
func (x *trio) settled() {
	x.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	free, total := 0, 0
	for time.Now().Before(deadline) {
		if free, total = x.pools(); total > 0 && free == total {
			break
		}
		time.Sleep(20 * time.Millisecond) // polling another process
	}
	if free != total || total == 0 {
		x.t.Fatalf("%d of %d pages are free", free, total)
	}
	for role, p := range map[string]*process{"prefill": x.prefill, "decode": x.decode} {
		n, nonzero, err := outside.Scan(p.cmd.Process.Pid, role)
		if err != nil {
			x.t.Fatal(err)
		}
		if n == 0 || nonzero != 0 {
			x.t.Fatalf("%s: %d of %d bytes of the arena are not zero", role, nonzero, n)
		}
	}
}

func TestAnAbortStormLeavesEveryByteZero(t *testing.T) {
	x := startTrio(t, []string{"--context", "16384"})
	rng := rand.New(rand.NewPCG(4, 4))
	var wg sync.WaitGroup
	served := 0
	var mu sync.Mutex
	for range 60 {
		n := 200 + rng.IntN(6000)
		prompt, code := needle(rng, n)
		after := time.Duration(rng.IntN(400)) * time.Millisecond
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			a, err := post(ctx, x.url, "/v1/completions", map[string]any{"model": "m", "prompt": prompt, "max_tokens": 17, "temperature": 0})
			if err == nil && a.status == 200 {
				if a.text != " "+code {
					t.Errorf("got %q, want %q", a.text, code)
				}
				mu.Lock()
				served++
				mu.Unlock()
			}
		})
		time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond) // the storm's rhythm
	}
	wg.Wait()
	t.Logf("%d of 60 were served before their client hung up", served)
	x.settled()
	prompt, code := needle(rng, 3000)
	if a := x.complete(map[string]any{"prompt": prompt, "max_tokens": 17}); a.text != " "+code {
		t.Fatalf("after the storm: %d %q %s", a.status, a.text, a.body)
	}
}

// Either worker is killed and restarted under 200 prompts at once: each reply is exact, or an error; a stream that fails has no [DONE].
func TestKilledWorkersCostErrorsAndNeverWrongText(t *testing.T) {
	for _, victim := range []string{"prefill", "decode"} {
		t.Run(victim, func(t *testing.T) {
			x := startTrio(t, []string{"--context", "8192"}, "--request-timeout", "60s")
			rng := rand.New(rand.NewPCG(5, uint64(len(victim))))
			total := 200
			if testing.Short() {
				total = 40
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			exact, failed := 0, 0
			for i := range total {
				prompt, code := needle(rng, 300+rng.IntN(1500))
				wg.Go(func() {
					text, done, status, err := stream(t.Context(), x.url, map[string]any{"model": "m", "prompt": prompt, "max_tokens": 17, "temperature": 0, "stream": true})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil && status == 200 && done && text == " "+code:
						exact++
					case done:
						t.Errorf("request %d ended well with %q, want %q (status %d)", i, text, code, status)
					case !strings.HasPrefix(" "+code, text):
						t.Errorf("request %d failed after foreign text %q, want a beginning of %q", i, text, code)
					default:
						failed++
					}
				})
			}
			x.midHandoff()
			if victim == "prefill" {
				x.prefill.kill(syscall.SIGKILL)
				x.prefill.exit()
				x.startPrefill(x.prefillAddr)
			} else {
				x.decode.kill(syscall.SIGKILL)
				x.decode.exit()
				x.startDecode(x.decodeAddr, x.dataAddr)
			}
			wg.Wait()
			t.Logf("%d exact, %d errors", exact, failed)
			if exact+failed != total {
				t.Errorf("%d of %d accounted for", exact+failed, total)
			}
			if exact < total/2 {
				t.Errorf("%d of %d exact: a restart is waited for, and what it cost is tried again", exact, total)
			}
			x.ready()
			x.settled()
			prompt, code := needle(rng, 2000)
			if a := x.complete(map[string]any{"prompt": prompt, "max_tokens": 17}); a.text != " "+code {
				t.Fatalf("after the restart: %d %q %s", a.status, a.text, a.body)
			}
		})
	}
}
