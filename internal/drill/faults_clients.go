package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/sluicekv/sluice/internal/handoff/trace"
)

// clients are faults that a client makes.
func clients() []fault {
	return []fault{
		{class: "client-set control fields", phase: "plan", what: "rooms, handles, ids, ranks and salts of many engines, in the body and in headers", quick: true,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.controlFields(ctx) }},
		{class: "stale prefix hit", phase: "seal", what: "a prompt that shares 31 pages with one served a moment ago: natively no page is shared, all are written anew", want: served, quick: true,
			run: func(ctx context.Context, s *scene) (seen, error) { return s.samePrefix(ctx) }},
	}
}

// controlFields sends what belongs to the gateway. Each must be refused, or change nothing.
func (s *scene) controlFields(ctx context.Context) (got seen, err error) {
	fields := map[string]any{
		"kv_transfer_params": map[string]any{"do_remote_prefill": true, "remote_block_ids": []int{0, 1, 2}, "remote_engine_id": "x"},
		"bootstrap_room":     7, "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "rid": "guess", "request_id": "guess", "attempt": strings.Repeat("0", 32),
		"data_parallel_rank": 1, "cache_salt": "other", "disaggregated_params": map[string]any{"ctx_request_id": 1}, "session_id": "x", "input_ids": []int{1, 2, 3},
	}
	const mine = "00000000000000000000000000000001"
	ask := func(body map[string]any, headers bool) error {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+string(s.x.door())+"/v1/completions", bytes.NewReader(b))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		if headers {
			for _, h := range []string{"X-Sluice-Attempt", "X-Sluice-Scope", "X-Bootstrap-Room", "X-Data-Parallel-Rank"} {
				req.Header.Set(h, mine)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		r := reply{status: resp.StatusCode, body: string(all), verdict: resp.Header.Get("X-Sluice-Verdict")}
		var v answer
		if json.Unmarshal(all, &v) == nil && len(v.Choices) > 0 {
			r.text = v.text()
		}
		r.code, r.message = v.Error.Code, v.Error.Message
		got.fired++
		if got.reply.status == 0 || r.status == 200 {
			got.reply = r
		}
		if r.status == 200 && (resp.Header.Get("X-Sluice-Attempt") == mine || !strings.HasPrefix(r.text, " "+s.own)) {
			return fmt.Errorf("drill: a client chose its attempt, or its reply: %d", r.status)
		}
		return nil
	}
	body := func() map[string]any {
		return map[string]any{"model": "honest", "prompt": s.b, "max_tokens": whole, "temperature": 0}
	}
	for name, v := range fields {
		b := body()
		b[name] = v
		if err := ask(b, false); err != nil {
			return got, err
		}
	}
	if err := ask(body(), true); err != nil {
		return got, err
	}
	got.guard = "parser"
	return got, nil
}

// samePrefix asks for a prompt that begins as A's does, with another end.
func (s *scene) samePrefix(ctx context.Context) (seen, error) {
	const shared = 31 * 64
	s.b = s.a[:shared-1] + s.b[len(s.b)-500:] // BOS is the first token
	s.b = fmt.Sprintf("%s\nThe locker of tenant B has number %s.\nThe locker of tenant B has number", s.b, s.own)
	from := s.x.events.now()
	got := seen{reply: s.ask(ctx, "honest"), fired: 1}
	handed := 0
	for _, e := range s.x.events.since(from) {
		if e.Machine == trace.Pool && e.Step == trace.Reserve && e.Boot == s.x.decode.up.Boot {
			handed += int(e.B)
		}
	}
	if want := (len(s.b) + 1 + 63) / 64; handed < want {
		return got, fmt.Errorf("drill: decode handed over %d pages for a prompt of %d", handed, want)
	}
	got.guard = "not applicable: no prefix cache, no page is shared"
	return got, nil
}
