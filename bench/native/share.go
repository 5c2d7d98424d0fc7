package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/sluicekv/sluice/bench/trio"
)

// guardCode is where the guards are: views with their tags and pins, landing (its copy included, which a pool without guards would pay as
// well), MACs, seals, zeroing and the look for zeros, echo, digests and plans.
const guardCode = `pool\.\(\*Lease\)\.(View|Land|SealOwn|SealPrompt|Fence|Release)|pool\.\(\*View\)\.(Done|unpin)|pool\.\(\*Pool\)\.(verifyZero|scrub)|` +
	`internal/mac\.|wire\.EchoOf|wire\.Echo\.Agrees|internal/admission\.`

// share profiles one process that serves, and prints which part of its samples lies in guards. It is an upper bound of what they cost,
// and the only figure here that another process on the machine does not move.
func (b *bench) share(ctx context.Context) error {
	fmt.Printf("\nshare of guards in the processor time of sluice serve (recall, prompts of 8,000 tokens), by its own profile\n")
	f, err := trio.Serve(ctx, b.release, "--kv-memory", "1GiB")
	if err != nil {
		return err
	}
	defer f.Close()
	for _, load := range []struct {
		name   string
		tokens int
	}{{"prefill", 1}, {"decode, 1 stream", 10_000}} {
		if err := b.shareOf(ctx, f, load.name, load.tokens); err != nil {
			return fmt.Errorf("%s: %w", load.name, err)
		}
	}
	return nil
}

func (b *bench) shareOf(ctx context.Context, f *trio.Fleet, name string, tokens int) error {
	loading, enough := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		rng := rand.New(rand.NewPCG(b.seed, 6))
		for {
			prompt, _ := needle(rng, 7999)
			if _, err := f.Stream(loading, trio.Request{Prompt: prompt, MaxTokens: tokens}, nil); err != nil {
				ended <- err
				return
			}
		}
	}()
	time.Sleep(time.Second) // the first prompt is under way
	profile, err := b.profile(ctx, f.Admin)
	enough()
	if load := <-ended; err == nil && loading.Err() == nil {
		err = load
	}
	if err != nil {
		return err
	}
	defer os.Remove(profile)
	part, all, err := samples(ctx, b.release, profile)
	if err != nil {
		return err
	}
	fmt.Printf("  %-20s %5.2f s of %6.2f s: %.2f%%\n", name, part, all, 100*part/all)
	return nil
}

func (b *bench) profile(ctx context.Context, admin string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", admin, max(int(25*b.scale), 5)), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	out, err := os.Create(filepath.Join(filepath.Dir(b.release), "profile"))
	if err != nil {
		return "", err
	}
	defer out.Close()
	_, err = io.Copy(out, resp.Body)
	return out.Name(), err
}

var accounting = regexp.MustCompile(`Showing nodes accounting for ([0-9.]+)(m?s), [0-9.]+% of ([0-9.]+)s total`)

// samples are the seconds of a profile in guards, and in all.
func samples(ctx context.Context, binary, profile string) (part, all float64, err error) {
	out, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-unit=s", "-nodefraction=0", "-edgefraction=0", "-nodecount=100000", "-focus="+guardCode, binary, profile).CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("go tool pprof: %w: %s", err, out)
	}
	m := accounting.FindSubmatch(out)
	if m == nil {
		return 0, 0, fmt.Errorf("go tool pprof says %.300s", out)
	}
	part, _ = strconv.ParseFloat(string(m[1]), 64)
	if string(m[2]) == "ms" {
		part /= 1000
	}
	all, _ = strconv.ParseFloat(string(m[3]), 64)
	return part, all, nil
}
