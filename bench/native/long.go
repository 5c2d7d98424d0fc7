package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/sluicekv/sluice/bench/trio"
)

// long serves a prompt of 128,000 tokens with a needle at a random depth, through three processes.
func (b *bench) long(ctx context.Context) error {
	const tokens = 128_000
	f, err := trio.Start(ctx, trio.Options{Binary: b.release, Both: []string{"--kv-memory", "512MiB"}})
	if err != nil {
		return err
	}
	defer f.Close()
	prompt, code := needle(rand.New(rand.NewPCG(b.seed, 5)), tokens-1)
	r, err := f.Stream(ctx, trio.Request{Prompt: prompt, MaxTokens: 18}, nil)
	if err != nil {
		return err
	}
	if r.Text() != " "+code+"." || r.Prompt != tokens {
		return fmt.Errorf("%d tokens: the needle came back as %q, not %q", r.Prompt, r.Text(), " "+code+".")
	}
	cpu, err := f.CPU()
	if err != nil {
		return err
	}
	fmt.Printf("\na prompt of %d tokens through three processes: the needle came back exactly, first token after %.1f s (%.0f tokens/s, %.1f s of processor time), reply complete after %.1f s\n",
		r.Prompt, r.First().Seconds(), float64(r.Prompt)/r.First().Seconds(), cpu.Seconds(), r.End.Sub(r.Sent).Seconds())
	return f.Idle(ctx)
}
