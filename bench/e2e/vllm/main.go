// Command vllm runs a real pair of vLLM workers on this machine's CPU, prefill and decode joined by NIXL, and sluice gateway in front
// of it. What must be seen is seen on content: the model copies, so that text shows whose KV was read.
//
//	go run ./bench/e2e/vllm [flags] STEP...
//
//	up       start the pair, and wait until it serves
//	misuse   the driver of the shared material at the engines, then at the gateway; recorded bodies; control fields in bodies
//	odd      whatever else clients may send, right or wrong: every body is answered, and both engines compute on
//	late     a decode that is slower than prefill's lease, at the engines and behind the gateway
//	traffic  honest requests, each reply compared with the one right text; no incident may come of them
//	clients  public load clients, unmodified, against the gateway
//	down     stop the pair
//	report   print what the steps found, and with -write put it into docs/e2e.md
//
// Steps can be run one by one: the pair stays up between them. One that fails is noted and the next is run, unless the pair is not up. Needs
// the environment of install.sh.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// bed is where everything lies and listens.
type bed struct {
	env, clients, dir, shared string

	prefill, decode engine
	door, admin     string // host:port of the gateway
	cache           bool   // the engines keep prefixes
	lease           time.Duration
	write           bool
	first           bool // the gateway compares the legs' first tokens, and refuses
	traffic         plan
}

func main() {
	b := bed{door: "127.0.0.1:18380", admin: "127.0.0.1:18381"}
	flag.StringVar(&b.env, "env", ".cache/check-vllm", "`dir` with the engines' environment (venv)")
	flag.StringVar(&b.clients, "clients", ".cache/e2e-clients", "`dir` with the environments of the load clients")
	flag.StringVar(&b.dir, "run", ".cache/e2e-vllm", "`dir` for the model, logs and results")
	flag.StringVar(&b.shared, "shared", "../shared", "`dir` of the shared material: the misuse driver, recorded bodies")
	flag.BoolVar(&b.cache, "cache", true, "up: the engines keep prefixes")
	flag.DurationVar(&b.lease, "lease", 30*time.Second, "up: how long prefill keeps what it hands over (the engine's default); late: the same")
	flag.BoolVar(&b.first, "first-token", false, "traffic, clients: with the guard first-token, enforced")
	flag.BoolVar(&b.write, "write", false, "report: put the results into docs/e2e.md")
	flag.IntVar(&b.traffic.requests, "requests", 3500, "traffic: how many")
	flag.IntVar(&b.traffic.crowd, "crowd", 64, "traffic: how many at once")
	flag.DurationVar(&b.traffic.most, "for", 0, "traffic: stop asking after so long; 0 is never")
	flag.Uint64Var(&b.traffic.seed, "seed", uint64(time.Now().Unix()), "traffic: of the prompts")
	b.prefill = engine{name: "prefill", role: "kv_producer", side: 15800}
	b.decode = engine{name: "decode", role: "kv_consumer", side: 15900}
	flag.IntVar(&b.prefill.port, "prefill", 18300, "`port` of prefill")
	flag.IntVar(&b.decode.port, "decode", 18400, "`port` of decode")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	steps := map[string]func(context.Context) error{
		"up": b.up, "misuse": b.misuse, "odd": b.oddities, "late": b.late, "traffic": b.honest, "clients": b.loadClients, "down": b.down, "report": b.report,
	}
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	failed := false
	for _, name := range flag.Args() {
		step := steps[name]
		if step == nil {
			fmt.Fprintf(os.Stderr, "vllm: no step %q: up, misuse, odd, late, traffic, clients, down, report\n", name)
			os.Exit(2)
		}
		began := time.Now()
		fmt.Printf("== %s\n", name)
		err := b.prepare()
		if err == nil {
			err = step(ctx)
		}
		if err == nil {
			fmt.Printf("== %s: done after %s\n", name, time.Since(began).Round(time.Second))
			continue
		}
		failed = true
		fmt.Fprintf(os.Stderr, "== %s: FAILED after %s: %v\n", name, time.Since(began).Round(time.Second), err)
		_ = b.note(func(r *results, _ string) { r.Faults = append(r.Faults, fmt.Sprintf("%s: %.400v", name, err)) })
		if name == "up" || ctx.Err() != nil {
			break
		}
	}
	if failed {
		os.Exit(1)
	}
}

// prepare makes paths absolute, and the folder for logs.
func (b *bed) prepare() error {
	for _, p := range []*string{&b.env, &b.clients, &b.dir, &b.shared} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return os.MkdirAll(b.dir, 0o755)
}

// script is a file of the shared material.
func (b *bed) script(name string) (string, error) {
	path := filepath.Join(b.shared, "fixtures", "vllm", filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the shared material is not at %s (%w): say where it is with SHARED=DIR", b.shared, err)
	}
	return path, nil
}
