package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// near is a prompt of so many tokens, straight at the legs.
type near struct {
	Tokens          int
	Prefill, Decode int // status
	Says            [2]int
	Right           bool
	Took            time.Duration
	Limit           bool // the gateway lets it pass
}

type edges struct {
	found
	Limit int
	Near  []near
}

// edge asks what the engine really takes around the size of prefill's pool, and compares it with what the gateway lets pass.
func (b *bed) edge(ctx context.Context) error {
	if err := b.up(ctx, "0.5.19"); err != nil {
		return err
	}
	began := time.Now()
	e := &edges{found: found{When: began.Format(time.DateOnly), Release: "0.5.19", Command: "go run ./bench/e2e/sglang edge"}}
	g, err := b.open(ctx, 0, "enforce", "")
	if err != nil {
		return err
	}
	defer g.close()
	rng := rand.New(rand.NewPCG(b.seed, 5))
	for _, n := range []int{960, 976, 984, 985, 991, 992, 993, 1000, 1007, 1008, 1009, 1016, 1017, 1018, 1024} {
		q := newQuestion(rng, n-1, alphabet) // and the token that begins a text
		at := time.Now()
		out := b.pair(ctx, api{}, q.prompt, len(q.want))
		r := read(out[1].body)
		x := near{n, out[0].status, out[1].status, [2]int{read(out[0].body).prompt, r.prompt}, r.text == q.want, time.Since(at), false}
		got := g.ask(ctx, tenantB, api{}, api{}.ask(q.prompt, len(q.want)))
		x.Limit = got.status == http.StatusOK
		if x.Limit && read(got.body).text != q.want {
			e.fault("%d tokens: the gateway served %q, want %q", n, read(got.body).text, q.want)
		}
		if x.Limit {
			e.Limit = max(e.Limit, n)
			if !x.Right {
				e.fault("%d tokens: the gateway let a prompt pass that the engine does not serve", n)
			}
		}
		e.Near = append(e.Near, x)
		if x.Prefill == http.StatusInternalServerError {
			b.capture("unscheduled completions", n-1, "", out)
		}
		fmt.Printf("  %4d tokens: prefill %d (%d tokens), decode %d (%d tokens), right %v, %v; through the gateway %d %s\n",
			n, x.Prefill, x.Says[0], x.Decode, x.Says[1], x.Right, x.Took.Round(time.Millisecond), got.status, code(got.body))
	}
	e.Took = time.Since(began)
	b.keep("edge.json", e)
	return e.err()
}
