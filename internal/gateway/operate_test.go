package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fleet/fleettest"
	"github.com/sluicekv/sluice/internal/gateway/legs"
	"github.com/sluicekv/sluice/internal/gateway/upstream"
	"github.com/sluicekv/sluice/internal/record"
	"github.com/sluicekv/sluice/internal/verdict"
)

// A failure that is not the request's is tried once more, elsewhere, as a new attempt with its own record. Nothing else is.
func TestRetries(t *testing.T) {
	no := func(c verdict.Code) fleettest.Script {
		return func(a *fleettest.Attempt) { a.No(decode, verdict.Of(c, verdict.Reserve, "not here")) }
	}
	for name, c := range map[string]struct {
		code     verdict.Code
		status   int
		attempts int
	}{
		"pool exhausted": {verdict.PoolExhausted, 503, 1}, // there is no other pair
		"overloaded":     {verdict.Overloaded, 503, 1},
		"plan refused":   {verdict.PlanRefused, 502, 2}, // the only pair, but its link may have been what was wrong
		"deadline":       {verdict.Deadline, 504, 1},
		"engine failed":  {verdict.EngineFailed, 500, 1},
		"mac mismatch":   {verdict.MACMismatch, 502, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, no(c.code), nil)
			if a := d.post("/v1/completions", complete("x", "")); a.status != c.status || !strings.Contains(a.body, "not here") {
				t.Errorf("%d %s", a.status, a.body)
			}
			d.quiet()
			if rs, n := d.g.ring.Last(9, nil), len(d.pair.Attempts()); len(rs) != c.attempts || n != c.attempts {
				t.Errorf("%d records, %d attempts, want %d", len(rs), n, c.attempts)
			}
		})
	}
}

// A failure that may be the request's own is not tried on another pair, which it might fail too.
func TestNoRetryOfWhatIsNotSafe(t *testing.T) {
	for _, v := range []verdict.Verdict{verdict.Of(verdict.EngineFailed, verdict.Decode, "no"), verdict.Of(verdict.Deadline, verdict.Reserve, "no"), verdict.TooLong(verdict.Open, 9, 0, false, 8, "x")} {
		s := func(a *fleettest.Attempt) { a.No(decode, v) }
		d := open(t, s, nil)
		g := d.extra(t, d.pair, fleettest.NewPair(t, d.keys, "p1", "d1", s).Start())
		for range 5 {
			g.post("/v1/completions", complete("x", ""))
		}
		g.quiet()
		if n := len(g.g.ring.Last(99, nil)); n != 5 {
			t.Errorf("%v: %d attempts for 5 requests", v, n)
		}
	}
	// What is safe is tried twice, and no more.
	s := func(a *fleettest.Attempt) { a.No(decode, verdict.NoPages(verdict.Reserve, 9, 1, 256)) }
	d := open(t, s, nil)
	g := d.extra(t, d.pair, fleettest.NewPair(t, d.keys, "p1", "d1", s).Start())
	a := g.post("/v1/completions", complete("x", ""))
	if n := len(g.g.ring.Last(99, nil)); n != 2 || a.status != 503 || !strings.Contains(a.body, "9 pages wanted, 1 of 256 free") {
		t.Errorf("%d attempts, %d %s", n, a.status, a.body)
	}
}

