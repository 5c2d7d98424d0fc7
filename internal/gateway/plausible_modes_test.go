package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fake"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
	"github.com/sluicekv/sluice/internal/keyring"
	"github.com/sluicekv/sluice/internal/wire"
)

// A prefill that answers a long prompt in no time, where it was learned to take hours: no byte of the reply leaves if the guard enforces,
// it is counted if it observes, and nothing is said if it is off. The pair does not rest: it is no proof.
func TestPlausibilityInEachMode(t *testing.T) {
	for _, mode := range []Mode{Enforce, Observe, Off} {
		for _, stream := range []bool{false, true} {
			p := fake.NewPair(t, fake.Options{Engine: fake.VLLMNixl})
			at := func(s string) *url.URL { u, _ := url.Parse(s); return u }
			_, ids := keyring.Ephemeral(keyring.Node{Name: "g", Role: wire.RoleGateway})
			g, err := New(Config{Listen: "127.0.0.1:0", Identity: ids["g"], Modes: Modes{Each: map[string]Mode{"plausibility": mode}},
				Models: []ModelConfig{{Name: "recall", Guarded: &Guarded{Fleet: foreign.Config{Engine: fake.VLLMNixl, Every: time.Hour, Workers: []foreign.Worker{
					{Name: "p", Role: capacity.Prefill, URL: at(p.Prefill.URL())}, {Name: "d", Role: capacity.Decode, URL: at(p.Decode.URL())}}}}}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { g.Close() })
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if err := g.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
			ask := func() (int, string) {
				body := fmt.Sprintf(`{"model":"recall","max_tokens":2,"stream":%v,"prompt":"%s"}`, stream, strings.Repeat("A. ", 800))
				resp, err := http.Post("http://"+g.Addr()+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				b, _ := io.ReadAll(resp.Body)
				return resp.StatusCode, string(b)
			}
			if status, body := ask(); status != 200 {
				t.Fatalf("%s: nothing was learned, and %d %s", mode, status, body)
			}
			floors := &g.catalog().find("recall").guarded.floor
			for range enough {
				floors.learn([2]string{"p", "d"}, longPrompt, time.Hour)
			}
			// What the reply before taught is nearer to the truth, and the floor is the least.
			floors.mu.Lock()
			floors.pairs[[2]string{"p", "d"}].best = time.Hour
			floors.mu.Unlock()
			status, body := ask()
			if (mode == Enforce) != (status == 502) || mode == Enforce && strings.Contains(body, "choices") {
				t.Errorf("%s, stream %v: %d %s", mode, stream, status, body)
			}
			for end := time.Now().Add(5 * time.Second); mode != Off && len(g.incidents.list()) == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			switch said := g.incidents.list(); {
			case mode == Off && len(said) != 0:
				t.Errorf("off, and %+v", said)
			case mode != Off && (len(said) != 1 || said[0].Guard != guardPlausibility || said[0].Mode != mode.String()):
				t.Errorf("%s, stream %v: %+v", mode, stream, said)
			}
			if g.catalog().find("recall").fleet.Limit().Tokens == 0 {
				t.Errorf("%s: the pair rests for what is no proof", mode)
			}
		}
	}
}
