package tenant

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/verdict"
)

// limited is a tenant with these limits, at a clock that the test moves.
func limited(t *testing.T, options string) (*Tenant, time.Time) {
	t.Helper()
	k, err := Read(strings.NewReader(Line("alice", "sk-a", options)), nil)
	if err != nil {
		t.Fatal(err)
	}
	x := k.tenants[0].tenant
	x.account = &account{}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	x.account.limit(k.tenants[0].limits, now)
	return &x, now
}

func enter(t *testing.T, x *Tenant, now time.Time) *Lease {
	t.Helper()
	l, no := x.Enter(now)
	if no != nil {
		t.Fatalf("%v", no.Verdict)
	}
	return l
}

func TestConcurrency(t *testing.T) {
	x, now := limited(t, "concurrency=2")
	a, b := enter(t, x, now), enter(t, x, now)
	_, no := x.Enter(now)
	if no == nil || no.Limit != Concurrency || no.Wait != time.Second || no.Verdict.Code != verdict.RateLimited || no.Verdict.Reason != "the limit of 2 requests at once is reached" {
		t.Fatalf("%+v", no)
	}
	a.Leave(now)
	enter(t, x, now).Leave(now)
	b.Leave(now)
	if n := x.account.inFlight.Load(); n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestRequestRate(t *testing.T) {
	x, now := limited(t, "requests=60/m requests_burst=3")
	for range 3 {
		enter(t, x, now).Leave(now)
	}
	_, no := x.Enter(now)
	if no == nil || no.Limit != Requests || no.Wait != time.Second || no.Verdict.Reason != "the limit of 1/s requests is used up" {
		t.Fatalf("%+v", no)
	}
	now = now.Add(time.Second)
	enter(t, x, now).Leave(now)
	if _, no := x.Enter(now); no == nil {
		t.Error("a second's worth is one request")
	}
	// Slow rates say how long to stay away.
	x, now = limited(t, "requests=1/h")
	enter(t, x, now).Leave(now)
	if _, no := x.Enter(now); no == nil || no.Wait != time.Hour {
		t.Errorf("%+v", no)
	}
}

// The token limit counts what was computed: what was planned for and not used is given back, what was used beyond is owed.
func TestTokensAreSettledByWhatWasComputed(t *testing.T) {
	x, now := limited(t, "tokens=60000/m tokens_burst=1000") // 1000 a second
	left := func() int { return int(x.account.tokens.Load().TokensAt(now)) }
	run := func(charge int, computed ...int) {
		t.Helper()
		l := enter(t, x, now)
		if no := l.Charge(charge, now); no != nil {
			t.Fatalf("%v", no.Verdict)
		}
		for range computed {
			l.Begin()
		}
		l.Leave(now)
		for _, n := range computed {
			l.Spend(n, now)
		}
	}
	run(900, 100)
	if left() != 900 {
		t.Errorf("%d left, want 900: 100 were computed", left())
	}
	run(100, 50, 30) // two attempts
	if left() != 820 {
		t.Errorf("%d left, want 820", left())
	}
	run(100) // refused before a leg was asked
	if left() != 820 {
		t.Errorf("%d left, want 820", left())
	}
	run(10, 3820) // far more than planned, and than the burst: a debt
	if left() != -3000 {
		t.Errorf("%d left, want -3000", left())
	}
	_, no := x.Enter(now)
	if no == nil || no.Limit != Tokens || no.Wait < 3*time.Second || no.Wait > 4*time.Second || no.Verdict.Reason != "the limit of 1000/s tokens is used up" {
		t.Fatalf("%+v", no)
	}
	now = now.Add(no.Wait)
	enter(t, x, now).Leave(now)

	now = now.Add(time.Hour)
	run(500, 499)
	l := enter(t, x, now)
	no = l.Charge(600, now)
	if no == nil || no.Limit != Tokens || no.Wait != time.Second || no.Verdict.Reason != "the request may use 600 tokens, and 501 are left of the limit of 1000/s" {
		t.Errorf("%+v", no)
	}
	l.Leave(now)
	if left() != 501 {
		t.Errorf("%d left: a refused charge was kept", left())
	}
	// More than the whole limit: let through when nothing is in use, for the whole of it.
	now = now.Add(time.Hour)
	run(5000, 5000)
	if left() != -4000 {
		t.Errorf("%d left, want -4000", left())
	}
}

// While legs go on after their client has gone, what was charged for them stays charged.
func TestChargesStayUntilTheLegsAreQuiet(t *testing.T) {
	x, now := limited(t, "tokens=60/m tokens_burst=1000")
	l := enter(t, x, now)
	l.Charge(800, now)
	l.Begin()
	l.Leave(now)
	if got := x.account.tokens.Load().TokensAt(now); got != 200 {
		t.Errorf("%v left while a leg runs", got)
	}
	l.Spend(10, now)
	if got := x.account.tokens.Load().TokensAt(now); got != 990 {
		t.Errorf("%v left at the end", got)
	}
}

// Many at once: never more in flight than allowed, and the sum is exact.
func TestLimitsUnderContention(t *testing.T) {
	x, now := limited(t, "concurrency=4 tokens=60/m tokens_burst=100000000")
	var wg sync.WaitGroup
	var mu sync.Mutex
	spent := 0
	for range 8 {
		wg.Go(func() {
			for range 500 {
				l, no := x.Enter(now)
				if no != nil {
					continue
				}
				if n := x.account.inFlight.Load(); n > 4+8 { // those that are about to be refused count for a moment
					t.Errorf("%d in flight", n)
				}
				l.Charge(1000, now)
				l.Begin()
				l.Leave(now)
				l.Spend(7, now)
				mu.Lock()
				spent += 7
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got := 100000000 - int(x.account.tokens.Load().TokensAt(now)); got != spent || spent == 0 {
		t.Errorf("%d taken, %d computed", got, spent)
	}
}

// A limit that changes keeps what was used of it; one that is new begins full; one that is gone is gone.
func TestLimitsChange(t *testing.T) {
	x, now := limited(t, "requests=10/h")
	for range 9 {
		enter(t, x, now).Leave(now)
	}
	x.account.limit(Limits{Requests: Rate{20, 20, time.Hour}, Tokens: Rate{5, 5, time.Second}}, now)
	enter(t, x, now).Leave(now)
	if _, no := x.Enter(now); no == nil || no.Limit != Requests {
		t.Errorf("a new limit forgot what was used: %+v", no)
	}
	x.account.limit(Limits{}, now)
	for range 100 {
		l := enter(t, x, now)
		if no := l.Charge(1<<30, now); no != nil {
			t.Fatal(no.Verdict)
		}
		l.Leave(now)
	}
}

func TestRates(t *testing.T) {
	for in, want := range map[string]string{"10/s": "10/s", "600/m": "10/s", "1/m": "1/m", "30/h": "30/h", "1/d": "1/d", "1000000/d": "12/s"} {
		r, err := ParseRate(in)
		if err != nil || r.String() != in {
			t.Errorf("%s: %v %v", in, r, err)
		}
		x, _ := limited(t, "requests="+in)
		if got := per(x.account.requests.Load()); got != want {
			t.Errorf("%s reads %s, want %s", in, got, want)
		}
	}
}

func BenchmarkLease(b *testing.B) {
	x := Tenant{account: &account{}}
	now := time.Now()
	x.account.limit(Limits{1 << 20, Rate{1 << 30, 1 << 30, time.Second}, Rate{1 << 30, 1 << 30, time.Second}}, now)
	b.ReportAllocs()
	for b.Loop() {
		l, no := x.Enter(now)
		if no != nil {
			b.Fatal(no)
		}
		l.Charge(100, now)
		l.Begin()
		l.Spend(90, now)
		l.Leave(now)
	}
}

func ExampleParseRate() {
	r, _ := ParseRate("600/m")
	fmt.Println(r.N, r.Burst, r.Per)
	// Output: 600 600 1m0s
}
