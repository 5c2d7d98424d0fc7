package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sort"
	"strings"
	"sync"
	"time"

	engines "github.com/sluicekv/sluice/bench/e2e/engine"
)

// plan of the honest traffic.
type plan struct {
	requests, crowd int
	most            time.Duration
	seed            uint64
}

// tally is what became of the requests, by kind.
type tally struct {
	mu     sync.Mutex
	Kinds  map[string]*[numFates]int
	faults []string
}

type fate int

const (
	right   fate = iota // the reply is the one right text
	gone                // the client hung up, as planned
	wrong               // another text, or another end, or a count that is not so
	refused             // no reply
	numFates
)

func (t *tally) note(q question, f fate, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.Kinds[q.kind]
	if k == nil {
		k = new([numFates]int)
		t.Kinds[q.kind] = k
	}
	k[f]++
	if f >= wrong && len(t.faults) < 20 {
		t.faults = append(t.faults, fmt.Sprintf("%s (stream %v): %s", q.kind, q.stream, why))
	}
}

func (t *tally) sums() (s [numFates]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.Kinds {
		for i, n := range k {
			s[i] += n
		}
	}
	return s
}

// honest sends requests of every kind and demands the right reply to each, and no incident.
func (b *bed) honest(ctx context.Context) error {
	p := b.traffic
	g, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer g.close()
	if err := b.warm(ctx); err != nil {
		return err
	}
	before, err := b.engineCounts(ctx)
	if err != nil {
		return err
	}
	t := &tally{Kinds: map[string]*[numFates]int{}}
	began := time.Now()
	until := make(<-chan time.Time)
	if p.most > 0 {
		until = time.After(p.most)
	}
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	slots := make(chan struct{}, p.crowd)
	var wg sync.WaitGroup
	asked := 0
	fmt.Printf("%d requests, %d at once, seed %d\n", p.requests, p.crowd, p.seed)
	for asked < p.requests && until != nil && ctx.Err() == nil {
		select {
		case <-until:
			until = nil
		case <-tick.C:
			s := t.sums()
			fmt.Printf("%6.0f s: %d asked, %d right, %d hung up, %d wrong, %d refused\n", time.Since(began).Seconds(), asked, s[right], s[gone], s[wrong], s[refused])
		case <-ctx.Done():
		case slots <- struct{}{}:
			rng := rand.New(rand.NewPCG(p.seed, uint64(asked)))
			asked++
			wg.Go(func() {
				defer func() { <-slots }()
				b.one(ctx, g, t, rng)
			})
		}
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	took := time.Since(began)
	quiet := b.settle(ctx)
	after, err := b.engineCounts(ctx)
	if err != nil {
		return err
	}
	fmt.Println("engines:")
	for i, c := range engineCounters {
		fmt.Printf("  %s %s: %g\n", c.leg, c.name, after[i]-before[i])
	}
	return b.account(ctx, g, t, asked, took, after[0]-before[0], quiet)
}

// engineCounters are what the engines say of transfers.
var engineCounters = []struct{ leg, name string }{
	{"prefill", "vllm:nixl_num_notifications_after_expiry_total"}, {"prefill", "vllm:nixl_num_kv_expired_reqs_total"}, {"decode", "vllm:nixl_num_failed_transfers_total"},
	{"prefill", "vllm:prefix_cache_hits_total"}, {"decode", "vllm:prefix_cache_hits_total"}, {"decode", "vllm:external_prefix_cache_hits_total"},
}

func (b *bed) engineCounts(ctx context.Context) (out []float64, err error) {
	for _, c := range engineCounters {
		e := b.prefill
		if c.leg == b.decode.name {
			e = b.decode
		}
		m, err := counters(ctx, e.url()+"/metrics", c.name)
		if err != nil {
			return nil, err
		}
		out = append(out, engines.Total(m))
	}
	return out, nil
}

// one asks one question.
func (b *bed) one(ctx context.Context, g *gateway, t *tally, rng *rand.Rand) {
	q := ask(rng)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	header := http.Header{}
	if rng.IntN(4) == 0 {
		header.Set("X-Request-Id", "everybody-says-this") // the ids at the engines are the gateway's
	}
	body := q.encode()
	if q.cancel == -1 {
		time.AfterFunc(time.Duration(rng.IntN(150))*time.Millisecond, cancel)
	}
	r, err := put(ctx, g.url()+q.path, body, header, q.cancel)
	switch {
	case q.cancel != 0 && (errors.Is(err, errHungUp) || ctx.Err() != nil):
		t.note(q, gone, "")
		return
	case err != nil:
		t.note(q, refused, err.Error())
		return
	case r.status != http.StatusOK:
		t.note(q, refused, fmt.Sprintf("%d %s", r.status, r.raw))
		return
	}
	if q.cancel != 0 {
		// It was quicker than the client; the length is another than the question's.
		t.note(q, gone, "")
		return
	}
	if !q.known || rng.IntN(25) == 0 {
		// Decode, asked alone, computes everything by itself.
		alone, err := put(ctx, b.decode.url()+q.path, body, nil, 0)
		if err != nil || alone.status != http.StatusOK {
			t.note(q, refused, fmt.Sprintf("decode alone: %v %d %s", err, alone.status, alone.raw))
			return
		}
		if q.known && (alone.text != q.want || alone.finish != q.finish) {
			t.note(q, wrong, fmt.Sprintf("decode alone says %q (%s), and %q (%s) was expected", alone.text, alone.finish, q.want, q.finish))
			return
		}
		q.want, q.finish = alone.text, alone.finish
		if alone.prompt > 0 {
			q.prompt = alone.prompt
		}
	}
	if why := q.judge(r); why != "" {
		t.note(q, wrong, why)
		return
	}
	t.note(q, right, "")
}

// judge says what is wrong with a reply, "" if nothing.
func (q question) judge(r reply) string {
	switch {
	case r.text != q.want || r.finish != q.finish:
		return fmt.Sprintf("%q (%s), want %q (%s)", r.text, r.finish, q.want, q.finish)
	case q.stream && !r.done:
		return "no [DONE]"
	case q.stream && q.usage != (r.prompt > 0):
		return fmt.Sprintf("usage asked for: %v, prompt_tokens: %d", q.usage, r.prompt)
	case r.prompt > 0 && q.prompt > 0 && r.prompt != q.prompt:
		return fmt.Sprintf("prompt_tokens %d, want %d", r.prompt, q.prompt)
	case bytes.Contains(r.raw, []byte("remote_")):
		return "the reply names memory of a worker"
	case q.kind == "logprobs" && !r.logprobs:
		return "no logprobs"
	}
	return ""
}

// reply is an answer, whole or streamed.
type reply struct {
	status   int
	raw      []byte
	text     string
	finish   string
	prompt   int
	done     bool
	logprobs bool
}

var errHungUp = errors.New("hung up")

// put posts a body and reads the answer; after so many events it hangs up (0: never).
func put(ctx context.Context, url string, body []byte, header http.Header, after int) (r reply, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	r.status = resp.StatusCode
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		if r.raw, err = io.ReadAll(io.LimitReader(resp.Body, 64<<20)); err != nil || r.status != http.StatusOK {
			return r, err
		}
		return r, r.hear(r.raw)
	}
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	for n := 0; ; {
		line, err := in.ReadBytes('\n')
		r.raw = append(r.raw, line...)
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !ok:
			continue
		case string(bytes.TrimSpace(data)) == "[DONE]":
			r.done = true
			continue
		}
		if err := r.hear(data); err != nil {
			return r, err
		}
		if n++; n == after {
			return r, errHungUp
		}
	}
}

