package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sort"
	"sync"
	"time"
)

// asked is one honest request and what is right to answer.
type asked struct {
	kind         string
	api          api
	body         map[string]any
	want, finish string
	prompt       int // tokens
	usage        bool
	hangUp       int // see request
	after        time.Duration
}

// make an honest request of the n-th kind.
func makeAsked(rng *rand.Rand, n int) asked {
	letters, size := alphabet, 100+rng.IntN(800)
	a := asked{api: apis[n%len(apis)], finish: "length"}
	kind := n / len(apis) % 9
	if kind == 1 {
		letters = wide
	}
	q := newQuestion(rng, size, letters)
	a.want = q.want
	a.body = a.api.ask(q.prompt, len(q.want)) // a token is a byte
	a.prompt = len(q.prompt) + 1
	if a.api.chat {
		a.prompt++
	}
	switch kind {
	case 0:
		a.kind = "plain"
	case 1:
		a.kind = "Unicode"
	case 2:
		a.kind = "stop string"
		// The code ends at its fifth letter.
		a.body["stop"] = q.want[5:7]
		a.want, a.finish = q.want[:5], "stop"
	case 3:
		a.kind = "usage asked for"
		if a.api.stream {
			a.body["stream_options"] = map[string]any{"include_usage": true}
		}
		a.usage = true
	case 4:
		a.kind = "long reply"
		if a.api.chat {
			// A conversation: the last message asks what an earlier one said.
			a.kind = "conversation"
			before, ask := q.prompt[:len(q.prompt)-len("The number of guest 123456 is")], q.prompt[len(q.prompt)-len("The number of guest 123456 is"):]
			a.body["messages"] = []map[string]string{{"role": "system", "content": "Answer."}, {"role": "user", "content": before}, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": ask}}
			a.prompt = 1 + (1 + 7 + 1) + (1 + len(before) + 1) + (1 + 6 + 1) + 1 + len(ask)
			break
		}
		d := newDonor(rng, size)
		a.body, a.want, a.prompt = a.api.ask(d.prompt, 64), d.next(64), len(d.prompt)+1
	case 6:
		a.kind = "one token"
		a.want = q.want[:1]
		a.body["max_tokens"] = 1
	case 7:
		a.kind = "stop at once"
		// Prefill's own token ends the reply: nothing is left to say.
		a.body["stop"] = q.want[:1]
		a.want, a.finish = "", "stop"
	case 8:
		a.kind = "logprobs"
		a.body["logprobs"] = 1
		if a.api.chat {
			a.body["logprobs"], a.body["top_logprobs"] = true, 1
		}
	case 5:
		a.kind = "client gone"
		d := newDonor(rng, size)
		a.body = a.api.ask(d.prompt, 300)
		a.hangUp, a.after = -1, time.Duration(rng.IntN(1500))*time.Millisecond
		if a.api.stream && rng.IntN(2) == 0 {
			a.hangUp = 300 + rng.IntN(2000)
		}
	}
	return a
}

// mixed is the result of the honest mix.
type mixed struct {
	found
	Kinds map[string][2]int // right, and all
}

// crowd of the mix.
const crowd = 6

// mix sends honest requests of many kinds. Nobody of the gateway may object to any, and every reply must be the right one.
func (b *bed) mix(ctx context.Context) error {
	if err := b.up(ctx, "0.5.19"); err != nil {
		return err
	}
	began := time.Now()
	m := &mixed{found: found{When: began.Format(time.DateOnly), Release: "0.5.19", Command: "go run ./bench/e2e/sglang honest"}, Kinds: map[string][2]int{}}
	g, err := b.open(ctx, 0, "enforce", "")
	if err != nil {
		return err
	}
	defer g.close()
	rng := rand.New(rand.NewPCG(b.seed, 77))
	work := make(chan asked)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range crowd {
		wg.Go(func() {
			for a := range work {
				got := send(ctx, request{url: "http://" + b.door + a.api.path(), body: a.body, key: tenantB, hangUp: a.hangUp, after: a.after})
				why := a.wrong(got)
				mu.Lock()
				k := m.Kinds[a.kind]
				k[1]++
				if why == "" {
					k[0]++
					m.Right++
				} else {
					m.fault("%s (%s): %s", a.kind, a.api, why)
				}
				m.Kinds[a.kind] = k
				m.Trials++
				mu.Unlock()
			}
		})
	}
	for i := range b.honest {
		select {
		case work <- makeAsked(rng, i):
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
	if err := g.quiet(ctx); err != nil {
		return err
	}
	if m.Incidents = g.incidents(ctx); len(m.Incidents) > 0 {
		m.fault("false alarms: %v, the newest: %s", m.Incidents, g.newest(ctx))
	}
	for leg := range legs {
		n, err := b.inHand(ctx, leg)
		for end := time.Now().Add(30 * time.Second); err == nil && n > 0 && time.Now().Before(end); time.Sleep(time.Second) {
			n, err = b.inHand(ctx, leg)
		}
		if err != nil || n > 0 {
			m.fault("%s still has %d requests when all clients are gone (%v)", legs[leg], n, err)
		}
	}
	m.Memory, m.Took = b.memory(), time.Since(began)
	b.keep("honest.json", m)
	names := make([]string, 0, len(m.Kinds))
	for k := range m.Kinds {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		fmt.Printf("  %-18s %d of %d right\n", k, m.Kinds[k][0], m.Kinds[k][1])
	}
	fmt.Printf("%d of %d right in %v, incidents %v\n", m.Right, m.Trials, m.Took.Round(time.Second), m.Incidents)
	return errors.Join(m.err(), ctx.Err())
}

// wrong says what is wrong with an answer, "" if nothing.
func (a asked) wrong(got answer) string {
	if a.hangUp != 0 {
		if got.err == nil && got.status != http.StatusOK {
			return fmt.Sprintf("status %d before the client was gone: %.200s", got.status, got.body)
		}
		return ""
	}
	r := read(got.body)
	switch {
	case got.err != nil:
		return got.err.Error()
	case got.status != http.StatusOK:
		return fmt.Sprintf("status %d: %.300s", got.status, got.body)
	case r.failed != "":
		return "an error under 200: " + r.failed
	case r.text != a.want:
		return fmt.Sprintf("text %q, want %q", r.text, a.want)
	case r.finish != a.finish:
		return fmt.Sprintf("finish %q, want %q", r.finish, a.finish)
	case a.api.stream && !r.done:
		return "no end mark"
	case a.api.stream && !a.usage && r.prompt >= 0:
		return "usage that was not asked for"
	case (!a.api.stream || a.usage) && r.prompt != a.prompt:
		return fmt.Sprintf("usage says %d prompt tokens, want %d", r.prompt, a.prompt)
	}
	return ""
}
