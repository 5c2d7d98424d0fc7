package foreign

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/capacity"
	"github.com/sluicekv/sluice/internal/verdict"
)

// pinnedWorkers are workers that nobody has to read.
func pinnedWorkers(prefills, decodes int, change func(i int, w *Worker)) (ws []Worker) {
	for i := range prefills + decodes {
		w := Worker{Role: capacity.Prefill, Name: fmt.Sprintf("p%d", i), URL: &url.URL{Scheme: "http", Host: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250)}, PoolTokens: 4096, Context: 8192, PageSize: 16}
		if i >= prefills {
			w.Role, w.Name = capacity.Decode, fmt.Sprintf("d%d", i-prefills)
		}
		if change != nil {
			change(i, &w)
		}
		ws = append(ws, w)
	}
	return ws
}

func pinnedFleet(t testing.TB, cfg Config) *Fleet {
	t.Helper()
	if cfg.Engine == "" {
		cfg.Engine = SGLang
	}
	cfg.Model = "m"
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func pick(t testing.TB, f *Fleet, n Need) Pair {
	t.Helper()
	p, v := f.Pick(n)
	if !v.IsZero() {
		t.Fatal(v)
	}
	return p
}

// Load is spread: with every attempt still in flight, no worker has much more than its share.
func TestLoadIsSpread(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(10, 10, nil)})
	const each = 20
	for range 10 * each {
		pick(t, f, Need{Tokens: 100, Load: 100})
	}
	for _, n := range f.workers {
		if got := *n.load / 100; got < each/2 || got > each+each/2 {
			t.Errorf("%s has %d of %d attempts", n.Name, got, 10*each)
		}
	}
}

// A sequence goes where it fits, and where nothing holds it, to the widest pair, whose limit admission then names.
func TestASequenceGoesWhereItFits(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(4, 4, func(i int, w *Worker) {
		if i == 2 || i == 5 {
			w.PoolTokens = 8192
		}
	})})
	for range 50 {
		if p := pick(t, f, Need{Tokens: 5000, Load: 1}); p.Prefill.Name != "p2" || p.Decode.Name != "d1" || p.Limit.Tokens != 8160 || p.Prompt != 8160 {
			t.Fatalf("%v, limit %d", p.key(), p.Limit.Tokens)
		}
	}
	if l := f.Limit(); l.Tokens != 8160 {
		t.Errorf("the fleet's limit is %d", l.Tokens)
	}
	if p := pick(t, f, Need{Tokens: 9000, Load: 1}); p.Limit.Tokens != 8160 {
		t.Errorf("%v, limit %d", p.key(), p.Limit.Tokens)
	}
}

// Only workers that agree in what must not differ are a pair.
func TestPairsAgree(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(6, 6, func(i int, w *Worker) {
		switch i % 3 {
		case 1:
			w.PageSize = 64
		case 2:
			w.DType = "fp8_e4m3"
		}
	})})
	for range 500 {
		if p := pick(t, f, Need{Tokens: 10, Load: 1}); p.Prefill.class.differ(p.Decode.class) != "" {
			t.Fatal(p.key(), p.Prefill.class.differ(p.Decode.class))
		}
	}
	st := f.Status(t.Context(), false)
	if st.Counts["refused"] != 16 || st.Counts["usable"] != 20 { // an unknown type is no difference
		t.Errorf("%v", st.Counts)
	}
	for _, p := range st.Pairs {
		if p.State == "refused" && p.Reason == "" {
			t.Error("a pair is refused without a reason")
		}
	}
}

// A worker at its budget gets nothing more, and where all are, the client is told to come back.
func TestBudgets(t *testing.T) {
	f := pinnedFleet(t, Config{Budget: 1000, Workers: pinnedWorkers(2, 2, nil)})
	for range 6 {
		pick(t, f, Need{Tokens: 300, Load: 300})
	}
	for _, n := range f.workers {
		if *n.load > 1000 {
			t.Errorf("%s has %d tokens", n.Name, *n.load)
		}
	}
	p, v := f.Pick(Need{Tokens: 300, Load: 300})
	if v.Code != verdict.RateLimited {
		t.Fatalf("%v %v", p, v)
	}
}

