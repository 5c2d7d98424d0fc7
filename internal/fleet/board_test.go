package fleet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/page"
	"github.com/sluicekv/sluice/internal/wire"
)

var t0 = time.Unix(1000, 0)

func helloOf(boot page.Boot) wire.Hello {
	g := page.Geometry{Tokens: 16, Layers: 1, KVHeads: 1, HeadDim: 8, Layout: page.LayoutPairs16}
	return wire.Hello{Boot: boot, Geometry: g, MaxPage: uint32(g.Bytes())}
}

func factsOf(name string, role capacity.Role, pool, context int) capacity.Facts {
	return capacity.Facts{Name: name, Role: role, Version: "1", PoolTokens: pool, PageSize: 16, Context: context, DType: "f16"}
}

// boardOf makes a board with workers p0… and d0… that are all up.
func boardOf(prefill, decode int) *board {
	b := newBoard(Rests{For: time.Minute, Last: 2 * time.Second, MaxShare: 0.5})
	for i := range prefill {
		n := fmt.Sprintf("p%d", i)
		b.add(n, capacity.Prefill, "")
		b.up(n, helloOf(1), factsOf(n, capacity.Prefill, 4096, 4096), "", false)
	}
	for i := range decode {
		n := fmt.Sprintf("d%d", i)
		b.add(n, capacity.Decode, "")
		b.up(n, helloOf(1), factsOf(n, capacity.Decode, 4096, 4096), "h:1", false)
	}
	return b
}

func TestPairsThatDifferAreRefused(t *testing.T) {
	for want, change := range map[string]func(h *wire.Hello, f *capacity.Facts, data *string){
		"model: 00000000 and 09000000": func(h *wire.Hello, _ *capacity.Facts, _ *string) { h.Model[0] = 9 },
		"page geometry: 16 tokens x 1 layers x 1 heads x 8 dims, pairs16-f16 and 16 tokens x 2 layers x 1 heads x 8 dims, pairs16-f16": func(h *wire.Hello, _ *capacity.Facts, _ *string) { h.Geometry.Layers = 2 },
		"page size: 16 and 32":                  func(_ *wire.Hello, f *capacity.Facts, _ *string) { f.PageSize = 32 },
		`KV dtype: "f16" and "f32"`:             func(_ *wire.Hello, f *capacity.Facts, _ *string) { f.DType = "f32" },
		`version: "1" and "2"`:                  func(_ *wire.Hello, f *capacity.Facts, _ *string) { f.Version = "2" },
		"page bytes: 512, and decode takes 511": func(h *wire.Hello, _ *capacity.Facts, _ *string) { h.MaxPage-- },
		"--encrypt-data: false and true":        func(_ *wire.Hello, f *capacity.Facts, _ *string) { f.EncryptData = true },
		"decode names no data socket":           func(_ *wire.Hello, _ *capacity.Facts, d *string) { *d = "" },
	} {
		b := boardOf(1, 1)
		h, f, data := helloOf(1), factsOf("d0", capacity.Decode, 4096, 4096), "h:1"
		change(&h, &f, &data)
		b.up("d0", h, f, data, false)
		if got := differ(b.prefill[0], b.decode[0]); got != want {
			t.Errorf("differ says %q, want %q", got, want)
		}
		if _, ok := b.pick(Need{}, rand.IntN, t0); ok {
			t.Errorf("%s: the pair was chosen", want)
		}
		if ps := b.pairStatus(b.prefill[0], b.decode[0], t0); ps.State != "refused" || ps.Reason != want {
			t.Errorf("status %+v", ps)
		}
		if why := b.why(t0); why != "1 of 1 prefill and 1 of 1 decode workers are usable, 1 of 1 pairs differ in model, pages or version" {
			t.Errorf("%s: clients hear that %s", want, why)
		}
		if p, d := b.alone("p0"), b.alone("d0"); p != want || d != want {
			t.Errorf("alone says %q of prefill and %q of decode, want %q", p, d, want)
		}
		b.up("d0", helloOf(1), factsOf("d0", capacity.Decode, 4096, 4096), "h:1", false)
		if p, d := b.alone("p0"), b.alone("d0"); p != "" || d != "" {
			t.Errorf("alone says %q and %q of a pair that may serve", p, d)
		}
	}
}

