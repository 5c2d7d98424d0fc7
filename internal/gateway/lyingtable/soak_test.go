package lyingtable

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/guard"
)

var (
	soakFor   = flag.Int("soak", 2000, "requests of the soak")
	soakUsers = flag.Int("users", 16, "clients of the soak at a time")
)

// soak is a gateway with several models before honest fakes that are strict.
type soak struct {
	t                             *testing.T
	g                             *other
	client                        *http.Client
	pairs                         []*fake.Pair
	next                          atomic.Int64 // request
	served, gone, refused, failed atomic.Int64
	restarting                    atomic.Bool // workers are, or their restart was not noticed yet
}

// Honest workers behind the gateway, under clients of every kind that change their minds: no incident, no rule of any wire broken, no
// reply with another's words in it, every page back, and nothing kept. `make soak-gateway` runs 100,000.
func TestSoakHasNoFalseAlarm(t *testing.T) {
	if guard.Unsafe {
		t.Skip("the soak is of the release build")
	}
	t.Parallel()
	n := *soakFor
	if testing.Short() {
		n = min(n, 400)
	}
	s := newSoak(t, patient)
	s.run(n / 5)
	warm := s.settled()
	begun := time.Now()
	s.run(n)
	took := time.Since(begun)
	end := s.settled()
	t.Logf("%d requests: %d served, %d clients hung up, %d over the limit refused; %.0f a second", n, s.served.Load(), s.gone.Load(), s.refused.Load(),
		float64(n-n/5)/took.Seconds())
	t.Logf("the gateway keeps after the first %d: %v", n/5, warm)
	t.Logf("and after all: %v", end)
	if s.served.Load() < int64(n)/2 || s.gone.Load() == 0 || s.refused.Load() == 0 {
		t.Error("the mix is not what it should be")
	}
	s.flat(warm, end)
	if m := s.admin("/metrics"); strings.Contains(m, "sluice_incidents_total{") {
		t.Errorf("false alarms: %.3000s", s.admin("/admin/incidents"))
	}
}

// flat compares what the gateway kept, early and late.
func (s *soak) flat(early, late kept) {
	// Goroutines that ran a leg wait for another, 64 of them at most.
	if more := late.Goroutines - early.Goroutines; more > 64 {
		s.t.Errorf("%d goroutines more than before", more)
	}
	// A connection to a worker is kept for each of the requests that it had at a time, and that is drawn.
	if more := late.Files - early.Files; more > *soakUsers*len(s.pairs)*2 {
		s.t.Errorf("%d open files more than before", more)
	}
	if more := late.Heap - early.Heap; more > 8<<20 {
		s.t.Errorf("%d bytes of heap more than before", more)
	}
}

// run makes requests until there were n in all.
func (s *soak) run(n int) {
	var wg sync.WaitGroup
	for range *soakUsers {
		wg.Go(func() {
			for k := s.next.Add(1); k <= int64(n); k = s.next.Add(1) {
				s.one(rand.New(rand.NewPCG(uint64(k), 7)), k)
			}
		})
	}
	wg.Wait()
	s.next.Store(int64(n))
}

// Workers that restart, with another pool, under traffic: requests may fail, by their fault and by name, and never otherwise. What is
// counted is that legs broke off; no pair is ejected, nobody gets another's words, and no process keeps a page. Once the restarts are
// noticed nothing fails any more, and no rule is broken.
func TestSoakUnderRestarts(t *testing.T) {
	if guard.Unsafe {
		t.Skip("the soak is of the release build")
	}
	t.Parallel()
	s := newSoak(t, quick)
	s.restarting.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for k := s.next.Add(1); ctx.Err() == nil; k = s.next.Add(1) {
				s.one(rand.New(rand.NewPCG(uint64(k), 9)), k)
			}
		})
	}
	for i := range 2 {
		for _, p := range s.pairs {
			for _, w := range p.Workers() {
				before := s.served.Load()
				if err := w.Restart(func(c *actor.Config) { c.Pool = 4096 + 1024*i }); err != nil {
					t.Error(err)
				}
				for end := time.Now().Add(10 * time.Second); s.served.Load() < before+5 && time.Now().Before(end); {
					time.Sleep(2 * time.Millisecond)
				}
			}
		}
	}
	cancel()
	wg.Wait()
	s.settled()
	s.known(`"pool_tokens": 5120,`) // a reading may have missed the restart before
	during := s.served.Load()
	failed := s.failed.Load()
	s.restarting.Store(false)
	seen := s.incidents()
	s.run(int(s.next.Load()) + 200)
	s.settled()
	t.Logf("%d served, %d failed, %d hung up; %d served afterwards", during, failed, s.gone.Load(), s.served.Load()-during)
	for _, i := range seen {
		// A fake that is stopped ends what it was writing as HTTP asks, so half a body looks whole until it is read: wire says so.
		if i.Guard != "answered" && i.Guard != "prefill-verdict" && i.Guard != "wire" {
			t.Errorf("an incident of %s: %s", i.Guard, i.Detail)
		}
	}
	if now := s.incidents(); len(now) != len(seen) {
		t.Errorf("incidents after the restarts: %+v", now)
	}
	if during == 0 || s.served.Load() == during {
		t.Error("nothing was served")
	}
}

