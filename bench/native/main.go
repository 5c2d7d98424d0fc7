// Command native measures what the guards of a native fleet cost and what a fleet takes: see bench/RESULTS.md for what it printed.
//
//	go run ./bench/native [-part speed,share,handoff,memory,refuse] [-scale 1]
//
// Release build against the unsafe build with every guard taken out, three processes each, in one run: the fleets take turns step by
// step, and beside this A/B there is an A/A of two release fleets, so that the noise is visible. A figure that A/A moves by more than A/B
// says nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"

	"github.com/sluicekv/sluice/bench/trio"
)

const smollm = "models/SmolLM2-135M-Instruct.Q4_1.gguf"

type bench struct {
	release, unsafe string // binaries
	scale           float64
	seed            uint64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var b bench
	part := flag.String("part", "speed,share,handoff,memory,refuse", "what to measure, comma-separated; also: long")
	models := flag.String("models", "recall,smollm", "for speed: recall, smollm or both; smollm only if its file is there (make model)")
	flag.Float64Var(&b.scale, "scale", 1, "rounds, relative to the default")
	flag.Uint64Var(&b.seed, "seed", 1, "of the prompts")
	flag.Parse()
	parts := strings.Split(*part, ",")
	for _, p := range parts {
		if !slices.Contains([]string{"speed", "share", "handoff", "memory", "refuse", "long"}, p) {
			return fmt.Errorf("no part is named %q", p)
		}
	}
	dir, err := os.MkdirTemp("", "sluice-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if b.release, err = trio.Build(ctx, dir); err != nil {
		return err
	}
	if b.unsafe, err = trio.BuildUnsafe(ctx, dir); err != nil {
		return err
	}
	fmt.Printf("%s, %d processors, %s\n", processor(), runtime.NumCPU(), runtime.Version())
	if slices.Contains(parts, "speed") {
		for _, l := range loads {
			if l.model != "" && !strings.Contains(*models, "smollm") || l.model == "" && !strings.Contains(*models, "recall") {
				continue
			}
			if _, err := os.Stat(l.model); l.model != "" && err != nil {
				fmt.Printf("\n%s: skipped, %s is not there (make model)\n", l.title, l.model)
				continue
			}
			if err := b.speeds(ctx, l); err != nil {
				return err
			}
		}
	}
	for _, p := range []struct {
		name string
		run  func(context.Context) error
	}{{"share", b.share}, {"handoff", b.handoffs}, {"memory", b.memory}, {"refuse", b.refuse}, {"long", b.long}} {
		if slices.Contains(parts, p.name) {
			if err := p.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

// processor is the machine's own word for it.
func processor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for l := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}
