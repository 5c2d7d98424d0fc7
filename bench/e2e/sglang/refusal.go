package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// refused is how long a prompt that prefill refused keeps its client and decode.
type refused struct {
	found
	Cases []refusedCase
}

type refusedCase struct {
	API             string
	Straight, Door  time.Duration // until the client had an answer
	HeldBefore      time.Duration // until decode had nothing in hand any more, without the gateway
	Held            time.Duration // and with it
	Status, Decodes int           // of the gateway's answer; of decode's without it
	Code            string
}

// refusal runs the release whose prefill refuses by its status, and whose decode is not told.
func (b *bed) refusal(ctx context.Context) error {
	const release = "0.5.20"
	if err := b.up(ctx, release); err != nil {
		return err
	}
	began := time.Now()
	f := &refused{found: found{When: began.Format(time.DateOnly), Release: release, Command: "go run ./bench/e2e/sglang refusal", Controls: len(apis)}}
	rng := rand.New(rand.NewPCG(b.seed, 20))
	// Admission is told a larger pool: what it knows is refused before any leg is asked.
	g, err := b.open(ctx, decodePool, "enforce", "")
	if err != nil {
		return err
	}
	defer g.close()
	for _, a := range apis {
		q := newQuestion(rng, fitSize, alphabet)
		if r := read(g.ask(ctx, tenantB, a, a.ask(q.prompt, len(q.want))).body); r.text != q.want {
			return fmt.Errorf("a prompt that fits: %q, want %q", r.text, q.want)
		}
		c := refusedCase{API: a.String()}
		c.Straight, c.HeldBefore, _ = b.hold(ctx, func() {
			out := b.pair(ctx, a, filler(rng, 1500), most)
			c.Decodes = out[1].status
			b.capture("refused "+a.String(), 1500, "", out)
		})
		c.Door, c.Held, err = b.hold(ctx, func() {
			got := g.ask(ctx, tenantB, a, a.ask(filler(rng, 1500), most))
			c.Status, c.Code = got.status, code(got.body)
			f.count(got, got.body)
			if why := bare(got.body); why != "" || got.status != http.StatusBadRequest || c.Code != "context_length_exceeded" {
				f.fault("%s: %d %.300s %s", a, got.status, got.body, why)
			} else {
				f.Right++
			}
		})
		if err != nil {
			f.fault("%s: %v", a, err)
		}
		f.Trials++
		if c.Held > waitKV/4 {
			f.fault("%s: decode kept the request for %v after the refusal was known", a, c.Held)
		}
		f.Cases = append(f.Cases, c)
		fmt.Printf("  %-20s straight: client %v, decode holds %v, answers %d; gateway: client %v (%d %s), decode holds %v\n", a,
			c.Straight.Round(time.Millisecond), c.HeldBefore.Round(time.Millisecond), c.Decodes, c.Door.Round(time.Millisecond), c.Status, c.Code, c.Held.Round(time.Millisecond))
	}
	// Decode's pages come back: many refusals, and then still all is served.
	const storm = 40
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := i; n < storm; n += 4 {
				g.ask(ctx, tenantB, apis[n%4], apis[n%4].ask(filler(rand.New(rand.NewPCG(b.seed, uint64(n))), 2000), most))
			}
		})
	}
	wg.Wait()
	for _, a := range apis {
		q := newQuestion(rng, fitSize, alphabet)
		if got := g.ask(ctx, tenantB, a, a.ask(q.prompt, len(q.want))); read(got.body).text == q.want {
			f.Fits++
		} else {
			f.fault("after %d refusals a prompt that fits is not served: %d %.300s", storm, got.status, got.body)
		}
	}
	// Each says that admission was told too large a pool; no guard over the legs may object to a refusal that was heard.
	if f.Incidents = g.incidents(ctx); len(f.Incidents) != 1 || f.Incidents["admission (enforce)"] != f.Trials+storm {
		f.fault("incidents %v, the newest: %s", f.Incidents, g.newest(ctx))
	}
	f.Detail = g.newest(ctx)
	f.Memory, f.Took = b.memory(), time.Since(began)
	b.keep("refusal.json", f)
	return f.err()
}

// hold runs a request and watches decode: how long the client waited, and how long decode had something in hand.
func (b *bed) hold(ctx context.Context, ask func()) (client, held time.Duration, err error) {
	began := time.Now()
	done := make(chan time.Duration, 1)
	go func() {
		ask()
		done <- time.Since(began)
	}()
	answered := false
	for time.Since(began) < 3*waitKV {
		n, err := b.inHand(ctx, 1)
		if err != nil {
			return 0, held, err
		}
		if n > 0 {
			held = time.Since(began)
		}
		if answered && n == 0 {
			return client, held, nil
		}
		select {
		case client = <-done:
			answered = true
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return 0, held, ctx.Err()
		}
	}
	return client, held, fmt.Errorf("decode still has something in hand after %v", 3*waitKV)
}