// hear takes a body or a chunk.
func (r *reply) hear(data []byte) error {
	var m struct {
		Choices []struct {
			Text     string
			Message  struct{ Content string }
			Delta    struct{ Content string }
			Finish   string          `json:"finish_reason"`
			Logprobs json.RawMessage `json:"logprobs"`
		}
		Usage *struct {
			Prompt int `json:"prompt_tokens"`
		}
		Error json.RawMessage
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("%w: %s", err, data)
	}
	if m.Error != nil {
		return fmt.Errorf("error under 200: %s", data)
	}
	for _, c := range m.Choices {
		r.text += c.Text + c.Message.Content + c.Delta.Content
		r.logprobs = r.logprobs || len(c.Logprobs) > 4
		if c.Finish != "" {
			r.finish = c.Finish
		}
	}
	if m.Usage != nil {
		r.prompt = m.Usage.Prompt
	}
	return nil
}

// settle waits until the engines run nothing and hold no page for anybody: what a client that hung up left behind comes back, at
// the latest with the lease. It returns what is left.
func (b *bed) settle(ctx context.Context) (left string) {
	for until := time.Now().Add(b.lease + 45*time.Second); ; time.Sleep(time.Second) {
		left = ""
		for _, e := range b.engines() {
			for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} {
				m, err := counters(ctx, e.url()+"/metrics", name)
				if n := engines.Total(m); err != nil || len(m) == 0 || n != 0 {
					left += fmt.Sprintf(" %s %s %g", e.name, name, n)
				}
			}
		}
		if left == "" || time.Now().After(until) || ctx.Err() != nil {
			return left
		}
	}
}

