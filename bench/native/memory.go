package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sluicekv/sluice/bench/trio"
)

// memory prints what a fleet takes before anyone asks anything of it, how fast it is there, and how fast a newcomer has a reply.
func (b *bench) memory(ctx context.Context) error {
	info, err := os.Stat(b.release)
	if err != nil {
		return err
	}
	fmt.Printf("\nsize, start and idle memory\n  binary %.1f MB (go build %s %s %q)\n", float64(info.Size())/1e6, trio.Flags[0], trio.Flags[1], trio.Flags[2])
	models := []string{""}
	if _, err := os.Stat(smollm); err == nil {
		models = append(models, smollm)
	}
	for _, m := range models {
		if err := b.idle(ctx, m); err != nil {
			return err
		}
	}
	return b.clone(ctx)
}

// idle starts fleets of three processes, and prints the median time until they can serve, and the last one's resident memory.
func (b *bench) idle(ctx context.Context, model string) error {
	name := "recall"
	if model != "" {
		name = filepath.Base(model)
	}
	const starts = 5
	var ready []float64
	for i := range starts {
		f, err := trio.Start(ctx, trio.Options{Binary: b.release, Model: model})
		if err != nil {
			return err
		}
		ready = append(ready, milliseconds(f.Ready))
		if i == starts-1 {
			err = printIdle(ctx, f, name, median(ready))
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func printIdle(ctx context.Context, f *trio.Fleet, name string, ready float64) error {
	fmt.Printf("  %s, three processes: ready in %.0f ms (median of 5, the three started one after another)\n", name, ready)
	resident := func() (now [3]float64, err error) {
		for i, p := range f.Processes() {
			r, err := p.Resident()
			if err != nil {
				return now, err
			}
			now[i] = float64(r.Now) / (1 << 20)
		}
		return now, nil
	}
	before, err := resident()
	if err != nil {
		return err
	}
	if _, err := f.Stream(ctx, trio.Request{Prompt: "The river turned slowly past old mills", MaxTokens: 16}, nil); err != nil {
		return err
	}
	if err := f.Idle(ctx); err != nil {
		return err
	}
	after, err := resident()
	if err != nil {
		return err
	}
	fmt.Printf("    resident when ready:       gateway %.1f MiB, prefill %.1f MiB, decode %.1f MiB\n", before[0], before[1], before[2])
	fmt.Printf("    resident after a reply:    gateway %.1f MiB, prefill %.1f MiB, decode %.1f MiB\n", after[0], after[1], after[2])
	return nil
}

// clone does what a newcomer does: clone, go build with an empty build cache, serve, ask.
func (b *bench) clone(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "sluice-clone")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("git rev-parse: %w", err)
	}
	repo := filepath.Join(dir, "sluice")
	if out, err := exec.CommandContext(ctx, "git", "clone", "--quiet", string(root[:len(root)-1]), repo).CombinedOutput(); err != nil {
		return fmt.Errorf("git clone: %w: %s", err, out)
	}
	began := time.Now()
	build := exec.CommandContext(ctx, "go", "build", "./cmd/sluice")
	build.Dir = repo
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOCACHE="+filepath.Join(dir, "cache"), "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build in a clean clone: %w: %s", err, out)
	}
	built := time.Since(began)
	f, err := trio.Serve(ctx, filepath.Join(repo, "sluice"))
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := f.Stream(ctx, trio.Request{Prompt: "The code is bPlNFGdSC2wd8f2Q.\nThe code is", MaxTokens: 18}, nil)
	if err != nil {
		return err
	}
	res, err := f.Gateway.Resident()
	if err != nil {
		return err
	}
	fmt.Printf("  clean clone, empty build cache, modules downloaded: go build %.1f s, ./sluice serve ready %.0f ms later, first reply (%q) after %.1f s in all\n",
		built.Seconds(), milliseconds(f.Ready), r.Text(), time.Since(began).Seconds())
	fmt.Printf("  sluice serve, one process, after that reply: resident %.1f MiB\n", float64(res.Now)/(1<<20))
	return nil
}
