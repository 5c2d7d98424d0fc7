package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// lease of the engines' handles, which is their default, and what it takes until prefill has seen that it is over.
const lease, seen = 30 * time.Second, 5 * time.Second

// late lets decode stand still between prefill's answer and its own reading, for longer than prefill keeps the pages, while prefill
// serves others: at the engines, where the reply must then be the others' text, and through the gateway, where it must not be a reply.
func (b *bed) late(ctx context.Context) error {
	rng := rand.New(rand.NewPCG(b.traffic.seed, 9))
	own, other, foreign := theirs(rng)
	handle, err := b.handle(ctx, own)
	if err != nil {
		return err
	}
	body := lateBody(own, `,"kv_transfer_params":`+handle)
	straight, err := b.stand(ctx, b.decode.url(), body, other)
	if err != nil {
		return err
	}
	fmt.Printf("at the engines: %d, the others' text: %v\n", straight.status, strings.Contains(straight.text, foreign))
	if straight.status != http.StatusOK || !strings.Contains(straight.text, foreign) {
		return fmt.Errorf("the control saw no foreign text (%d %q): nothing is shown", straight.status, straight.text)
	}
	l := lateRead{Straight: straight.status, Foreign: true}
	for _, way := range []struct {
		guard, all, model string
		to                *lateOutcome
	}{
		{"prefill-handle", "", "", &l.Asked},
		// As if prefill could not be asked: what is left is that the legs see different first tokens.
		{"first-token", "guards: {first-token: enforce}\n", "    hold: {lease: 1h}\n", &l.First},
	} {
		own, other, foreign = theirs(rng)
		if *way.to, err = b.lateThrough(ctx, own, other, foreign, way.guard, way.all, way.model); err != nil {
			return err
		}
	}
	return b.note(func(r *results, date string) { l.Date, r.Late = date, &l })
}

// lateThrough does it behind a gateway that is set up so that one guard has to speak.
func (b *bed) lateThrough(ctx context.Context, own, other, foreign, guard, all, model string) (o lateOutcome, err error) {
	g, err := b.openWith(ctx, all, model)
	if err != nil {
		return o, err
	}
	defer g.close()
	r, err := b.stand(ctx, g.url(), lateBody(own, ""), other)
	if err != nil {
		return o, err
	}
	incidents, err := g.counters(ctx, "sluice_incidents_total")
	if err != nil {
		return o, err
	}
	fmt.Printf("through the gateway, guard %s: %d %s\nincidents:\n%s\n", guard, r.status, r.raw, lines(incidents))
	o = lateOutcome{r.status, strings.Contains(string(r.raw), foreign), strings.Contains(lines(incidents), `guard="`+guard+`"`)}
	switch {
	case r.status == http.StatusOK || o.Foreign:
		return o, fmt.Errorf("a late read passed: %d %s", r.status, r.raw)
	case !o.Incident:
		return o, fmt.Errorf("it was no incident of the guard %s", guard)
	case !alive(ctx, b.decode):
		return o, fmt.Errorf("decode does not compute any more")
	}
	return o, nil
}

// theirs are two prompts of one length that ask the same; each holds a code of its own.
func theirs(rng *rand.Rand) (own, other, foreign string) {
	text, ask, code := planted(rng, []rune(letters))
	foreign = distinct(rng, []rune(letters), len(code))
	for foreign[0] == code[0] {
		foreign = distinct(rng, []rune(letters), len(code))
	}
	head, tail := filler(rng, 700), filler(rng, 700)
	ask += " " // the next token is the code's first: it shows whose code it is
	return head + text + tail + "\n" + ask, head + strings.Replace(text, code, foreign, 1) + tail + "\n" + ask, foreign
}

func lateBody(prompt, more string) string {
	quoted, _ := json.Marshal(prompt)
	return `{"model":"recall","prompt":` + string(quoted) + `,"max_tokens":14,"temperature":0` + more + `}`
}

// stand asks while decode stands still, keeps it so until the lease is over and all of prefill's blocks were used again, and returns
// what it says then.
func (b *bed) stand(ctx context.Context, url, body, other string) (r reply, err error) {
	pid := b.pid(b.decode)
	if pid == 0 {
		return r, fmt.Errorf("decode does not run here")
	}
	if err := syscall.Kill(-pid, syscall.SIGSTOP); err != nil {
		return r, err
	}
	var woken bool
	wake := func() {
		if !woken {
			woken = true
			_ = syscall.Kill(-pid, syscall.SIGCONT)
		}
	}
	defer wake()
	done := make(chan error, 1)
	go func() {
		c, cancel := context.WithTimeout(ctx, 3*time.Minute)
		defer cancel()
		var err error
		r, err = put(c, url+"/v1/completions", []byte(body), nil, 0)
		done <- err
	}()
	select {
	case <-time.After(lease + seen):
	case err := <-done:
		return r, fmt.Errorf("it was answered though decode stood still: %d %s %w", r.status, r.raw, err)
	case <-ctx.Done():
		return r, ctx.Err()
	}
	for i := range 2 * blocks * block / len(other) {
		// Each in a cache of its own: blocks that are kept for a prefix are not used again.
		more := fmt.Sprintf(`,"cache_salt":"%d %d"`, time.Now().UnixNano(), i)
		if s, answer, err := send(ctx, http.MethodPost, b.prefill.url()+"/v1/completions", []byte(lateBody(other, more)), nil); err != nil || s != http.StatusOK {
			return r, fmt.Errorf("prefill: %d %w %s", s, err, answer)
		}
	}
	wake()
	return r, <-done
}
