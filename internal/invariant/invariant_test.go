package invariant

import (
	"fmt"
	"strings"
	"testing"
)

func TestViolationPanicsUnderTest(t *testing.T) {
	defer func() {
		if got := recover(); got != "invariant: attempt 7: two ends" {
			t.Fatalf("recovered %v", got)
		}
		if Count() != 0 {
			t.Fatal("a panic was counted as well")
		}
	}()
	Violated("attempt %d: two ends", 7)
	t.Fatal("a violation passed in a test build")
}

func TestConflictNamesBothValues(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "verdict: set twice: first ok, then refused") {
			t.Fatalf("recovered %q", got)
		}
	}()
	Conflict[string]("verdict")("ok", "refused")
}

func TestReleaseBuildRecords(t *testing.T) {
	t.Cleanup(func() { state.count, state.recent, state.observer = 0, nil, nil })
	var heard []string
	Observe(func(m string) { heard = append(heard, m) })
	for i := range kept + 3 {
		violated(false, "number %d", i)
	}
	if Count() != kept+3 {
		t.Fatalf("counted %d", Count())
	}
	r := Recent()
	if len(r) != kept || r[0] != "invariant: number 3" || r[kept-1] != fmt.Sprintf("invariant: number %d", kept+2) {
		t.Fatalf("kept %q", r)
	}
	if len(heard) != kept+3 || heard[0] != "invariant: number 0" {
		t.Fatalf("heard %q", heard)
	}
	r[0] = "x"
	if Recent()[0] == "x" {
		t.Fatal("Recent shares its memory")
	}
}