// A worker that failed is left alone while others serve, then tried by one attempt, and used when nothing else is left.
func TestAWorkerThatFailsIsLeftAlone(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(3, 3, nil)})
	bad := f.byName["p0"]
	for range coldAfter {
		f.Failed(bad)
	}
	for range 300 {
		if p := pick(t, f, Need{Tokens: 1, Load: 1}); p.Prefill == bad {
			t.Fatal("a worker that failed just now was chosen")
		}
	}
	bad.shunned = time.Now().Add(-time.Second)
	tried := 0
	for range 300 {
		if p := pick(t, f, Need{Tokens: 1}); p.Prefill == bad {
			tried++
		}
	}
	if tried != 1 {
		t.Errorf("%d attempts tried it", tried)
	}
	f.Worked(bad)
	if !bad.since.After(time.Now().Add(-time.Minute)) {
		t.Error("it does not start slowly")
	}
	for _, n := range []string{"p0", "p1", "p2"} {
		f.Failed(f.byName[n])
	}
	pick(t, f, Need{Tokens: 1})
}

// A worker that came a moment ago gets less than its share while others are as free.
func TestSlowStart(t *testing.T) {
	f := pinnedFleet(t, Config{SlowStart: time.Hour, Workers: pinnedWorkers(1, 4, nil)})
	fresh := f.byName["d0"]
	fresh.since = time.Now()
	for range 400 {
		pick(t, f, Need{Tokens: 100, Load: 100})
	}
	if got := *fresh.load / 100; got == 0 || got > 40 {
		t.Errorf("it got %d of 400, a full share is 100", got)
	}
}

// What begins alike goes to the same prefill worker, as long as that has not much more to do than another.
func TestNear(t *testing.T) {
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(8, 8, nil)})
	near := Near{Prefix: []uint64{77, 78}}
	first := pick(t, f, Need{Tokens: 10, Load: 10, Near: near})
	f.Done(first)
	for range 50 {
		p := pick(t, f, Need{Tokens: 10, Load: 10, Near: Near{Prefix: []uint64{99, 78}}})
		if p.Prefill != first.Prefill {
			t.Fatal("a request that begins alike went elsewhere")
		}
		f.Done(p)
	}
	elsewhere := 0
	for range 50 {
		p := pick(t, f, Need{Tokens: 10, Load: 10, Near: Near{Prefix: []uint64{5}}})
		if p.Prefill != first.Prefill {
			elsewhere++
		}
		f.Done(p)
		f.affinity = affinity{}
	}
	if elsewhere < 25 {
		t.Errorf("%d of 50 requests that begin otherwise went elsewhere", elsewhere)
	}
	*first.Prefill.load += 100000
	took := 0
	for range 100 {
		f.affinity.put(near, first)
		p := pick(t, f, Need{Tokens: 10, Load: 10, Near: near})
		if p.Prefill == first.Prefill {
			took++
		}
		f.Done(p)
	}
	if took > 20 { // one in 64 draws it twice
		t.Errorf("a cache is not worth a queue, and was %d times of 100", took)
	}
	s := pick(t, f, Need{Tokens: 10, Load: 10, Near: Near{Session: 4}})
	for range 20 {
		if p := pick(t, f, Need{Tokens: 10, Load: 10, Near: Near{Session: 4}}); p.key() != s.key() {
			t.Fatal("a session changed its pair")
		}
	}
	f.Drain(s.Decode.Name, true)
	if p := pick(t, f, Need{Tokens: 10, Load: 10, Near: Near{Session: 4}}); p.Decode == s.Decode {
		t.Error("a drained worker was chosen for a session")
	}
}

// What is remembered is bounded.
func TestAffinityIsBounded(t *testing.T) {
	var a affinity
	for i := range uint64(10 * maxPlaces) {
		a.set(i+1, place{})
	}
	if n := len(a.young) + len(a.old); n > 2*maxPlaces {
		t.Errorf("%d places", n)
	}
	if _, ok := a.get(10 * maxPlaces); !ok {
		t.Error("the last is forgotten")
	}
}

