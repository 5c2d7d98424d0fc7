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
	g, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	own, other, foreign = theirs(rng)
	through, err := b.stand(ctx, g.url(), lateBody(own, ""), other)
	if err != nil {
		return err
	}
	incidents, err := g.counters(ctx, "sluice_incidents_total")
	if err != nil {
		return err
	}
	fmt.Printf("through the gateway: %d %s\nincidents:\n%s\n", through.status, through.raw, lines(incidents))
	heard := strings.Contains(lines(incidents), `guard="prefill-handle"`)
	if err := b.note(func(r *results, date string) {
		r.Late = &lateRead{date, straight.status, true, through.status, strings.Contains(string(through.raw), foreign), heard}
	}); err != nil {
		return err
	}
	switch {
	case through.status == http.StatusOK || strings.Contains(string(through.raw), foreign):
		return fmt.Errorf("a late read passed: %d %s", through.status, through.raw)
	case !heard:
		return fmt.Errorf("it was no incident of the guard prefill-handle")
	}
	for range 60 { // its facts are read again, and the pair serves
		if s, _, err := send(ctx, http.MethodPost, g.url()+"/v1/completions", []byte(lateBody("abcabc", "")), nil); err == nil && s == http.StatusOK {
			return nil
		}
		time.Sleep(time.Second)
	}
	return fmt.Errorf("the pair does not serve again")
}

// theirs are two prompts of one length that ask the same; each holds a code of its own.
func theirs(rng *rand.Rand) (own, other, foreign string) {
	text, ask, code := planted(rng, []rune(letters))
	foreign = distinct(rng, []rune(letters), len(code))
	head, tail := filler(rng, 700), filler(rng, 700)
	own = head + text + tail + "\n" + ask
	return own, head + strings.Replace(text, code, foreign, 1) + tail + "\n" + ask, foreign
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
