package tenant

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluicekv/sluice/internal/verdict"
)

// Limits of a tenant. A zero field is no limit.
type Limits struct {
	Concurrency int // requests in flight
	Requests    Rate
	Tokens      Rate // of prompts and replies together, as they were computed
}

// Rate is N in a time of Per, and at most Burst at once.
type Rate struct {
	N, Burst int
	Per      time.Duration
}

// String is the rate as the file has it; "" is none.
func (r Rate) String() string {
	if r.N == 0 {
		return ""
	}
	for unit, d := range units {
		if d == r.Per {
			return fmt.Sprintf("%d/%s", r.N, unit)
		}
	}
	return fmt.Sprintf("%d/%s", r.N, r.Per)
}

func (l Limits) String() string {
	return fmt.Sprintf("%d %v %d %v %d", l.Concurrency, l.Requests, l.Requests.Burst, l.Tokens, l.Tokens.Burst)
}

var units = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// ParseRate reads 600/m: a number, and s, m, h or d. A burst is the number itself.
func ParseRate(s string) (Rate, error) {
	n, unit, ok := strings.Cut(s, "/")
	count, err := number(n)
	if !ok || err != nil || units[unit] == 0 {
		return Rate{}, errors.New("a rate is a number and a time, like 10/s, 600/m, 5000/h or 1000000/d")
	}
	return Rate{count, count, units[unit]}, nil
}

func number(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("it must be a number from 1 to %d", math.MaxInt32)
	}
	return n, nil
}

// set takes one limit, in any order: a burst may stand before its rate.
func (l *Limits) set(name, value string) (err error) {
	rated := func(r *Rate) error {
		read, err := ParseRate(value)
		if r.Burst > 0 {
			read.Burst = r.Burst
		}
		*r = read
		return err
	}
	switch name {
	case "concurrency":
		l.Concurrency, err = number(value)
	case "requests":
		err = rated(&l.Requests)
	case "tokens":
		err = rated(&l.Tokens)
	case "requests_burst":
		l.Requests.Burst, err = number(value)
	case "tokens_burst":
		l.Tokens.Burst, err = number(value)
	}
	return err
}

// check finds a burst of a rate that was not given.
func (l Limits) check() error {
	for name, r := range map[string]Rate{"requests": l.Requests, "tokens": l.Tokens} {
		if r.Burst > 0 && r.N == 0 {
			return fmt.Errorf("%s_burst= needs %s=", name, name)
		}
	}
	return nil
}

// account is what a tenant has in use. It outlives readings of the file.
type account struct {
	most     atomic.Int64 // in flight; 0: no limit
	inFlight atomic.Int64
	requests atomic.Pointer[rate.Limiter] // nil: no limit
	tokens   atomic.Pointer[rate.Limiter]
}

// limit changes the account's limits and keeps what was used.
func (a *account) limit(l Limits, now time.Time) {
	a.most.Store(int64(l.Concurrency))
	for _, b := range []struct {
		of *atomic.Pointer[rate.Limiter]
		to Rate
	}{{&a.requests, l.Requests}, {&a.tokens, l.Tokens}} {
		old := b.of.Load()
		perSecond := rate.Limit(float64(b.to.N) / b.to.Per.Seconds())
		switch {
		case b.to.N == 0:
			b.of.Store(nil)
		case old == nil:
			b.of.Store(rate.NewLimiter(perSecond, b.to.Burst))
		case old.Limit() != perSecond || old.Burst() != b.to.Burst:
			old.SetLimitAt(now, perSecond)
			old.SetBurstAt(now, b.to.Burst)
		}
	}
}

// Lease is one request's use of its tenant's limits. Its methods may be called from several goroutines.
type Lease struct {
	account *account
	tokens  *rate.Limiter // that was charged; nil: none

	mu      sync.Mutex
	charged int
	spent   int
	open    int // attempts whose legs are not quiet, and the request itself
}

// Limit names which limit refused, for metrics.
type Limit string

