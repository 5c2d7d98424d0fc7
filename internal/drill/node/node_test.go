package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicekv/sluice/internal/attempt"
	"github.com/sluicekv/sluice/internal/handoff/trace"
	"github.com/sluicekv/sluice/internal/verdict"
	"github.com/sluicekv/sluice/internal/wire"
)

func TestANodeListensWhereNobodyElseIs(t *testing.T) {
	seed := [32]byte{1}
	for addr, ok := range map[string]bool{"127.0.0.1:0": true, "[::1]:0": true, "198.18.7.1:0": true, "198.20.0.1:0": false, "0.0.0.0:0": false, ":0": false, "10.0.0.1:0": false,
		"localhost:0": false, "example.com:1": false} {
		for _, c := range []Config{{Seed: seed, Listen: addr}, {Seed: seed, Data: addr}, {Seed: seed, Advertise: addr}, {Seed: seed, Decode: addr}, {Seed: seed, Prefills: []string{addr}}} {
			if err := c.validate(); (err == nil) != ok || err != nil && !errors.Is(err, ErrAddress) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
	if err := (Config{}).validate(); err == nil {
		t.Error("a node without a seed")
	}
}

func TestANodeWithoutAParentIsNothing(t *testing.T) {
	for _, in := range []string{"", "{}\n", "not json\n", `{"kind":"decode","seed":[0],"listen":"127.0.0.1:0"}` + "\n"} {
		var out strings.Builder
		if err := Run(strings.NewReader(in), &out, nil); err == nil || out.Len() > 0 {
			t.Errorf("%q: %v, %q", in, err, out.String())
		}
	}
}

func TestAnEventGoesThroughThePipeWhole(t *testing.T) {
	want := trace.Event{Attempt: attempt.New(), Boot: 1 << 60, Machine: trace.Pool, Args: trace.Args{Step: trace.Reserve, A: 1 << 31, B: 2, C: 3, Code: verdict.Internal}, State: 9, Digest: 1 << 63}
	var b [EventSize]byte
	Put(&b, want)
	if got := Get(b[:]); got != want {
		t.Errorf("%+v", got)
	}
}

func TestRulesActOnTheFramesThatTheyName(t *testing.T) {
	var r frames
	r.set([]Rule{{Kind: "abort", Out: true, Skip: 1, Most: 1}, {Kind: "page", Data: true, Times: 2}})
	for i, c := range []struct {
		m    wire.Medium
		out  bool
		f    wire.Frame
		want int
	}{
		{wire.Control, true, wire.Abort{}, 1}, {wire.Control, false, wire.Abort{}, 1}, {wire.Data, true, wire.Abort{}, 1}, {wire.Control, true, wire.Abort{}, 0},
		{wire.Control, true, wire.Abort{}, 1}, {wire.Data, false, wire.PageHeader{}, 2}, {wire.Data, true, wire.PageHeader{}, 1},
	} {
		if got := len(r.filter(c.m, c.out, c.f)); got != c.want {
			t.Errorf("frame %d passes %d times, want %d", i, got, c.want)
		}
	}
	if r.count() != 1 {
		t.Errorf("the first rule fired %d times", r.count())
	}
}