type incident struct{ Guard, Detail string }

// incidents that the gateway keeps.
func (s *soak) incidents() []incident {
	s.t.Helper()
	var all struct{ Incidents []incident }
	if err := json.Unmarshal([]byte(s.admin("/admin/incidents")), &all); err != nil {
		s.t.Fatal(err)
	}
	return all.Incidents
}

// patient fakes wait about as long as engines do, which is longer than a busy machine keeps a process from running: shorter times judge
// the machine. Quick ones let an attempt that lost its other leg end within the test.
var (
	patient = fake.Options{Context: 8192, Lease: time.Minute, Patience: 5 * time.Minute, Prefill: fake.Leg{Pool: 1 << 17}, Decode: fake.Leg{Pool: 1 << 17}}
	quick   = fake.Options{Context: 8192, Lease: 10 * time.Second, Prefill: fake.Leg{Pool: 12288}, Decode: fake.Leg{Pool: 16384}}
)

// newSoak starts fakes of every engine and a gateway.
func newSoak(t *testing.T, as fake.Options) *soak {
	s := &soak{t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	var models []served
	for _, engine := range fake.Engines() {
		m := served{Name: engine, Engine: asked(engine)}
		f := fake.NewFleet(strict{s})
		for i := range 2 {
			as.Engine, as.Model = engine, engine
			as.Prefill.Name, as.Decode.Name = fmt.Sprint("p", i), fmt.Sprint("d", i)
			p, err := f.Pair(as)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			s.pairs = append(s.pairs, p)
			for _, w := range p.Workers() {
				by := servedBy{Role: w.Config().Leg.String(), URL: w.URL()}
				if _, port := p.Bootstrap(); w == p.Prefill {
					by.Bootstrap = port
				}
				m.Workers = append(m.Workers, by)
			}
		}
		models = append(models, m)
	}
	s.g = newOther(t, models)
	s.known(`"boots": 1,`)
	return s
}

// known waits until the gateway's accounting of every worker has this in it.
func (s *soak) known(fact string) {
	workers := 0
	for _, p := range s.pairs {
		workers += len(p.Workers())
	}
	for end := time.Now().Add(30 * time.Second); strings.Count(s.admin("/admin/fleet"), fact) != workers; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("the workers' facts are not read: %s", s.admin("/admin/fleet"))
		}
	}
}

// strict hears of broken rules. While workers restart one is no fault: until a prefill's restart is noticed decode is told the old
// engine's id, and refuses.
type strict struct{ s *soak }

func (r strict) Errorf(format string, args ...any) {
	r.s.t.Helper()
	what := fmt.Sprintf(format, args...)
	if r.s.restarting.Load() && strings.Contains(what, ": "+string(actor.RuleEngineStale)+": ") {
		return
	}
	r.s.t.Errorf("%s", what)
}

var keyOf = regexp.MustCompile(`K[0-9]{7}`)