func TestLimitFollowsEachRestart(t *testing.T) {
	b := boardOf(1, 1)
	if l := b.widest(t0); l.Tokens != 4096 || l.Setter != "the context of prefill p0" {
		t.Errorf("%+v", l)
	}
	b.down("p0", Connecting, "lost")
	if l := b.widest(t0); l.Tokens != 0 {
		t.Errorf("a pair without prefill promises %d", l.Tokens)
	}
	b.up("p0", helloOf(2), factsOf("p0", capacity.Prefill, 1030, 4096), "", false)
	if l := b.widest(t0); l.Tokens != 1024 || l.Setter != "the KV pool of prefill p0" || !l.Pool {
		t.Errorf("%+v", l)
	}
	if w := b.byName["p0"]; w.boots != 2 {
		t.Errorf("%d boots seen", w.boots)
	}
	b.up("p0", helloOf(2), factsOf("p0", capacity.Prefill, 1030, 4096), "", true)
	if _, ok := b.pick(Need{}, rand.IntN, t0); ok {
		t.Error("a draining worker was chosen")
	}
}

func TestLoadOfAnEndedLinkIsNotGivenBackTwice(t *testing.T) {
	b := boardOf(1, 1)
	p := b.byName["p0"]
	p.load += 100
	epoch := p.epoch
	b.down("p0", Connecting, "lost")
	b.up("p0", helloOf(1), p.facts, "", false)
	p.load += 7
	b.unload("p0", epoch, 100)
	if p.load != 7 {
		t.Errorf("load %d", p.load)
	}
	b.unload("p0", p.epoch, 7)
	if p.load != 0 {
		t.Errorf("load %d", p.load)
	}
}

func TestTheLessLoadedPairIsChosen(t *testing.T) {
	b := boardOf(8, 8)
	for range 4000 {
		c, _ := b.pick(Need{Tokens: 10}, rand.IntN, t0)
		c.prefill.load += 10
		c.decode.load += 10
	}
	for _, ws := range [][]*worker{b.prefill, b.decode} {
		for _, w := range ws {
			if w.load < 4500 || w.load > 5500 {
				t.Errorf("%s has %d of a fair 5000", w.name, w.load)
			}
		}
	}
}

func TestARetryGoesElsewhere(t *testing.T) {
	b := boardOf(1, 2)
	not := Pair{prefill: "p0", decode: "d0", epochs: [2]int{1, 1}}
	for range 100 {
		if c, ok := b.pick(Need{Not: not}, rand.IntN, t0); !ok || c.decode.name != "d1" {
			t.Fatal("the same pair again")
		}
	}
	b.down("d1", Connecting, "")
	for again, want := range map[Again]bool{Never: false, Anew: false, Always: true} {
		if _, ok := b.pick(Need{Not: not, Again: again}, rand.IntN, t0); ok != want {
			t.Errorf("the only pair again, as it is, under %d: %v", again, ok)
		}
	}
	b.down("p0", Connecting, "")
	b.up("p0", helloOf(2), factsOf("p0", capacity.Prefill, 4096, 4096), "", false)
	for again, want := range map[Again]bool{Never: false, Anew: true, Always: true} {
		if _, ok := b.pick(Need{Not: not, Again: again}, rand.IntN, t0); ok != want {
			t.Errorf("the only pair again, anew, under %d: %v", again, ok)
		}
	}
}

