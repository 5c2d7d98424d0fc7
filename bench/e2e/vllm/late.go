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

	engines "github.com/sluicekv/sluice/bench/e2e/engine"
)

// seen is how long it takes until prefill has seen that a lease is over.
const seen = 5 * time.Second

// late lets decode be slower than prefill's lease: at the engines, where the control must show the fault or nothing is shown, and through
// the gateway, where there must be no reply, and an incident of the guard whose turn it is.
func (b *bed) late(ctx context.Context) error {
	// What compiles at its first use stands still by itself.
	if err := b.warm(ctx); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(b.traffic.seed, 9))
	own, other, foreign := theirs(rng)
	handle, err := b.handle(ctx, own)
	if err != nil {
		return err
	}
	straight, err := b.stand(ctx, shape{}, b.decode.url(), own, `,"kv_transfer_params":`+handle, other)
	if err != nil {
		return err
	}
	fmt.Printf("control, at the engines: %d, shown: %v\n", straight.status, strings.Contains(straight.text, foreign))
	if straight.status != http.StatusOK || !strings.Contains(straight.text, foreign) {
		return fmt.Errorf("the control did not show the fault (%d %q): nothing is shown", straight.status, straight.text)
	}
	l := lateRead{}
	for _, way := range []struct {
		guard, all, model string
		shape             shape
	}{
		{"prefill-handle", "", "", shape{}},
		{"prefill-handle", "", "", shape{chat: true, stream: true}},
		// As if prefill could not be asked: what is left is that the legs see different first tokens.
		{"first-token", "guards: {first-token: enforce}\n", "    hold: {lease: 1h}\n", shape{}},
		{"first-token", "guards: {first-token: enforce}\n", "    hold: {lease: 1h}\n", shape{chat: true, stream: true}},
	} {
		own, other, foreign = theirs(rng)
		o, err := b.lateThrough(ctx, way.shape, own, other, foreign, way.guard, way.all, way.model)
		if err != nil {
			return err
		}
		l.Ways = append(l.Ways, o)
	}
	return b.note(func(r *results, date string) { l.Date, r.Late = date, &l })
}

// lateThrough does it behind a gateway that is set up so that one guard has to speak.
func (b *bed) lateThrough(ctx context.Context, s shape, own, other, foreign, guard, all, model string) (o lateOutcome, err error) {
	g, err := b.openWith(ctx, all, model)
	if err != nil {
		return o, err
	}
	defer g.close()
	r, err := b.stand(ctx, s, g.url(), own, "", other)
	if err != nil {
		return o, err
	}
	incidents, err := g.counters(ctx, "sluice_incidents_total")
	if err != nil {
		return o, err
	}
	o = lateOutcome{guard, s.String(), r.status, strings.Contains(string(r.raw), foreign), strings.Contains(lines(incidents), `guard="`+guard+`"`), engines.Total(incidents), g.newest(ctx)}
	fmt.Printf("through the gateway, %s, guard %s: %d %s\nincidents:\n%s\n%s\n", o.Asked, guard, r.status, r.raw, lines(incidents), o.Detail)
	switch {
	case r.status == http.StatusOK || o.Foreign:
		return o, fmt.Errorf("what decode read too late passed: %d %s", r.status, r.raw)
	case !o.Incident:
		return o, fmt.Errorf("it was no incident of the guard %s", guard)
	case !alive(ctx, b.decode):
		return o, fmt.Errorf("decode does not compute any more")
	}
	return o, nil
}

// shape is one of the ways to ask.
type shape struct{ chat, stream bool }

func (s shape) String() string {
	out := "completions"
	if s.chat {
		out = "chat"
	}
	if s.stream {
		out += ", stream"
	}
	return out
}

func (s shape) path() string {
	if s.chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// body asks for fourteen tokens after a prompt, with more fields.
func (s shape) body(prompt, more string) []byte {
	quoted, _ := json.Marshal(prompt)
	field := `"prompt":` + string(quoted)
	if s.chat {
		field = `"messages":[{"role":"user","content":` + string(quoted) + `}]`
	}
	if s.stream {
		more += `,"stream":true`
	}
	return []byte(`{"model":"recall",` + field + `,"max_tokens":14,"temperature":0` + more + `}`)
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

// stand asks while decode stands still, and keeps it so for longer than the lease, while prefill serves others.
func (b *bed) stand(ctx context.Context, s shape, url, own, more, other string) (r reply, err error) {
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
		r, err = put(c, url+s.path(), s.body(own, more), nil, 0)
		done <- err
	}()
	select {
	case <-time.After(b.lease + seen):
	case err := <-done:
		return r, fmt.Errorf("it was answered though decode stood still: %d %s %w", r.status, r.raw, err)
	case <-ctx.Done():
		return r, ctx.Err()
	}
	for i := range 2 * blocks * block / len(other) {
		salt := fmt.Sprintf(`,"cache_salt":"%d %d"`, time.Now().UnixNano(), i)
		if s, answer, err := send(ctx, http.MethodPost, b.prefill.url()+s.path(), shape{chat: s.chat}.body(other, salt), nil); err != nil || s != http.StatusOK {
			return r, fmt.Errorf("prefill: %d %w %s", s, err, answer)
		}
	}
	wake()
	return r, <-done
}
