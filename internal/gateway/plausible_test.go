package gateway

import (
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