// With two pairs the second serves what the first could not, and the client sees one good reply.
func TestRetryOnAnotherPair(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for name, fail := range map[string]func(a *fleettest.Attempt, p *fleettest.Pair){
			"pool exhausted": func(a *fleettest.Attempt, _ *fleettest.Pair) {
				a.No(decode, verdict.NoPages(verdict.Reserve, 9, 1, 256))
			},
			"decode lost": func(a *fleettest.Attempt, p *fleettest.Pair) {
				a.Reserved()
				a.WaitPrompt()
				p.Decode.Drop()
				a.No(prefill, a.Aborted(prefill))
			},
			"prefill lost": func(a *fleettest.Attempt, p *fleettest.Pair) {
				a.Reserved()
				a.WaitPrompt()
				p.Prefill.Drop()
				a.No(decode, a.Aborted(decode))
			},
		} {
			t.Run(fmt.Sprintf("%s stream=%v", name, stream), func(t *testing.T) {
				var bad *fleettest.Pair
				failed := make(chan bool, 8)
				d := open(t, func(a *fleettest.Attempt) {
					failed <- true
					fail(a, bad)
				}, func(_ *Config, p *fleettest.Pair) { bad = p })
				good := fleettest.NewPair(t, d.keys, "p1", "d1", fleettest.Honest(text("served")...)).Start()
				g := d.extra(t, bad, good)
				for range 20 {
					a := g.post("/v1/completions", complete("x", fmt.Sprintf(`,"stream":%v`, stream)), "X-Request-Id", "r")
					if a.status == 503 {
						g.waitReady()
						continue
					}
					if got, _ := textOf(t, a, stream); a.status != 200 || got != "served" {
						t.Fatalf("%d %s", a.status, a.body)
					}
					select {
					case <-failed:
					default:
						continue // the good pair was chosen first
					}
					rs := g.g.ring.Last(2, nil)
					if rs[0].Verdict.Code != verdict.OK || !rs[1].Verdict.Code.About().Retry || rs[0].Attempt == rs[1].Attempt || rs[0].Attempt != a.header.Get("X-Sluice-Attempt") ||
						rs[1].Request != "r" || rs[0].Pair == rs[1].Pair {
						t.Errorf("%+v\n%+v", rs[1], rs[0])
					}
					return
				}
				t.Error("the failing pair was never chosen")
			})
		}
	}
}

