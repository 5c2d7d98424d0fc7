package verdict

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The numbers are on the wire and in recorded traces, and the rest is what clients and operators act on: every property of every code and
// the number of every layer is what testdata/codes.txt says. A new code is a new line there; no other line changes.
func TestCodesAndLayersAreTheOnesOfTheList(t *testing.T) {
	var b strings.Builder
	for c := range numCodes + 2 {
		a := c.About()
		fmt.Fprintf(&b, "code %d %s: known %v, %s, %d %s %s, retry %v, proof %v\n", uint8(c), c, c.Known(), a.Name, a.Status, a.Type, a.API, a.Retry, a.Proof)
	}
	for l := range numLayers + 2 {
		fmt.Fprintf(&b, "layer %d %s\n", uint8(l), l)
	}
	want, err := os.ReadFile("testdata/codes.txt")
	if err != nil || b.String() != string(want) {
		t.Errorf("%v; the list should say\n%s", err, b.String())
	}
}

func TestUnknownNamesAreErrors(t *testing.T) {
	c, l := MACMismatch, Gate
	for _, name := range []string{"", "mac", "MAC_MISMATCH", "code(200)"} {
		if err := c.UnmarshalText([]byte(name)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) || c != MACMismatch {
			t.Errorf("code %q: %v, %v", name, c, err)
		}
		if err := l.UnmarshalText([]byte(name)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) || l != Gate {
			t.Errorf("layer %q: %v, %v", name, l, err)
		}
	}
}

func TestRefusalsSayTheirNumbers(t *testing.T) {
	for want, v := range map[string]Verdict{
		"the prompt has 9 tokens, but at most 7 fit (set by x)":                                    TooLong(Open, 9, 0, false, 7, "x"),
		"the prompt has at least 9 tokens, but at most 7 fit (set by x)":                           TooLong(Open, 9, 0, true, 7, "x"),
		"the prompt has 6 tokens and asks for up to 1 more, but at most 6 fit (set by x)":          TooLong(Open, 6, 1, false, 6, "x"),
		"the prompt has at least 6 tokens and asks for up to 2 more, but at most 7 fit (set by x)": TooLong(Open, 6, 2, true, 7, "x"),
		"3 pages wanted, 1 of 2 free":                                                              NoPages(Open, 3, 1, 2),
	} {
		if v.Reason != want || v.Layer != Open || v.Status != v.Code.About().Status {
			t.Errorf("%v, not %q", v, want)
		}
	}
	v := Served(Decode)
	if !v.OK() || v.IsZero() || v.At(Stream) != (Verdict{Code: OK, Layer: Stream, Reason: "served", Status: 200}) || v.Layer != Decode {
		t.Errorf("%v", v)
	}
	no := Of(Deadline, Gate, "after %d s", 3)
	if no.OK() || (Verdict{}).OK() || !(Verdict{}).IsZero() || no.Error() != "deadline_exceeded by gate: after 3 s (504)" {
		t.Errorf("%v", no)
	}
}

// A cell that nobody waited on first is like one that somebody did.
func TestDoneIsClosedForWhoeverAsksLate(t *testing.T) {
	for name, set := range map[string]func(*Cell, Verdict) bool{"set": (*Cell).Set, "try": (*Cell).TrySet} {
		for _, early := range []bool{false, true} {
			var c Cell
			var first <-chan struct{}
			if early {
				first = c.Done()
			}
			if !set(&c, Served(Decode)) || set(&c, Served(Decode)) {
				t.Errorf("%s: not once", name)
			}
			if v, ok := c.Get(); !ok || v != Served(Decode) {
				t.Errorf("%s: %v, %v", name, v, ok)
			}
			for _, done := range []<-chan struct{}{c.Done(), first} {
				if done == nil {
					continue
				}
				select {
				case <-done:
				default:
					t.Errorf("%s, early %v: Done is open", name, early)
				}
			}
			c.Conflict = func(Verdict, Verdict) {}
			if set(&c, Of(Deadline, Gate, "")) {
				t.Errorf("%s: a second verdict was first", name)
			}
		}
	}
}
