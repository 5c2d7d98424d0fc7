package capacity

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The incident's own numbers.
func TestTheIncidentIsLimitedByThePoolOfPrefill(t *testing.T) {
	p := Facts{Name: "p0", Role: Prefill, PoolTokens: 681_280, PageSize: 64, Context: 1_048_576}
	d := Facts{Name: "d0", Role: Decode, PoolTokens: 2_000_000, PageSize: 64, Context: 1_048_576}
	if l := Pair(p, d); l.Tokens != 681_280 || l.Setter != "the KV pool of prefill p0" || !l.Pool || l.Node != "p0" {
		t.Fatalf("%+v", l)
	}
	_, err := CheckStart(p, false)
	var s Shortfall
	if !errors.As(err, &s) || s.Pool != 681_280 || s.Context != 1_048_576 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"681280", "1048576", "--prefill-kv-tokens", "--context", "--serve-smaller-context"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	f, err := CheckStart(p, true)
	if err != nil || f.Context != 681_280 {
		t.Fatalf("%+v %v", f, err)
	}
	if l := Node(f); l.Tokens != 681_280 {
		t.Fatalf("%+v", l)
	}
}

func TestWholePagesLessTheReserve(t *testing.T) {
	for _, c := range []struct{ pool, page, reserved, want int }{
		{1000, 64, 0, 960}, {1024, 64, 1, 960}, {1000, 0, 0, 1000}, {63, 64, 0, 0}, {10, 1, 20, 0}, {0, 64, 0, 0},
	} {
		if got := (Facts{PoolTokens: c.pool, PageSize: c.page, Reserved: c.reserved}).Usable(); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestWhatIsNotKnownDoesNotFit(t *testing.T) {
	for _, f := range []Facts{{}, {PoolTokens: 100}, {Context: 100}} {
		if l := Node(f); l.Tokens != 0 {
			t.Errorf("%+v: %+v", f, l)
		}
	}
	if _, err := CheckStart(Facts{Context: 10}, true); err == nil {
		t.Error("an empty pool may serve a smaller context of 0")
	}
}

// Whatever the facts: nothing that fits the limit of a pair overflows either side's pool or context.
func TestTheLimitFitsEverywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(r Role) Facts {
			n := rapid.IntRange(0, 5000)
			return Facts{Role: r, PoolTokens: n.Draw(t, "pool"), PageSize: rapid.IntRange(0, 130).Draw(t, "page"),
				Context: n.Draw(t, "context"), Reserved: rapid.IntRange(0, 100).Draw(t, "reserved"), MaxPrompt: rapid.IntRange(0, 6000).Draw(t, "cap")}
		}
		p, d := draw(Prefill), draw(Decode)
		l := Pair(p, d)
		for _, f := range []Facts{p, d} {
			if l.Tokens > f.Context || PagesFor(l.Tokens, max(f.PageSize, 1))*max(f.PageSize, 1) > max(f.PoolTokens-f.Reserved, 0) && l.Tokens > 0 {
				t.Fatalf("%d tokens do not fit %+v", l.Tokens, f)
			}
		}
		if w := Widest(Limit{Tokens: 3}, l); w.Tokens < l.Tokens || w.Tokens < 3 {
			t.Fatalf("%+v", w)
		}
	})
}