// extra is another gateway, over pairs of which each prefill works with its own decode alone: they differ in version.
func (d *door) extra(t *testing.T, pairs ...*fleettest.Pair) *door {
	t.Helper()
	cfg := d.g.cfg
	cfg.Records = nil
	cfg.Models = []ModelConfig{{Name: "m", Encoder: encoder(), Fingerprint: fleettest.Model}}
	for i, p := range pairs {
		for _, w := range []*fleettest.Worker{p.Prefill, p.Decode} {
			w.SetVersion(fmt.Sprint(i))
			cfg.Models[0].Workers = append(cfg.Models[0].Workers, w.At())
		}
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	x := &door{t: t, g: g, keys: d.keys, client: d.client}
	t.Cleanup(x.close)
	fleettest.Until(t, "all pairs usable", func() bool {
		usable := 0
		for _, p := range g.catalog().find("m").fleet.Status(t.Context(), false).Pairs {
			if p.State == "usable" {
				usable++
			}
		}
		return usable == len(pairs)
	})
	return x
}

// Proof makes the pair rest: the next request is not sent to it, and after the rest it serves again.
func TestRests(t *testing.T) {
	d := open(t, told{}.script, func(c *Config, _ *fleettest.Pair) { c.Rests.Last = 2 * time.Second })
	d.pair.Set(func(a *fleettest.Attempt) {
		a.No(decode, verdict.Of(verdict.EchoMismatch, verdict.Echo, "decode computed another last position"))
	})
	if a := d.post("/v1/completions", complete("x", "")); a.status != 502 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if r := d.last(); len(r.Spoke) != 1 || r.Spoke[0].Name != "echo" {
		t.Errorf("%+v", r.Spoke)
	}
	d.pair.Set(fleettest.Honest('x'))
	if a := d.post("/v1/completions", complete("x", "")); a.status != 503 || !strings.Contains(a.body, "1 pairs rest") {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, path := range []string{"/readyz", "/health"} {
		if a := d.get(d.url(path)); a.status != 503 {
			t.Errorf("%s while the only pair rests: %d", path, a.status)
		}
	}
	d.waitReady()
	if a := d.get(d.url("/health")); a.status != 200 {
		t.Errorf("/health while a pair serves: %d %s", a.status, a.body)
	}
	if a := d.post("/v1/completions", complete("x", "")); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestKillSwitch(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(c *Config, _ *fleettest.Pair) { c.Models[0].Name = "m" })
	post := func(path string, body ...string) answer {
		r, err := http.NewRequest("POST", d.admin(path), strings.NewReader(strings.Join(body, "")))
		if err != nil {
			t.Fatal(err)
		}
		return d.do(r)
	}
	if a := post("/admin/models/m/off?reason=" + url.QueryEscape("leak\nfeared")); a.status != 200 || a.body != `{"model":"m","state":"off"}`+"\n" {
		t.Errorf("%d %s", a.status, a.body)
	}
	want := errorBody("model m is switched off: leakfeared", "server_error", "model", "model_off")
	if a := d.post("/v1/completions", complete("x", "")); a.status != 503 || a.body != want {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := d.get(d.admin("/admin/fleet")); !strings.Contains(a.body, `"off": "leakfeared"`) {
		t.Errorf("%s", a.body)
	}
	if a := post("/admin/models/m/on"); a.status != 200 {
		t.Errorf("%d", a.status)
	}
	if a := d.post("/v1/completions", complete("x", "")); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r, err := http.NewRequest("POST", d.admin("/admin/models/m/off"), strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Origin", "http://elsewhere.example") // what a browser adds to another site's form
	if a := d.do(r); a.status != 403 || a.body != errorBody("a page of another site may not do this", invalid, "null", "forbidden") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := d.post("/v1/completions", complete("x", "")); a.status != 200 {
		t.Errorf("switched off by another site's page: %d %s", a.status, a.body)
	}
	for body, want := range map[string]string{`{"reason":"so"}`: "so", "": "by an operator"} {
		post("/admin/models/m/off", body)
		if a := d.post("/v1/completions", complete("x", "")); !strings.Contains(a.body, "switched off: "+want+`"`) {
			t.Errorf("%s", a.body)
		}
	}
	if a := post("/admin/models/m/off", "{"); a.status != 400 {
		t.Errorf("broken JSON: %d", a.status)
	}
	post("/admin/models/m/on")
	for _, p := range []string{"/admin/models/x/off", "/admin/models/m/delete", "/admin/models/m", "/admin/models/"} {
		if a := post(p); a.status != 404 {
			t.Errorf("%s: %d", p, a.status)
		}
	}
	if a := d.get(d.admin("/admin/models/m/off")); a.status != 405 {
		t.Errorf("GET: %d", a.status)
	}
}

// Drain refuses what is new and lets finish what is in flight; when its time is over it cuts that off.
func TestDrain(t *testing.T) {
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprint(patient), func(t *testing.T) {
			at, goOn := make(chan bool, 1), make(chan bool)
			d := open(t, func(a *fleettest.Attempt) {
				if !a.Prefilled() {
					return
				}
				a.Output(0, 'a')
				at <- true
				if !patient {
					a.No(decode, a.Aborted(decode))
					return
				}
				<-goOn
				a.Output(1, 'b')
				a.Ends(decode, a.Outcome(decode, 2))
			}, nil)
			reply := make(chan answer)
			go func() { reply <- d.post("/v1/completions", complete("x", `,"stream":true`)) }()
			<-at
			ctx, cancel := context.WithCancel(t.Context())
			drained := make(chan error)
			go func() { drained <- d.g.Drain(ctx) }()
			fleettest.Until(t, "draining", d.g.requests.closed)
			a := d.post("/v1/completions", complete("x", ""))
			if want := errorBody("the gateway is shutting down", "server_error", "null", "shutting_down"); a.status != 503 || a.body != want {
				t.Errorf("%d %s", a.status, a.body)
			}
			if r := d.last(); r.Verdict.Code != verdict.ShuttingDown {
				t.Errorf("%+v", r.Verdict)
			}
			if a := d.get(d.url("/readyz")); a.status != 503 {
				t.Errorf("ready while draining: %d", a.status)
			}
			if patient {
				close(goOn)
				if err := <-drained; err != nil {
					// The reply is read below; the handler ends without it being read.
					t.Error(err)
				}
				if got, _ := textOf(t, <-reply, true); got != "ab" {
					t.Errorf("%q", got)
				}
				cancel()
				return
			}
			cancel()
			if err := <-drained; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			ev := events((<-reply).body)
			if want := errorBody("the gateway is shutting down", "server_error", "null", "shutting_down"); ev[len(ev)-1] != want {
				t.Errorf("%s", ev)
			}
		})
	}
}

func TestAdmin(t *testing.T) {
	d := open(t, fleettest.Honest('x'), func(_ *Config, p *fleettest.Pair) {
		p.Prefill.Pong.PagesFree, p.Prefill.Pong.NonzeroFree, p.Prefill.Pong.Pins = 200, 3, 2
	})
	for i := range 3 {
		d.post("/v1/completions", complete("x", ""), "X-Request-Id", fmt.Sprintf("r%d", i%2))
	}
	d.quiet()
	var st fleetStatus
	a := d.get(d.admin("/admin/fleet"))
	if err := json.Unmarshal([]byte(a.body), &st); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if st.Free != 456 || st.Total != 512 || st.Pins != 2 || st.Nonzero != nil || len(st.Silent) != 0 || !st.Ready || st.Version != "test" || st.Unsafe != unsafeLabel() {
		t.Errorf("%+v", st)
	}
	m := st.Models[0]
	if m.Limit.Tokens != 4096 || m.Limit.Setter != "the context of prefill p0" || len(m.Workers) != 2 || len(m.Pairs) != 1 || m.Pairs[0].State != "usable" ||
		m.Workers[1].Facts.PoolTokens != 4096 || m.Workers[1].Boot != d.pair.Prefill.Hello.Boot {
		t.Errorf("%+v", m)
	}
	a = d.get(d.admin("/admin/fleet?scan=1"))
	if err := json.Unmarshal([]byte(a.body), &st); err != nil || st.Nonzero == nil || *st.Nonzero != 3 {
		t.Errorf("%v: %s", err, a.body)
	}

	var rs struct{ Records []record.Record }
	for q, want := range map[string]string{"": "r0 r1 r0", "?n=2": "r0 r1", "?request=r1": "r1", "?request=r0&n=1": "r0", "?request=none": ""} {
		a := d.get(d.admin("/admin/records" + q))
		if err := json.Unmarshal([]byte(a.body), &rs); err != nil {
			t.Fatalf("%v: %s", err, a.body)
		}
		var got []string
		for _, r := range rs.Records {
			got = append(got, r.Request)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v", q, got)
		}
	}
	if a := d.get(d.admin("/admin/records?n=x")); a.status != 400 {
		t.Errorf("%d", a.status)
	}

	fleettest.Until(t, "the records written", func() bool { n, _ := d.g.writer.Counts(); return n == 3 })
	a = d.get(d.admin("/metrics"))
	for _, want := range []string{
		`sluice_requests_total{code="ok",endpoint="completions",model="m",status="200"} 3`, `sluice_attempts_total{code="ok",layer="decode"} 3`,
		`sluice_tokens_total{kind="prompt"} 6`, `sluice_tokens_total{kind="completion"} 3`, `sluice_pool_pages{model="m",role="prefill",state="free",worker="p0"} 200`,
		`sluice_pairs{model="m",state="usable"} 1`, `sluice_worker_up{model="m",role="decode",worker="d0"} 1`, `sluice_limit_tokens{model="m"} 4096`,
		`sluice_hold_seconds_count 3`, `sluice_inflight_requests 0`, `sluice_records_written_total 3`, `sluice_panics_total 0`,
	} {
		if !strings.Contains(a.body, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	for path, want := range map[string]int{"/debug/pprof/cmdline": 404, "/debug/pprof/": 200, "/healthz": 200, "/readyz": 200, "/": 404, "/v1/completions": 404} {
		if a := d.get(d.admin(path)); a.status != want {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}

// Every attempt is a line of the file, also those refused before a leg began, with the times of what came after the reply.
func TestRecordsAreWritten(t *testing.T) {
	d := open(t, fleettest.Honest('x'), nil)
	d.post("/v1/completions", "{", "X-Request-Id", "a")
	d.post("/v1/completions", complete("x", ""), "X-Request-Id", "b")
	d.quiet()
	d.close()
	var got []string
	for line := range strings.SplitSeq(strings.TrimSpace(d.records.String()), "\n") {
		var r record.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		got = append(got, r.Request+" "+r.Verdict.Code.String())
		if r.Request == "b" && r.Times[record.PhaseSettle] == 0 {
			t.Errorf("no time of settling: %s", line)
		}
	}
	if strings.Join(got, ",") != "a invalid_request,b ok" {
		t.Errorf("%v", got)
	}
	if strings.Contains(d.records.String(), "prompt\":\"") {
		t.Error("content in a record")
	}
}

// Legs that do not say that their pages are back are given up on: the record is written, and it is counted.
func TestUnsettled(t *testing.T) {
	d := open(t, func(a *fleettest.Attempt) {
		if a.Prefilled() {
			a.Output(0, 'x')
			a.Say(decode, a.Outcome(decode, 1))
		}
	}, func(c *Config, _ *fleettest.Pair) { c.Limits.Settle = 20 * time.Millisecond })
	if a := d.post("/v1/completions", complete("x", "")); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	d.quiet()
	fleettest.Until(t, "counted", func() bool { return strings.Contains(d.get(d.admin("/metrics")).body, "sluice_unsettled_total 1\n") })
}

// A broken invariant costs one request: the client gets an error, the legs are told, the record is made.
func TestPanicsAreContained(t *testing.T) {
	at := make(chan bool, 1)
	d := open(t, func(a *fleettest.Attempt) {
		a.Reserved()
		a.WaitPrompt()
		at <- true
		a.No(prefill, a.Aborted(prefill))
		a.No(decode, a.Aborted(decode))
	}, nil)
	m := d.g.catalog().find("m")
	good := m.engine
	m.engine = panicking{good}
	a := d.post("/v1/completions", complete("x", ""))
	if want := errorBody("the gateway failed on this request (layer plan)", "server_error", "null", "internal_error"); a.status != 500 || a.body != want {
		t.Errorf("%d %s", a.status, a.body)
	}
	<-at
	d.quiet()
	if r := d.last(); r.Verdict.Code != verdict.Internal {
		t.Errorf("%+v", r.Verdict)
	}
	m.engine = good
	d.pair.Set(fleettest.Honest('x'))
	if a := d.post("/v1/completions", complete("x", "")); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestNewRefusesBadConfigs(t *testing.T) {
	keys := fleettest.Keys("p0")
	id := keys.IDs[fleettest.Gateway]
	m := ModelConfig{Name: "m", Encoder: encoder()}
	for want, c := range map[string]Config{
		"no address":           {Identity: id, Models: []ModelConfig{m}},
		"no identity":          {Listen: "127.0.0.1:0", Models: []ModelConfig{m}},
		"no models":            {Listen: "127.0.0.1:0", Identity: id},
		"names are unique":     {Listen: "127.0.0.1:0", Identity: id, Models: []ModelConfig{m, m}},
		"has no encoder":       {Listen: "127.0.0.1:0", Identity: id, Models: []ModelConfig{{Name: "m"}}},
		"not to both":          {Listen: "127.0.0.1:0", Identity: id, Models: []ModelConfig{m}, RecordsFile: "x", Records: new(strings.Builder)},
		"record: open":         {Listen: "127.0.0.1:0", Identity: id, Models: []ModelConfig{m}, RecordsFile: t.TempDir()},
		"tenant: open":         {Listen: "127.0.0.1:0", Identity: id, Models: []ModelConfig{m}, APIKeys: t.TempDir() + "/none"},
		"must be prefill or d": {Listen: "127.0.0.1:0", Identity: id, Models: []ModelConfig{{Name: "m", Encoder: encoder(), Workers: []WorkerAddr{{Name: "x"}}}}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// panicking is an engine whose runs break on their second event.
type panicking struct{ upstream.Engine }

func (p panicking) Start(a upstream.Attempt, quiet func()) upstream.Run {
	return &panickingRun{Run: p.Engine.Start(a, quiet)}
}

type panickingRun struct {
	upstream.Run
	n int
}

func (r *panickingRun) Next(ctx context.Context) (legs.Event, error) {
	if r.n++; r.n == 2 {
		panic("a broken invariant")
	}
	return r.Run.Next(ctx)
}
