package gateway

import (
	"strconv"
	"testing"
	"time"

	"github.com/sluicekv/sluice/internal/gateway/upstream/web"
)

// A floor counts when enough was seen, is the fastest of what was seen, and grows with the prompt.
func TestAFloorIsTheFastestOfEnough(t *testing.T) {
	var s floors
	pair, other := [2]string{"p", "d"}, [2]string{"p", "e"}
	for i := range enough {
		if got := s.best(pair, 2048); got != 0 {
			t.Fatalf("%v after %d samples", got, i)
		}
		s.learn(pair, 2048, time.Duration(1000-i)*time.Millisecond)
	}
	if got, want := s.best(pair, 4096), 2*(1000-enough+1)*int(time.Millisecond); int(got) != want {
		t.Errorf("%v, want %v", got, time.Duration(want))
	}
	if got := s.best(other, 2048); got != 0 {
		t.Errorf("another pair's: %v", got)
	}
}

// What prefill had already is not computed; where nobody says what it had, only a prompt that begins like no other counts.
func TestCachedTokensAreNotComputed(t *testing.T) {
	for _, c := range []struct {
		cached int
		cold   bool
		want   int
	}{{-1, false, 0}, {-1, true, 2000}, {0, false, 2000}, {1900, false, 100}, {1900, true, 100}} {
		if got := uncached(web.Report{Prompt: 2000, DecodePrompt: 2000, Cached: c.cached}, c.cold); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// One-sided, and only where something was learned: each row is a reply of a pair that takes 800 ms for 2048 tokens when it computes them.
func TestTooFast(t *testing.T) {
	pair := [2]string{"p", "d"}
	for name, c := range map[string]struct {
		learned int // replies
		prompt  int
		cached  int
		cold    bool
		took    time.Duration
		want    bool
	}{
		"as fast as ever":                      {learned: enough, prompt: 2048, took: 800 * time.Millisecond},
		"slow says nothing":                    {learned: enough, prompt: 2048, took: time.Hour},
		"twice as fast":                        {learned: enough, prompt: 2048, took: 400 * time.Millisecond},
		"faster than it can be":                {learned: enough, prompt: 2048, took: 99 * time.Millisecond, want: true},
		"a long prompt in a short one's time":  {learned: enough, prompt: 100_000, took: 800 * time.Millisecond, want: true},
		"nothing learned":                      {learned: 0, prompt: 2048, took: time.Microsecond},
		"too little learned":                   {learned: enough - 1, prompt: 2048, took: time.Microsecond},
		"a short prompt":                       {learned: enough, prompt: longPrompt - 1, took: time.Microsecond},
		"a cached prefix":                      {learned: enough, prompt: 100_000, cached: 99_500, took: time.Millisecond},
		"a cached prefix that is not enough":   {learned: enough, prompt: 100_000, cached: 50_000, took: time.Millisecond, want: true},
		"nobody says what was cached":          {learned: enough, prompt: 100_000, cached: -1, took: time.Millisecond},
		"nobody says, and it begins like none": {learned: enough, prompt: 100_000, cached: -1, cold: true, took: time.Millisecond, want: true},
		"more cached than there is":            {learned: enough, prompt: 2048, cached: 1 << 30, took: time.Microsecond},
		"a clock that stood still":             {learned: enough, prompt: 2048, took: 0},
		"a clock that went back":               {learned: enough, prompt: 2048, took: -time.Hour},
	} {
		var s floors
		for range c.learned {
			s.learn(pair, 2048, 800*time.Millisecond)
		}
		_, _, got := s.tooFast(pair, web.Report{Prompt: c.prompt, DecodePrompt: c.prompt, Cached: c.cached, Prefill: c.took}, c.cold)
		if got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if _, _, other := s.tooFast([2]string{"p", "another"}, web.Report{Prompt: c.prompt, Cached: c.cached, Prefill: c.took}, c.cold); other {
			t.Errorf("%s: of a pair that nothing is known of", name)
		}
	}
}

// Workers come and go: what is kept of their pairs is bounded, and the newest are learned all the same.
func TestFloorsAreBounded(t *testing.T) {
	var s floors
	for i := range maxFloorKeys + 100 {
		s.learn([2]string{"p", strconv.Itoa(i)}, 2048, time.Second)
	}
	if len(s.pairs) > maxFloorKeys {
		t.Errorf("%d pairs are kept", len(s.pairs))
	}
	newest := [2]string{"p", strconv.Itoa(maxFloorKeys + 99)}
	for range enough {
		s.learn(newest, 2048, time.Second)
	}
	if s.best(newest, 2048) != time.Second {
		t.Error("the newest pair is not learned")
	}
}
