package gateway

import (
	"net/url"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/fleet/foreign"
)

// A canary fits the pair that it is to prove, whatever a token is: one that does not is refused each time, and the pair never serves again.
func TestACanaryFitsItsPair(t *testing.T) {
	for _, c := range []struct{ pool, page, least int }{{96, 16, 32}, {160, 16, 32}, {600, 64, 200}, {4096, 16, 256}, {1 << 20, 64, 1024}, {1 << 20, 1024, canaryMost}} {
		at := func(port string) *url.URL { return &url.URL{Scheme: "http", Host: "127.0.0.1:" + port} }
		f, err := foreign.New(foreign.Config{Engine: foreign.SGLang, Model: "m", Every: time.Hour, Workers: []foreign.Worker{
			{Name: "p", Role: capacity.Prefill, URL: at("1"), PoolTokens: c.pool, Context: c.pool, PageSize: c.page},
			{Name: "d", Role: capacity.Decode, URL: at("2"), PoolTokens: c.pool, Context: c.pool, PageSize: c.page},
		}})
		if err != nil {
			t.Fatal(err)
		}
		p, v := f.Pick(foreign.Need{Tokens: 1})
		if !v.IsZero() {
			t.Fatal(v)
		}
		n := canarySize(p)
		if n+canaryTokens > p.Prompt {
			t.Errorf("pool %d, pages of %d: a canary of %d bytes before a limit of %d tokens", c.pool, c.page, n, p.Prompt)
		}
		if n < c.least {
			t.Errorf("pool %d, pages of %d: a canary of %d bytes, want at least %d", c.pool, c.page, n, c.least)
		}
		f.Done(p)
		f.Close()
	}
}