// Limits by name.
const (
	NoLimit     Limit = ""
	Concurrency Limit = "concurrency"
	Requests    Limit = "requests"
	Tokens      Limit = "tokens"
)

// Refused is a request over a limit of its tenant.
type Refused struct {
	Verdict verdict.Verdict
	Limit   Limit
	Wait    time.Duration // for Retry-After
}

func refused(l Limit, wait time.Duration, format string, args ...any) *Refused {
	return &Refused{verdict.Of(verdict.RateLimited, verdict.Tenant, format, args...), l, min(max(wait, time.Second), 24*time.Hour)}
}

// Enter counts a request in, before its body is read. What is refused uses nothing up.
func (t *Tenant) Enter(now time.Time) (*Lease, *Refused) {
	a := t.account
	n := a.inFlight.Add(1)
	if most := a.most.Load(); most > 0 && n > most {
		a.inFlight.Add(-1)
		return nil, refused(Concurrency, 0, "the limit of %d requests at once is reached", most)
	}
	tokens := a.tokens.Load()
	if tokens != nil {
		if have := tokens.TokensAt(now); have < 1 {
			a.inFlight.Add(-1)
			return nil, refused(Tokens, until(tokens, 1-have), "the limit of %s tokens is used up", per(tokens))
		}
	}
	if r := a.requests.Load(); r != nil && !r.AllowN(now, 1) {
		a.inFlight.Add(-1)
		return nil, refused(Requests, until(r, 1-r.TokensAt(now)), "the limit of %s requests is used up", per(r))
	}
	return &Lease{account: a, tokens: tokens, open: 1}, nil
}

// Charge takes n tokens, what a request is planned to use, before a leg is asked. One that asks for more than the whole limit is
// let through when nothing of it is used. What it really used is settled at its end.
func (l *Lease) Charge(n int, now time.Time) *Refused {
	if l.tokens == nil || n <= 0 {
		return nil
	}
	burst := l.tokens.Burst()
	n = min(n, burst)
	if !l.tokens.AllowN(now, n) {
		have := l.tokens.TokensAt(now)
		return refused(Tokens, until(l.tokens, float64(n)-have), "the request may use %d tokens, and %d are left of the limit of %s", n, max(int(have), 0), per(l.tokens))
	}
	l.mu.Lock()
	l.charged += n
	l.mu.Unlock()
	return nil
}

// Begin is an attempt of the request: its tokens are not known before Spend.
func (l *Lease) Begin() {
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
}

// Spend ends an attempt: n tokens were computed for it.
func (l *Lease) Spend(n int, now time.Time) {
	l.mu.Lock()
	l.spent += n
	l.close(now)
}

// Leave ends the request. What was charged and not used is given back once its last attempt is over.
func (l *Lease) Leave(now time.Time) {
	l.account.inFlight.Add(-1)
	l.mu.Lock()
	l.close(now)
}

// close ends one of those that hold the lease open, and settles with the last. It unlocks mu.
func (l *Lease) close(now time.Time) {
	l.open--
	last, owed := l.open == 0, l.spent-l.charged
	l.mu.Unlock()
	if !last || l.tokens == nil {
		return
	}
	// A limiter takes no more than its burst at once; more than was charged makes a debt, less is given back.
	for burst := max(l.tokens.Burst(), 1); owed != 0; {
		n := max(min(owed, burst), -burst)
		l.tokens.ReserveN(now, n)
		owed -= n
	}
}

// until is how long a limiter needs for so many tokens.
func until(l *rate.Limiter, missing float64) time.Duration {
	if missing <= 0 {
		return 0
	}
	return time.Duration(min(missing/float64(l.Limit()), 1e6) * float64(time.Second))
}

// per is a limiter's rate in words.
func per(l *rate.Limiter) string {
	n := float64(l.Limit())
	for _, u := range []string{"s", "m", "h"} {
		if n >= 1 {
			return fmt.Sprintf("%.0f/%s", n, u)
		}
		n *= 60
	}
	return fmt.Sprintf("%.0f/d", n/60*24)
}
