// Command sglang runs a real pair of SGLang workers on this machine's CPU, prefill and decode joined by Mooncake over TCP, and sluice
// gateway in front of it. What must be seen is seen on content: the model copies, so that text shows whose pages were read.
//
//	go run ./bench/e2e/sglang [flags] STEP...
//
//	known     a prompt over prefill's pool, straight at the legs (the control: foreign text must come back), then through the gateway,
//	          which knows the pool
//	pinned    the same, with admission told a wrong, larger pool: only the comparison of the legs is left
//	observe   the same, with guards that only observe: the incidents are counted and the bytes pass
//	honest    requests of many kinds through the gateway, each reply compared with the one right text; no incident may come of them
//	edge      prompts around the size of prefill's pool, straight at the legs: what the engine really takes
//	refusal   release 0.5.20: how long a prompt that prefill refused keeps decode, without the gateway and with it
//	down      stop the pair
//	report    print what the steps found, and with -write put it into docs/e2e.md
//	all       all of them
//
// A step starts the pair that it needs and leaves it running for the next. One that fails is noted, and the next is run. Needs the environment
// of env/install.sh.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// bed is where everything lies and listens.
type bed struct {
	env, dir    string
	door, admin string // host:port of the gateway
	ports       int
	trials      int
	controls    int
	honest      int
	seed        uint64
	write       bool
	codes       judge // of all tenants of this run
	began       time.Time
	failed      []string // steps, and why
}

func main() {
	b := &bed{began: time.Now()}
	flag.StringVar(&b.env, "env", ".cache/e2e-sglang", "`dir` with the engines (see env/install.sh)")
	flag.StringVar(&b.dir, "run", "", "`dir` for the model, logs and results; default: run in the directory of -env")
	flag.IntVar(&b.ports, "port", 18520, "first of six ports on the loopback interface")
	flag.IntVar(&b.trials, "trials", 40, "known, pinned: attacks through the gateway")
	flag.IntVar(&b.controls, "controls", 15, "known: attacks straight at the legs, which must succeed; the other ways make four")
	flag.IntVar(&b.honest, "requests", 400, "honest: how many")
	flag.Uint64Var(&b.seed, "seed", uint64(time.Now().UnixNano()), "of texts and codes")
	flag.BoolVar(&b.write, "write", false, "report: put the results into docs/e2e.md")
	flag.Parse()
	if b.dir == "" {
		b.dir = b.env + "/run"
	}
	b.door, b.admin = fmt.Sprintf("127.0.0.1:%d", b.ports+3), fmt.Sprintf("127.0.0.1:%d", b.ports+4)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	steps := map[string]func(context.Context) error{
		"known":   func(ctx context.Context) error { return b.attack(ctx, ways[0]) },
		"pinned":  func(ctx context.Context) error { return b.attack(ctx, ways[1]) },
		"observe": func(ctx context.Context) error { return b.attack(ctx, ways[2]) },
		"honest":  b.mix, "edge": b.edge, "refusal": b.refusal, "down": b.down, "report": b.report,
	}
	names := flag.Args()
	all := len(names) == 1 && names[0] == "all"
	if all {
		names = []string{"known", "pinned", "observe", "honest", "edge", "refusal", "down", "report"}
		b.forget()
	}
	if len(names) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	failed := false
	for _, n := range names {
		step, ok := steps[n]
		if !ok {
			fmt.Fprintf(os.Stderr, "no step is called %q\n", n)
			os.Exit(2)
		}
		began := time.Now()
		fmt.Printf("== %s\n", n)
		err := step(ctx)
		if err == nil {
			fmt.Printf("== %s: done in %v\n", n, time.Since(began).Round(time.Second))
			continue
		}
		failed = true
		b.failed = append(b.failed, fmt.Sprintf("%s: %.400v", n, err))
		fmt.Fprintf(os.Stderr, "== %s: FAILED after %v: %v\n", n, time.Since(began).Round(time.Second), err)
		if ctx.Err() != nil {
			break
		}
	}
	if failed {
		if all {
			_ = b.down(context.WithoutCancel(ctx))
		}
		os.Exit(1)
	}
}
