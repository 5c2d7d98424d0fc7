package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/sluicekv/sluice/bench/trio"
)

// refusals are prompts of a million tokens, as clients may write them down.
type refusal struct {
	name string
	path string
	body []byte
}

// refuse sends prompts of 1,000,000 tokens to fleets whose limit is below, and prints how soon they are refused and what the gateway's memory
// peaks at meanwhile: the target is 1 s, and the idle memory and twice the body.
func (b *bench) refuse(ctx context.Context) error {
	fmt.Printf("\na prompt of 1,000,000 tokens refused; peak resident memory of each process, from VmHWM, reset before each request\n")
	if err := b.refuseFleet(ctx, "", refusals("recall, ", 1_000_000)); err != nil {
		return err
	}
	if _, err := os.Stat(smollm); err != nil {
		fmt.Printf("  SmolLM2: skipped, %s is not there (make model)\n", smollm)
		return nil
	}
	return b.refuseFleet(ctx, smollm, refusals("SmolLM2, ", 5_000_000)[:3])
}

// refusals makes the shapes of a text of n bytes. The built-in model has a token a byte; SmolLM2 about one for five of these.
func refusals(who string, n int) []refusal {
	text := strings.Repeat("The river turned slowly past old mills, and the boats lay tied under grey willows. ", n/80+1)[:n]
	var lines strings.Builder
	rng := rand.New(rand.NewPCG(1, 1))
	for lines.Len() < n { // what a client sends that escapes all but ASCII, with line ends and quotes
		lines.WriteString(`"The river"` + "\n\tturned " + string(rune('à'+rng.IntN(20))) + "\n")
	}
	object := func(prompt string) []byte {
		return []byte(`{"model":"m","max_tokens":16,"temperature":0,` + prompt + `}`)
	}
	quoted := func(s string) string {
		b, _ := json.Marshal(s)
		return string(b)
	}
	ascii := func(s string) string {
		var b strings.Builder
		for _, r := range quoted(s) {
			if r < 0x80 {
				b.WriteRune(r)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		}
		return b.String()
	}
	return []refusal{
		{who + "a string", "/v1/completions", object(`"prompt":` + quoted(text))},
		{who + "a string with escapes", "/v1/completions", object(`"prompt":` + ascii(lines.String()[:n]))},
		{who + "a chat", "/v1/chat/completions", object(`"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":` + quoted(text) + `}]`)},
		{who + "token ids", "/v1/completions", object(`"prompt":[` + strings.Repeat("101,", n-1) + `101]`)},
	}
}

func (b *bench) refuseFleet(ctx context.Context, model string, all []refusal) error {
	for _, announced := range []bool{true, false} {
		for _, r := range all {
			if err := b.refuseOne(ctx, model, r, announced); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	return nil
}

// repeats of a request on one gateway, after the first: what one leaves behind must not add up.
const repeats = 8

// refuseOne sends a request to a fleet that has served nothing but one small reply, and then again and again.
func (b *bench) refuseOne(ctx context.Context, model string, r refusal, announced bool) error {
	f, err := trio.Start(ctx, trio.Options{Binary: b.release, Model: model})
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Stream(ctx, trio.Request{Prompt: "The river turned slowly past old mills", MaxTokens: 4}, nil); err != nil {
		return err
	}
	if err := f.Idle(ctx); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond) // idle is also: nothing that the reply left to do
	var idle [3]int64
	for i, p := range f.Processes() {
		x, err := p.Resident()
		if err != nil {
			return err
		}
		idle[i] = x.Now
	}
	var peaks [3]int64
	first, slowest, status := int64(0), time.Duration(0), ""
	for i := range 1 + repeats {
		for _, p := range f.Processes() {
			if err := p.ResetPeak(); err != nil {
				return err
			}
		}
		took, said, err := ask(ctx, f.URL+r.path, r.body, announced)
		if err != nil {
			return err
		}
		slowest, status = max(slowest, took), said
		for k, p := range f.Processes() {
			x, err := p.Resident()
			if err != nil {
				return err
			}
			peaks[k] = max(peaks[k], x.Peak-idle[k])
		}
		if i == 0 {
			first = peaks[0]
		}
	}
	how := "length announced"
	if !announced {
		how = "chunked"
	}
	size := float64(len(r.body))
	fmt.Printf("  %-32s %-16s body %4.1f MB: %s in at most %3.0f ms; gateway idle %.1f MB, peak above idle %.2f x body at first, %.2f in %d more; prefill %+.1f MB, decode %+.1f MB\n",
		r.name, how, size/1e6, status, milliseconds(slowest), float64(idle[0])/1e6, float64(first)/size, float64(peaks[0])/size, repeats, float64(peaks[1])/1e6, float64(peaks[2])/1e6)
	return nil
}

// ask posts a body, with its length or in chunks, and returns the status and the error's code.
func ask(ctx context.Context, url string, body []byte, announced bool) (time.Duration, string, error) {
	var r io.Reader = bytes.NewReader(body)
	if !announced {
		r = struct{ io.Reader }{r}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, r)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	took := time.Since(began)
	if err != nil {
		return 0, "", err
	}
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return 0, "", fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	return took, fmt.Sprintf("%d %s", resp.StatusCode, e.Error.Code), nil
}