func TestRests(t *testing.T) {
	b := boardOf(1, 1)
	if until := b.rest("p0", "d0", "x", t0); until != t0.Add(2*time.Second) {
		t.Errorf("the only pair rests until %v", until)
	}
	if _, ok := b.pick(Need{}, rand.IntN, t0); ok {
		t.Error("a resting pair was chosen")
	}
	if ps := b.pairStatus(b.prefill[0], b.decode[0], t0); ps.State != "resting" || ps.Reason != "x" {
		t.Errorf("%+v", ps)
	}
	if why := b.why(t0); !strings.Contains(why, "1 pairs rest") {
		t.Error(why)
	}
	if _, ok := b.pick(Need{}, rand.IntN, t0.Add(2*time.Second)); !ok {
		t.Error("the rest does not end")
	}

	b = boardOf(2, 2)
	long, last := t0.Add(time.Minute), t0.Add(2*time.Second)
	for i, c := range []struct {
		p, d string
		want time.Time
	}{{"p0", "d0", long}, {"p0", "d1", long}, {"p1", "d0", last}, {"p0", "d0", long}, {"p1", "d1", last}} {
		if until := b.rest(c.p, c.d, "x", t0); until != c.want {
			t.Errorf("%d: %s+%s rests until %v", i, c.p, c.d, until)
		}
	}
}

// Whatever happens on the board, a chosen pair may serve, fits if any pair fits, and its limit is capacity.Pair's.
func TestPickProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := boardOf(rapid.IntRange(1, 4).Draw(t, "prefill"), rapid.IntRange(1, 4).Draw(t, "decode"))
		now := t0
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			w := b.byName[rapid.SampledFrom(b.names()).Draw(t, "worker")]
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				b.down(w.name, Connecting, "lost")
			case 1, 2:
				h, f := helloOf(page.Boot(rapid.IntRange(1, 3).Draw(t, "boot"))), factsOf(w.name, w.role, 16*rapid.IntRange(1, 4).Draw(t, "pool"), 64)
				f.Version = rapid.SampledFrom([]string{"1", "1", "1", "2"}).Draw(t, "version")
				b.up(w.name, h, f, "h:1", rapid.IntRange(0, 5).Draw(t, "draining") == 0)
			case 3:
				p, d := rapid.SampledFrom(b.prefill).Draw(t, "p"), rapid.SampledFrom(b.decode).Draw(t, "d")
				b.rest(p.name, d.name, "x", now)
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 70).Draw(t, "seconds")) * time.Second)
			}
			need := rapid.IntRange(1, 70).Draw(t, "need")
			c, ok := b.pick(Need{Tokens: need}, rand.IntN, now)
			serving, fit := 0, false
			for p, d := range b.pairs {
				if p.usable() && d.usable() && differ(p, d) == "" && b.serves(p, d, now) {
					serving++
					fit = fit || capacity.Pair(p.facts, d.facts).Tokens >= need
				}
			}
			if ok != (serving > 0) {
				t.Fatalf("chosen: %v, of %d that serve", ok, serving)
			}
			if !ok {
				continue
			}
			if !c.prefill.usable() || !c.decode.usable() || differ(c.prefill, c.decode) != "" || !b.serves(c.prefill, c.decode, now) {
				t.Fatal("a pair that may not serve was chosen")
			}
			if want := capacity.Pair(c.prefill.facts, c.decode.facts); c.limit != want {
				t.Fatalf("limit %+v, want %+v", c.limit, want)
			}
			if fit != (c.limit.Tokens >= need) {
				t.Fatalf("need %d: limit %d though a pair fits: %v", need, c.limit.Tokens, fit)
			}
			if w := b.widest(now); w.Tokens < c.limit.Tokens {
				t.Fatalf("widest %d, chosen %d", w.Tokens, c.limit.Tokens)
			}
		}
	})
}

func BenchmarkPick(b *testing.B) {
	bd := boardOf(500, 500)
	for b.Loop() {
		bd.pick(Need{Tokens: 100}, rand.IntN, t0)
	}
}

func BenchmarkWidest(b *testing.B) {
	bd := boardOf(500, 500)
	for b.Loop() {
		bd.widest(t0)
	}
}