// account prints and keeps what came of it, and fails if anything was not right. A request whose decode was slower than prefill's lease, by
// prefill's own count, is refused rightly: it is neither served nor a false alarm.
func (b *bed) account(ctx context.Context, g *gateway, t *tally, asked int, took time.Duration, lapsed float64, left string) error {
	kinds := make([]string, 0, len(t.Kinds))
	for k := range t.Kinds {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	fmt.Printf("%-12s %7s %7s %7s %7s\n", "kind", "right", "hung up", "wrong", "refused")
	for _, k := range kinds {
		n := t.Kinds[k]
		fmt.Printf("%-12s %7d %7d %7d %7d\n", k, n[right], n[gone], n[wrong], n[refused])
	}
	s := t.sums()
	fmt.Printf("%-12s %7d %7d %7d %7d   in %s\n", "all", s[right], s[gone], s[wrong], s[refused], took.Round(time.Second))
	for _, f := range t.faults {
		fmt.Println("  ", f)
	}
	incidents, err := g.counters(ctx, "sluice_incidents_total")
	if err != nil {
		return err
	}
	attempts, err := g.counters(ctx, "sluice_attempts_total")
	if err != nil {
		return err
	}
	compared, err := g.counters(ctx, "sluice_first_token_total")
	if err != nil {
		return err
	}
	fmt.Printf("first tokens:\n%s\nattempts:\n%s\nincidents: %g\n%s\n", lines(compared), lines(attempts), engines.Total(incidents), lines(incidents))
	if err := b.note(func(r *results, date string) {
		r.Traffic = append(r.Traffic, travelled{date, b.traffic.seed, b.first, asked, s, t.Kinds, engines.Total(incidents), lapsed, compared, took.Seconds()})
		r.Memory = nil
		for _, e := range b.engines() {
			r.Memory = append(r.Memory, engines.Resident(b.pid(e)))
		}
	}); err != nil {
		return err
	}
	switch {
	case s[wrong] > 0, float64(s[refused]) > lapsed:
		return fmt.Errorf("%d replies were wrong, %d requests refused", s[wrong], s[refused])
	case engines.Total(incidents) > lapsed:
		return fmt.Errorf("%g incidents came of honest traffic: sluice gateway incident --admin %s", engines.Total(incidents), b.admin)
	case left != "":
		return fmt.Errorf("the engines still hold something of it:%s", left)
	}
	for _, e := range b.engines() {
		if !alive(ctx, e) {
			return fmt.Errorf("%s does not answer any more", e.name)
		}
	}
	return nil
}