// one is a request of some kind.
func (s *soak) one(r *rand.Rand, k int64) {
	engine := fake.Engines()[r.IntN(len(fake.Engines()))]
	key := fmt.Sprintf("K%07d", k)
	filler := []string{"harbour ", "été 東京 ", "🜂 ", "\n\t\"quoted\" \\ ", "<|end|> "}[r.IntN(5)]
	prompt := strings.Repeat(filler, r.IntN(12)) + "The key is " + key + "! The key is"
	over := r.IntN(50) == 0
	if over {
		prompt = strings.Repeat("far too long ", 1500)
	}
	q, _ := json.Marshal(prompt)
	b := fmt.Sprintf(`{"model":%q,"max_tokens":%d`, engine, 9+r.IntN(20))
	path, chat := "/v1/completions", r.IntN(2) == 0
	if chat {
		path = "/v1/chat/completions"
		turns := []string{"", `{"role":"system","content":"Be brief."},`, `{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},`,
			`{"role":"user","content":"?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"42"},`}
		b += `,"messages":[` + turns[r.IntN(len(turns))] + `{"role":"user","content":` + string(q) + `}]`
	} else {
		b += `,"prompt":` + string(q)
	}
	stream := r.IntN(2) == 0
	if stream {
		b += `,"stream":true` + []string{"", `,"stream_options":{"include_usage":true}`, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, `,"stream_options":{"include_usage":false}`}[r.IntN(4)]
	}
	b += []string{"", "", `,"stop":["!"]`, `,"stop":["\n","zzz"]`, `,"temperature":0`, `,"n":1`, `,"seed":4,"user":"u"`}[r.IntN(7)]
	if strings.HasPrefix(engine, "vllm") && r.IntN(4) == 0 {
		b += map[bool]string{true: `,"logprobs":true,"top_logprobs":2`, false: `,"logprobs":2`}[chat]
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hangUp := r.IntN(8) == 0
	if hangUp {
		timer := time.AfterFunc(time.Duration(r.IntN(8000))*time.Microsecond, cancel)
		defer timer.Stop()
	}
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.g.Addr+path, strings.NewReader(b+"}"))
	resp, err := s.client.Do(req)
	if err == nil {
		var body []byte
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil {
			s.judge(resp.StatusCode, string(body), b, key, over, stream)
			return
		}
	}
	switch {
	case hangUp && (errors.Is(err, context.Canceled) || ctx.Err() != nil):
		s.gone.Add(1)
	default:
		s.t.Errorf("%s: %v", b, err)
	}
}

func (s *soak) judge(status int, body, asked, key string, over, stream bool) {
	for _, other := range keyOf.FindAllString(body, -1) {
		if other != key {
			s.t.Errorf("%s got %s of another request: %s", key, other, body)
		}
	}
	switch {
	case status == 200 && !over:
		if stream && !strings.HasSuffix(body, "data: [DONE]\n\n") && !s.restarting.Load() {
			s.t.Errorf("%s: a stream without an end: %.500s", asked, body)
		}
		s.served.Add(1)
	case status == 400 && over && strings.Contains(body, "context_length_exceeded"):
		s.refused.Add(1)
	case s.restarting.Load() && (status == 502 || status == 503 || over):
		s.failed.Add(1)
	default:
		s.t.Errorf("%.400s: %d %.500s", asked, status, body)
	}
}

// settled waits until nothing is under way, looks at every page, and asks what the gateway keeps.
func (s *soak) settled() kept {
	s.t.Helper()
	idle := func() string {
		if f := s.admin("/admin/fleet"); busy.MatchString(f) {
			return "attempts are under way"
		}
		for _, p := range s.pairs {
			for _, w := range p.Workers() {
				c := w.Config()
				all := c.Pool / c.PageSize
				if strings.HasPrefix(p.Engine, "vllm") || p.Engine == fake.Plain {
					all-- // the null block
				}
				if free := w.Pages().Available(); free != all {
					return fmt.Sprintf("%s %s has %d of %d pages", p.Engine, c.Name, free, all)
				}
			}
		}
		return ""
	}
	// A handle that nobody came for is let go when its lease ends: of a client that left in the moment between prefill's work and its
	// answer, with the gateway too late to hear it.
	bad := idle()
	for end := time.Now().Add(2 * time.Minute); bad != "" && time.Now().Before(end); bad = idle() {
		time.Sleep(20 * time.Millisecond)
	}
	if bad != "" {
		s.t.Error(bad)
	}
	for _, p := range s.pairs {
		if l := p.Leaks(); len(l) > 0 {
			s.t.Errorf("%s: workers said another's tokens: %v", p.Engine, l)
		}
	}
	s.client.CloseIdleConnections()
	k := s.g.keeps(s.t)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); { // goroutines of connections end a moment later
		time.Sleep(50 * time.Millisecond)
		again := s.g.keeps(s.t)
		if again.Goroutines == k.Goroutines && again.Files == k.Files {
			return again
		}
		k = again
	}
	return k
}

func (s *soak) admin(path string) string { return get(s.t, "http://"+s.g.Admin+path) }