// Pick among 500 x 500 pairs.
func BenchmarkPick(b *testing.B) {
	for _, c := range []struct {
		name string
		need Need
		rest bool
	}{
		{"plain", Need{Tokens: 1000, Load: 1000}, false},
		{"near", Need{Tokens: 1000, Load: 1000, Near: Near{Session: 1, Prefix: []uint64{2, 3, 4, 5}}}, false},
		{"resting", Need{Tokens: 1000, Load: 1000}, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := pinnedFleet(b, Config{Workers: pinnedWorkers(500, 500, func(i int, w *Worker) { w.PoolTokens = 4096 + 16*(i%97) })})
			if c.rest {
				for range 200 {
					f.Rest(pick(b, f, c.need), "a test")
				}
			}
			b.ResetTimer()
			for i := range b.N {
				need := c.need
				need.Near.Session += uint64(i % 5000)
				p, v := f.Pick(need)
				if !v.IsZero() {
					b.Fatal(v)
				}
				f.Done(p)
			}
		})
	}
}

// Prefill holds the prompt alone: a long reply needs room at decode, and a prefill whose pool is smaller than both together is good enough.
func TestAReplyNeedsNoRoomAtPrefill(t *testing.T) {
	small := func(i int, w *Worker) {
		if w.Role == capacity.Prefill {
			w.PoolTokens = 1024
		} else {
			w.PoolTokens = 8192
		}
	}
	for _, c := range []struct {
		engine string
		need   Need
		holds  bool
	}{
		{SGLang, Need{Prompt: 900, Tokens: 4000}, true},
		{SGLang, Need{Prompt: 1500, Tokens: 1600}, false},
		{SGLang, Need{Tokens: 1600}, false}, // all of it may be prompt
		{SGLang, Need{Prompt: 900, Tokens: 8190}, false},
		{VLLMNixl, Need{Prompt: 900, Tokens: 4000}, true},
	} {
		f := pinnedFleet(t, Config{Engine: c.engine, Workers: pinnedWorkers(1, 1, small)})
		if p := pick(t, f, c.need); p.Holds(c.need) != c.holds {
			t.Errorf("%s: %+v: the pair holds %d of a prompt and %d of a sequence", c.engine, c.need, p.Limit.Tokens, p.Sequence.Tokens)
		}
		// Beside a larger prefill, it is chosen all the same where it is good enough.
		ws := pinnedWorkers(2, 1, func(i int, w *Worker) {
			small(i, w)
			if i == 1 {
				w.PoolTokens = 4096
			}
		})
		f = pinnedFleet(t, Config{Engine: c.engine, Workers: ws})
		seen := map[string]bool{}
		for range 100 {
			p := pick(t, f, c.need)
			f.Done(p)
			seen[p.Prefill.Name] = true
		}
		if seen["p0"] != (c.holds) {
			t.Errorf("%s: %+v went to %v", c.engine, c.need, seen)
		}
	}
	// SGLang's prefill is told how long the reply may be, and holds the sum against its context.
	f := pinnedFleet(t, Config{Workers: pinnedWorkers(1, 1, func(i int, w *Worker) {
		w.PoolTokens, w.Context = 8192, 16384
		if w.Role == capacity.Prefill {
			w.Context = 2048
		}
	})})
	if p := f.Widest(); p.Sequence.Tokens != 2048 || p.Sequence.Setter != "the context of prefill p0" {
		t.Errorf("%+v", p.Sequence)
	}
}

// What a look at all pairs costs, and the longest that a request waits for a pair meanwhile.
func BenchmarkStatus(b *testing.B) {
	f := pinnedFleet(b, Config{Workers: pinnedWorkers(500, 500, nil)})
	for range 200 {
		f.Rest(pick(b, f, Need{Tokens: 1000, Load: 1000}), "a test")
	}
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		for {
			select {
			case <-stop:
				longest <- most
				return
			default:
			}
			began := time.Now()
			if p, v := f.Pick(Need{Tokens: 1000, Load: 1000}); v.IsZero() {
				f.Done(p)
			}
			most = max(most, time.Since(began))
		}
	}()
	b.ResetTimer()
	for range b.N {
		f.Status(b.Context(), false)
	}
	close(stop)
	b.ReportMetric(float64((<-longest).Microseconds()), "longest-pick-µs")
}
