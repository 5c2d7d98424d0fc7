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
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fake/actor"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/gateway"
	"github.com/sluicekv/sluice/internal/guard"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

var (
	soakFor   = flag.Int("soak", 2000, "requests of the soak")
	soakUsers = flag.Int("users", 16, "clients of the soak at a time")
)

// soak is a gateway with several models before honest fakes that are strict.
type soak struct {
	t                             *testing.T
	g                             *gateway.Gateway
	client                        *http.Client
	pairs                         []*fake.Pair
	served, gone, refused, failed atomic.Int64
	restarting                    atomic.Bool
}

// Honest workers behind the gateway, under clients of every kind that change their minds: no incident, no rule of any wire broken, no
// reply with another's words in it, and every page back. `make soak-gateway` runs 100,000.
func TestSoakHasNoFalseAlarm(t *testing.T) {
	if guard.Unsafe {
		t.Skip("the soak is of the release build")
	}
	n := *soakFor
	if testing.Short() {
		n = min(n, 400)
	}
	s := newSoak(t, false)
	var wg sync.WaitGroup
	var next atomic.Int64
	for user := range *soakUsers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(user), 7))
			for k := next.Add(1); k <= int64(n); k = next.Add(1) {
				s.one(r, k)
			}
		})
	}
	wg.Wait()
	s.settled()
	t.Logf("%d requests: %d served, %d clients hung up, %d over the limit refused", n, s.served.Load(), s.gone.Load(), s.refused.Load())
	if s.served.Load() < int64(n)/2 || s.gone.Load() == 0 || s.refused.Load() == 0 {
		t.Error("the mix is not what it should be")
	}
	if m := s.admin("/metrics"); strings.Contains(m, "sluice_incidents_total{") {
		t.Errorf("false alarms: %.3000s", s.admin("/admin/incidents"))
	}
}

// Workers that restart, with another pool, under traffic: requests may fail, by their fault and by name, and never otherwise. What is
// counted is that legs broke off; no pair is ejected, and nobody gets another's words.
func TestSoakUnderRestarts(t *testing.T) {
	if guard.Unsafe {
		t.Skip("the soak is of the release build")
	}
	s := newSoak(t, true)
	s.restarting.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var next atomic.Int64
	for user := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(user), 9))
			for k := next.Add(1); ctx.Err() == nil; k = next.Add(1) {
				s.one(r, k)
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
	t.Logf("%d served, %d failed, %d hung up", s.served.Load(), s.failed.Load(), s.gone.Load())
	var all struct {
		Incidents []struct{ Guard, Detail string }
	}
	if err := json.Unmarshal([]byte(s.admin("/admin/incidents")), &all); err != nil {
		t.Fatal(err)
	}
	for _, i := range all.Incidents {
		if i.Guard != "answered" && i.Guard != "prefill-verdict" {
			t.Errorf("an incident of %s: %s", i.Guard, i.Detail)
		}
	}
	if s.served.Load() == 0 {
		t.Error("nothing was served")
	}
}

func newSoak(t *testing.T, restarts bool) *soak {
	s := &soak{t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	var models []gateway.ModelConfig
	for _, engine := range fake.Engines() {
		m := &gateway.Guarded{Fleet: foreign.Config{Engine: asked(engine), Every: 200 * time.Millisecond, Patient: 5 * time.Second}}
		f := fake.NewFleet(patient{t, restarts})
		for i := range 2 {
			p, err := f.Pair(fake.Options{Engine: engine, Model: engine, Context: 8192, Lease: 10 * time.Second, Prefill: fake.Leg{Name: fmt.Sprint("p", i), Pool: 12288},
				Decode: fake.Leg{Name: fmt.Sprint("d", i), Pool: 16384}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			s.pairs = append(s.pairs, p)
			for _, w := range p.Workers() {
				at, _ := url.Parse(w.URL())
				fw := foreign.Worker{Role: capacity.Role(w.Config().Leg.String()), URL: at}
				if _, port := p.Bootstrap(); w == p.Prefill {
					fw.BootstrapPort = port
				}
				m.Fleet.Workers = append(m.Fleet.Workers, fw)
			}
		}
		models = append(models, gateway.ModelConfig{Name: engine, Guarded: m})
	}
	_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
	g, err := gateway.New(gateway.Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Identity: ids["g"], Models: models,
		Modes: gateway.Modes{Each: map[string]gateway.Mode{"first-token": gateway.Enforce, "plausibility": gateway.Off}}})
	if err == nil {
		err = g.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.g = g
	t.Cleanup(func() { g.Close() })
	for end := time.Now().Add(30 * time.Second); strings.Contains(s.admin("/admin/fleet"), `"boots": 0`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the workers' facts are not read")
		}
	}
	return s
}

// patient lets a prefill's restart be noticed a moment later: until then decode is told the old engine's id, and refuses. A worker that
// restarts closes its connections itself.
type patient struct {
	*testing.T
	restarts bool
}

func (p patient) Errorf(format string, args ...any) {
	p.Helper()
	what := fmt.Sprintf(format, args...)
	if p.restarts && (strings.Contains(what, "remote_engine_id is no prefill's of the fleet") || strings.Contains(what, "abort-transfer: the connection")) {
		return
	}
	p.T.Errorf("%s", what)
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
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.g.Addr()+path, strings.NewReader(b+"}"))
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

// settled waits until nothing is under way, and looks at every page.
func (s *soak) settled() {
	idle := func() (bad string) {
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
				if free := w.Pages().Available(); free != all && !s.restarting.Load() { // a request that was there at a restart may have taken the old ones
					bad = fmt.Sprintf("%s %s has %d of %d pages", p.Engine, c.Name, free, all)
				}
			}
		}
		return bad
	}
	bad := idle()
	// A handle that nobody came for is let go when its lease ends: a client left in the moment between prefill's work and its answer. The
	// fakes look for such when they are asked something.
	for end := time.Now().Add(45 * time.Second); bad != "" && time.Now().Before(end); bad = idle() {
		time.Sleep(20 * time.Millisecond)
		if strings.HasPrefix(bad, fake.VLLMNixl) {
			resp, err := s.client.Post("http://"+s.g.Addr()+"/v1/completions", "application/json", strings.NewReader(`{"model":"vllm-nixl","prompt":"a","max_tokens":1}`))
			if err == nil {
				resp.Body.Close()
			}
		}
	}
	if bad != "" {
		s.t.Error(bad)
	}
	for _, p := range s.pairs {
		if l := p.Leaks(); len(l) > 0 {
			s.t.Errorf("%s: workers said another's tokens: %v", p.Engine, l)
		}
	}
}

func (s *soak) admin(path string) string { return admin(s.t, s.g, path) }
