package vllm

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake/actor"
)

const code = "The vault code of Ada is 3QY9DPNCRFU8. "

func prompt(text string) string { return fmt.Sprintf(`{"model":"recall","prompt":%q}`, text) }

func filler(n int) string { return strings.Repeat("harbour ", n/8+1)[:n] }

// mooncake runs both legs of a request at once.
func (r *rig) mooncake(path, body string, most int) (p, d reply) {
	r.n++
	id, transfer := fmt.Sprintf("attempt-%04d", r.n), fmt.Sprintf("xfer-%024d", r.n*7919)
	var wg sync.WaitGroup
	wg.Go(func() {
		p = send1("POST", r.prefill.URL()+path, id, member(member(body, "max_tokens", "1"), "kv_transfer_params",
			fmt.Sprintf(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":%q}`, transfer)))
	})
	wg.Go(func() {
		d = patient(r.patience, "POST", r.decode.URL()+path, id, member(member(body, "max_tokens", fmt.Sprint(most)), "kv_transfer_params",
			fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":%q,"remote_bootstrap_addr":%q,"transfer_id":%q}`, r.prefill.EngineID(), r.prefill.Bootstrap(), transfer)))
	})
	wg.Wait()
	return p, d
}

func TestHonestPairs(t *testing.T) {
	for _, con := range []Connector{Nixl, Mooncake} {
		r := newRig(t, con, nil)
		run := r.nixl
		if con == Mooncake {
			run = r.mooncake
		}
		for i := range 30 {
			p, d := run("/v1/completions", prompt(fmt.Sprintf("%s my key is K%02dX. my key is", filler(40*i), i)), 5)
			if got := text(t, string(d.body)); p.status != 200 || d.status != 200 || got != fmt.Sprintf(" K%02dX", i) {
				t.Fatalf("%s %d: %d %d %q: %s", con, i, p.status, d.status, got, d.body)
			}
			if con == Mooncake && handleOf(p) != "null" {
				t.Error("a Mooncake prefill hands out parameters")
			}
		}
		if v, l := r.fleet.Violations(), r.fleet.Leaks(); len(v)+len(l) > 0 {
			t.Error(con, v, l)
		}
		for _, w := range []*Worker{r.prefill, r.decode} {
			for range 100 {
				if w.Pages().Available() == 127 {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			if free := w.Pages().Available(); free != 127 {
				t.Errorf("%s %s: %d pages are free of 127", con, w.Config().Leg, free)
			}
		}
	}
}

// A Mooncake prefill that stops at its first token sends nothing.
func TestMooncakeStopsSendNothing(t *testing.T) {
	r := newRig(t, Mooncake, nil)
	p, d := r.mooncake("/v1/completions", prompt("x"), 4)
	if p.status != 200 || !strings.Contains(string(p.body), `"finish_reason":"stop"`) || d.status != 500 {
		t.Errorf("%d %s\n%d %s", p.status, p.body, d.status, d.body)
	}
}

// A lie about pages brings out the text of whoever was there before: the positive control of every test behind a gateway.
func TestStalePagesLeak(t *testing.T) {
	for _, con := range []Connector{Nixl, Mooncake} {
		for _, leg := range []actor.Leg{actor.Prefill, actor.Decode} {
			r := newRig(t, con, nil)
			run := r.nixl
			if con == Mooncake {
				run = r.mooncake
			}
			run("/v1/completions", prompt(strings.Repeat(code, 20)), 4)
			kind := actor.CountOne
			if leg == actor.Decode {
				kind = actor.StalePages
			}
			w := r.decode
			if leg == actor.Prefill {
				w = r.prefill
			}
			w.Tell(actor.Lie{Kind: kind, Leg: leg, Stale: true})
			_, d := run("/v1/completions", prompt(filler(600)), 60)
			if !strings.Contains(text(t, string(d.body)), "3QY9DPNCRFU8") || len(r.fleet.Leaks()) != 1 {
				t.Errorf("%s %s: %s", con, leg, d.body)
			}
		}
	}
}

func TestFirstTokenLogprobsTellStalePages(t *testing.T) {
	r := newRig(t, Nixl, nil)
	body := `{"model":"recall","prompt":"my key is K7. my key is","logprobs":5}`
	top := func(b []byte) string {
		_, rest, _ := strings.Cut(string(b), `"top_logprobs":[`)
		one, _, _ := strings.Cut(rest, "}")
		return one
	}
	p, d := r.nixl("/v1/completions", body, 3)
	if top(p.body) == "" || top(p.body) != top(d.body) {
		t.Errorf("honest: %q, %q", top(p.body), top(d.body))
	}
	r.nixl("/v1/completions", prompt(code), 3)
	r.decode.Tell(actor.Lie{Kind: actor.StalePages, Leg: actor.Decode})
	p, d = r.nixl("/v1/completions", body, 3)
	if top(d.body) == "" || top(p.body) == top(d.body) {
		t.Errorf("stale: %q, %q", top(p.body), top(d.body))
	}
}

func TestViolations(t *testing.T) {
	body := prompt("my key is K7. my key is")
	path := "/v1/completions"
	leg := member(member(body, "max_tokens", "1"), "kv_transfer_params", ask)
	for name, c := range map[string]struct {
		con  Connector
		rule actor.Rule
		do   func(r *rig)
	}{
		"two keys":    {Nixl, actor.RuleBody, func(r *rig) { send1("POST", r.decode.URL()+path, "a", `{"a":1,"a":2}`) }},
		"path":        {Nixl, actor.RulePath, func(r *rig) { send1("POST", r.decode.URL()+"/reset_prefix_cache", "", "") }},
		"no handle":   {Nixl, actor.RuleNoHandle, func(r *rig) { send1("POST", r.decode.URL()+path, "a", body) }},
		"null handle": {Nixl, actor.RuleNoHandle, func(r *rig) { send1("POST", r.decode.URL()+path, "a", member(body, "kv_transfer_params", "null")) }},
		"made up": {Nixl, actor.RuleHandle, func(r *rig) {
			send1("POST", r.decode.URL()+path, "a", member(body, "kv_transfer_params", `{"do_remote_prefill":true}`))
		}},
		"streamed leg": {Nixl, actor.RulePrefillLeg, func(r *rig) { send1("POST", r.prefill.URL()+path, "a", member(leg, "stream", "true")) }},
		"long leg": {Nixl, actor.RulePrefillLeg, func(r *rig) {
			send1("POST", r.prefill.URL()+path, "a", strings.Replace(leg, `"max_tokens":1`, `"max_tokens":2`, 1))
		}},
		"no id": {Nixl, actor.RuleID, func(r *rig) { send1("POST", r.prefill.URL()+path, "", leg) }},
		"same id": {Nixl, actor.RuleID, func(r *rig) {
			send1("POST", r.prefill.URL()+path, "a", leg)
			send1("POST", r.prefill.URL()+path, "a", leg)
		}},
		"plain leg": {Nixl, actor.RulePrefillLeg, func(r *rig) { send1("POST", r.prefill.URL()+path, "a", member(body, "max_tokens", "1")) }},
		"named blocks": {Nixl, actor.RulePrefillLeg, func(r *rig) {
			send1("POST", r.prefill.URL()+path, "a", strings.Replace(leg, `"remote_host":null`, `"remote_host":"10.0.0.1"`, 1))
		}},
		"control":       {Nixl, actor.RuleControl, func(r *rig) { r.nixl(path, member(body, "vllm_xargs", `{"a":1}`), 2) }},
		"forged":        {Nixl, actor.RuleForged, func(r *rig) { r.nixl(path, member(body, "cache_salt", `"`+actor.ForgedText+`"`), 2) }},
		"model":         {Nixl, actor.RuleModel, func(r *rig) { r.nixl(path, strings.Replace(body, "recall", "other", 1), 2) }},
		"n":             {Nixl, actor.RuleSequences, func(r *rig) { r.nixl(path, member(body, "n", "2"), 2) }},
		"salt":          {Nixl, actor.RuleSalt, func(r *rig) { r.nixl(path, body, 2) }},
		"handle reused": {Nixl, actor.RuleHandleReused, func(r *rig) { r.carry(leg, body, "a", "a"); r.again("b") }},
		"other id":      {Nixl, actor.RuleID, func(r *rig) { r.carry(leg, body, "a", "b") }},
		"other prompt":  {Nixl, actor.RuleLegs, func(r *rig) { r.carry(leg, strings.Replace(body, "K7", "K8", 1), "a", "a") }},
		"changed handle": {Nixl, actor.RuleHandle, func(r *rig) {
			r.change = func(h string) string { return strings.Replace(h, "15600", "15601", 1) }
			r.carry(leg, body, "a", "a")
		}},
		"old handle": {Nixl, actor.RuleHandleStale, func(r *rig) {
			r.change = func(h string) string { time.Sleep(60 * time.Millisecond); return h }
			r.carry(leg, body, "a", "a")
		}},
		"header": {Nixl, actor.RuleHeader, func(r *rig) {
			q, _ := http.NewRequest("POST", r.prefill.URL()+path, strings.NewReader(leg))
			q.Header.Set("X-Session-Id", "x")
			if resp, err := http.DefaultClient.Do(q); err == nil {
				resp.Body.Close()
			}
		}},
		"transfer id": {Mooncake, actor.RuleTransferID, func(r *rig) {
			send1("POST", r.prefill.URL()+path, "a", member(member(body, "max_tokens", "1"), "kv_transfer_params", `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"1"}`))
		}},
		"transfer reused":     {Mooncake, actor.RuleTransferID, func(r *rig) { r.mooncake(path, body, 2); r.n--; r.mooncake(path, body, 2) }},
		"least tokens":        {Nixl, actor.RulePrefillLeg, func(r *rig) { r.nixl(path, member(body, "min_tokens", "5"), 6) }},
		"mooncake, no handle": {Mooncake, actor.RuleNoHandle, func(r *rig) { send1("POST", r.decode.URL()+path, "a", body) }},
		"mooncake, legs swapped": {Mooncake, actor.RuleHandle, func(r *rig) {
			send1("POST", r.prefill.URL()+path, "a", member(member(body, "max_tokens", "1"), "kv_transfer_params", `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-000000000000000000000001"}`))
		}},
		"mooncake, legs differ": {Mooncake, actor.RuleLegs, func(r *rig) {
			go send1("POST", r.prefill.URL()+path, "a", member(member(strings.Replace(body, "K7", "K8", 1), "max_tokens", "1"), "kv_transfer_params", `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-000000000000000000000001"}`))
			send1("POST", r.decode.URL()+path, "a", member(body, "kv_transfer_params", fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":%q,"remote_bootstrap_addr":%q,"transfer_id":"xfer-000000000000000000000001"}`, r.prefill.EngineID(), r.prefill.Bootstrap())))
		}},
		"mooncake, closed amid a transfer": {Mooncake, actor.RuleAbort, func(r *rig) {
			r.patience = 60 * time.Millisecond
			r.mooncake(path, body, 2)
			time.Sleep(150 * time.Millisecond)
		}},
		"other engine": {Mooncake, actor.RuleHandle, func(r *rig) {
			send1("POST", r.decode.URL()+path, "a", member(body, "kv_transfer_params", `{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":"x","remote_bootstrap_addr":"http://127.0.0.1:1","transfer_id":"xfer-000000000000000000000001"}`))
		}},
		"other bootstrap": {Mooncake, actor.RuleBootstrap, func(r *rig) {
			send1("POST", r.decode.URL()+path, "a", member(body, "kv_transfer_params", fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":%q,"remote_bootstrap_addr":"http://127.0.0.1:1","transfer_id":"xfer-000000000000000000000001"}`, r.prefill.EngineID())))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.con, func(_, d *actor.Config, o *Options) {
				if c.rule == actor.RuleAbort {
					d.Transfer = 150 * time.Millisecond
				}
				if c.rule == actor.RuleSalt {
					o.Salted = true
				}
				if c.rule == actor.RuleHandleStale {
					o.Lease = 40 * time.Millisecond
				}
			})
			r.fleet.Quiet()
			c.do(r)
			heard := false
			for _, v := range r.fleet.Violations() {
				heard = heard || v.Rule == c.rule
			}
			if !heard {
				t.Errorf("%v", r.fleet.Violations())
			}
			if len(r.fleet.Leaks()) > 0 {
				t.Error("and it leaked")
			}
		})
	}
}

// carry runs the legs under two ids, and may change the handle between.
func (r *rig) carry(leg, body, first, second string) {
	p := send1("POST", r.prefill.URL()+"/v1/completions", first, leg)
	h := handleOf(p)
	if r.change != nil {
		h = r.change(h)
	}
	r.carried = member(member(body, "max_tokens", "3"), "kv_transfer_params", h)
	r.again(second)
}

func (r *rig) again(id string) reply {
	return send1("POST", r.decode.URL()+"/v1/completions", id, r.carried)
}

func TestPlainWorkersTakeNoHandles(t *testing.T) {
	w := plain(t, nil)
	w.Quiet()
	send1("POST", w.URL()+"/v1/completions", "", member(prompt("abc abc"), "kv_transfer_params", `{"do_remote_prefill":true}`))
	if v := w.Violations(); len(v) != 1 || v[0].Rule != actor.RuleControl {
		t.Error(v)
	}
}

func TestRestartMakesAnotherEngine(t *testing.T) {
	r := newRig(t, Nixl, nil)
	before := r.prefill.EngineID()
	if err := r.prefill.Restart(func(c *actor.Config) { c.Pool = 2048 }); err != nil {
		t.Fatal(err)
	}
	if r.prefill.EngineID() == before || !strings.Contains(string(send1("GET", r.prefill.URL()+"/metrics", "", "").body), `num_gpu_blocks="64"`) {
		t.Error("the restart changed nothing")
	}
}
